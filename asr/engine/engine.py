"""The decode engine: windows of samples in, tokens out, for any number of sessions at once.

The one decision: the memory of a batch (caches of both models, state of the rows) belongs to the
engine, and the sessions of all clients share its rows. Caches are by far the largest thing besides
the weights, and a CUDA graph replays over fixed addresses. A lock is held for one step, never
between steps. Nothing is ever written into the models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Sequence as Requests
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.admission import Admission
from asr.engine.captures import HIGH_PRIORITY
from asr.engine.cuda_graphs import CudaGraphRunner
from asr.engine.drafters import draft_model
from asr.engine.lanes import Lanes
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import DetectedLanguage, LanguagePosterior, language_posterior
from asr.engine.request import DecodeOptions, Request
from asr.engine.row_state import ModelWithCache
from asr.engine.runner import EagerRunner, StepRunner
from asr.engine.scheduler import DecodeContext, Scheduler
from asr.engine.sequence import Sequence
from asr.engine.session import Session
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

T = TypeVar("T")


class DecodeEngine:
    """Decodes with one set of models; safe to call from several threads."""

    def __init__(self, models: WhisperModels, cuda_graphs: bool = True) -> None:
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
            decode_text=models.tokenizer.decode,
        )
        self.admission = Admission()
        self.lanes = Lanes(self._new_lane)
        self.admission.elsewhere = self.lanes.waiting_sessions
        self.scheduler = self.lanes.greedy
        self.memory = self.scheduler.memory
        self._lock, self._next = Lock(), Lock()
        self._lost: Exception | None = None  # set once the device is
        self._stream = decoding_stream(models.device)
        with self._on_stream():
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
        with self._turn():
            return self._within_memory(
                lambda: self._language_posterior(samples), self._release_batch
            )

    # What sessions call

    def add(self, session: Session, requests: Requests[Request]) -> None:
        """Queue requests of a session."""
        with self._turn():
            if self._lost is not None:
                session.fail(self._lost)
                return
            self.lanes.add(
                Sequence(each, session.options, session, session.stats) for each in requests
            )

    def step(self, session: Session) -> None:
        """`step_all`, unless the session has results already."""
        with self._turn():
            if not session.has_results:
                self._step_lanes()

    def step_all(self) -> None:
        """Run one step of every lane, for all sessions; results wait there to be taken.

        Where memory runs out the lane's batch is halved and begun again. An error reaches the
        sessions whose requests were lost.
        """
        with self._turn():
            self._step_lanes()

    def cancel(self, session: Session) -> None:
        """Drop what a session still has queued or running."""
        with self._turn():
            for lane in self.lanes if self._lost is None else ():
                lane.cancel(session)

    @contextmanager
    def endless_texts(self) -> Iterator[None]:
        """Let no text end before its greatest length meanwhile."""
        with self._turn():
            ends = self.context.filters.forbid_ends()
        try:
            yield
        finally:
            with self._turn():
                self.context.filters.restore_ends(ends)

    def rows_beside(self, num_beams: int, wanted: int) -> int:
        """How many of `wanted` rows of so many beams fit beside what is held now; 0 is possible."""
        with self._turn():
            return self.lanes.lane(num_beams).memory.rows_beside(wanted)

    @property
    def running_rows(self) -> int:
        """How many windows are being decoded; takes no lock."""
        return sum(len(lane.running) for lane in self.lanes)

    @property
    def waiting_windows(self) -> int:
        """How many windows wait for a row; takes no lock."""
        return sum(len(lane.waiting) for lane in self.lanes)

    def _step_lanes(self) -> None:
        if self._lost is not None:
            return
        for lane in self.lanes:
            self._step_lane(lane)
        if not self.lanes.busy:
            self.threads.restore()

    def _step_lane(self, lane: Scheduler) -> None:
        """Run one step of a lane and hand out what finished."""
        try:
            finished = self._within_memory(
                lambda: lane.step() if self.lanes.may_step(lane) else [],
                lambda: self._halve_batch(lane),
            )
        except Exception as error:
            self._lose(lane, error)
            return
        for sequence, result in finished:
            owner = sequence.session
            assert isinstance(owner, Session)
            owner.finish(sequence.request, result)
        self.lanes.move()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the engine's lock, in turns: who waits next holds the second lock meanwhile.

        A plain lock would often go back to the thread that has just released it.
        """
        with self._next:
            self._lock.acquire()
        try:
            self.threads.adjust()
            with self._on_stream():
                yield
        finally:
            self._lock.release()

    def _on_stream(self) -> AbstractContextManager[object]:
        """What computes in the block is decoding, for the device."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _within_memory(self, work: Callable[[], T], make_room: Callable[[], None]) -> T:
        """What `work` returns, tried again after `make_room` as often as memory runs out."""
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the except block: until here the exception held on to the device's memory.
            make_room()

    def _halve_batch(self, lane: Scheduler) -> None:
        """Begin a lane again, once beside lanes that hold only what they need, then with half the
        rows.

        Where one row was left it waits until nothing runs beside it. Raises OutOfMemory where
        nothing does.
        """
        failed, held, suspects = lane.attempted, lane.memory.capacity, lane.suspects
        lane.preempt()
        self.lanes.move()
        if self.lanes.release_idle() and lane.memory.may_retry(max(failed, held)):
            return
        if max(failed, held) > 1:
            lane.memory.lower_limit(failed if failed > 1 else held)
        elif not self.lanes.wait_for_others(lane):
            error = OutOfMemory(TOO_SMALL)
            self._drop(suspects, error)  # who may have left for another lane
            raise error

    def _release_batch(self) -> None:
        """Give back what idle lanes hold, else what all do. Raises OutOfMemory where that is
        nothing.
        """
        if self.lanes.release_idle():
            return
        holding = [lane for lane in self.lanes if lane.memory.state is not None]
        if not holding:
            raise OutOfMemory(TOO_SMALL)
        for lane in holding:
            lane.preempt()
        self.lanes.move()

    def _lose(self, lane: Scheduler, error: Exception) -> None:
        """Tell the sessions whose requests are lost because a step of `lane` failed.

        Where several had a part in it they begin again one by one, to find whose fault it was.
        """
        suspects = lane.suspects
        if is_device_lost(error):
            self._lose_device(error)
        elif isinstance(error, OutOfMemory) or not suspects:
            self._drop([each.session for each in lane.abort()], error)
        elif len(suspects) > 1:
            logger.warning("a step failed: its %d requests go on one by one", len(suspects))
            lane.isolate()
            self.lanes.move()
        else:
            lane.preempt()
            self.lanes.move()
            self._drop(suspects, error)

    def _lose_device(self, error: Exception) -> None:
        """Tell every session; nothing is decoded any more, and nothing freed.

        Each call to the device would raise again, and freeing pinned memory would end the process
        before it has answered (pytorch#178154). The error's traceback keeps what the step held.
        """
        self._lost = error
        present = [each.session for lane in self.lanes for each in lane.present]
        for session in dict.fromkeys(present):
            assert isinstance(session, Session)
            session.fail(error)

    def _drop(self, sessions: Requests[Hashable], error: Exception) -> None:
        """Drop the requests of sessions and tell them why."""
        for session in dict.fromkeys(sessions):
            assert isinstance(session, Session)
            for lane in self.lanes:
                lane.cancel(session)
            session.fail(error)

    def _new_lane(self, num_beams: int, lanes: Lanes) -> Scheduler:
        """The scheduler of a number of beams; drafting is for rows without."""
        memory = StateMemory(
            self.main,
            self.draft_model if num_beams == 1 else None,
            self.runner,
            num_beams if num_beams > 1 else None,
            lanes.release_idle,
        )
        return Scheduler(
            memory, self.context, lanes.running_rows, self.admission, lanes.is_gathering
        )

    @torch.inference_mode()
    def _language_posterior(self, samples: NDArray[np.float32]) -> LanguagePosterior:
        encoded = self.context.encoder.encode([samples], drafted=False).main
        main = ModelWithCache(self.main, self.main.allocate(1, 1))
        main.decoder.fill_cross_kv(encoded, main.cache)
        return language_posterior(main, encoded, self.models.special_tokens)


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
