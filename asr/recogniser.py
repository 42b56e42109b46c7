"""Speech recognition for any number of clients, in the one thread that computes with the models.

A thread that computes has threads of its own beneath it, and several such teams on the same
processors wait for each other; so models load, warm up and decode in this one. Its loop takes small
steps of each recording, then one of the engine, in turns so short that no recording waits for
another to end; those of which least is left go first, and beside short ones long ones have a
quarter of the time between steps. Live ones go before all others, in order of their turns, and
leave these a quarter of the time: one small step, or one thing that the engine does for them.
"""

from __future__ import annotations

import atexit
import logging
import traceback
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.engine import DecodeEngine
from asr.engine.request import work_class
from asr.live_pass import LivePass
from asr.options import TranscriptionOptions
from asr.recognition import Recognition
from asr.transcriber import Transcriber
from asr.transcription import Transcription
from errors import ModelError
from runtime.openmp import set_threads
from runtime.turns import Work
from transcript import Chunk

logger = logging.getLogger("endpoint")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` seconds of speech are transcribed, and `chunks` are new and final.

    The chunks of all events of a request, joined, are those of its transcript, in order of time,
    before their words are given to speakers.
    """

    done: float
    total: float
    chunks: tuple[Chunk, ...]


@dataclass(slots=True)
class EngineCounts:
    """What has been done since the start; counts only grow.

    `rows` counts each row once for every step it was in, `windows` those that were read. Tokens and
    drafts are those of transcriptions that have ended, in whatever way.
    """

    steps: int = 0
    rows: int = 0
    windows: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    retries: int = 0
    cancelled: int = 0


def ignore(_: Progress) -> None:
    """For those who wait for the transcript alone."""


@dataclass(eq=False)
class Job(Generic[T]):
    """A recognition in the loop. `tell` is called in the loop's thread, and `result` is there at
    the end, unless the job was cancelled.
    """

    recognition: Recognition[T]
    tell: Callable[[Progress], None]
    result: Future[T] = field(default_factory=Future)
    cancelled: bool = False
    reported: float = field(default=0.0, init=False)  # seconds that were told of
    idle: bool = field(default=False, init=False)  # until the engine leads on
    cost: float = field(default=0.0, init=False)  # of its small steps

    def __post_init__(self) -> None:
        self.result.set_running_or_notify_cancel()  # who waits for it does not end it

    @property
    def work(self) -> Work:
        """The class of its work now."""
        return work_class(self.recognition.live, self.recognition.windows_left)

    def wake(self) -> None:
        """After a unit of the engine: it may have led on."""
        session = self.recognition.session
        self.idle = self.idle and session is not None and not session.ready

    def cancel(self) -> None:
        """Free its rows before the next step; of no effect once it has ended."""
        self.cancelled = True


@dataclass(frozen=True)
class Call:
    """Work for the loop's thread, and what it will return."""

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.result.set_running_or_notify_cancel()


class Recogniser:
    """Recognises speech with one set of models; safe to call from any thread.

    `alive` is False once its thread has stopped: all jobs are told so then, and none is taken.
    """

    def __init__(self, load: Callable[[], Transcriber], threads: int) -> None:
        """Start the thread, with `threads` threads of torch beneath it, and `load` the models in
        it. Raises what that raises.
        """
        self._loop = loop = Loop(threads)
        # The thread holds on to the loop, not to this: it ends when nobody holds on to this.
        self._end = weakref.finalize(self, self._loop.end)
        self._end.atexit = False  # its thread then rests to the end
        try:
            self.transcriber = self.run(lambda: loop.load(load))
        except BaseException:
            self._end()  # the error may be kept, and holds on to this
            raise

    @property
    def models(self) -> WhisperModels:
        """What it recognises with."""
        return self.transcriber.models

    @property
    def alive(self) -> bool:
        """Whether transcriptions are still taken."""
        return self._loop.alive

    @property
    def failed(self) -> bool:
        """Whether the thread has stopped though nobody closed this."""
        return self._loop.failure is not None

    @property
    def counts(self) -> EngineCounts:
        """What was done so far; read only."""
        return self._loop.counts

    @property
    def running_rows(self) -> int:
        """How many windows are being decoded."""
        return self.transcriber.engine.scheduler.running

    @property
    def waiting_windows(self) -> int:
        """How many windows wait for a row."""
        return self.transcriber.engine.scheduler.waiting

    def check_alive(self) -> None:
        """Raises ModelError where the thread has stopped."""
        self._loop.check_alive()

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns in the thread that computes, between two of its turns.

        Raises what it raises, or ModelError where the thread has stopped.
        """
        call = Call(work)
        self._loop.put(call)
        result: T = call.result.result()
        return result

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        """See Transcriber.validate."""
        return self.transcriber.validate(options)

    def find_speech(self, samples: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
        """When somebody speaks in `samples`, (n,) at 16 kHz, in seconds."""
        return self.transcriber.find_speech(samples)

    def starting_steps(
        self, samples: NDArray[np.float32], options: TranscriptionOptions
    ) -> Generator[None, None, Transcription]:
        """What can be submitted, in small steps for the caller's thread while speech is found."""
        return self.transcriber.starting_steps(samples, options)

    def live_pass(
        self,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        prefix: tuple[int, ...] = (),
        draft: tuple[int, ...] = (),
    ) -> LivePass:
        """What can be submitted to decode a buffer once; see Transcriber.live_pass."""
        return self.transcriber.live_pass(samples, options, prefix, draft)

    def submit(
        self, recognition: Recognition[T], tell: Callable[[Progress], None] = ignore
    ) -> Job[T]:
        """Begin a transcription or a live pass. Raises ModelError where the thread has stopped."""
        job = Job(recognition, tell)
        self._loop.put(job)
        return job

    def close(self) -> None:
        """End the thread after its current turn, and every job with an error."""
        self._end()
        self._loop.thread.join()


class Loop:
    """What the thread does."""

    def __init__(self, threads: int) -> None:
        self.counts = EngineCounts()
        self.alive = True
        self.failure: BaseException | None = None  # what ended the thread
        self.inbox: SimpleQueue[Job[Any] | Call | None] = SimpleQueue()  # None ends the loop
        self.transcriber: Transcriber | None = None
        self._threads = threads
        self._jobs: list[Job[Any]] = []  # in order of arrival, live ones in that of their turns
        self._lock = Lock()  # between `put` and the loop
        self.thread = Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()

    def load(self, load: Callable[[], Transcriber]) -> Transcriber:
        """Keep and return what `load` returns, in the loop's own thread."""
        self.transcriber = load()
        return self.transcriber

    def put(self, asked: Job[Any] | Call) -> None:
        """Raises ModelError where the thread has stopped."""
        with self._lock:
            self.check_alive()
            self.inbox.put(asked)

    def end(self) -> None:
        """Let the thread end after its current turn; the interpreter waits for that.

        A thread that frees models while the interpreter ends would never get its lock back, and
        that aborts the process.
        """
        self.inbox.put(None)
        atexit.register(self.thread.join)

    def check_alive(self) -> None:
        """Raises ModelError where the thread has stopped."""
        if not self.alive:
            raise self._stopped()

    def _run(self) -> None:
        set_threads(self._threads)  # others may have set fewer
        try:
            while self._take_in():
                self._advance()
        except BaseException as error:
            self.failure = error
            origin = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(origin.filename).name}, line {origin.lineno}"
            logger.critical("the engine's thread ends: %s in %s", type(error).__name__, place)
        finally:
            self._end()

    def _take_in(self) -> bool:
        """Welcome new jobs, do what was called for, and drop cancelled jobs. Waits where there is
        none. False at the end.
        """
        ended = False
        while not ended and not (self._jobs and self.inbox.empty()):
            asked = self._next()
            if isinstance(asked, Job):
                self._jobs.append(asked)
            elif isinstance(asked, Call):
                _answer(asked)
            ended = asked is None
            del asked  # while it waits it should hold on to nothing
        for job in [job for job in self._jobs if job.cancelled]:
            self.counts.cancelled += 1
            self._engine.left(job.work, job.cost)
            self._remove(job)
        return not ended

    def _next(self) -> Job[Any] | Call | None:
        """Wait for the next entry of the inbox, and watch meanwhile what other processes leave of
        the processors.
        """
        while True:
            timeout = None if self.transcriber is None else self._engine.threads.watch()
            with suppress(Empty):
                return self.inbox.get(timeout=timeout)

    @property
    def _engine(self) -> DecodeEngine:
        assert self.transcriber is not None
        return self.transcriber.engine

    def _advance(self) -> None:
        """Let a job do something small, or the engine a unit of its work."""
        ready: dict[Work, Job[Any]] = {}
        for job in self._jobs:
            if not job.idle:
                ready.setdefault(job.work, job)
        work = self._engine.callers_turn(ready)
        if work is None:
            rows = self._engine.step()
            self.counts.steps += rows > 0
            self.counts.rows += rows
            for job in self._jobs:
                job.wake()
            return
        job = ready[work]
        with self._engine.charged(work) as spent:
            job.idle = not self._step(job)
        job.cost += spent.cost
        if job in self._jobs:  # the longest unserved is first
            self._jobs.remove(job)
            self._jobs.append(job)

    def _step(self, job: Job[Any]) -> bool:
        """Whether the job did something. What it raises is its own matter."""
        done_before = job.recognition.windows_read
        try:
            did_something = job.recognition.step()
        except Exception as error:
            self._remove(job)
            job.result.set_exception(error)
            return True
        self.counts.windows += job.recognition.windows_read - done_before
        result = job.recognition.result
        self._report(job, result is not None)
        if result is not None:
            self._remove(job)
            job.result.set_result(result)
        return did_something or result is not None

    def _report(self, job: Job[Any], ended: bool) -> None:
        done, total = job.recognition.seconds
        if done <= job.reported and not ended:
            return
        job.reported, chunks = done, job.recognition.take_chunks()
        # Over music there may be chunks without seconds of speech.
        if total or chunks:
            job.tell(Progress(done, total, chunks))

    def _remove(self, job: Job[Any]) -> None:
        """What a job has in the engine goes, and then it is forgotten: where the first fails, the
        thread ends and answers it.
        """
        job.recognition.close()
        self._jobs.remove(job)
        if job.recognition.session is not None:
            stats, counts = job.recognition.session.stats, self.counts
            counts.tokens += stats.tokens
            counts.drafted += stats.drafted
            counts.accepted += stats.accepted
            counts.retries += stats.retries

    def _end(self) -> None:
        with self._lock:
            self.alive = False
        asked: list[Job[Any] | Call | None] = [*self._jobs]
        while not self.inbox.empty():
            asked.append(self.inbox.get())
        for each in asked:
            if isinstance(each, Job) and each in self._jobs:
                with suppress(Exception):
                    self._remove(each)
            if each is not None and not (isinstance(each, Job) and each.cancelled):
                each.result.set_exception(self._stopped())
        self._jobs.clear()
        self.transcriber = None

    def _stopped(self) -> ModelError:
        """An error for each who asks, caused by what ended the thread."""
        error = stopped()
        error.__cause__ = self.failure
        return error


def _answer(call: Call) -> None:
    try:
        call.result.set_result(call.work())
    except BaseException as error:
        call.result.set_exception(error)


def stopped() -> ModelError:
    """What clients are told who wait for a thread that has ended."""
    return ModelError("speech recognition has stopped; the log of the endpoint says why")
