"""One thread that transcribes for all clients: small steps of each recording, then one of the
engine.

The one decision: all work on the device happens in this thread. A thread that computes has threads
of its own beneath it, and several such teams on the same processors wait for each other. So clients
share one, in turns so short that no recording waits for another to end; those of which least is
left go first, and beside short ones long ones have a quarter of the time between steps.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

import torch

from asr import Transcription
from asr.engine.admission import HOLD_SECONDS, LONG_WINDOWS, LONGEST_WAITING_EVERY
from asr.engine.engine import DecodeEngine
from errors import EndpointError, ModelError
from handler import endpoint_errors
from runtime.openmp import set_threads
from transcript import Chunk, Transcript

logger = logging.getLogger("endpoint")


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
    """What the loop has done since it began; counts only grow.

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


@dataclass(eq=False)
class Job:
    """A transcription in the loop. `tell` is called in the loop's thread: with Progress, and at the
    end once with the transcript or an error, unless the job was cancelled.
    """

    transcription: Transcription
    tell: Callable[[Progress | Transcript | EndpointError], None]
    cancelled: bool = False
    reported: float = field(default=0.0, init=False)  # seconds that were told of

    def cancel(self) -> None:
        """Free its rows before the next step; of no effect once it has ended."""
        self.cancelled = True


class EngineLoop:
    """Runs transcriptions in a thread of its own, from `submit` until each has ended.

    `alive` is False once the thread has stopped: all jobs are told so then, and none is taken.
    """

    def __init__(self, engine: DecodeEngine) -> None:
        self.counts = EngineCounts()
        self.alive = True
        self._engine = engine
        self._jobs: list[Job] = []  # in order of arrival
        self._turns = 0
        self._new: SimpleQueue[Job | None] = SimpleQueue()  # None ends the loop
        self._lock = Lock()  # between `submit` and the end
        self._threads = torch.get_num_threads()
        engine.admission.newcomer = lambda: not self._new.empty() or len(self._jobs) > 1
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        transcription: Transcription,
        tell: Callable[[Progress | Transcript | EndpointError], None],
    ) -> Job:
        """Begin a transcription. Raises ModelError where the thread has stopped."""
        job = Job(transcription, tell)
        with self._lock:
            if not self.alive:
                raise stopped()
            self._new.put(job)
        return job

    def close(self) -> None:
        """End the thread after its current turn, and every job with an error."""
        self._new.put(None)
        self._thread.join()

    def _run(self) -> None:
        set_threads(self._threads)  # others may have set fewer
        try:
            while self._take_in():
                self._advance()
                self._step_engine()
        except BaseException as error:
            origin = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(origin.filename).name}, line {origin.lineno}"
            logger.critical("the engine's thread ends: %s in %s", type(error).__name__, place)
        finally:
            self._end()

    def _take_in(self) -> bool:
        """Welcome new jobs, and drop the cancelled ones. Waits where there is no job. False at the
        end.
        """
        ended = False
        while not ended and not (self._jobs and self._new.empty()):
            job = self._new.get()
            if job is not None:
                self._jobs.append(job)
            ended = job is None
        for job in [job for job in self._jobs if job.cancelled]:
            self.counts.cancelled += 1
            self._remove(job)
        return not ended

    def _advance(self) -> None:
        """Let jobs in turn do something small, until none can or the engine is due."""
        admission = self._engine.admission
        due = admission.clock() + HOLD_SECONDS
        left = {job: job.transcription.windows_left for job in self._jobs}
        beside_short = any(windows <= LONG_WINDOWS for windows in left.values())
        for job in self._in_turn(left):
            long = left[job] > LONG_WINDOWS
            while job in self._jobs and (not long or admission.may_serve_long(beside_short)):
                started = admission.clock()
                if not self._step(job):
                    break
                self._turns += 1
                if long:
                    admission.count_long(started)
                if admission.clock() >= due:
                    return

    def _in_turn(self, left: Mapping[Job, int]) -> list[Job]:
        """The jobs, those with the fewest windows `left` first; every so often the one that came
        first is before them.
        """
        jobs = sorted(left, key=left.__getitem__)
        return [*self._jobs[: self._turns % LONGEST_WAITING_EVERY == 0], *jobs]

    def _step(self, job: Job) -> bool:
        """Whether the job did something. What it raises is its own matter."""
        done_before = job.transcription.windows_read
        try:
            with endpoint_errors():
                did_something = job.transcription.step()
        except EndpointError as error:
            self._remove(job)
            job.tell(error)
            return True
        self.counts.windows += job.transcription.windows_read - done_before
        transcript = job.transcription.transcript
        self._report(job, transcript is not None)
        if transcript is not None:
            self._remove(job)
            job.tell(transcript)
        return did_something or transcript is not None

    def _report(self, job: Job, ended: bool) -> None:
        done, total = job.transcription.seconds
        if done <= job.reported and not ended:
            return
        job.reported, chunks = done, job.transcription.take_chunks()
        # Over music there may be chunks without seconds of speech.
        if total or chunks:
            job.tell(Progress(done, total, chunks))

    def _step_engine(self) -> None:
        self._engine.step_all()
        if rows := self._engine.running_rows:
            self.counts.steps += 1
            self.counts.rows += rows

    def _remove(self, job: Job) -> None:
        """Forget a job; what it has in the engine goes."""
        self._jobs.remove(job)
        job.transcription.close()
        if job.transcription.session is not None:
            stats, counts = job.transcription.session.stats, self.counts
            counts.tokens += stats.tokens
            counts.drafted += stats.drafted
            counts.accepted += stats.accepted
            counts.retries += stats.retries

    def _end(self) -> None:
        with self._lock:
            self.alive = False
            while not self._new.empty():
                if (job := self._new.get()) is not None:
                    self._jobs.append(job)
        for job in list(self._jobs):
            with suppress(Exception):
                self._remove(job)
            if not job.cancelled:
                job.tell(stopped())


def stopped() -> ModelError:
    """What clients are told who wait for a loop that has ended."""
    return ModelError("speech recognition has stopped; the log of the endpoint says why")
