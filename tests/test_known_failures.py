"""Failures that users of other endpoints reported, each as a test that would have caught it, on the
demo models.

Where a failure comes from what diarization finds, a stand-in finds just that, and the rest of the
endpoint meets it."""

import json
import math
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.nightly import some
from tests.support.audio_files import conversation, request_body, wav_file
from whosaid.diarization.diarizer import Capabilities, Diarization
from whosaid.transcript import SpeakerTurn

DEMO = Path(__file__).parent.parent / "demo"
TRUTH = json.loads((DEMO / "conversation.json").read_text())
# A stretch of the conversation between two pauses, in seconds.
PASSAGE = (26.0, 46.6)
LENGTH = PASSAGE[1] - PASSAGE[0]
MIDDLE = 46  # seconds


class Found:
    capabilities = Capabilities(hints=True, voices=True)

    def __init__(self, *turns: tuple[str, float, float]) -> None:
        self.turns = tuple(SpeakerTurn(*turn) for turn in turns)

    def diarize(self, *_: object) -> Diarization:
        return Diarization(self.turns, self.turns)


@pytest.fixture(scope="module")
def passage() -> np.ndarray:
    return conversation()[round(PASSAGE[0] * 16_000) : round(PASSAGE[1] * 16_000)]


def ask(handler: Any, samples: np.ndarray, **parameters: Any) -> dict[str, Any]:
    file = wav_file(samples.astype(np.float64), 16_000)
    return handler(request_body(file, **{"language": "en", **parameters}))


@pytest.fixture
def ask_of(demo_handler, passage, monkeypatch):
    """Asks for the passage, in which diarization finds the turns given."""

    def ask_with(*turns: tuple[str, float, float], **parameters: Any) -> dict[str, Any]:
        monkeypatch.setattr(demo_handler.endpoint.models, "diarizer", Found(*turns))
        return ask(demo_handler, passage, **parameters)

    return ask_with


def assert_whole(answer: dict[str, Any]) -> None:
    """Everything said is said by chunks and by speakers alike, at times that are times."""
    assert answer["text"].split()
    for entries in (answer["chunks"], answer["speakers"]):
        assert "".join(entry["text"] for entry in entries) == answer["text"]
        times = [time for entry in entries for time in entry["timestamp"]]
        assert all(isinstance(time, float) and math.isfinite(time) for time in times)
        assert times == sorted(times)
        assert times[-1] <= answer["duration"]


def test_audio_cut_off_in_the_middle_of_a_word(demo_handler, monkeypatch):
    """insanely-fast-whisper #91: no end was predicted, and `None - float` ended the request.

    transformers' pipeline gives the last chunk of these thirty seconds of speech the end None, with
    this model too."""
    cut = 41.72  # seconds
    assert any(word["start"] < cut < word["end"] for word in TRUTH["words"])
    monkeypatch.setattr(demo_handler.endpoint.models, "diarizer", Found(("SPEAKER_00", 0.0, 30.0)))
    answer = ask(demo_handler, conversation()[round((cut - 30) * 16_000) : round(cut * 16_000)])
    assert_whole(answer)
    assert answer["chunks"][-1]["timestamp"][1] == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize("parameters", [{}, {"group_by_speaker": False}])
def test_more_turns_than_chunks(ask_of, parameters):
    """insanely-fast-whisper #76: every turn took a chunk, until none was left."""
    turns = [(f"SPEAKER_0{i % 3}", i / 4, (i + 1) / 4) for i in range(int(LENGTH * 4))]
    answer = ask_of(*turns, **parameters)
    assert len(turns) > len(answer["chunks"])
    assert_whole(answer)


@pytest.mark.parametrize(
    "turns",
    some(
        2,
        [
            [],
            [("SPEAKER_00", 0.0, 3.0), ("SPEAKER_01", LENGTH + 1.0, LENGTH + 9.0)],
            [("SPEAKER_00", 0.0, 2.0)],
            [("SPEAKER_00", LENGTH - 3.0, LENGTH)],
        ],
    ),
    ids=["none", "after the last word", "at the start alone", "at the end alone"],
)
def test_files_in_which_turns_and_words_do_not_meet(ask_of, turns):
    """insanely-fast-whisper #139: some files failed or lost words."""
    answer = ask_of(*turns, return_timestamps="word")
    assert_whole(answer)
    for speaker, start, end in turns:
        spans = [(word, *word["timestamp"]) for word in answer["words"]]
        inside = [word for word, begin, stop in spans if start <= begin <= stop <= end]
        assert {word["speaker"] for word in inside} == ({speaker} if start < LENGTH else set())
    far = [word for word in answer["words"] if all(seconds_away(word, it) > 1.0 for it in turns)]
    assert len(far) > 30
    assert {word["speaker"] for word in far} == {None}
    people = {speaker for speaker, _, _ in turns}
    assert {entry["speaker"] for entry in answer["speakers"]} <= {None, *people}
    assert turns or {entry["speaker"] for entry in answer["speakers"]} == {None}


def seconds_away(word: dict[str, Any], turn: tuple[str, float, float]) -> float:
    return max(turn[1] - word["timestamp"][1], word["timestamp"][0] - turn[2])


def test_every_word_tells_its_speaker(ask_of):
    """whisperX #1072, #270 and #804: words between turns came without a speaker, in the middle of a
    sentence.

    Here turns cover every other half second of one speaker's speech."""
    turns = [("SPEAKER_00", at / 2, at / 2 + 0.5) for at in range(0, int(LENGTH * 2), 2)]
    answer = ask_of(*turns, return_timestamps="word")
    words = [word for entry in answer["speakers"] for word in entry["words"]]
    assert "".join(word["word"] for word in words) == answer["text"]
    assert {word["speaker"] for word in words} == {"SPEAKER_00"}
    assert {entry["speaker"] for entry in answer["speakers"]} == {"SPEAKER_00"}


def test_times_go_on_after_thirty_seconds(demo_handler):
    """transformers #31942 and #34210: times began at zero again in every window."""
    options = {"chunk_length_s": 30, "return_timestamps": "word", "diarize": False}
    answer = ask(demo_handler, conversation()[: MIDDLE * 16_000], **options)
    heard = [word["word"].strip() for word in answer["words"]]
    words = [word for word in TRUTH["words"] if word["end"] < MIDDLE]
    said = [word["text"] for word in words]
    blocks = SequenceMatcher(None, heard, said, autojunk=False).get_matching_blocks()
    pairs = [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
    errors = [abs(answer["words"][i]["timestamp"][0] - words[j]["start"]) for i, j in pairs]
    assert len(pairs) >= 0.9 * len(said)
    assert np.quantile(errors, 0.95) <= 0.5
    # Chunks are told in the order of the audio, and the last one near its end.
    starts = [chunk["timestamp"][0] for chunk in answer["chunks"]]
    assert starts == sorted(starts)
    assert starts[-1] >= words[-1]["start"] - 10
