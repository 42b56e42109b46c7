"""Speech recognition for any number of clients, in the one thread that computes with the models.

A thread that computes has worker threads of its own, and several such teams on the same processors
wait for each other. So models load, warm up and decode only in this thread. It does one unit of
work after another: a small step of a recognition, or the engine's next step. The engine chooses
(`Scheduler.callers_turn`), by the classes of work that are ready, so that no recording waits for
another to end. Within a class recognitions take turns.
"""

import atexit
import logging
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, finalize

from whosaid.asr.engine.scheduler import Part
from whosaid.asr.engine.sequence import work_class
from whosaid.asr.recognition import Recognition
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import ModelError
from whosaid.runtime.device import set_threads
from whosaid.scheduling.fair_shares import WorkClass
from whosaid.transcript import Chunk, DecodeStats

logger = logging.getLogger("endpoint")

T = TypeVar("T")

SECONDS_TO_END = 10.0  # at the interpreter's exit
# Living threads, and the inboxes in which None ends what each of them does.
_running: WeakKeyDictionary[Thread, list[SimpleQueue[Any]]] = WeakKeyDictionary()


@atexit.register
def _end_threads() -> None:
    """Wait for all threads: one that computes after the interpreter's exit aborts the process."""
    threads = dict(_running)
    for inboxes in threads.values():
        for inbox in inboxes:
            inbox.put(None)
    for thread in threads:
        thread.join(SECONDS_TO_END)


class EngineThread:
    """Runs one recogniser after another, in a thread that starts with the first one: cuDNN keeps
    its plans for each thread, and leaks them when the thread ends (pytorch#104701).
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._inbox: SimpleQueue[tuple[Callable[[], None], Event] | None] | None = None

    def start(self, work: Callable[[], None], ended: Event, inbox: SimpleQueue[Any]) -> None:
        """Run `work`, which None in `inbox` ends, and then set `ended`."""
        if self._thread is None or self._inbox is None:
            self._inbox = SimpleQueue()
            self._thread = Thread(target=_serve, args=(self._inbox,), name="engine", daemon=True)
            self._thread.start()
            finalize(self, self._inbox.put, None).atexit = False
        _running[self._thread] = [inbox, self._inbox]
        self._inbox.put((work, ended))

    def end(self) -> None:
        """Let the thread end after its work."""
        if self._inbox is not None:
            self._inbox.put(None)
            self._inbox = None

    def close(self) -> None:
        self.end()
        if self._thread is not None:
            self._thread.join()


def _serve(inbox: SimpleQueue[tuple[Callable[[], None], Event] | None]) -> None:
    while (entry := inbox.get()) is not None:
        work, ended = entry
        del entry
        work()
        del work  # a thread that waits keeps no models alive
        ended.set()


@dataclass(frozen=True, slots=True)
class Transcribed:
    """`done` of `total` seconds of speech are transcribed, and `chunks` are new and final. Joined,
    the chunks of all events are the transcript's, in order of time, before speakers are assigned.
    """

    done: float
    total: float
    chunks: tuple[Chunk, ...]


@dataclass(slots=True)
class EngineCounts:
    """Work of the engine since the start.

    `rows` counts a row once for every step it was in, and `windows` the windows that were read.
    `decoded` is the sum over all recognitions that have ended, including failed and cancelled ones.
    """

    steps: int = 0
    rows: int = 0
    windows: int = 0
    cancelled: int = 0
    decoded: DecodeStats = field(default_factory=DecodeStats)


def ignore(_: Transcribed) -> None:
    pass


@dataclass(eq=False)
class EngineJob(Generic[T]):
    """A recognition in the recogniser's thread, which calls `report` with its progress; `wake` lets
    the thread look at its jobs.

    `result` is set at the end, unless the job was cancelled.
    """

    recognition: Recognition[T]
    report: Callable[[Transcribed], None]
    wake: Callable[[], None]
    result: Future[T] = field(default_factory=Future)
    cancelled: bool = False
    reported: float = field(default=0.0, init=False)  # seconds of speech
    cost: float = field(default=0.0, init=False)  # charged for its steps

    def __post_init__(self) -> None:
        self.result.set_running_or_notify_cancel()  # so that a waiting caller cannot cancel it

    @property
    def work(self) -> WorkClass:
        return work_class(self.recognition.live, self.recognition.windows_left)

    def cancel(self) -> None:
        """Free the job's rows before the next unit of work; no effect once the job has ended."""
        self.cancelled = True
        self.wake()


@dataclass(frozen=True)
class ThreadTask:
    """A function for the recogniser's thread, and its result."""

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.result.set_running_or_notify_cancel()

    def answer(self) -> None:
        try:
            self.result.set_result(self.work())
        except BaseException as error:
            self.result.set_exception(error)


class Recogniser:
    """Recognises speech with one set of models; safe to call from any thread.

    Its models stay until `stop`, and so does its thread unless it was given one. `alive` is False
    once the recogniser has stopped; then all jobs have failed, and no job is accepted. `failure` is
    the error that stopped it.
    """

    def __init__(
        self,
        load: Callable[[], Transcriber],
        threads: int,
        counts: EngineCounts | None = None,
        thread: EngineThread | None = None,
    ) -> None:
        """Start in `thread`, by default one of its own, with `threads` of torch, and `load` there;
        go on with `counts`.

        Raises what `load` raises. If a signal interrupts the load, the thread goes on with it.
        """
        self.counts = counts or EngineCounts()
        self.alive = True
        self.failure: BaseException | None = None
        # None ends the thread.
        self._inbox: SimpleQueue[EngineJob[Any] | ThreadTask | None] = SimpleQueue()
        self._lock = Lock()  # held while a job is accepted, and when the thread ends
        self._jobs: list[EngineJob[Any]] = []  # the longest unserved first
        loading = ThreadTask(load)
        self._own_thread = EngineThread() if thread is None else None
        self._ended = Event()
        engine_thread = thread or self._own_thread
        assert engine_thread is not None
        engine_thread.start(partial(self._run, loading, threads), self._ended, self._inbox)
        try:
            self.transcriber: Transcriber = loading.result.result()
        except Exception:
            self.close()  # the error may be kept, and holds this recogniser
            raise
        except BaseException:
            self.stop()
            raise

    def check_alive(self) -> None:
        if not self.alive:
            raise self._stopped()

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the recogniser's thread. Raises its errors, or ModelError if stopped."""
        call = ThreadTask(work)
        self._put(call)
        result: T = call.result.result()
        return result

    def submit(
        self, recognition: Recognition[T], report: Callable[[Transcribed], None] = ignore
    ) -> EngineJob[T]:
        """Start a transcription or a live pass. Raises ModelError if the thread has stopped."""
        job = EngineJob(recognition, report, self.wake)
        self._put(job)
        return job

    def wake(self) -> None:
        """Let the thread look at its jobs again, if it waits because none can go on."""
        self._inbox.put(ThreadTask(lambda: None))

    def stop(self) -> None:
        """Let the thread end after its current unit of work, and fail every job."""
        self._inbox.put(None)
        if self._own_thread is not None:
            self._own_thread.end()

    def close(self) -> None:
        self.stop()
        self._ended.wait()
        if self._own_thread is not None:
            self._own_thread.close()

    def _put(self, entry: EngineJob[Any] | ThreadTask) -> None:
        with self._lock:
            self.check_alive()
            self._inbox.put(entry)

    # In the thread

    def _run(self, loading: ThreadTask, threads: int) -> None:
        set_threads(threads)  # other code may have set fewer
        loading.answer()
        try:
            if loading.result.exception() is None:
                self._engine = loading.result.result().engine
                while self._take_in():
                    self._work()
        except BaseException as error:
            self.failure = error
            origin = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(origin.filename).name}, line {origin.lineno}"
            logger.critical("the engine's thread ends: %s in %s", type(error).__name__, place)
        finally:
            self._end()

    def _take_in(self) -> bool:
        """Take jobs and calls, drop cancelled jobs, wait while idle. Return False once closed."""
        ended = False
        while not ended and not (self._inbox.empty() and self._can_work()):
            entry = self._next_entry()
            if isinstance(entry, EngineJob):
                self._jobs.append(entry)
            elif isinstance(entry, ThreadTask):
                entry.answer()
            ended = entry is None
            del entry  # so that the waiting thread keeps nothing alive
        for job in [job for job in self._jobs if job.cancelled]:
            self.counts.cancelled += 1
            self._engine.scheduler.charge_in_vain(job.work, Part.CALLER, job.cost)
            self._remove(job)
        return not ended

    def _can_work(self) -> bool:
        """Return whether a job or the engine can go on; some jobs wait for their recordings."""
        jobs = any(job.cancelled or not job.recognition.waiting for job in self._jobs)
        return jobs or (bool(self._jobs) and self._engine.scheduler.busy)

    def _next_entry(self) -> EngineJob[Any] | ThreadTask | None:
        """Wait for an entry; meanwhile watch which processors other processes leave free."""
        while True:
            with suppress(Empty):
                return self._inbox.get(timeout=self._engine.threads.watch())

    def _work(self) -> None:
        ready = [job for job in self._jobs if not job.recognition.waiting]
        work = self._engine.scheduler.callers_turn({job.work for job in ready})
        if work is None:
            rows = self._engine.step()
            self.counts.steps += rows > 0
            self.counts.rows += rows
            return
        job = next(job for job in ready if job.work is work)
        self._jobs.remove(job)
        self._jobs.append(job)
        self._step(job, work)

    def _step(self, job: EngineJob[Any], work: WorkClass) -> None:
        """Take one step of a job. An error of the step fails only this job."""
        recognition, read_before = job.recognition, job.recognition.windows_read
        scheduler = self._engine.scheduler
        began = scheduler.clock()
        try:
            recognition.step()
        except Exception as error:
            self._remove(job)
            job.result.set_exception(error)
            return
        finally:
            job.cost += scheduler.charge_caller(work, scheduler.clock() - began)
        self.counts.windows += recognition.windows_read - read_before
        result = recognition.result
        self._report(job, result is not None or recognition.starved)
        if result is not None:
            self._remove(job)
            job.result.set_result(result)

    def _report(self, job: EngineJob[Any], always: bool) -> None:
        done, total = job.recognition.seconds
        if done <= job.reported and not always:
            return
        job.reported, chunks = done, job.recognition.take_chunks()
        if total or chunks:  # music may have chunks without seconds of speech
            job.report(Transcribed(done, total, chunks))

    def _remove(self, job: EngineJob[Any]) -> None:
        """Free a job's rows and forget it. If that fails, the thread ends and fails the job."""
        job.recognition.close()
        self._jobs.remove(job)
        if job.recognition.session is not None:
            self.counts.decoded.add(job.recognition.session.stats)

    def _end(self) -> None:
        with self._lock:
            self.alive = False
        left: list[EngineJob[Any] | ThreadTask | None] = [*self._jobs]
        while not self._inbox.empty():
            left.append(self._inbox.get())
        for each in left:
            if isinstance(each, EngineJob) and each in self._jobs:
                with suppress(Exception):
                    self._remove(each)
            if each is not None and not (isinstance(each, EngineJob) and each.cancelled):
                each.result.set_exception(self._stopped())
        self._jobs.clear()

    def _stopped(self) -> ModelError:
        error = stopped()
        error.__cause__ = self.failure
        return error


def stopped() -> ModelError:
    return ModelError("speech recognition has stopped; the endpoint's log says why")
