"""A batch on the device: sequences enter rows, steps run, finished rows are read and freed.

In a step live rows are the first ones, so that it works on a slice of the caches and gathers none.
Who enters takes the places of rows that have ended; where fewer enter, the last rows move there
before the next step. So in a full batch none is ever copied. Options belong to the sequence, so
requests of several clients share the rows. Who enters is the scheduler's decision.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.decode_state import DecodeState
from asr.engine.draft_length import MAX_DRAFTS, DraftLength
from asr.engine.draft_policy import DraftPolicy
from asr.engine.drafters import DraftModel
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import PrefillBatch, PrefillInput, PrefillShape
from asr.engine.request import Lane, Sequence
from asr.engine.results import ResultReader
from asr.engine.row_state import StepShape
from asr.engine.runner import PendingResult, StepResult, StepRunner
from asr.engine.scheduler import Finished, Plan
from asr.engine.state_memory import StateMemory
from asr.model.decoder import Decoder
from asr.model.encoder import Encoder, EncoderOutput
from transcript import DecodeStats

# Steps between two looks for texts that will be rejected; each look waits for the device.
STEPS_BETWEEN_LOOKS = 16


@dataclass
class DecodeContext:
    """What every step needs; `drafting` is None where nothing is drafted by measure."""

    encoder: Encoder
    filters: LogitFilter
    special_tokens: SpecialTokens
    runner: StepRunner
    results: ResultReader
    drafting: DraftLength | None = None


class Batch:
    """Rows of one lane. `attempted` rows were last tried: those that did not fit, where memory ran
    out.
    """

    def __init__(self, lane: Lane, memory: StateMemory, context: DecodeContext) -> None:
        self.lane = lane
        self.memory = memory
        self.context = context
        self.rows: list[Sequence] = []  # in the order of their places
        self._vacant: list[int] = []  # places among theirs or behind, in order; none in a step
        self.attempted = 0
        self._steps = 0
        self._pending: deque[tuple[PendingResult, StepShape]] = deque()
        self._longest = 0  # no live row is longer
        self._written = 0  # no cached position beyond it was ever written
        self._drafts = DraftPolicy(memory.draft_model)
        self._view: DecodeState | None = None

    @property
    def num_beams(self) -> int:
        """The beams of every row."""
        return self.lane.num_beams

    @property
    def places(self) -> list[int]:
        """Where each row is in the state."""
        every = range(len(self.rows) + len(self._vacant))
        return [place for place in every if place not in self._vacant]

    @torch.inference_mode()
    def enter(self, plan: Plan) -> int:
        """Encode the sequences of a plan and let them start in the next rows: the first ones, as
        many as find memory and, after the first pass, time. Returns how many.
        """
        live = len(self.rows)
        self.attempted = plan.rows
        self._view = None  # it would keep a state alive that is replaced by a larger one
        places = live + len(self._vacant)
        capacity = self.memory.ensure_capacity(plan.rows, places).capacity
        entering = plan.entering[: capacity - live]
        if not entering:
            return 0
        drafted = self._drafts.prepares(
            entering[0].options, self.context.drafting, live + len(entering), len(entering)
        )
        drafted = drafted and self.memory.ensure_drafter()
        encoded = self._encode(entering, drafted, plan.until)
        entering = entering[: len(encoded.main)]
        for number, each in enumerate(entering):
            each.drafted, each.steps = drafted, 0
            if each.may_retry and each.encoded is None:
                each.encoded = encoded.main[number : number + 1].clone()
            if each.retried:
                tokens = self.context.special_tokens
                each.prompt = tokens.with_timestamps(each.request.prompt, each.timestamps)
        taken = [self._take_place(each) for each in entering]
        self.attempted = len(self.rows)
        self._prefill(taken, entering, encoded)
        return len(entering)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Run one step. Returns what has finished; its rows are free again."""
        started = time.perf_counter()
        self._steps += 1
        self._close_gaps()
        self._stop_rejected()
        self._launch()
        result = self._collect()
        _add_seconds(self.rows, "decode_seconds", started)
        return [] if result is None else self._finish(result)

    @torch.inference_mode()
    def evict(self, sequences: Iterable[Sequence]) -> None:
        """Free the rows of sequences."""
        if self._pending:
            self._drain()
        for place in self._free([*sequences]):
            self._state.rows.finished[place] = True

    def clear(self) -> None:
        """Forget all rows, and give the memory back."""
        self.rows.clear()
        self._vacant.clear()
        self._pending.clear()
        self._view, self._longest = None, 0
        self.memory.release()

    # Entering rows

    def _encode(self, entering: list[Sequence], drafted: bool, until: float) -> EncoderOutput:
        started = time.perf_counter()
        samples, known = [each.request.samples for each in entering], [e.encoded for e in entering]
        frames = [each.request.frames for each in entering]
        encoded = self.context.encoder.encode(samples, drafted, known, until, frames)
        _add_seconds(entering[: len(encoded.main)], "encode_seconds", started)
        return encoded

    def _take_place(self, sequence: Sequence) -> int:
        """Add a row at the first place that is vacant."""
        place = self._vacant.pop(0) if self._vacant else len(self.rows)
        self.rows.insert(place, sequence)
        return place

    def _prefill(self, places: list[int], entering: list[Sequence], encoded: EncoderOutput) -> None:
        """Let the rows at `places` project their audio, read their prompts, verify what is guessed
        of their texts and choose the next tokens.
        """
        started, context = time.perf_counter(), self.context
        state = self._state
        max_len, longest = state.main.cache.max_len, state.main.decoder.max_positions
        inputs = [PrefillInput.of(each, longest) for each in entering]
        prompt_len = context.runner.prompt_len(max(len(each.read) for each in inputs))
        prompt_len = min(prompt_len, max_len)
        verified = context.runner.verified_len(max(len(each.guess) for each in inputs))
        self._written = max(self._written, prompt_len)
        drafted = any(each.drafted for each in entering)
        batch = PrefillBatch.of(
            inputs,
            PrefillShape(prompt_len, self._written, drafted, verified=verified),
            max_len,
            encoded,
        )
        starts = context.runner.prefill(
            state, places, batch, context.filters, context.special_tokens
        ).tolist()
        for sequence, said in zip(entering, starts, strict=True):
            sequence.read_start(said, context.special_tokens.languages)
        self._longest = max(self._longest, *(each.prefilled_length for each in entering))
        _add_seconds(entering, "prefill_seconds", started)

    # One step

    @property
    def _state(self) -> DecodeState:
        assert self.memory.state is not None
        return self.memory.state

    def _stop_rejected(self) -> None:
        """Now and then, stop the rows whose texts will be rejected, or cut, where they are."""
        state, results = self._state, self.context.results
        if self.num_beams == 1:
            if self._steps % STEPS_BETWEEN_LOOKS == 0:
                results.stop_rejected(state, self.rows, self._longest)
            return
        for row, sequence in enumerate(self.rows):
            due = sequence.steps > 0 and sequence.steps % STEPS_BETWEEN_LOOKS == 0
            if due and sequence.options.fallback is not None:
                results.stop_looping_beams(state, row, sequence)

    def _launch(self) -> None:
        state, runner = self._state, self.context.runner
        self.attempted = len(self.rows)
        rows = min(runner.rows(len(self.rows)), state.capacity)
        draftable = [each.options for each in self.rows if each.draftable]
        drafts = self._drafts.choose(draftable, self.context.drafting, rows)
        looked_up = 0 if draftable or runner.pipelined else self._look_up()
        shape = StepShape(
            drafts=drafts or looked_up,
            assistant_lag=self._drafts.lag(drafts, self._longest),
            kv_len=min(
                runner.kv_len(self._longest + (drafts or looked_up)), state.main.cache.max_len
            ),
            sampled=any(each.options.temperature for each in self.rows),
            timestamps=any(each.timestamps for each in self.rows),
            shared_len=self._shared_len(),
            followed=self._drafts.follows and bool(draftable),
            told=looked_up > 0,
        )
        if self._view is None or self._view.capacity != rows or not _shares(self._view, state):
            self._view = state.view(0, rows)
        self._written = max(self._written, shape.kv_len)
        result = runner.launch(self._view, self.context.filters, shape)
        self._pending.append((result, shape))
        self._longest += shape.drafts + 1
        for sequence in self.rows:
            sequence.steps += 1

    def _look_up(self) -> int:
        """Write what the requests' own drafts go on with behind the rows that they agree with.

        Returns the most tokens that are to be verified. The host reads the rows for it, which only
        costs something where it would have to wait for the device.
        """
        rows, most = self._state.rows, 0
        for row, sequence in enumerate(self.rows):
            if not sequence.request.draft or self.num_beams > 1:
                continue
            length = int(rows.length[row])
            newest = rows.tokens[row, length - 2 : length].tolist()
            following = sequence.looked_up(newest, MAX_DRAFTS)
            rows.draftable[row] = bool(following)
            rows.tokens[row, length : length + len(following)] = torch.tensor(following)
            most = max(most, len(following))
        return most

    def _shared_len(self) -> int:
        """Positions of the shortest prompt, which all beams share."""
        if self.num_beams == 1:
            return 0
        return self.context.runner.shared_len(min(len(each.prompt) for each in self.rows))

    def _collect(self) -> StepResult | None:
        """The newest result where rows finished and nothing is pending any more, else None."""
        if self.context.runner.pipelined and len(self._pending) == 1:
            return None
        result = self._read()
        if not any(result.finished[: len(self.rows)]):
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
        pending, shape = self._pending.popleft()
        result = pending()
        lengths = result.length[: len(self.rows)]
        longest = max(*lengths, *(each.prefilled_length for each in self.rows))
        self._longest = longest + sum(each.drafts + 1 for _, each in self._pending)
        if self.context.drafting is not None and shape.drafts and not shape.told:
            self.context.drafting.observe(result.accepted, result.drafted)
        self._count(result, shape.drafts)
        return result

    def _count(self, result: StepResult, drafts: int) -> None:
        """Add a step to the statistics of the clients in it."""
        for stats in _distinct_stats(self.rows):
            stats.steps += 1
            stats.steps_by_drafts[drafts] = stats.steps_by_drafts.get(drafts, 0) + 1
        for sequence, accepted, drafted in zip(
            self.rows, result.accepted, result.drafted, strict=False
        ):
            stats = sequence.session.stats
            stats.accepted += accepted
            stats.drafted += drafted
            stats.drafted_rows += drafted > 0

    # Finished rows

    def _finish(self, result: StepResult) -> list[Finished]:
        """Read and free the rows that have finished."""
        ended = [row for row in range(len(self.rows)) if result.finished[row]]
        finished = []
        for row in ended:
            sequence = self.rows[row]
            read = self.context.results.read(self._state, row, result.length[row], sequence)
            finished.append((sequence, replace(read, annotation_prob=sequence.annotation_prob)))
        self._free([self.rows[row] for row in ended])
        return finished

    def _free(self, sequences: list[Sequence]) -> list[int]:
        """Free the places of rows, and tell which these were."""
        places = self.places
        freed = [places[self.rows.index(each)] for each in sequences]
        self.rows = [each for each in self.rows if each not in sequences]
        self._vacant = sorted([*self._vacant, *freed]) if self.rows else []
        if not self.rows:
            # A view would keep the memory of an idle batch that gives it back.
            self._view, self._longest = None, 0
        return freed

    def _close_gaps(self) -> None:
        """Move the last rows to the places that nobody has taken."""
        if not self._vacant:
            return
        live = len(self.rows)
        behind = slice(live, live + len(self._vacant))
        gaps = [place for place in self._vacant if place < live]
        last = [place for place in range(behind.start, behind.stop) if place not in self._vacant]
        if gaps:
            self._state.move(last, gaps)
        self._state.rows.finished[behind] = True
        self.rows, moved = self.rows[: live - len(gaps)], self.rows[live - len(gaps) :]
        self._vacant = gaps
        for each in moved:
            self._take_place(each)


def _add_seconds(sequences: list[Sequence], part: str, started: float) -> None:
    took = time.perf_counter() - started
    for stats in _distinct_stats(sequences):
        setattr(stats, part, getattr(stats, part) + took)


def _distinct_stats(sequences: Iterable[Sequence]) -> list[DecodeStats]:
    """The statistics of each client among `sequences`, once."""
    return list({id(each.session): each.session.stats for each in sequences}.values())


def _shares(view: DecodeState, state: DecodeState) -> bool:
    return view.rows.tokens.data_ptr() == state.rows.tokens.data_ptr()


class Batches(dict[Lane, Batch]):
    """The batches by lane, each made where it is first asked for."""

    def __init__(self, main: Decoder, drafts: DraftModel | None, context: DecodeContext) -> None:
        super().__init__()
        self._main, self._drafts, self._context = main, drafts, context

    def __missing__(self, lane: Lane) -> Batch:
        """A new one; drafting is for rows of one beam."""
        drafts = self._drafts if lane.num_beams == 1 else None
        memory = StateMemory(self._main, drafts, self._context.runner, lane.num_beams)
        self[lane] = Batch(lane, memory, self._context)
        return self[lane]
