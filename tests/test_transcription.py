"""A recording in steps: in any order, beside any others, the transcript is the one of `run`."""

import itertools
import random

import numpy as np
import pytest

from tests.helpers.stand_ins import asking, rounded
from tests.support.tiny_whispers import ENDLESS, hears_sound, loaded, noise
from whosaid.asr.engine.session import Session
from whosaid.asr.hotwords import HotWords
from whosaid.asr.transcriber import Transcriber
from whosaid.asr.transcription import Transcription
from whosaid.scheduling.steps import run_steps
from whosaid.transcript import Transcript

OPTIONS = [
    {"language": "en"},
    {},
    {"multilingual": True},
    {"language": "de"},
    {"language": "en", "timestamps": False, "batch_size": 1},
    {"language": "en", "num_beams": 2, "chunk_length_s": 2},
    {"task": "translate", "prompt": "word300 word301", "hotwords": HotWords(("word302",))},
    {"language": "de", "temperature": 0.6},
]


def recording(seed: int = 0, parts: int = 2) -> np.ndarray:
    """Sound of different lengths between silences: windows of their own."""
    pause = np.zeros(16_000, np.float32)
    sounds = [noise(1.0 + 1.7 * ((seed + part) % 3), 10 * seed + part) for part in range(parts)]
    return np.concatenate([each for sound in sounds for each in (pause, sound)])


@pytest.fixture(autouse=True)
def nothing_left(transcriber):
    yield
    assert rows(transcriber) == (0, 0)


def rows(transcriber: Transcriber) -> tuple[int, int]:
    """Windows that run, and that wait."""
    return transcriber.engine.scheduler.running, transcriber.engine.scheduler.waiting


def begun(transcriber: Transcriber, samples: np.ndarray, **options) -> Transcription:
    return run_steps(transcriber.start(samples, transcriber.validate(asking(**options))))


def advance(transcriber: Transcriber, transcription: Transcription) -> None:
    """Take one step, of the engine if the transcription waits for it."""
    if transcription.waiting:
        transcriber.engine.step()
    else:
        transcription.step()


@pytest.fixture(scope="module")
def alone(transcriber) -> list[tuple[np.ndarray, dict, Transcript]]:
    """Return a recording for each of the options, and its transcript."""
    pairs = [(recording(number), options) for number, options in enumerate(OPTIONS)]
    return [(*pair, begun(transcriber, pair[0], **pair[1]).run()) for pair in pairs]


def test_recordings_side_by_side_are_transcribed_as_alone(transcriber, alone):
    """Chance decides the next step; the engine steps for all or for one. Chunks are taken at each
    step, or now and then; taken ones never change."""
    chance = random.Random(0)
    beside = [begun(transcriber, samples, **options) for samples, options, _ in alone]
    taken, seen, most = [[] for _ in beside], [[] for _ in beside], 0
    while running := [place for place, each in enumerate(beside) if not each.result]:
        place = chance.choice(running)
        transcription = beside[place]
        advance(transcriber, transcription)
        seen[place].append((transcription.seconds, transcription.windows_read))
        if place % 2 or not len(seen[place]) % 7:
            taken[place] += transcription.take_chunks()
        if chance.random() < 0.2:
            transcriber.engine.step()
        most = max(most, rows(transcriber)[0])
    assert most > 3
    for transcription, chunks, progress, (*_, expected) in zip(
        beside, taken, seen, alone, strict=True
    ):
        assert rounded(transcription.result) == rounded(expected)
        assert (*chunks, *transcription.take_chunks()) == transcription.result.chunks != ()
        assert transcription.take_chunks() == ()
        assert progress == sorted(progress)
        (done, total), windows = progress[-1]
        assert done == total == pytest.approx(sum(end - start for start, end in expected.speech))
        assert windows >= 2


def test_chunks_come_before_the_end(transcriber):
    transcription = begun(transcriber, recording(parts=3), language="en", batch_size=1)
    early = []
    while not transcription.result:
        advance(transcriber, transcription)
        if not transcription.result:
            early += transcription.take_chunks()
    assert early == list(transcription.result.chunks)[: len(early)] != []


@pytest.mark.parametrize("steps", [0, 5])
def test_closing_frees_the_rows_and_harms_nobody(transcriber, alone, steps):
    samples, options, expected = alone[0]
    closed, kept = (begun(transcriber, each, **options) for each in (recording(1), samples))
    for _ in range(steps):
        advance(transcriber, closed)
        advance(transcriber, kept)
    closed.close()
    running, waiting = rows(transcriber)
    closed.close()
    assert not closed.result
    assert rows(transcriber) == (running, waiting)
    while not kept.result:
        advance(transcriber, kept)
    assert rounded(kept.result) == rounded(expected)


def test_silence_takes_one_step_without_the_engine(transcriber, monkeypatch):
    monkeypatch.setattr(transcriber.engine, "detect_language", None)
    monkeypatch.setattr(transcriber.engine, "step", None)
    transcription = begun(transcriber, np.zeros(32_000, np.float32))
    transcription.step()
    assert transcription.result.chunks == ()
    assert transcription.result.language is None
    assert transcription.seconds == (0, 0)


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"timestamps": False}], ids=repr)
def test_speech_beyond_a_full_text_begins_the_next_window(options, monkeypatch):
    """Texts of this model never end, and no timestamp says how far they got."""
    endless = Transcriber(loaded(ENDLESS), fallback=None, detect_speech=hears_sound)
    add, windows = Session.add, []

    def remember(session, added):
        windows.extend(each.key for each in added)
        add(session, added)

    monkeypatch.setattr(Session, "add", remember)
    transcription = begun(endless, noise(9.0, 3), language="en", **options)
    planned = transcription._schedule.planned()
    transcription.run()
    assert len(planned) < len(windows) <= 3 * len(planned)
    reached = itertools.accumulate((each.stop for each in windows), max)
    assert all(each.start <= stop for each, stop in zip(windows[1:], reached, strict=False))
    assert any(two.start < one.stop for one, two in itertools.pairwise(windows))
    assert windows[-1].stop == planned[-1].stop


@pytest.mark.parametrize(
    ("options", "heard"),
    [({"language": "en"}, set()), ({}, {0, 1, 2, 3}), ({"multilingual": True}, {0, 1, 2, 3, 4})],
)
def test_the_engine_reuses_windows_of_language_detection(transcriber, monkeypatch, options, heard):
    add, requests = Session.add, []

    def remember(session, added):
        requests.extend(added)
        add(session, added)

    monkeypatch.setattr(Session, "add", remember)
    transcription = begun(transcriber, recording(parts=3), **options)
    planned = [window.start for window in transcription._schedule.planned()]
    transcription.run()
    starts = sorted(each.key.start for each in requests if each.encoded is not None)
    assert starts == [start for place, start in enumerate(planned) if place in heard]
