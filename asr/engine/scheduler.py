"""The running batch: sequences are admitted to rows, steps run, finished sequences are evicted.

The one decision: live rows are always the first ones. A sequence that is evicted is replaced by the
last live row, and new ones are admitted behind them, so every pass works on a slice of the caches
and none gathers rows. Moving a row costs one copy a window; gathering would cost one a step.
Options belong to the sequence, so requests of several sessions share the rows.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.admission import Admission, Quarantine, encoded_together
from asr.engine.decode_state import DecodeState
from asr.engine.draft_length import DraftLength
from asr.engine.draft_policy import DraftPolicy
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import PrefillBatch, PrefillShape
from asr.engine.request import DecodeResult
from asr.engine.results import ResultReader
from asr.engine.row_state import StepShape
from asr.engine.runner import PendingResult, StepResult, StepRunner
from asr.engine.sequence import Sequence
from asr.engine.state_memory import StateMemory
from asr.model.encoder import Encoder, EncoderOutput
from transcript import DecodeStats

MAX_ENCODER_BATCH = 16  # windows; bounds the encoder's memory beside the caches
# Steps between two looks for texts that will be rejected; each look waits for the device.
STEPS_BETWEEN_LOOKS = 16

Finished = tuple[Sequence, DecodeResult]


@dataclass
class DecodeContext:
    """What every step needs; `drafting` is None where nothing is drafted by measure."""

    encoder: Encoder
    filters: LogitFilter
    special_tokens: SpecialTokens
    runner: StepRunner
    decode_text: Callable[[list[int]], Any]
    drafting: DraftLength | None = None


class Scheduler:
    """The sequences that wait and run. Not safe for several threads: see `DecodeEngine`.

    `running_rows` counts the rows of each session, by default those that run here.
    """

    def __init__(
        self,
        memory: StateMemory,
        context: DecodeContext,
        running_rows: Callable[[], Counter[Hashable]] | None = None,
        admission: Admission | None = None,
        is_gathering: Callable[[Sequence], bool] = lambda _: False,
    ) -> None:
        self.memory = memory
        self.context = context
        self.admission = admission or Admission()
        self._results = ResultReader(context.special_tokens, context.decode_text)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.admits = True  # whether waiting sequences may enter
        self._running_rows = running_rows or self.own_rows
        self._is_gathering = is_gathering
        self._quarantine = Quarantine()
        self._preparing: list[Sequence] = []  # on their way into rows
        self._leaving: list[Sequence] = []  # whose next attempt has another number of beams
        self.attempted = 0  # rows that were last tried: those that did not fit, if memory ran out
        self._pending: deque[tuple[PendingResult, int]] = deque()  # results, and drafts of the step
        self.steps = 0  # so far, of all rows together
        self._longest = 0  # no live row is longer
        self._written = 0  # no cached position beyond it was ever written
        self.drafts = DraftPolicy(memory.draft_model)
        self._view: DecodeState | None = None

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences behind those that wait."""
        self.waiting.extend(sequences)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Admit what fits and run one step. Returns what finished; its rows are free again."""
        self._admit()
        if not self.running:
            return []
        started = time.perf_counter()
        self.steps += 1
        self._stop_rejected()
        self._launch()
        finished = self._collect()
        self._add_seconds(self.running, "decode_seconds", started)
        self.memory.count_step()
        return [] if finished is None else self._finish(finished)

    @property
    def num_beams(self) -> int:
        """The beams of every row."""
        return self.memory.num_beams or 1

    def own_rows(self) -> Counter[Hashable]:
        """How many rows each session has here."""
        return Counter(each.session for each in self.running)

    @property
    def suspects(self) -> list[Hashable]:
        """The sessions for which a step has just failed: those that ran or were to."""
        return list(dict.fromkeys(each.session for each in [*self.running, *self._preparing]))

    @property
    def present(self) -> list[Sequence]:
        """All sequences, running or not."""
        return [*self.running, *self._preparing, *self.waiting, *self._leaving]

    def take_leaving(self) -> list[Sequence]:
        """The sequences that must go on in another lane, which have left this one."""
        leaving, self._leaving = self._leaving, []
        return leaving

    @torch.inference_mode()
    def cancel(self, session: Hashable) -> None:
        """Drop the sequences of a session."""
        self.waiting = deque(each for each in self.waiting if each.session != session)
        rows = [row for row, each in enumerate(self.running) if each.session == session]
        if rows:
            self._drain()
        for row in reversed(rows):
            self._evict(row)

    def preempt(self) -> None:
        """Put everything that runs back into the queue, from its beginning, and free the memory."""
        # A step that fails while rows finish may leave some in their rows that were about to leave.
        self._leaving = [each for each in self._leaving if each not in self.running]
        for sequence in self.running:
            sequence.restart()
        self._leaving += [each for each in self.running if each.num_beams != self.num_beams]
        staying = [each for each in self.running if each.num_beams == self.num_beams]
        self.waiting.extendleft(reversed(staying))
        self._clear()
        self.memory.release()

    def isolate(self) -> None:
        """Preempt, and from then on let what was there run apart, one session after the other."""
        self.preempt()
        self._quarantine.begin(self.waiting)

    def abort(self) -> list[Sequence]:
        """Drop everything. Returns the sequences that ran or waited."""
        dropped = [*self.running, *self.waiting, *self.take_leaving()]
        self.waiting.clear()
        self._clear()
        self.memory.release()
        return dropped

    def _clear(self) -> None:
        self.running.clear()
        self._preparing = []
        self._pending.clear()
        self._view, self._longest = None, 0

    # Admission

    def _admit(self) -> None:
        """Give free rows to waiting sequences: encode them, read their prompts."""
        must_pause = self.admission.pause(self.waiting, self._running_rows())
        pauses = False
        while self.waiting and self.admits and not pauses:
            eligible = self._eligible()
            if not eligible:
                return
            live = len(self.running)
            self.attempted = min(live + len(eligible), self.memory.limit)
            self._view = None  # it would keep a state alive that is replaced by a larger one
            state = self.memory.ensure_capacity(live + len(eligible), live)
            admitted = eligible[: min(state.capacity - live, MAX_ENCODER_BATCH)]
            if not admitted:
                return
            self._preparing = encoded_together(admitted)
            self._prepare(state, self._preparing, must_pause)
            self._preparing = []
            pauses = must_pause()

    def _eligible(self) -> list[Sequence]:
        """The waiting sequences whose turn it is, as far as rows may be had for them."""
        admission, most = self.admission, min(self.admission.max_rows, self.memory.limit)
        ready = [each for each in self.waiting if not self._is_gathering(each)]
        allowed = self._quarantine.allowed(ready, self.running)
        free, rows = most - len(self.running), self._running_rows()
        for_long = admission.rows_for_long(most, allowed, self.running)
        return admission.choose(allowed, rows, free, admission.share(most, rows), for_long)

    def _prepare(
        self, state: DecodeState, sequences: list[Sequence], stop: Callable[[], bool]
    ) -> None:
        """Encode sequences and prefill them in the next rows; the first of them, if `stop` says."""
        live, began = len(self.running), self.admission.clock()
        drafted = self.drafts.prepares(
            sequences[0].options, self.context.drafting, live + len(sequences), len(sequences)
        )
        requests = [each.request for each in sequences]
        started = time.perf_counter()
        encoded = self.context.encoder.encode(
            [each.samples for each in requests],
            drafted,
            [each.request.encoded if each.encoded is None else each.encoded for each in sequences],
            stop,
        )
        sequences = sequences[: len(encoded.main)]
        self.attempted = live + len(sequences)
        self._add_seconds(sequences, "encode_seconds", started)
        for number, sequence in enumerate(sequences):
            sequence.drafted = drafted
            if sequence.may_change_lane and sequence.encoded is None:
                sequence.encoded = encoded.main[number : number + 1].clone()
            self.waiting.remove(sequence)
        self.running += sequences
        self._prefill(live, self.attempted, encoded)
        self.admission.count(sequences, began)

    def _prefill(self, start: int, stop: int, encoded: EncoderOutput | None = None) -> None:
        """Let rows `start` to `stop` read their prompts, with new audio where there is some, and
        choose their first tokens.
        """
        state, sequences = self.memory.state, self.running[start:stop]
        assert state is not None
        started, context = time.perf_counter(), self.context
        max_len, longest = state.main.cache.max_len, state.main.decoder.max_positions
        longest_prompt = max(len(each.prompt) for each in sequences)
        prompt_len = min(context.runner.prompt_len(longest_prompt), max_len)
        drafted = any(each.drafted for each in sequences)
        self._written = max(self._written, prompt_len)
        batch = PrefillBatch.of(
            [each.prefill_input(longest) for each in sequences],
            PrefillShape(prompt_len, self._written, drafted),
            max_len,
            encoded,
        )
        starts = context.runner.prefill(
            state, start, batch, context.filters, context.special_tokens
        )
        for sequence, said in zip(sequences, starts.tolist(), strict=True):
            sequence.read_start(said, context.special_tokens)
        self._longest = max(self._longest, *(each.prefilled_length for each in sequences))
        self._add_seconds(sequences, "prefill_seconds", started)

    # One step

    def _stop_rejected(self) -> None:
        """Now and then, stop the rows whose texts will be rejected, or cut, where they are."""
        state, looks = self.memory.state, self._results
        assert state is not None
        if self.num_beams == 1:
            if self.steps % STEPS_BETWEEN_LOOKS == 0:
                looks.stop_rejected(state, self.running, self._longest)
            return
        for row, sequence in enumerate(self.running):
            due = sequence.steps > 0 and sequence.steps % STEPS_BETWEEN_LOOKS == 0
            if due and sequence.options.fallback is not None:
                looks.stop_looping_beams(state, row, sequence)

    def _launch(self) -> None:
        state, runner = self.memory.state, self.context.runner
        assert state is not None
        self.attempted = len(self.running)
        rows = min(runner.rows(len(self.running)), state.capacity)
        draftable = [each.options for each in self.running if each.draftable]
        drafts = self.drafts.choose(draftable, self.context.drafting, rows)
        shape = StepShape(
            drafts=drafts,
            assistant_lag=self.drafts.lag(drafts, self._longest),
            kv_len=min(runner.kv_len(self._longest + drafts), state.main.cache.max_len),
            sampled=any(each.temperature for each in self.running),
            timestamps=any(each.timestamps for each in self.running),
            shared_len=self._shared_len(),
            followed=self.drafts.follows and bool(draftable),
        )
        if self._view is None or self._view.capacity != rows or not _shares(self._view, state):
            self._view = state.view(0, rows)
        self._written = max(self._written, shape.kv_len)
        result = runner.launch(self._view, self.context.filters, shape)
        self._pending.append((result, drafts))
        self._longest += drafts + 1
        for sequence in self.running:
            sequence.steps += 1

    def _shared_len(self) -> int:
        """Positions of the shortest prompt, which all beams share."""
        if self.num_beams == 1:
            return 0
        return self.context.runner.shared_len(min(len(each.prompt) for each in self.running))

    def _collect(self) -> StepResult | None:
        """The newest result where rows finished and nothing is pending any more, else None."""
        if self.context.runner.pipelined and len(self._pending) == 1:
            return None
        result = self._read()
        if not any(result.finished[: len(self.running)]):
            return None
        return self._drain() or result

    def _drain(self) -> StepResult | None:
        """Wait for every step that was launched. Returns the last result, if any was pending."""
        result = None
        while self._pending:
            result = self._read()
        return result

    def _read(self) -> StepResult:
        """Wait for the oldest result that was not read yet, and count it."""
        pending, drafts = self._pending.popleft()
        result = pending()
        lengths = result.length[: len(self.running)]
        longest = max(*lengths, *(each.prefilled_length for each in self.running))
        self._longest = longest + sum(drafts + 1 for _, drafts in self._pending)
        if self.context.drafting is not None:
            self.context.drafting.observe(result.accepted, result.drafted)
        self._count(result, drafts)
        return result

    def _count(self, result: StepResult, drafts: int) -> None:
        """Add a step to the statistics of the sessions in it."""
        for stats in _distinct_stats(self.running):
            stats.steps += 1
            stats.steps_by_drafts[drafts] = stats.steps_by_drafts.get(drafts, 0) + 1
        for sequence, accepted, drafted in zip(
            self.running, result.accepted, result.drafted, strict=False
        ):
            sequence.stats.accepted += accepted
            sequence.stats.drafted += drafted
            sequence.stats.drafted_rows += drafted > 0

    # Finished rows

    def _finish(self, result: StepResult) -> list[Finished]:
        """Evict the rows that finished, except those whose next attempt has begun."""
        done: list[Finished] = []
        freed: list[int] = []
        for row, sequence in enumerate(self.running):
            if not result.finished[row]:
                continue
            decoded = self._results.read(self.memory.state, row, result.length[row], sequence)
            if not self._retried(row, decoded):
                done.append((sequence, sequence.complete(decoded)))
                freed.append(row)
            elif sequence.num_beams != self.num_beams:
                self._leaving.append(sequence)
                freed.append(row)
        for row in reversed(freed):
            self._evict(row)
        return done

    def _retried(self, row: int, decoded: DecodeResult) -> bool:
        """Whether the row's text was rejected and another attempt has begun in its place.

        One with another number of beams begins in another lane.
        """
        sequence = self.running[row]
        fallback, attempt = sequence.options.fallback, sequence.next_attempt()
        if fallback is None or attempt is None or not fallback.rejects(decoded):
            return False
        timestamps = sequence.options.timestamps and not attempt.without_timestamps
        special_tokens = self.context.special_tokens
        sequence.retry(attempt, special_tokens.with_timestamps(sequence.prompt, timestamps))
        sequence.stats.retries += 1
        if sequence.num_beams == self.num_beams:
            self._prefill(row, row + 1)
        return True

    def _evict(self, row: int) -> None:
        """Free a row; the last live one takes its place."""
        assert self.memory.state is not None
        last = len(self.running) - 1
        if row != last:
            self.memory.state.move(last, row)
            self.running[row] = self.running[last]
        self.memory.state.rows.finished[last] = True
        self.running.pop()
        if not self.running:
            # A view would keep the memory of an idle lane that gives it back.
            self._view, self._longest = None, 0

    def _add_seconds(self, sequences: list[Sequence], part: str, started: float) -> None:
        took = time.perf_counter() - started
        for stats in _distinct_stats(sequences):
            setattr(stats, part, getattr(stats, part) + took)


def _distinct_stats(sequences: Iterable[Sequence]) -> list[DecodeStats]:
    """The statistics of each session among `sequences`, once."""
    return list({id(each.stats): each.stats for each in sequences}.values())


def _shares(view: DecodeState, state: DecodeState) -> bool:
    return view.rows.tokens.data_ptr() == state.rows.tokens.data_ptr()
