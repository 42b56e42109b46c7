"""A batch on the device: sequences enter rows, steps run, finished rows are read and freed.

Live rows are the first rows of the state, so a step slices the caches and gathers nothing. New
sequences take the rows of finished ones; if fewer enter, the last rows move into the gaps. Options
belong to the sequence, so requests of several clients share a batch.
"""

import logging
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch

from whosaid.asr.engine.drafters import MAX_DRAFTS, DraftModel
from whosaid.asr.engine.drafting import DraftLength, DraftPolicy
from whosaid.asr.engine.memory import StateMemory, cuda_rows
from whosaid.asr.engine.prefill import PrefillBatch
from whosaid.asr.engine.request import MAX_ROWS
from whosaid.asr.engine.result_reader import ResultReader
from whosaid.asr.engine.rows import StepShape, padded
from whosaid.asr.engine.runner import PendingResult, StepResult, StepRunner
from whosaid.asr.engine.scheduler import Finished, Plan
from whosaid.asr.engine.sequence import DecodeSequence, Lane
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.encoder import AudioWindow, Encoder, EncoderOutput
from whosaid.runtime.errors import is_out_of_memory

logger = logging.getLogger("endpoint")

# Steps between two checks for texts to reject; each check waits for the device.
STEPS_BETWEEN_LOOKS = 16
MAIN_LANE, BEAM_LANE = Lane(1), Lane(5)  # usual rows; second attempts at rejected texts


@dataclass
class DecodeContext:
    """Models and helpers of every step. `drafting` is None unless draft costs were measured."""

    encoder: Encoder
    runner: StepRunner
    results: ResultReader
    drafting: DraftLength | None = None


class LaunchedStep(NamedTuple):
    """A step that the host has not read; `rows` are its sequences, None once they have left."""

    result: PendingResult
    shape: StepShape
    rows: list[DecodeSequence | None]


class Batch:
    """The rows of one lane. `attempted` is the number of rows that were last tried."""

    def __init__(self, lane: Lane, memory: StateMemory, context: DecodeContext) -> None:
        self.lane = lane
        self.memory = memory
        self.context = context
        self.places: list[DecodeSequence | None] = []  # the state's first rows; no gap in a step
        self.attempted = 0
        self._steps = 0
        self._pending: deque[LaunchedStep] = deque()
        self._longest = 0  # upper bound of a live row's length
        self._written = 0  # upper bound of the cached positions ever written
        self._drafts = DraftPolicy(memory.draft_model, context.runner.drafted_rows)
        self._view: DecodeState | None = None

    @property
    def rows(self) -> list[DecodeSequence]:
        return [each for each in self.places if each is not None]

    @torch.inference_mode()
    def enter(self, plan: Plan) -> int:
        """Encode and prefill the first sequences of a plan. Return how many entered.

        Free memory limits the number and, after the first encoder pass, `plan.until` does.
        """
        live = len(self.rows)
        self.attempted = plan.rows
        self._view = None  # the state may get more rows, or a drafter
        entering = plan.entering[: self.memory.ensure_capacity(plan.rows).capacity - live]
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
            if not each.may_retry:
                each.encoded = each.request.encoded
            elif each.encoded is None:
                each.encoded = encoded.main[number : number + 1].clone()
            if each.retried:
                tokens = self.context.results.special_tokens
                each.prompt = tokens.with_timestamps(each.request.prompt, each.timestamps)
        places = [self._take_place(each) for each in entering]
        self.attempted = len(self.rows)
        self._prefill(places, entering, encoded)
        return len(entering)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Run one step. Return the finished sequences; their rows are free again."""
        started = time.perf_counter()
        self._steps += 1
        self._close_gaps()
        self._stop_rejected()
        self._launch()
        ended = self._collect()
        took = time.perf_counter() - started
        for session in {each.session for each in self.rows}:
            session.stats.decode_seconds += took
        return self._finish(ended)

    @torch.inference_mode()
    def evict(self, sequences: list[DecodeSequence]) -> None:
        """Free the rows of sequences, perhaps after a failed step."""
        places = self._free(sequences)
        if self.memory.state is not None:
            finished = self.memory.state.rows.finished
            for place in places if self.rows else [slice(None)]:
                finished[place] = True

    def clear(self) -> None:
        self.places.clear()
        self._pending.clear()
        self._view, self._longest = None, 0
        self.memory.release()

    # Entering rows

    @torch.inference_mode()
    def encode_ahead(self, sequences: list[DecodeSequence]) -> None:
        """Encode windows that are about to enter, beside the step that runs."""
        windows = [AudioWindow(each.request.samples) for each in sequences]
        with self.context.runner.encoding(ahead=True):
            encoded = self.context.encoder.encode(windows, drafted=False).main
        for each, output in zip(sequences, torch.split(encoded, 1), strict=True):
            each.encoded = output

    def _encode(self, entering: list[DecodeSequence], drafted: bool, until: float) -> EncoderOutput:
        windows = [
            AudioWindow(
                each.request.samples, each.encoded, each.request.frames, each.request.target
            )
            for each in entering
        ]
        with self.context.runner.encoding():
            return self.context.encoder.encode(windows, drafted, until)

    def _take_place(self, sequence: DecodeSequence) -> int:
        place = self.places.index(None) if None in self.places else len(self.places)
        self.places[place : place + 1] = [sequence]
        return place

    def _prefill(
        self, places: list[int], entering: list[DecodeSequence], encoded: EncoderOutput
    ) -> None:
        context, state, runner = self.context, self._state, self.context.runner
        batch = PrefillBatch.of(entering, encoded, state, runner.sizes)
        self._written = max(self._written, batch.prompt_len)
        batch = batch._replace(forgotten=self._written)
        starts = runner.prefill(state, places, batch)
        for sequence, values in zip(entering, starts.tolist(), strict=True):
            sequence.read_start(values, context.results.special_tokens.languages)
        self._longest = max(self._longest, *(each.prefilled_length for each in entering))

    # One step

    @property
    def _state(self) -> DecodeState:
        assert self.memory.state is not None
        return self.memory.state

    def _stop_rejected(self) -> None:
        """Stop rows whose text will be rejected or cut anyway, every few steps."""
        state, results = self._state, self.context.results
        if self.lane.num_beams == 1:
            if self._steps % STEPS_BETWEEN_LOOKS == 0:
                results.stop_rejected(state, self.rows, self._longest)
            return
        for row, sequence in enumerate(self.rows):
            due = sequence.steps > 0 and sequence.steps % STEPS_BETWEEN_LOOKS == 0
            if due and sequence.options.fallback is not None:
                results.stop_looping_beams(state, row, sequence)

    def _launch(self) -> None:
        state, runner, live = self._state, self.context.runner, self.rows
        self.attempted = len(live)
        rows = padded(len(live), runner.sizes.rows, state.capacity)
        draftable = [each.options for each in live if each.draftable]
        drafts = self._drafts.choose(draftable, self.context.drafting, rows)
        looked_up = 0 if draftable or runner.on_cuda else self._look_up()
        needed = self._longest + drafts + looked_up
        shape = StepShape(
            drafts=drafts + looked_up,
            assistant_lag=self._drafts.lag(drafts, self._longest),
            kv_len=padded(needed, runner.sizes.positions, state.cache.max_len),
            sampled=any(each.options.temperature for each in live),
            timestamps=any(each.timestamps for each in live),
            followed=self._drafts.follows and bool(draftable),
            drafts_given=looked_up > 0,
        )
        if self._view is None or self._view.capacity != rows:
            self._view = state.view(0, rows)
        self._written = max(self._written, shape.kv_len)
        result = runner.launch(self._view, shape)
        self._pending.append(LaunchedStep(result, shape, [*live]))
        self._longest += shape.drafts + 1
        for sequence in live:
            sequence.steps += 1

    def _look_up(self) -> int:
        """Write each draft's continuation of its row. Return the most tokens of a row."""
        rows, most = self._state.rows, 0
        for row, sequence in enumerate(self.rows):
            if not sequence.request.draft or self.lane.num_beams > 1:
                continue
            length = int(rows.length[row])
            newest = rows.tokens[row, length - 2 : length].tolist()
            following = sequence.looked_up(newest, MAX_DRAFTS)
            rows.draftable[row] = bool(following)
            rows.tokens[row, length : length + len(following)] = torch.tensor(following)
            most = max(most, len(following))
        return most

    def _collect(self) -> dict[DecodeSequence, int]:
        """Wait for the oldest launched step; return the sequences that it ended, with lengths."""
        if self.context.runner.on_cuda and len(self._pending) == 1:
            return {}
        pending, shape, rows = self._pending.popleft()
        result = pending()
        live = [(row, each) for row, each in enumerate(rows) if each is not None]
        longest = [result.length[row] for row, _ in live]
        longest += [each.prefilled_length for each in self.rows]
        self._longest = max(longest) + sum(each.shape.drafts + 1 for each in self._pending)
        if self.context.drafting is not None and shape.drafts and not shape.drafts_given:
            self.context.drafting.observe(result.accepted, result.drafted)
        self._count(result, shape.drafts, live)
        return {each: result.length[row] for row, each in live if result.finished[row]}

    def _count(
        self, result: StepResult, drafts: int, live: list[tuple[int, DecodeSequence]]
    ) -> None:
        for stats in [each.stats for each in {each.session for _, each in live}]:
            stats.steps += 1
            stats.steps_by_drafts[drafts] = stats.steps_by_drafts.get(drafts, 0) + 1
        for row, sequence in live if drafts else ():
            stats = sequence.session.stats
            stats.accepted += result.accepted[row]
            stats.drafted += result.drafted[row]
            stats.drafted_rows += result.drafted[row] > 0

    # Finished rows

    def _finish(self, ended: dict[DecodeSequence, int]) -> list[Finished]:
        """Read ended sequences and free their rows. On CUDA the next step runs meanwhile: it
        changes nothing that is read of a greedy row, but reorders beams, so reading those waits.
        """
        if not ended:
            return []
        read, runner = self.context.results.read, self.context.runner
        with runner.beside_step() if self.lane.num_beams == 1 else nullcontext():
            finished = [
                (each, read(self._state, self.places.index(each), length, each))
                for each, length in ended.items()
            ]
        self._free([*ended])
        return finished

    def _free(self, sequences: list[DecodeSequence]) -> list[int]:
        """Free the rows of sequences. Return their places."""
        freed = [self.places.index(each) for each in sequences]
        for rows in (self.places, *(step.rows for step in self._pending)):
            rows[:] = [None if each in sequences else each for each in rows]
        if not self.rows:
            while self._pending:
                self._pending.popleft().result()
            self.places.clear()
            # A view would keep the memory that an idle batch releases.
            self._view, self._longest = None, 0
        return freed

    def _close_gaps(self) -> None:
        """Move the last rows to vacant places."""
        if None not in self.places:
            return
        live, every = len(self.rows), len(self.places)
        gaps = [place for place in range(live) if self.places[place] is None]
        last = [place for place in range(live, every) if self.places[place] is not None]
        if gaps:
            self._state.move(last, gaps)
        self._state.rows.finished[live:every] = True
        for source, target in zip(last, gaps, strict=True):
            self.places[target] = self.places[source]
        del self.places[live:]


class Batches(dict[Lane, Batch]):
    """Batches by lane, each made on first use."""

    def __init__(self, main: Decoder, drafts: DraftModel | None, context: DecodeContext) -> None:
        super().__init__()
        self._main, self._drafts, self._context = main, drafts, context

    def __missing__(self, lane: Lane) -> Batch:
        """Make a batch. Only one-beam lanes have a drafter. Graphs are captured for the numbers of
        beams that most requests use.
        """
        runner, most = self._context.runner, MAX_ROWS
        if runner.on_cuda:
            device_bytes = torch.cuda.mem_get_info(self._main.token_embeddings.device)[1]
            most = cuda_rows(self._main, lane.num_beams, device_bytes)
        usual = lane.num_beams in (MAIN_LANE.num_beams, BEAM_LANE.num_beams)
        encoder = self._context.encoder if usual else None
        drafts = self._drafts if lane.num_beams == 1 else None
        memory = StateMemory(self._main, drafts, runner, lane.num_beams, most, encoder)
        self[lane] = Batch(lane, memory, self._context)
        return self[lane]

    def prepare(self) -> dict[Lane, int]:
        """On CUDA, allocate the rows of the usual lanes and capture their graphs. Return how many
        rows there are; without memory, they are allocated on first use.
        """
        rows = dict[Lane, int]()
        if not self._context.runner.on_cuda:
            return rows
        for lane in (MAIN_LANE, BEAM_LANE):
            memory = self[lane].memory
            try:
                memory.ensure_capacity(memory.most)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                logger.warning("memory ran out at load: no rows of %d beams yet", lane.num_beams)
                memory.release()
            rows[lane] = memory.capacity or memory.most
        return rows
