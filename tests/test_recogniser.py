"""The loop's turns, over an engine and transcriptions that do as they are told."""

from __future__ import annotations

import math
import threading
from queue import SimpleQueue

import pytest
from asr.engine.admission import Admission
from server.engine_loop import EngineLoop, Progress

from errors import InvalidAudio, ModelError
from transcript import Chunk, DecodeStats, Transcript


class Engine:
    """Counts its steps; `before` is called with their number."""

    running_rows = 2

    def __init__(self, before=lambda _: None):
        self.steps, self.before, self.admission = 0, before, Admission()

    def step_all(self):
        self.before(self.steps)
        self.steps += 1


class Session:
    stats = DecodeStats(tokens=10, drafted=4, accepted=3, retries=1)


class Recording:
    """Does `steps` small things, each after the engine's step of that number or later."""

    def __init__(self, engine, steps, log=None):
        self.engine, self.left = engine, list(steps)
        self.log = [] if log is None else log
        self.windows_read, self.closed, self.transcript = 0, 0, None
        self.session, self.total = Session(), float(len(self.left))

    @property
    def seconds(self):
        return float(self.windows_read), self.total

    @property
    def windows_left(self):
        return len(self.left)

    def step(self):
        if not self.left or self.left[0] > self.engine.steps:
            return False
        self.log.append((self, self.engine.steps))
        self.left.pop(0)
        self.windows_read += 1
        if not self.left:
            self.transcript = Transcript((), "en")
        return True

    def take_chunks(self):
        return (Chunk("word", 0.0, 1.0),)

    def close(self):
        self.closed += 1


def running(engine):
    loop = EngineLoop(engine)
    return loop, SimpleQueue()


def told(events):
    """What was told, up to the end."""
    found = [events.get(timeout=60)]
    while isinstance(found[-1], Progress):
        found.append(events.get(timeout=60))
    return found


def test_a_transcription_tells_its_progress_and_ends_with_its_transcript():
    engine = Engine()
    loop, events = running(engine)
    recording = Recording(engine, [0, 2, 3])
    loop.submit(recording, events.put)
    chunk = (Chunk("word", 0.0, 1.0),)
    expected = [Progress(float(done), 3.0, chunk) for done in (1, 2, 3)]
    assert told(events) == [*expected, recording.transcript]
    loop.close()
    assert recording.closed == 1
    counts = loop.counts
    assert (counts.windows, counts.tokens, counts.drafted, counts.retries) == (3, 10, 4, 1)
    assert counts.rows == 2 * counts.steps >= 6


@pytest.mark.parametrize("chunks", [(), (Chunk("sung", 0.0, 1.0),)])
def test_chunks_where_no_speech_was_detected_are_told_and_silence_is_not(chunks):
    class OverMusic(Recording):
        seconds = 0.0, 0.0

        def take_chunks(self):
            return chunks

    engine = Engine()
    loop, events = running(engine)
    recording = OverMusic(engine, [0, 1])
    loop.submit(recording, events.put)
    expected = [Progress(0.0, 0.0, chunks)] if chunks else []
    assert told(events) == [*expected, recording.transcript]
    loop.close()


def test_between_two_steps_everybody_has_a_turn(monkeypatch):
    monkeypatch.setattr("server.engine_loop.HOLD_SECONDS", math.inf)
    go_on, log = threading.Event(), []
    engine = Engine(lambda _: go_on.wait(60))
    loop, events = running(engine)
    one, other = Recording(engine, range(4), log), Recording(engine, range(4), log)
    for each in (one, other):
        loop.submit(each, events.put)
    go_on.set()
    ends = [each for _ in range(2) for each in [told(events)[-1]]]
    assert all(isinstance(each, Transcript) for each in ends)
    loop.close()
    for step in range(1, 4):
        assert {each for each, when in log if when == step} == {one, other}


def test_a_step_is_due_though_a_recording_could_go_on(monkeypatch):
    monkeypatch.setattr("server.engine_loop.HOLD_SECONDS", 0.0)
    engine = Engine()
    loop, events = running(engine)
    recording = Recording(engine, [0] * 3)
    loop.submit(recording, events.put)
    told(events)
    loop.close()
    assert [when for _, when in recording.log] == [0, 1, 2]


def test_the_engine_knows_at_once_that_somebody_has_come():
    """While it encodes the windows of one recording, a second is submitted."""
    said = []

    def before(step):
        said.append(engine.admission.newcomer())
        if step == 0:
            loop.submit(Recording(engine, [2]), other_events.put)
            said.append(engine.admission.newcomer())

    engine = Engine(before)
    loop, events = running(engine)
    other_events = SimpleQueue()
    loop.submit(Recording(engine, [0, 3]), events.put)
    told(events)
    told(other_events)
    loop.close()
    assert said[:3] == [False, True, True]
    assert said[-1] is False


def test_the_error_of_one_is_its_own():
    engine = Engine()
    loop, events = running(engine)

    class Broken(Recording):
        def step(self):
            raise self.error

    broken, own, good = (
        Broken(engine, [0]),
        Broken(engine, [0]),
        Recording(engine, [0, 3]),
    )
    broken.error, own.error = ZeroDivisionError(), InvalidAudio("none")
    others = SimpleQueue()
    loop.submit(good, events.put)
    loop.submit(broken, others.put)
    assert isinstance(told(others)[-1], ModelError)
    loop.submit(own, others.put)
    assert told(others) == [own.error]
    assert told(events)[-1] is good.transcript
    assert (broken.closed, own.closed) == (1, 1)
    loop.close()


def test_a_cancelled_job_is_closed_before_the_next_step_and_told_nothing():
    stepping, go_on = threading.Event(), threading.Event()

    def wait(_):
        stepping.set()
        assert go_on.wait(60)

    engine = Engine(wait)
    loop, events = running(engine)
    recording = Recording(engine, [10**9])
    job = loop.submit(recording, events.put)
    assert stepping.wait(60)
    job.cancel()
    go_on.set()
    loop.close()
    assert (recording.closed, engine.steps, loop.counts.cancelled) == (1, 1, 1)
    assert events.empty()


@pytest.mark.parametrize("ends", ["closed", "fails"])
def test_when_the_loop_ends_whoever_waits_is_told_and_nobody_is_taken(ends):
    first, go_on = threading.Event(), threading.Event()

    def wait(_):
        first.set()
        assert go_on.wait(60)
        if ends == "fails":
            raise KeyboardInterrupt

    engine = Engine(wait)
    loop, events = running(engine)
    loop.submit(Recording(engine, [10**9]), events.put)
    assert first.wait(60)
    loop.submit(Recording(engine, [10**9]), events.put)
    go_on.set()
    if ends == "closed":
        loop.close()
    for _ in range(2):
        assert isinstance(events.get(timeout=60), ModelError)
    with pytest.raises(ModelError, match="has stopped"):
        loop.submit(Recording(engine, [0]), events.put)
    assert not loop.alive
    loop.close()
