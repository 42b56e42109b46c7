"""The decode engine: windows of samples in, tokens out, for any number of sessions at once.

    with engine.session(DecodeOptions(batch_size=8)) as session:
        session.add(requests)
        while not session.done:
            for request, result in session.step():
                ...

A step does one unit of work for all sessions, whichever session calls it: the scheduler chooses, a
batch encodes or decodes, and results wait at their sessions. Caches are by far the largest memory
besides the weights, and a CUDA graph replays over fixed addresses. So the engine owns the memory of
the batches, and all sessions share their rows. An engine belongs to one thread, which
`asr.recogniser` provides. Models are never modified.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident

import numpy as np
import torch
from numpy.typing import NDArray

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.batch import MAIN_LANE, Batch, Batches, DecodeContext
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.drafters import draft_model
from whosaid.asr.engine.drafting import measured_drafting
from whosaid.asr.engine.memory import StateMemory
from whosaid.asr.engine.prefill import LanguagePosterior, language_posterior
from whosaid.asr.engine.request import DEFAULT_ROWS, DecodeOptions, Request
from whosaid.asr.engine.result_reader import ResultReader
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS, Limits, Plan, Scheduler
from whosaid.asr.engine.sequence import DecodeSequence, Lane
from whosaid.asr.engine.session import Session
from whosaid.asr.model.cpu_threads import CpuThreads
from whosaid.asr.model.decoder import Decoder, alignment_heads
from whosaid.asr.model.draft_heads import HeadStack
from whosaid.asr.model.encoder import AudioWindow, Encoder
from whosaid.asr.model.logit_filters import LogitFilter
from whosaid.errors import OutOfMemory
from whosaid.runtime.errors import is_device_lost, is_out_of_memory

logger = logging.getLogger("endpoint")

TOO_SMALL = "one window does not fit into the device's memory"


class Engine:
    """Runs the plans of `scheduler` in `batches`, which make one for each new lane, and recovers
    from failed steps. Sessions have `default_rows` rows unless their options say otherwise, and
    `drafted_rows` if something drafts for them. After a `lost` device the engine does no work.
    """

    def __init__(self, scheduler: Scheduler, batches: dict[Lane, Batch]) -> None:
        self.scheduler = scheduler
        self.batches = batches
        self.default_rows = self.drafted_rows = DEFAULT_ROWS
        self.lost: Exception | None = None

    def session(self, options: DecodeOptions) -> Session:
        return Session(self, options, self.drafted_rows if options.assisted else self.default_rows)

    def add(self, session: Session, requests: Sequence[Request]) -> None:
        """Queue requests of a session. Raises ValueError if a prefix does not suit its options."""
        if self.lost is not None:
            session.error = self.lost
            return
        own_lanes = self.scheduler.own_lanes
        self.scheduler.add([DecodeSequence(session, each, own_lanes) for each in requests])

    def step(self) -> int:
        """Do one unit of work; results wait at their sessions. Return the rows of a decoding step,
        0 after encoding. An error goes to `_recover`; sessions whose requests are lost get an
        `error`.
        """
        plan = None if self.lost is not None else self.scheduler.next()
        if plan is None:
            return 0
        batch = self.batches[plan.lane]
        try:
            return self._run(plan, batch)
        except Exception as raised:
            # Recover after the block: until it ends, the exception holds device memory.
            error = OutOfMemory(TOO_SMALL) if is_out_of_memory(raised) else raised
        self._recover(batch, error)
        return 0

    def _run(self, plan: Plan, batch: Batch) -> int:
        scheduler, began, rows = self.scheduler, self.scheduler.clock(), len(batch.rows)
        if plan.entering:
            if batch.memory.lacks(plan.rows):
                self._release_idle(batch)
            entered = batch.enter(plan)
            if not batch.rows:
                raise MemoryError
            scheduler.entered(plan, entered, scheduler.clock() - began)
            return 0
        finished = batch.step()
        for sequence, result in scheduler.stepped(plan, finished, scheduler.clock() - began):
            sequence.session.finished.append((sequence.request, result))
        if ahead := scheduler.upcoming(plan.lane):
            batch.encode_ahead(ahead)
        return rows

    def cancel(self, session: Session) -> None:
        if self.lost is not None:
            return
        for lane, sequences in self.scheduler.cancel(session).items():
            self._evict(self.batches[lane], sequences)

    def make_room(self) -> None:
        """Release idle batches, else all. Raises OutOfMemory if no batch holds memory."""
        if self._release_idle():
            return
        holding = [each for each in self.batches.values() if each.memory.capacity]
        if not holding:
            raise OutOfMemory(TOO_SMALL)
        for batch in holding:
            self._restart(batch)

    # Failures

    def _recover(self, batch: Batch, error: Exception) -> None:
        """Queue the batch's sequences again, and:

        - If the device is lost, fail every session.
        - If memory ran out, release the batch's memory and that of idle batches, and try again,
          else try half the rows. A single row waits until the rows of other batches have ended. If
          there are none, its session fails, because one window does not fit.
        - After another error, run the sessions of the step one by one. A session alone fails. The
          batch keeps its memory and graphs.
        """
        scheduler, lane = self.scheduler, batch.lane
        if is_device_lost(error):
            self._give_up_device(error)
            return
        suspects = scheduler.suspects(lane)
        sessions = dict.fromkeys(each.session for each in suspects)
        if isinstance(error, OutOfMemory):
            rows = max(batch.attempted, batch.memory.capacity)
            self._restart(batch)
            freed = self._release_idle()
            if rows > 1:
                if not (freed and scheduler.try_again(lane)):
                    scheduler.halve(lane, batch.attempted if batch.attempted > 1 else rows)
                return
            if freed or scheduler.others_run(lane):
                scheduler.wait_for_others(lane)
                return
        else:
            scheduler.requeue(lane)
            self._evict(batch, [*batch.rows])
            if len(sessions) > 1:
                logger.warning("a step failed: its %d sessions go on one by one", len(sessions))
                scheduler.isolate(suspects)
                return
        for session in sessions:
            session.error = error
            self.cancel(session)

    def _restart(self, batch: Batch) -> None:
        self.scheduler.requeue(batch.lane)
        batch.clear()

    def _evict(self, batch: Batch, sequences: list[DecodeSequence], again: bool = True) -> None:
        """Free rows. If that fails, queue all rows of the batch again; its next step shows the
        cause. The batch keeps its memory and graphs unless memory ran out, or freeing fails twice.
        """
        try:
            batch.evict(sequences)
            return
        except Exception as error:
            lost = error if is_device_lost(error) else None
            again = again and not is_out_of_memory(error)
        if lost is not None:
            self._give_up_device(lost)
        elif again:
            self.scheduler.requeue(batch.lane)
            self._evict(batch, [*batch.rows], again=False)
        else:
            self._restart(batch)

    def _give_up_device(self, error: Exception) -> None:
        """Fail every session; decode nothing more and free nothing. Each call to the device would
        raise again, and freeing pinned memory would end the process before it has answered
        (pytorch#178154). The error's traceback keeps the step's tensors alive.
        """
        self.lost = error
        for session in self.scheduler.sessions:
            session.error = error

    def _release_idle(self, kept: Batch | None = None) -> bool:
        """Release the memory of all idle batches but `kept`. Return whether any had memory."""
        idle = [
            batch
            for lane, batch in self.batches.items()
            if batch is not kept and batch.memory.capacity and self.scheduler.is_idle(lane)
        ]
        for batch in idle:
            batch.clear()
        return bool(idle)


class DecodeEngine(Engine):
    """Decodes with one set of models, only in the thread that made it."""

    def __init__(
        self, models: WhisperModels, cuda_graphs: bool = True, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """Prepare the device. Without `cuda_graphs`, all passes run eagerly."""
        self.models = models
        dtype = models.product_dtype
        base_head = models.medusa.base if models.medusa else None
        self.main = Decoder(
            models.model,
            alignment_heads(models.model),
            dtype,
            HeadStack(base_head, dtype) if base_head else None,
        )
        self.draft_model = draft_model(models, self.main)
        on_cpu = models.device.type == "cpu"
        filters = LogitFilter.of(models.special_tokens, self.main.token_embeddings)
        self.runner = StepRunner(filters) if on_cpu else CudaGraphRunner(filters, cuda_graphs)
        self.threads = CpuThreads(torch.get_num_threads() if on_cpu else 1)
        self.context = DecodeContext(
            encoder=Encoder(models, self.threads, self.runner.encode),
            runner=self.runner,
            results=ResultReader(models.special_tokens, models.tokenizer),
        )
        batches = Batches(self.main, self.draft_model, self.context)
        scheduler = Scheduler(limits, rows_cost=on_cpu, counts_steps=not on_cpu)
        super().__init__(scheduler, batches)
        self._thread = get_ident()
        self._stream: torch.cuda.Stream | None = None
        if isinstance(self.runner, CudaGraphRunner):
            stream = self.runner.stream()
            stream.wait_stream(torch.cuda.current_stream(models.device))  # for the weights
            self._stream = stream
        with self.computing():
            for lane, rows in batches.prepare().items():
                scheduler.set_rows(lane, rows)
                if lane == MAIN_LANE:
                    self.default_rows = rows
                    self.drafted_rows = min(rows, self.runner.drafted_rows)
            if self.draft_model is not None:
                self.context.drafting = measured_drafting(self.memory, self.context.encoder)
        self.threads.restore()

    def add(self, session: Session, requests: Sequence[Request]) -> None:
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

    @torch.inference_mode()
    def detect_language(
        self, samples: NDArray[np.float32], frames: int | None = None
    ) -> LanguagePosterior:
        """Return the probabilities of a window's languages and no speech. Raises OutOfMemory."""
        window = AudioWindow(samples, frames=frames)
        with self.computing():
            while True:
                try:
                    with self.runner.encoding():
                        encoded = self.context.encoder.encode([window], drafted=False).main
                    return language_posterior(self.main, encoded, self.models.special_tokens)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                # Outside the except block, in which the exception holds memory.
                self.make_room()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Run the block on the engine's stream. Raises RuntimeError in other threads."""
        self._check_thread()
        self.threads.adjust()
        with self._on_stream():
            yield

    @property
    def memory(self) -> StateMemory:
        """Return the memory of the greedy lane."""
        return self.batch(1).memory

    def batch(self, num_beams: int) -> Batch:
        return self.batches[Lane(num_beams)]

    # Inside

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("an engine is for the thread that made it")

    def _on_stream(self) -> AbstractContextManager[object]:
        if self._stream is None or self.lost is not None:
            return nullcontext()
        return torch.cuda.stream(self._stream)
