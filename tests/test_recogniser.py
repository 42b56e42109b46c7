"""The order of work in the engine's thread, over stand-ins of engine and transcriber."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from queue import SimpleQueue

import pytest

from tests.helpers.programs import run_python
from tests.helpers.recogniser_stand_ins import StandInEngine, StandInSession, StandInTranscriber
from whosaid.asr import EngineThread, Recogniser, Transcribed
from whosaid.errors import InvalidAudio, ModelError
from whosaid.scheduling.fair_shares import WorkClass
from whosaid.transcript import Chunk, Transcript


class Recording:
    """Does `steps` small things, each after the engine's step of that number or later."""

    live = False

    def __init__(self, engine, steps, log=None):
        self.engine, self.left = engine, list(steps)
        self.log = [] if log is None else log
        self.windows_read, self.closed, self.result = 0, 0, None
        self.session, self.total = StandInSession(), float(len(self.left))

    @property
    def seconds(self):
        return float(self.windows_read), self.total

    @property
    def windows_left(self):
        return len(self.left)

    starved = False

    @property
    def waiting(self):
        return self.left[0] > self.engine.steps

    def step(self):
        self.log.append((self, self.engine.steps))
        self.left.pop(0)
        self.windows_read += 1
        if not self.left:
            self.result = Transcript((), "en")

    def take_chunks(self):
        return (Chunk("word", 0.0, 1.0),)

    def close(self):
        self.closed += 1


@pytest.fixture
def recognising():
    def make(engine):
        transcriber = StandInTranscriber(Transcript((), "en"), engine)
        return stack.enter_context(closing(Recogniser(lambda: transcriber, 1)))

    with ExitStack() as stack:
        yield make


def outcome(job):
    return job.result.result(timeout=60)


def test_a_transcription_tells_its_progress_and_ends_with_its_transcript(recognising):
    engine, told = StandInEngine(), []
    recogniser = recognising(engine)
    recording = Recording(engine, [0, 2, 3])
    assert outcome(recogniser.submit(recording, told.append)) is recording.result
    chunk = (Chunk("word", 0.0, 1.0),)
    assert told == [Transcribed(float(done), 3.0, chunk) for done in (1, 2, 3)]
    recogniser.close()
    assert recording.closed == 1
    counts = recogniser.counts
    assert (counts.windows, counts.decoded) == (3, StandInSession.stats)
    assert counts.rows == 2 * counts.steps >= 6


@pytest.mark.parametrize("chunks", [(), (Chunk("sung", 0.0, 1.0),)])
def test_chunks_without_detected_speech_are_reported(recognising, chunks):
    class OverMusic(Recording):
        seconds = 0.0, 0.0

        def take_chunks(self):
            return chunks

    engine, told = StandInEngine(), []
    recording = OverMusic(engine, [0, 1])
    assert outcome(recognising(engine).submit(recording, told.append)) is recording.result
    assert told == ([Transcribed(0.0, 0.0, chunks)] if chunks else [])


def test_between_two_steps_everybody_has_a_turn(recognising):
    go_on, log = threading.Event(), []
    engine = StandInEngine(lambda _: go_on.wait(60))
    recogniser = recognising(engine)
    one, other = Recording(engine, range(4), log), Recording(engine, range(4), log)
    jobs = [recogniser.submit(each) for each in (one, other)]
    go_on.set()
    for job in jobs:
        outcome(job)
    for step in range(1, 4):
        assert {each for each, when in log if when == step} == {one, other}


def test_engine_decides_its_steps_between_recordings(recognising):
    engine = StandInEngine(turns_a_step=1)
    recording = Recording(engine, [0] * 3)
    outcome(recognising(engine).submit(recording))
    assert [when for _, when in recording.log] == [0, 1, 2]


def test_recordings_take_turns_within_the_engines_class(recognising):
    """A live one goes first here; each of the others waits for one step of every other at most."""
    go_on, log = threading.Event(), []
    engine = StandInEngine(lambda _: go_on.wait(60))
    recogniser = recognising(engine)
    waits = recogniser.submit(Recording(engine, [1], log))
    *others, live = (Recording(engine, [0] * 3, log) for _ in range(4))
    live.live = True
    jobs = [recogniser.submit(each) for each in (*others, live)]
    go_on.set()
    for job in (waits, *jobs):
        outcome(job)
    assert [each for each, _ in log if each in (*others, live)] == [live] * 3 + others * 3
    assert engine.charges.count(WorkClass.LIVE) == 3


def test_newcomer_steps_before_the_engine_does(recognising):
    log, jobs = [], []

    def before(step):
        if step == 0:
            jobs.append(recogniser.submit(Recording(engine, [0], log)))

    engine = StandInEngine(before)
    recogniser = recognising(engine)
    outcome(recogniser.submit(Recording(engine, [4])))
    outcome(jobs[0])
    assert [when for _, when in log] == [1]


def test_while_it_waits_the_thread_watches_what_others_compute(recognising, monkeypatch):
    engine, watched = StandInEngine(), SimpleQueue()
    monkeypatch.setattr(engine.threads, "watch", lambda: watched.put(None) or 0.001)
    recogniser = recognising(engine)
    for _ in range(3):
        watched.get(timeout=60)
    assert outcome(recogniser.submit(Recording(engine, [0])))


def test_the_error_of_one_is_its_own(recognising):
    engine = StandInEngine()
    recogniser = recognising(engine)

    class Broken(Recording):
        def __init__(self, error):
            super().__init__(engine, [0])
            self.error = error

        def step(self):
            raise self.error

    broken = [Broken(each) for each in (ZeroDivisionError(), InvalidAudio("none"))]
    good = Recording(engine, [0, 3])
    going = recogniser.submit(good)
    for each in broken:
        assert recogniser.submit(each).result.exception(timeout=60) is each.error
        assert each.closed == 1
    assert outcome(going) is good.result


def test_cancelled_job_is_closed_before_the_next_step(recognising):
    stepping, go_on, told = threading.Event(), threading.Event(), []

    def wait(_):
        stepping.set()
        assert go_on.wait(60)

    engine = StandInEngine(wait)
    recogniser = recognising(engine)
    recording = Recording(engine, [0, 10**9])
    job = recogniser.submit(recording, told.append)
    assert stepping.wait(60)
    job.cancel()
    go_on.set()
    recogniser.close()
    assert (recording.closed, engine.steps, recogniser.counts.cancelled) == (1, 1, 1)
    assert (len(told), job.result.done()) == (1, False)
    assert engine.leavers == [(WorkClass.SHORT, 1.0)]


@pytest.mark.parametrize("ends", ["closed", "fails"])
def test_ended_thread_fails_waiting_and_new_jobs(recognising, ends):
    first, go_on = threading.Event(), threading.Event()
    cause = KeyboardInterrupt()

    def wait(*_):
        first.set()
        assert go_on.wait(60)
        if ends == "fails":
            raise cause

    engine = StandInEngine(wait)
    recogniser = recognising(engine)
    jobs = [recogniser.submit(Recording(engine, [10**9]))]
    assert first.wait(60)
    jobs.append(recogniser.submit(Recording(engine, [10**9])))
    go_on.set()
    if ends == "closed":
        recogniser.close()
    for each in jobs:
        told = each.result.exception(timeout=60)
        assert isinstance(told, ModelError)
        assert told.__cause__ is (cause if ends == "fails" else None)
    for ask in (
        lambda: recogniser.submit(Recording(engine, [0])),
        lambda: recogniser.run(int),
        recogniser.check_alive,
    ):
        with pytest.raises(ModelError, match="has stopped") as caught:
            ask()
        assert caught.value.__cause__ is told.__cause__
    assert not recogniser.alive
    assert recogniser.failure is (cause if ends == "fails" else None)


@pytest.mark.parametrize("ended_by", ["an answer", "an error", "its client"])
def test_failing_close_fails_every_job(recognising, ended_by):
    """If its rows cannot be freed, the thread ends and fails all jobs."""
    engine, cause = StandInEngine(), RuntimeError("no rows are freed")

    class Stuck(Recording):
        def step(self):
            if ended_by == "an error":
                raise KeyError
            return super().step()

        def close(self):
            raise cause

    recogniser = recognising(engine)
    going = recogniser.submit(Recording(engine, [10**9]))
    stuck = recogniser.submit(Stuck(engine, [10**9 if ended_by == "its client" else 0]))
    if ended_by == "its client":
        stuck.cancel()
    for each in [going, *([] if ended_by == "its client" else [stuck])]:
        told = each.result.exception(timeout=60)
        assert isinstance(told, ModelError)
        assert told.__cause__ is cause
    assert not recogniser.alive


def test_work_is_done_in_the_thread_between_two_turns(recognising):
    """An idle thread does it too; the thread has its own name."""
    recogniser = recognising(StandInEngine())
    thread = recogniser.run(threading.current_thread)
    assert thread.name == "engine"
    job = recogniser.submit(Recording(recogniser.transcriber.engine, [10**9]))
    assert recogniser.run(threading.current_thread) is thread
    job.cancel()


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit("no model")])
def test_exceptions_of_work_reach_only_its_caller(recognising, error):
    def fail():
        raise error

    engine = StandInEngine()
    recogniser = recognising(engine)
    job = recogniser.submit(Recording(engine, [0, 3]))
    with pytest.raises(type(error)) as caught:
        recogniser.run(fail)
    assert caught.value is error
    assert isinstance(outcome(job), Transcript)
    assert recogniser.alive


def test_models_that_do_not_load_leave_no_thread():
    """The caller may keep the error."""
    loaded_in = []

    def load():
        loaded_in.append(threading.current_thread())
        raise OSError("no weights")

    with pytest.raises(OSError, match="no weights") as caught:
        Recogniser(load, 1)
    loaded_in[0].join(60)
    assert not loaded_in[0].is_alive()
    assert caught.value.__traceback__ is not None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl+C raise: processes that a shell starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_does_not_wait_for_the_load():
    finish, ended = threading.Event(), []

    def load():
        ended.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert finish.wait(60)
        raise OSError("no weights")

    with pytest.raises(KeyboardInterrupt):
        Recogniser(load, 1)
    assert ended[0].is_alive()
    finish.set()
    ended[0].join(60)
    assert not ended[0].is_alive()


def test_recognisers_one_after_another_share_a_thread():
    thread, seen = EngineThread(), []
    for _ in range(3):
        transcriber = StandInTranscriber(Transcript((), "en"), StandInEngine(lambda _: None))
        made = Recogniser(lambda it=transcriber: it, 1, None, thread)
        seen.append(made.run(threading.current_thread))
        made.close()
    assert len(set(seen)) == 1
    assert seen[0].is_alive()
    thread.close()
    assert not seen[0].is_alive()


AT_THE_EXIT = """
import sys, time
from threading import Barrier
from tests.helpers.recogniser_stand_ins import StandInEngine, StandInTranscriber
from tests.test_recogniser import Recording
from whosaid.asr import Recogniser
from whosaid.transcript import Transcript

both = Barrier(3)

def slow(word):
    both.wait()
    time.sleep(0.3)
    sys.stdout.write(f"{word}\\n")

class Models(StandInTranscriber):
    def __del__(self):
        slow("freed")

def recogniser(models, engine):
    return Recogniser(lambda: models(Transcript((), "en"), engine), 1)

engine = StandInEngine(lambda _: slow("computed"))
computing = recogniser(StandInTranscriber, engine)
computing.submit(Recording(engine, [100]))
recogniser(Models, engine).stop()
both.wait()
"""


def test_the_exit_waits_for_threads_that_compute_or_free_models():
    """Otherwise torch aborts the process."""
    done = run_python("-c", AT_THE_EXIT, check=True)
    assert sorted(done.stdout.split()) == ["computed", "freed"]
