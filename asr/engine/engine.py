"""The decode engine: windows of samples in, tokens out, for any number of sessions at once.

A step asks the scheduler who enters, has the batches encode, prefill and decode, and hands out what
is done. The memory of a batch (caches of both models, state of the rows) belongs to the engine, and
the sessions of all clients share its rows: caches are by far the largest thing besides the weights,
and a CUDA graph replays over fixed addresses. An engine is for one thread, which `asr.recogniser`
gives it: a thread that computes has threads of its own beneath it. Nothing is ever written into the
models.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Requests
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident

import numpy as np
import torch
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.batch import Batch, DecodeContext
from asr.engine.captures import HIGH_PRIORITY
from asr.engine.cuda_graphs import CudaGraphRunner
from asr.engine.drafters import draft_model
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import DetectedLanguage, LanguagePosterior, language_posterior
from asr.engine.recovery import Failure, Kind, Remedy, remedy
from asr.engine.request import DecodeOptions, Request
from asr.engine.results import ResultReader
from asr.engine.row_state import ModelWithCache
from asr.engine.runner import EagerRunner, StepRunner
from asr.engine.scheduler import DEFAULT_LIMITS, Limits, Load, Scheduler
from asr.engine.sequence import Sequence
from asr.engine.session import Client, Session
from asr.engine.state_memory import StateMemory
from asr.engine.warmup import measured_drafting, prepare_shapes
from asr.model.alignment_heads import alignment_heads
from asr.model.cpu_threads import CpuThreads
from asr.model.decoder import Decoder
from asr.model.draft_heads import BaseHead
from asr.model.encoder import Encoder
from errors import OutOfMemory
from runtime.device_errors import is_device_lost, is_out_of_memory

logger = logging.getLogger("endpoint")

TOO_SMALL = "one window does not fit into the device's memory"


class DecodeEngine:
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
        self.scheduler = Scheduler(limits)
        self.batches: dict[int, Batch] = {}
        self._lost: Exception | None = None  # set once the device is
        self._thread = get_ident()
        self._stream = decoding_stream(models.device)
        with self._computing():
            prepare_shapes(self.memory, self.context)
            if self.draft_model is not None:
                self.context.drafting = measured_drafting(self.memory, self.context)
        self.threads.restore()

    def session(self, options: DecodeOptions) -> Session:
        """A new session; see `asr.engine.session`."""
        return Session(self, options)

    def detect_language(self, samples: NDArray[np.float32]) -> DetectedLanguage:
        """The likeliest language of a window's samples, and how likely they hold no speech.

        Raises OutOfMemory if one window is too much for the device.
        """
        return self.language_posterior(samples).likeliest

    def language_posterior(self, samples: NDArray[np.float32]) -> LanguagePosterior:
        """How likely a window's samples are in each language.

        Raises OutOfMemory if one window is too much for the device.
        """
        with self._computing():
            while True:
                try:
                    return self._language_posterior(samples)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                # Outside the except block: until here the exception held on to the memory.
                self._release_batch()

    def step(self, newcomers: bool = False) -> int:
        """Run one step of every batch, for all sessions; results wait there to be taken. Returns
        how many rows were in it.

        `newcomers` says that somebody has come who has added nothing yet. Where a step fails, what
        follows is `asr.engine.recovery`'s; an error reaches the sessions whose requests are lost.
        """
        if self._lost is not None:
            return 0
        rows = 0
        with self._computing():
            for num_beams in self.scheduler.batches:
                rows += self._step_batch(self.batch(num_beams), newcomers)
            if not self.scheduler.busy:
                self.threads.restore()
        return rows

    # What sessions call

    def add(self, client: Client, requests: Requests[Request]) -> None:
        """Queue requests of a client."""
        self._check_thread()
        if self._lost is not None:
            client.error = self._lost
        else:
            self.scheduler.add(Sequence(client, each) for each in requests)

    def cancel(self, client: Client) -> None:
        """Drop what a client still has queued or running."""
        if self._lost is not None:
            return
        with self._computing():
            in_rows = self.scheduler.cancel(client)
            for num_beams in {each.num_beams for each in in_rows}:
                self.batch(num_beams).evict(
                    [each for each in in_rows if each.num_beams == num_beams]
                )

    # What tests, benchmarks and the self-test look at

    def batch(self, num_beams: int) -> Batch:
        """The batch of rows with so many beams, made where it is new; only plain rows draft."""
        if num_beams not in self.batches:
            drafts = self.draft_model if num_beams == 1 else None
            memory = StateMemory(self.main, drafts, self.runner, num_beams)
            self.batches[num_beams] = Batch(memory, self.context)
        return self.batches[num_beams]

    @property
    def memory(self) -> StateMemory:
        """That of plain rows."""
        return self.batch(1).memory

    @contextmanager
    def endless_texts(self) -> Iterator[None]:
        """Let no text end before its greatest length meanwhile."""
        with self._computing():
            ends = self.context.filters.forbid_ends()
        try:
            yield
        finally:
            with self._computing():
                self.context.filters.restore_ends(ends)

    # One step

    def _step_batch(self, batch: Batch, newcomers: bool) -> int:
        """One step of a batch, which hands out what is done. Returns how many rows were in it."""
        try:
            return self._run_batch(batch, newcomers)
        except Exception as error:
            # An exception holds on to the device's memory, which is short.
            failure = None if is_out_of_memory(error) else error
        self._recover(batch, failure)
        return 0

    def _run_batch(self, batch: Batch, newcomers: bool) -> int:
        if not self._admit(batch, newcomers) or not batch.rows:
            return 0
        rows = len(batch.rows)
        for sequence, result in self.scheduler.stepped(batch.num_beams, batch.step()):
            sequence.client.finished.append((sequence.request, result))
        return rows

    def _admit(self, batch: Batch, newcomers: bool) -> bool:
        """Let in whom the scheduler chooses. Returns whether the batch is to take a step."""
        load = Load(batch.memory.limit.rows, self.scheduler.clock(), newcomers=newcomers)
        while True:
            plan = self.scheduler.plan(batch.num_beams, load)
            if not plan.entering:
                return plan.decodes
            began = self.scheduler.clock()
            if batch.memory.lacks(plan.rows, len(batch.rows)):
                self._release_idle()
            entered = batch.enter(plan)
            self.scheduler.entered(plan, entered, began)
            if not entered:
                return True
            load = load._replace(encoded=load.encoded + entered)

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("an engine is for the thread that made it")

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """The block computes, in the engine's thread and on its stream."""
        self._check_thread()
        self.threads.adjust()
        with self._on_stream():
            yield

    def _on_stream(self) -> AbstractContextManager[object]:
        """What computes in the block is decoding, for the device."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @torch.inference_mode()
    def _language_posterior(self, samples: NDArray[np.float32]) -> LanguagePosterior:
        encoded = self.context.encoder.encode([samples], drafted=False).main
        main = ModelWithCache(self.main, self.main.allocate(1, 1))
        main.decoder.fill_cross_kv(encoded, main.cache)
        return language_posterior(main, encoded, self.models.special_tokens)

    # When something fails

    def _recover(self, batch: Batch, error: Exception | None) -> None:
        """Carry out what follows a step that failed with `error`; None where memory ran out."""
        scheduler, num_beams, limit = self.scheduler, batch.num_beams, batch.memory.limit
        suspects = scheduler.suspects(num_beams)
        rows = max(batch.attempted, batch.memory.capacity)
        idle = [each for each in self._idle_batches() if each is not batch]
        kind = kind_of(error)
        room_made = kind is Kind.OUT_OF_MEMORY and bool(idle) and limit.may_try_again(rows)
        others_run = scheduler.others_run(num_beams)
        follows = remedy(Failure(kind, len(suspects), rows, room_made, others_run))
        if follows is Remedy.GIVE_UP_DEVICE:
            self._give_up_device(error)
            return
        scheduler.preempt(num_beams)
        for each in [batch, *(idle if kind is Kind.OUT_OF_MEMORY else ())]:
            each.clear()
        if follows is Remedy.FEWER_ROWS:
            limit.halve(batch.attempted if batch.attempted > 1 else rows)
        elif follows is Remedy.WAIT_FOR_OTHERS:
            scheduler.wait_for_others(num_beams)
        elif follows is Remedy.ONE_BY_ONE:
            logger.warning("a step failed: its %d requests go on one by one", len(suspects))
            scheduler.isolate(num_beams)
        elif follows is Remedy.FAIL_SESSION:
            self._drop(suspects, error)
        elif follows is Remedy.FAIL_QUEUE:
            self._drop(scheduler.queued(num_beams), error)

    def _drop(self, clients: Iterable[Client], error: Exception | None) -> None:
        """Drop the requests of clients and tell them why: too little memory, by default."""
        for client in dict.fromkeys(clients):
            self.cancel(client)
            client.error = error or OutOfMemory(TOO_SMALL)

    def _give_up_device(self, error: Exception | None) -> None:
        """Tell every client; nothing is decoded any more, and nothing freed.

        Each call to the device would raise again, and freeing pinned memory would end the process
        before it has answered (pytorch#178154). The error's traceback keeps what the step held.
        """
        self._lost = error
        for client in self.scheduler.clients:
            client.error = error

    def _idle_batches(self) -> list[Batch]:
        """Those that hold memory and in which nothing runs."""
        return [
            batch
            for num_beams, batch in self.batches.items()
            if batch.memory.state is not None and self.scheduler.is_idle(num_beams)
        ]

    def _release_idle(self) -> bool:
        """Give back the memory of batches in which nothing runs. Whether there was any."""
        idle = self._idle_batches()
        for batch in idle:
            batch.clear()
        return bool(idle)

    def _release_batch(self) -> None:
        """Give back what idle batches hold, else what all do. Raises OutOfMemory where that is
        nothing.
        """
        if self._release_idle():
            return
        holding = [each for each in self.batches.values() if each.memory.state is not None]
        if not holding:
            raise OutOfMemory(TOO_SMALL)
        for batch in holding:
            self.scheduler.preempt(batch.num_beams)
            batch.clear()


def kind_of(error: Exception | None) -> Kind:
    """What an error of a step means; None stands for too little memory."""
    if error is None:
        return Kind.OUT_OF_MEMORY
    return Kind.DEVICE_LOST if is_device_lost(error) else Kind.OTHER


def runner_for(device: torch.device, cuda_graphs: bool) -> StepRunner:
    """How steps run on a device."""
    return CudaGraphRunner(cuda_graphs) if device.type == "cuda" else EagerRunner()


def decoding_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Where an engine computes on CUDA: ahead of what runs beside it, diarization for one, and
    after all that was queued before it was made, weights for one. None on other devices.
    """
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream
