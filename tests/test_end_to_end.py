"""The endpoint on the models that ship, against the words and speakers that synthesis knows."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
from pyannote.core import Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate

from tests.helpers.nightly import some
from tests.helpers.readers import read_rttm
from tests.support import audio_files
from tests.support.audio_files import encoded, request_body, wav_file
from tests.support.dialogue import annotation
from whosaid.transcript import SpeakerTurn

DEMO = Path(__file__).parent.parent / "demo"
TRUTH = json.loads((DEMO / "conversation.json").read_text())
END = 64.3  # seconds of the conversation that are asked about, up to a pause
WORDS = [word for word in TRUTH["words"] if word["start"] < END]
TURNS = [turn for turn in TRUTH["turns"] if turn["start"] < END]
# A stretch of the conversation between two pauses in which nobody talks over another, in seconds.
PASSAGE = (32.8, 46.0)


def ask(handler: Any, audio: bytes, **parameters: Any) -> dict[str, Any]:
    return handler(json.loads(json.dumps(request_body(audio, **parameters))))


def words_between(start: float, end: float) -> str:
    return " ".join(word["text"] for word in WORDS if start <= word["start"] < end)


@pytest.fixture(scope="module")
def conversation() -> bytes:
    return wav_file(audio_files.conversation()[: round(END * 16_000)], 16_000)


@pytest.fixture(scope="module")
def answer(demo_handler, conversation) -> dict[str, Any]:
    return ask(demo_handler, conversation, return_timestamps="word", output=["srt", "rttm"])


@pytest.fixture(scope="module")
def passage() -> np.ndarray:
    start, end = (round(seconds * 16_000) for seconds in PASSAGE)
    return audio_files.conversation()[start:end].astype(np.float64)


@pytest.fixture(scope="module")
def passage_text(demo_handler, passage) -> str:
    return ask(demo_handler, wav_file(passage, 16_000), diarize=False)["text"]


def test_conversation_is_transcribed(answer):
    assert jiwer.wer(words_between(0, END), answer["text"].strip()) <= 0.10
    assert answer["language"] == "en"
    assert answer["warnings"] == []
    assert answer["duration"] == pytest.approx(END, abs=0.05)


def test_the_conversations_turns_are_those_of_its_three_speakers(answer):
    truth = [SpeakerTurn(**turn) for turn in TURNS]
    found = [SpeakerTurn(*turn) for turn in read_rttm(answer["output"]["rttm"])]
    assert len({turn.speaker for turn in found}) == 3
    metric = DiarizationErrorRate(collar=0.25, skip_overlap=True)
    rate = metric(annotation(truth), annotation(found), uem=Timeline([Segment(0, END)]))
    assert rate <= 0.15


def test_multilingual_request_transcribes_one_language_alike(demo_handler, passage, passage_text):
    told = ask(demo_handler, wav_file(passage, 16_000), multilingual=True, diarize=False)
    assert (told["text"], told["language"]) == (passage_text, "en")
    assert {chunk["language"] for chunk in told["chunks"]} == {"en"}


def test_words_get_their_own_speakers(answer):
    """At least nine of ten words without overlap are in a segment of their own speaker."""
    alone = [word for word in WORDS if not any(talks_over(turn, word) for turn in TURNS)]
    given = [speaker_at(answer["speakers"], (word["start"] + word["end"]) / 2) for word in alone]
    names = sorted(TRUTH["cast"])
    labels = sorted({entry["speaker"] for entry in answer["speakers"]})
    assert len(labels) == len(names)
    best = max(
        sum(mapping.get(label) == word["speaker"] for label, word in zip(given, alone, strict=True))
        for mapping in (dict(zip(labels, order, strict=True)) for order in permutations(names))
    )
    assert best / len(alone) >= 0.9


def test_words_are_the_texts_and_the_speakers(answer):
    words = answer["words"]
    assert "".join(word["word"] for word in words) == answer["text"]
    assert [word for entry in answer["speakers"] for word in entry["words"]] == words
    pairs = [(entry, word) for entry in answer["speakers"] for word in entry["words"]]
    assert all(word["speaker"] == entry["speaker"] for entry, word in pairs)
    assert all(0 < word["probability"] <= 1 for word in words)
    times = [time for word in words for time in word["timestamp"]]
    assert times == sorted(times)


@pytest.mark.parametrize("grouped", [True, False])
def test_words_lie_within_the_entry_that_lists_them(demo_handler, passage, answer, grouped):
    """Whisper's own segments count too, though their times are less exact than those of words."""
    if not grouped:
        audio, ungrouped = wav_file(passage, 16_000), {"group_by_speaker": False}
        answer = ask(demo_handler, audio, return_timestamps="word", **ungrouped)
        assert len(answer["speakers"]) > 3
        spoken, chunks = ([each["text"] for each in answer[k]] for k in ("speakers", "chunks"))
        assert spoken == chunks
    for entry in answer["speakers"]:
        words = entry["words"]
        assert entry["timestamp"] == [words[0]["timestamp"][0], words[-1]["timestamp"][1]]


def test_named_text_comes_back_with_times(demo_handler, passage):
    audio = wav_file(passage, 16_000)
    first = ask(demo_handler, audio, output=["txt"], group_by_speaker=False)["output"]["txt"]
    text = first.replace("SPEAKER_00", "Katie").replace("SPEAKER_01", "Steve")
    aligned = ask(demo_handler, audio, text=text, output=["txt", "rttm"], return_timestamps="word")
    assert aligned["output"]["txt"] == text != first
    assert aligned["unspoken"] == []
    starts = [word["timestamp"][0] for word in aligned["words"]]
    assert starts == sorted(set(starts))
    turns = {line.split()[7] for line in aligned["output"]["rttm"].splitlines()}
    assert turns == {line.partition(": ")[0] for line in text.splitlines()}


def test_files_do_not_depend_on_shown_times(demo_handler, passage):
    """Without timestamps a table would have a line for each window, and the text would be worse."""
    forms = ["tsv", "txt", "vtt"]
    audio, parameters = wav_file(passage, 16_000), {"diarize": False, "output": forms}
    answers = (ask(demo_handler, audio, return_timestamps=it, **parameters) for it in (False, True))
    bare, timed = answers
    assert (bare["output"], bare["text"], bare["chunks"]) == (timed["output"], timed["text"], [])
    for form in forms:
        assert len(bare["output"][form].splitlines()) >= len(timed["chunks"]) > 2


def test_words_are_marked_where_voices_overlap(answer):
    """Words said alone are seldom marked, words that another voice covers often."""
    over = [word for word in WORDS if any(talks_over(turn, word) for turn in TURNS)]
    marked, unmarked = [], []
    for word in answer["words"]:
        middle = sum(word["timestamp"]) / 2
        inside = any(each["start"] <= middle <= each["end"] for each in over)
        (marked if inside else unmarked).append(word["overlap"])
    assert sum(marked) >= 0.4 * len(marked)
    assert sum(unmarked) <= 0.1 * len(unmarked)


def talks_over(turn: dict[str, Any], word: dict[str, Any]) -> bool:
    during = turn["start"] < word["end"] and word["start"] < turn["end"]
    return during and turn["speaker"] != word["speaker"]


def speaker_at(entries: list[dict[str, Any]], moment: float) -> str | None:
    for each in entries:
        if each["timestamp"][0] <= moment <= each["timestamp"][1]:
            return each["speaker"]
    return None


def test_an_assistant_changes_nothing_but_the_time(demo_handler, passage):
    audio = wav_file(passage, 16_000)
    wanted = {"return_timestamps": "word", "output": "srt", "chunk_length_s": 5, "diarize": False}
    plain, assisted = (
        ask(demo_handler, audio, assisted=each, batch_size=8, **wanted) for each in (False, None)
    )
    assert unscored(assisted) == unscored(plain)


def unscored(answer: Any) -> Any:
    """The answer without probabilities, whose last digits follow the shape of a matrix product."""
    if isinstance(answer, dict):
        scores = ("avg_logprob", "no_speech_prob", "probability", "language_probability")
        return {key: unscored(value) for key, value in answer.items() if key not in scores}
    return [unscored(value) for value in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(
    ("name", "options"), some(1, [("a.m4a", ["-ac", "2"]), ("a.wav", ["-ar", "8000"])])
)
def test_neither_container_nor_rate_nor_channels_matter(
    demo_handler, passage, passage_text, name, options
):
    file = encoded(wav_file(passage, 16_000), name, *options)
    assert ask(demo_handler, file, diarize=False)["text"] == passage_text


def test_passage_is_transcribed(passage_text):
    assert jiwer.wer(words_between(*PASSAGE), passage_text.strip()) <= 0.10


def test_silence_holds_no_words(demo_handler):
    answer = ask(demo_handler, wav_file(np.zeros(20 * 16_000), 16_000))
    assert (answer["text"], answer["chunks"], answer["speakers"]) == ("", [], [])
