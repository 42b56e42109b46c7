"""The batch as it runs: windows sit down in rows, rounds are played, finished windows leave.

The one decision: live rows are always the first ones. A window that leaves is replaced by the last
live row, and new windows sit down behind them, so every pass works on a slice of the caches and
none gathers rows. Moving a row costs one copy a window; gathering would cost one a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.draft_length import DraftLength
from asr.engine.fallback import Fallback, chances
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import Entry, enter, read_prompts
from asr.engine.runner import Reading, Report, Rounds
from asr.engine.speculative import Batch, Round
from asr.model.alignment_heads import normalize_attention
from asr.model.encoder import EncoderOutput
from timebase import SAMPLES_PER_TOKEN


@dataclass(frozen=True, eq=False)
class Request:
    """A window to decode: samples (n,) at 16 kHz, at most as many as the model hears at once, and
    the prompt.
    """

    key: Any
    samples: NDArray[np.float32]
    prompt: tuple[int, ...]
    most_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A window's tokens after the prompt and before the end of text, and how sure the model was of
    them.

    `no_speech` is the probability of the no-speech token where the transcript starts.
    `log_probabilities` are those of the tokens and, where the model ended by itself, of the end of
    text: after the rules, at temperature 1, as openai/whisper counts them. `attention`, where words
    are wanted, tells for each of these where in the window it was heard; see
    `asr.output.dtw.normalize_attention`.
    """

    tokens: tuple[int, ...]
    no_speech: float
    log_probabilities: tuple[float, ...]
    temperature: float
    attention: NDArray[np.float32] | None = None  # (tokens, frames of 20 ms)

    @property
    def mean_log_probability(self) -> float:
        """How sure the model was on average."""
        return sum(self.log_probabilities) / max(1, len(self.log_probabilities))


@dataclass
class Slot:
    """A window in a row, and its attempt."""

    window: Request
    drafted: bool
    attempt: int = 0
    temperature: float = 0.0
    no_speech: float = 0.0

    @property
    def draftable(self) -> bool:
        """Sampled attempts are never drafted: a draft predicts the likeliest token."""
        return self.drafted and self.temperature == 0


@dataclass(frozen=True)
class Course:
    """What holds for all rounds of a request."""

    rules: LogitFilter
    vocabulary: SpecialTokens
    rounds: Rounds
    text: Callable[[list[int]], Any]
    fallback: Fallback | None
    drafting: DraftLength | None
    drafts: int | None  # set: always so many
    words: bool = False  # whether it matters where in the window each token was heard


class Scheduler:
    """The windows being decoded. Several may be admitted at any time; `step` answers those that are
    done.
    """

    @torch.inference_mode()
    def __init__(self, batch: Batch, most: int, course: Course) -> None:
        self.batch = batch
        self.most = most
        self.course = course
        self.slots: list[Slot] = []
        self._running: deque[tuple[Reading, int]] = deque()
        self._reach = 0  # no live row is longer
        self._unread = 2  # newest tokens that the assistant may not have read
        self._view = batch
        batch.rows.finished.fill_(True)  # a request that was broken off left its rows running

    @property
    def free(self) -> int:
        """How many windows may be admitted."""
        return self.most - len(self.slots)

    @torch.inference_mode()
    def admit(self, windows: Sequence[Request], encoded: EncoderOutput) -> None:
        """Gives `windows` the next rows and their first tokens."""
        start, stop = len(self.slots), len(self.slots) + len(windows)
        self.slots += [Slot(window, encoded.assistant is not None) for window in windows]
        view = self.batch.view(start, stop)
        view.main.decoder.listen(encoded.main, view.main.cache)
        if view.assistant is not None and encoded.assistant is not None:
            view.assistant.decoder.listen(encoded.assistant, view.assistant.cache)
        self._begin(start, stop)

    def step(self) -> list[tuple[Request, DecodeResult]]:
        """Plays one round. Returns the windows that are done, whose rows are free again."""
        self._launch()
        if self.course.rounds.late and len(self._running) == 1:
            return []
        report = self._hear()
        if any(report.finished[: len(self.slots)]):
            while self._running:
                report = self._hear()
            return self._leave(report)
        return []

    @torch.inference_mode()
    def _begin(self, start: int, stop: int) -> None:
        view, slots = self.batch.view(start, stop), self.slots[start:stop]
        enter([self._entry(slot) for slot in slots], view.rows)
        helper = view.assistant if any(slot.draftable for slot in slots) else None
        no_speech = read_prompts(
            view.main, helper, view.rows, self.course.rules, self.course.vocabulary
        ).tolist()
        for slot, probability in zip(slots, no_speech, strict=True):
            slot.no_speech = probability
        self._reach = max(self._reach, *(len(slot.window.prompt) + 1 for slot in slots))

    def _entry(self, slot: Slot) -> Entry:
        window, longest = slot.window, self.batch.main.decoder.length
        limit = (
            longest
            if window.most_tokens is None
            else min(longest, len(window.prompt) + window.most_tokens)
        )
        chance = chances(window.samples, slot.attempt, limit) if slot.temperature else None
        return Entry(window.prompt, limit, slot.draftable, slot.temperature, chance)

    @torch.inference_mode()
    def _launch(self) -> None:
        rounds, rows = (
            self.course.rounds,
            min(self.course.rounds.rows(len(self.slots)), self.batch.capacity),
        )
        drafts = self._drafts(rows)
        sampled = any(slot.temperature for slot in self.slots)
        span = min(rounds.span(self._reach + drafts), self.batch.main.cache.width)
        unread = min(self._unread, self._reach) if drafts else 1
        shape = Round(drafts, unread, span, sampled)
        if self._view.capacity != rows:
            self._view = self.batch.view(0, rows)
        self._running.append((rounds.launch(self._view, self.course.rules, shape), drafts))
        self._reach += drafts + 1
        self._unread = 2 if drafts else self._unread + 1

    def _drafts(self, rows: int) -> int:
        draftable = sum(slot.draftable for slot in self.slots)
        if self.course.drafts is not None:
            return self.course.drafts if draftable else 0
        return self.course.drafting.choose(rows, draftable) if self.course.drafting else 0

    def _hear(self) -> Report:
        """Waits for the report of the oldest round that was not heard yet."""
        reading, _ = self._running.popleft()
        report = reading()
        longest = max(max(report.length), *(len(slot.window.prompt) + 1 for slot in self.slots))
        self._reach = longest + sum(drafts + 1 for _, drafts in self._running)
        if self.course.drafting is not None:
            self.course.drafting.observe(sum(report.accepted), sum(report.judged))
        return report

    def _leave(self, report: Report) -> list[tuple[Request, DecodeResult]]:
        """Frees the rows that finished, from the last on, except those that are worth another
        attempt.
        """
        finished = [row for row in range(len(self.slots)) if report.finished[row]]
        decoded = {row: self._decoded(row, report.length[row]) for row in finished}
        done = [row for row in finished if not self._try_again(row, decoded[row])]
        answers = [(self.slots[row].window, self._located(row, decoded[row])) for row in done]
        for row in reversed(done):
            self._free(row)
        return answers

    def _decoded(self, row: int, length: int) -> DecodeResult:
        slot, rows = self.slots[row], self.batch.rows
        begin = len(slot.window.prompt)
        tokens = rows.tokens[row, begin:length].tolist()
        log_probabilities = rows.log_probability[row, begin:length].tolist()
        spoken = (
            tokens[:-1] if tokens and tokens[-1] == self.course.vocabulary.end_of_text else tokens
        )
        return DecodeResult(
            tuple(spoken), slot.no_speech, tuple(log_probabilities), slot.temperature
        )

    @torch.inference_mode()
    def _located(self, row: int, decoded: DecodeResult) -> DecodeResult:
        """With the attention, if it is wanted; a token's is that of the position that chose it, one
        before its own.
        """
        if not self.course.words or not decoded.tokens:
            return decoded
        window, main = self.slots[row].window, self.batch.main
        first = len(window.prompt) - 1
        positions = slice(first, first + len(decoded.log_probabilities))
        frames = min(-(-len(window.samples) // SAMPLES_PER_TOKEN), main.decoder.frames)
        attention = normalize_attention(
            main.decoder.audio_attention(main.cache, row, positions, frames)
        )
        return replace(decoded, attention=attention.cpu().numpy())

    def _try_again(self, row: int, decoded: DecodeResult) -> bool:
        slot, fallback = self.slots[row], self.course.fallback
        hotter = fallback.next_temperature(slot.attempt) if fallback else None
        if fallback is None or hotter is None:
            return False
        text = str(
            self.course.text([t for t in decoded.tokens if t < self.course.vocabulary.end_of_text])
        )
        if not fallback.rejects(text, decoded.mean_log_probability, decoded.no_speech):
            return False
        slot.attempt, slot.temperature = slot.attempt + 1, hotter
        self._begin(row, row + 1)
        return True

    @torch.inference_mode()
    def _free(self, row: int) -> None:
        last = len(self.slots) - 1
        if row != last:
            self.batch.move(last, row)
            self.slots[row] = self.slots[last]
        self.batch.rows.finished[last] = True
        self.slots.pop()
