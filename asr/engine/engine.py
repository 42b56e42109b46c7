"""The decode engine: windows of samples in, tokens out, for any number of sessions at once.

A step asks the scheduler who enters, has the batches encode, prefill and decode, and hands out what
is done. The memory of a batch (caches of both models, state of the rows) belongs to the engine, and
the sessions of all clients share its rows: caches are by far the largest thing besides the weights,
and a CUDA graph replays over fixed addresses. An engine is for one thread, which `asr.recogniser`
gives it: a thread that computes has threads of its own beneath it. Nothing is ever written into the
models.
"""

from __future__ import annotations

from collections import abc
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident

import numpy as np
import torch
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.batch import Batch, Batches, DecodeContext
from asr.engine.cuda_graphs import HIGH_PRIORITY, CudaGraphRunner
from asr.engine.drafters import draft_model
from asr.engine.executor import Executor
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import LanguagePosterior, language_posterior
from asr.engine.request import DecodeOptions, Request
from asr.engine.results import ResultReader
from asr.engine.runner import StepRunner
from asr.engine.scheduler import DEFAULT_LIMITS, Limits, Scheduler
from asr.engine.sequence import Lane
from asr.engine.session import Client, Session
from asr.engine.state import StateMemory
from asr.engine.warmup import measured_drafting
from asr.model.alignment_heads import alignment_heads
from asr.model.cpu_threads import CpuThreads
from asr.model.decoder import Decoder
from asr.model.draft_heads import BaseHead
from asr.model.encoder import Encoder
from runtime.device_errors import is_out_of_memory


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
        self.scheduler = Scheduler(limits, rows_cost=models.device.type == "cpu")
        batches = Batches(self.main, self.draft_model, self.context, limits.max_rows)
        self._executor = Executor(self.scheduler, batches)
        self._thread = get_ident()
        self._stream = decoding_stream(models.device)
        with self.computing():
            batches.prepare()
            if self.draft_model is not None:
                self.context.drafting = measured_drafting(self.memory, self.context)
        self.threads.restore()

    def session(self, options: DecodeOptions) -> Session:
        """A new session; see `asr.engine.session`."""
        return Session(self, options)

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
                self._executor.make_room()

    def step(self, newcomers: bool = False, live: bool = False) -> int:
        """Run one step of every batch, for all sessions; results wait there to be taken. Returns
        how many rows were in it.

        `newcomers` says that somebody has come who has added nothing yet, and `live` that somebody
        live has: beside those all others have a part of the time. Where a step fails, what follows
        is `asr.engine.recovery`'s; an error reaches the sessions whose requests are lost.
        """
        with self.computing():
            rows = self._executor.step(newcomers, live)
            if not self.scheduler.busy:
                self.threads.restore()
        return rows

    @contextmanager
    def computing(self) -> abc.Iterator[None]:
        """The block computes, in the engine's thread and on its stream.

        On CUDA what the engine's models make elsewhere is in no order with what they make here.
        """
        self._check_thread()
        self.threads.adjust()
        with self._on_stream():
            yield

    # What sessions call

    def add(self, client: Client, requests: abc.Sequence[Request]) -> None:
        """Queue requests of a client. Raises ValueError for a prefix that is not for them."""
        self._check_thread()
        self._executor.add(client, requests)

    def cancel(self, client: Client) -> None:
        """Drop what a client still has queued or running."""
        with self.computing():
            self._executor.cancel(client)

    # What tests and benchmarks look at

    def batch(self, num_beams: int, live: bool = False) -> Batch:
        """The batch of rows with so many beams, made where it is new."""
        return self._executor.batches[Lane(num_beams, live)]

    @property
    def batches(self) -> abc.Mapping[Lane, Batch]:
        """All of them."""
        return self._executor.batches

    @property
    def memory(self) -> StateMemory:
        """That of plain rows of recordings."""
        return self.batch(1).memory

    @contextmanager
    def endless_texts(self) -> abc.Iterator[None]:
        """Let no text end before its greatest length meanwhile."""
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
        """What computes in the block is decoding, for the device; a lost one is left alone."""
        if self._stream is None or self._executor.lost is not None:
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
    """How steps run on a device."""
    return CudaGraphRunner(cuda_graphs) if device.type == "cuda" else StepRunner()


def decoding_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Where an engine computes on CUDA: ahead of what runs beside it, diarization for one, and
    after all that was queued before it was made, weights for one. None on other devices.
    """
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream
