"""The decode engine: windows of samples in, tokens out, for any number of sessions at once.

    with engine.session(DecodeOptions(batch_size=8)) as session:
        session.add(requests)
        while not session.done:
            for request, result in session.step():
                ...

A step does one unit of work for all sessions, whoever calls it: the scheduler chooses, a batch
encodes or decodes, and results wait at their sessions. Caches are by far the largest thing besides
the weights, and a CUDA graph replays over fixed addresses, so the engine owns the memory of the
batches and all sessions share their rows. An engine is for one thread, which `asr.recogniser` gives
it. Nothing is ever written into the models.
"""

from __future__ import annotations

import logging
from collections import abc, deque
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.batch import Batch, Batches, DecodeContext
from asr.engine.cuda_graphs import HIGH_PRIORITY, CudaGraphRunner
from asr.engine.drafters import draft_model
from asr.engine.drafting import measured_drafting
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import LanguagePosterior, language_posterior
from asr.engine.request import DecodeOptions, DecodeResult, Lane, Request, Sequence
from asr.engine.results import ResultReader
from asr.engine.runner import StepRunner
from asr.engine.scheduler import DEFAULT_LIMITS, Limits, Part, Plan, Scheduler
from asr.engine.state import StateMemory
from asr.model.alignment_heads import alignment_heads
from asr.model.cpu_threads import CpuThreads
from asr.model.decoder import Decoder
from asr.model.draft_heads import BaseHead
from asr.model.encoder import Encoder
from errors import OutOfMemory
from runtime.errors import is_device_lost, is_out_of_memory
from runtime.turns import Work
from transcript import DecodeStats

logger = logging.getLogger("endpoint")

TOO_SMALL = "one window does not fit into the device's memory"


class Session:
    """Requests decoded with the same options: one client of the engine.

    Open as many as there are recordings. After an `error` the session's other requests are lost.
    """

    def __init__(self, engine: Engine, options: DecodeOptions) -> None:
        self.options = options
        self.stats = DecodeStats()
        self.finished: deque[tuple[Request, DecodeResult]] = deque()
        self.error: Exception | None = None
        self.served = 0  # number of the row that it was given last
        self._engine = engine
        self._outstanding = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def done(self) -> bool:
        """Whether every request was returned."""
        return self._outstanding == 0

    @property
    def ready(self) -> bool:
        """Whether `take` returns or raises something now."""
        return bool(self.finished) or self.error is not None

    @property
    def free_rows(self) -> int:
        """How many more requests can be decoded beside those that were added."""
        return max(0, self.options.batch_size - self._outstanding)

    def add(self, requests: abc.Sequence[Request]) -> None:
        """Queue requests. Any number: those beyond `batch_size` rows wait for the first to end.

        Raises ValueError if one has a prefix that is not for these options; none is queued then.
        """
        if requests:
            self._engine.add(self, requests)
            self._outstanding += len(requests)

    def step(self) -> list[tuple[Request, DecodeResult]]:
        """Run one step, unless there are results already, and `take` them."""
        if self.done:
            return []
        if not self.ready:
            self._engine.step()
        return self.take()

    def take(self) -> list[tuple[Request, DecodeResult]]:
        """Return the requests that finished since the last call, maybe none.

        Raises OutOfMemory if not even one window fits into the device's memory, and whatever the
        models raise.
        """
        if self.error is not None:
            raise self.error
        finished = list(self.finished)
        self.finished.clear()
        self._outstanding -= len(finished)
        return finished

    def close(self) -> None:
        """Drop what was added and has not been returned."""
        if not self.done:
            self._engine.cancel(self)
        self.finished.clear()
        self._outstanding = 0


class Engine:
    """Runs what the `scheduler` chooses in the `batches`, which make one for each new lane, and
    recovers from failed steps.

    After a `lost` device nothing is done any more.
    """

    def __init__(self, scheduler: Scheduler, batches: dict[Lane, Batch]) -> None:
        self.scheduler = scheduler
        self.batches = batches
        self.lost: Exception | None = None

    def session(self, options: DecodeOptions) -> Session:
        return Session(self, options)

    def add(self, session: Session, requests: abc.Sequence[Request]) -> None:
        """Queue requests of a session. Raises ValueError for a prefix that is not for them."""
        if self.lost is not None:
            session.error = self.lost
            return
        long_lanes = self.scheduler.long_lanes
        self.scheduler.add([Sequence(session, each, long_lanes) for each in requests])

    def step(self) -> int:
        """Do one unit of work; results wait at their sessions. Return the rows of a decoding step,
        0 after encoding.

        If it fails, `_recover` says what follows; sessions whose requests are lost have an error.
        """
        plan = None if self.lost is not None else self.scheduler.next()
        if plan is None:
            return 0
        batch = self.batches[plan.lane]
        try:
            return self._run(plan, batch)
        except Exception as raised:
            # Not recovered here: until the block ends, the exception holds on to device memory.
            error = OutOfMemory(TOO_SMALL) if is_out_of_memory(raised) else raised
        self._recover(batch, error)
        return 0

    def _run(self, plan: Plan, batch: Batch) -> int:
        scheduler, began, rows = self.scheduler, self.scheduler.clock(), len(batch.rows)
        if plan.entering:
            if batch.memory.lacks(plan.rows):
                self._release([each for each in self._idle_batches() if each is not batch])
            entered = batch.enter(plan)
            if not batch.rows:
                raise MemoryError
            scheduler.entered(plan, entered, scheduler.clock() - began)
            return 0
        finished = batch.step()
        for sequence, result in scheduler.stepped(plan, finished, scheduler.clock() - began):
            sequence.session.finished.append((sequence.request, result))
        return rows

    def cancel(self, session: Session) -> None:
        """Drop what a session still has queued or running."""
        if self.lost is not None:
            return
        in_rows = self.scheduler.cancel(session)
        for lane in {each.lane for each in in_rows}:
            self._evict(self.batches[lane], [each for each in in_rows if each.lane == lane])

    def make_room(self) -> None:
        """Give back the memory of idle batches, else of all, for other work that ran out of it.
        Raises OutOfMemory if there is none.
        """
        if self._release(self._idle_batches()):
            return
        holding = [each for each in self.batches.values() if each.memory.capacity]
        if not holding:
            raise OutOfMemory(TOO_SMALL)
        for batch in holding:
            self._restart(batch)

    # The caller's own small steps, in turn with the engine's units

    def callers_turn(self, ready: abc.Collection[Work]) -> Work | None:
        """Return in which of the `ready` classes the caller takes a small step now; None if it is
        the engine's turn.
        """
        return self.scheduler.callers_turn(ready)

    @contextmanager
    def charged(self, work: Work) -> abc.Iterator[Spent]:
        """Charge the seconds of the block to a class."""
        began, spent = self.scheduler.clock(), Spent()
        try:
            yield spent
        finally:
            spent.cost = self.scheduler.charge_caller(work, self.scheduler.clock() - began)

    def left(self, work: Work, cost: float) -> None:
        """The client of small steps that had a `cost` has left before its answer."""
        self.scheduler.charge_in_vain(work, Part.CALLER, cost)

    # When something fails

    def _recover(self, batch: Batch, error: Exception) -> None:
        """Let the batch begin again from its queue, and:

        - If the device is lost, fail every session.
        - If memory ran out, free the batches that are idle and try again, else try half the rows.
          A single row waits until those of other batches have ended. If there are none, its session
          fails: one window does not fit.
        - After another error, run the sessions of the step one by one. Alone, a session fails.
        """
        scheduler, lane = self.scheduler, batch.lane
        if is_device_lost(error):
            self._give_up_device(error)
            return
        suspects = scheduler.suspects(lane)
        sessions = dict.fromkeys(each.session for each in suspects)
        rows = max(batch.attempted, batch.memory.capacity)
        self._restart(batch)
        if isinstance(error, OutOfMemory):
            freed = self._release(self._idle_batches())
            others = freed or scheduler.others_run(lane)
            if rows > 1 and freed and scheduler.try_again(lane):
                return
            if rows > 1:
                scheduler.halve(lane, batch.attempted if batch.attempted > 1 else rows)
                return
            if others:
                scheduler.wait_for_others(lane)
                return
        elif len(sessions) > 1:
            logger.warning("a step failed: its %d sessions go on one by one", len(sessions))
            scheduler.isolate(suspects)
            return
        for session in sessions:
            session.error = error
            self.cancel(session)

    def _restart(self, batch: Batch) -> None:
        """Let all that runs in a batch begin again from its queue."""
        self.scheduler.requeue(batch.lane)
        batch.clear()

    def _evict(self, batch: Batch, sequences: list[Sequence]) -> None:
        """Free rows. If that fails the batch begins again, and its next step tells the cause."""
        try:
            batch.evict(sequences)
            return
        except Exception as error:
            lost = error if is_device_lost(error) else None
        if lost is not None:
            self._give_up_device(lost)
        else:
            self._restart(batch)

    def _give_up_device(self, error: Exception) -> None:
        """Fail every session; nothing is decoded any more, and nothing freed.

        Each call to the device would raise again, and freeing pinned memory would end the process
        before it has answered (pytorch#178154). The error's traceback keeps what the step held.
        """
        self.lost = error
        for session in self.scheduler.sessions:
            session.error = error

    def _idle_batches(self) -> list[Batch]:
        """The batches that hold memory and in which nothing runs."""
        return [
            batch
            for lane, batch in self.batches.items()
            if batch.memory.capacity and self.scheduler.is_idle(lane)
        ]

    def _release(self, idle: list[Batch]) -> bool:
        """Give back the memory of idle batches. Return whether there were any."""
        for batch in idle:
            batch.clear()
        return bool(idle)


class Spent:
    """The `cost` of a charged block, once it has ended."""

    cost = 0.0


class DecodeEngine(Engine):
    """Decodes with one set of models, for the thread that made it."""

    def __init__(
        self, models: WhisperModels, cuda_graphs: bool = True, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """Prepare the device; `cuda_graphs` False runs every step eagerly on CUDA too."""
        self.models = models
        dtype = models.product_dtype
        base_head = models.medusa.base if models.medusa else None
        self.main = Decoder(
            models.model,
            alignment_heads(models.model),
            dtype,
            BaseHead(base_head, dtype) if base_head else None,
        )
        self.draft_model = draft_model(models, self.main)
        self.runner = runner_for(models.device, cuda_graphs)
        self.threads = CpuThreads(torch.get_num_threads() if models.device.type == "cpu" else 1)
        self.context = DecodeContext(
            encoder=Encoder(models, self.threads, self.runner.encode),
            filters=LogitFilter.of(models.special_tokens, self.main.token_embeddings),
            special_tokens=models.special_tokens,
            runner=self.runner,
            results=ResultReader(models.special_tokens, models.tokenizer),
        )
        batches = Batches(self.main, self.draft_model, self.context)
        on_cpu = models.device.type == "cpu"
        scheduler = Scheduler(limits, rows_cost=on_cpu, counts_steps=self.runner.pipelined)
        super().__init__(scheduler, batches)
        self._thread = get_ident()
        self._stream = decoding_stream(models.device)
        with self.computing():
            batches.prepare()
            if self.draft_model is not None:
                self.context.drafting = measured_drafting(self.memory, self.context)
        self.threads.restore()

    def add(self, session: Session, requests: abc.Sequence[Request]) -> None:
        self._check_thread()
        super().add(session, requests)

    def step(self) -> int:
        with self.computing():
            rows = super().step()
            if not self.scheduler.busy:
                self.threads.restore()
        return rows

    def cancel(self, session: Session) -> None:
        with self.computing():
            super().cancel(session)

    def detect_language(
        self, samples: NDArray[np.float32], frames: int | None = None
    ) -> LanguagePosterior:
        """How likely a window's samples are in each language, and how likely they hold no speech.

        `frames` are those of a Request. Raises OutOfMemory if one window is too much for the
        device.
        """
        with self.computing():
            while True:
                try:
                    return self._language_posterior(samples, frames)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                # Outside the except block: until here the exception held on to the memory.
                self.make_room()

    @contextmanager
    def computing(self) -> abc.Iterator[None]:
        """Let the block compute in the engine's thread and on its stream.

        On CUDA what the engine's models make elsewhere is in no order with what they make here.
        """
        self._check_thread()
        self.threads.adjust()
        with self._on_stream():
            yield

    # For tests and benchmarks

    def batch(self, num_beams: int, live: bool = False) -> Batch:
        """The batch of rows with so many beams, made if it is new."""
        return self.batches[Lane(num_beams, live)]

    @property
    def memory(self) -> StateMemory:
        """Memory of the greedy lane."""
        return self.batch(1).memory

    @contextmanager
    def endless_texts(self) -> abc.Iterator[None]:
        """Let no text end before its greatest length in the block."""
        with self.computing():
            ends = self.context.filters.forbid_ends()
        try:
            yield
        finally:
            with self.computing():
                self.context.filters.restore_ends(ends)

    # Inside

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("an engine is for the thread that made it")

    def _on_stream(self) -> AbstractContextManager[object]:
        """Select the engine's stream, unless the device is lost."""
        if self._stream is None or self.lost is not None:
            return nullcontext()
        return torch.cuda.stream(self._stream)

    @torch.inference_mode()
    def _language_posterior(
        self, samples: NDArray[np.float32], frames: int | None
    ) -> LanguagePosterior:
        encoder = self.context.encoder
        encoded = encoder.encode([samples], drafted=False, frames=[frames]).main
        return language_posterior(self.main, encoded, self.models.special_tokens)


def runner_for(device: torch.device, cuda_graphs: bool) -> StepRunner:
    return CudaGraphRunner(cuda_graphs) if device.type == "cuda" else StepRunner()


def decoding_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a high-priority stream that first waits for work already queued; None on other
    devices than CUDA.
    """
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream
