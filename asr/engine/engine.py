"""The decode engine: windows of samples in, tokens out, any number at once, with an assistant or
without.

The one decision: the memory of a batch (caches of both models, tokens) belongs to the engine and is
reused by every request, one request at a time. Caches are by far the largest thing besides the
weights, and a CUDA graph replays over fixed addresses; two requests side by side would need them
twice and would not be faster than one after the other. Nothing is ever written into the models.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.cuda_graphs import GraphedRounds
from asr.engine.draft_length import MOST_DRAFTS, Costs, DraftLength
from asr.engine.fallback import Fallback
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import Detected, detect_language
from asr.engine.runner import EagerRounds, Rounds
from asr.engine.scheduler import Course, DecodeResult, Request, Scheduler
from asr.engine.speculative import Batch, Round
from asr.model.alignment_heads import alignment_heads
from asr.model.decoder import Decoder
from asr.model.encoder import Encoder
from errors import OutOfMemory

HEARD_AT_ONCE = 16  # windows; bounds the encoder's memory beside the caches
MEASURED_ROWS = (1, 4, 12)
MEASURED_SPAN = 64
SETTLED = 0.02  # seconds of rounds of one shape
TOO_SMALL = "one window does not fit into the device's memory"

Take = Callable[[int], Sequence[Request]]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a request's windows are decoded. `drafts` fixes the drafts a round; None lets measured
    costs decide.

    `words` asks where in its window each token was heard.
    """

    timestamps: bool = True
    assisted: bool = False
    batch_size: int = 24
    fallback: Fallback | None = None
    drafts: int | None = None
    words: bool = False


class DecodeEngine:
    """Decodes with one set of models; safe to call from several threads, which then wait for each
    other.
    """

    def __init__(self, models: WhisperModels) -> None:
        self.models = models
        self.hearing = Encoder(models)
        self.main = Decoder(models.model, alignment_heads(models.model))
        self.assistant = Decoder(models.assistant.model) if models.assistant else None
        self.rounds: Rounds = GraphedRounds() if models.device.type == "cuda" else EagerRounds()
        self.rules = {
            each: LogitFilter.of(models.special_tokens, each, self.main.token_embeddings)
            for each in (False, True)
        }
        self._batch: Batch | None = None
        self._lock = Lock()
        self._warm_up()
        self.drafting = None if self.assistant is None else DraftLength(self._measure_costs())

    @torch.inference_mode()
    def detect_language(self, samples: NDArray[np.float32]) -> Detected:
        """The likeliest language of a window's samples, and how likely they hold no speech.

        What the encoder made of them is kept, so that decoding them next costs no second pass.
        Raises OutOfMemory if one window is too much for the device.
        """
        with self._lock:
            with suppress(torch.OutOfMemoryError):
                return self._detect(samples)
            self._give_back()  # an earlier request's batch may have left too little
            try:
                return self._detect(samples)
            except torch.OutOfMemoryError:
                raise OutOfMemory(TOO_SMALL) from None

    def decode(self, take: Take, options: DecodeOptions) -> Iterator[tuple[Request, DecodeResult]]:
        """Decodes what `take(count)` gives, up to `count` windows a call, until it gives none and
        all are done.

        Windows come back as they finish; `take` is asked again after each, so it may offer what a
        finished window left over. Where the device runs out of memory the batch is halved;
        OutOfMemory if one window is too much.
        """
        with self._lock:
            waiting, rows = deque(take(options.batch_size)), options.batch_size
            while waiting:
                running: Scheduler | None = None
                most = min(rows, len(waiting))
                try:
                    running = Scheduler(self._room(most), most, self._course(options))
                    yield from self._run(Run(running, waiting, take, options))
                except torch.OutOfMemoryError:
                    exhausted = (
                        True  # once the block is left, nothing holds on to the device's memory
                    )
                else:
                    exhausted = False
                if exhausted:
                    waiting.extendleft(
                        slot.window for slot in reversed(running.slots if running else ())
                    )
                    del running
                    rows = self._shrink(most)

    def _detect(self, samples: NDArray[np.float32]) -> Detected:
        encoded = self.hearing.hear([samples], drafted=False)
        self.hearing.remember(samples, encoded)
        first = self._room(1).main.view(0, 1)
        first.decoder.listen(encoded.main, first.cache)
        return detect_language(first, self.models.special_tokens)

    def _run(self, request: Run) -> Iterator[tuple[Request, DecodeResult]]:
        """Until no window waits or runs."""
        while True:
            self._fill(request)
            if not request.running.slots:
                return
            yield from request.running.step()

    def _fill(self, request: Run) -> None:
        """Gives free rows to waiting windows."""
        running, waiting = request.running, request.waiting
        free = running.free - len(waiting)
        if free > 0:
            waiting.extend(request.take(free))
        while waiting and running.free:
            windows = [
                waiting[place] for place in range(min(len(waiting), running.free, HEARD_AT_ONCE))
            ]
            encoded = self.hearing.hear(
                [window.samples for window in windows], self._worth_drafting(request, len(windows))
            )
            for _ in windows:
                waiting.popleft()
            running.admit(windows, encoded)

    def _worth_drafting(self, request: Run, new: int) -> bool:
        """Whether windows that sit down now are prepared for drafting."""
        if self.drafting is None or not request.options.assisted:
            return False
        if request.options.drafts is not None:
            return request.options.drafts > 0
        rows = len(request.running.slots) + new
        worth = self.drafting.choose(rows, rows) > 0
        if not worth:
            self.drafting.fade(new)
        return worth

    def _course(self, options: DecodeOptions) -> Course:
        return Course(
            rules=self.rules[options.timestamps],
            vocabulary=self.models.special_tokens,
            rounds=self.rounds,
            text=self.models.tokenizer.decode,
            fallback=options.fallback,
            drafting=self.drafting if options.assisted else None,
            drafts=options.drafts,
            words=options.words,
        )

    @torch.inference_mode()
    def _room(self, rows: int) -> Batch:
        """The batch, with room for at least `rows` rows."""
        if self._batch is None or self._batch.capacity < rows:
            self._clear()
            self._batch = Batch.allocate(
                self.main, self.assistant, self.rounds.rows(rows), MOST_DRAFTS
            )
        return self._batch

    def _clear(self) -> None:
        self.rounds.forget()
        self._batch = None

    def _shrink(self, rows: int) -> int:
        """Gives the batch's memory back. Returns half of `rows`; raises OutOfMemory where that is
        none.
        """
        self._give_back()
        if rows == 1:
            raise OutOfMemory(TOO_SMALL)
        return rows // 2

    def _give_back(self) -> None:
        self._clear()
        if self.models.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Prepares the rounds that every request plays, as far as the device's memory allows."""
        try:
            for rows, shape in self.rounds.usual():
                self.rounds.launch(self._room(rows).view(0, rows), self.rules[True], shape)()
        except torch.OutOfMemoryError:
            self._clear()

    def _measure_costs(self) -> Costs:
        """Times rounds over rows that are finished: they cost the same and stand still."""
        costs = Costs.measure(MEASURED_ROWS, self._time_round)
        if not self.rounds.late:
            self._clear()
        return costs

    @torch.inference_mode()
    def _time_round(self, rows: int, drafts: int) -> float:
        """The least of the rounds that fit into SETTLED seconds, one at least.

        Only the first finds the models' weights elsewhere than in the processor's caches, where a
        running batch has them; that alone made rounds without drafts of small models look half as
        dear again as they are.
        """
        batch, shape = (
            self._room(rows).view(0, rows),
            Round(drafts, 2 if drafts else 1, MEASURED_SPAN),
        )
        least, spent = float("inf"), 0.0
        while spent < SETTLED:
            started = time.perf_counter()
            self.rounds.launch(batch, self.rules[True], shape)()
            took = time.perf_counter() - started
            least, spent = min(least, took), spent + took
        return least


@dataclass(frozen=True)
class Run:
    """The windows of one call of `decode`: running, waiting, and where more come from."""

    running: Scheduler
    waiting: deque[Request]
    take: Take
    options: DecodeOptions
