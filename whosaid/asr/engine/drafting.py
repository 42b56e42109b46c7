"""Decides how many tokens to draft, from measured step costs and the acceptance of drafts.

A step that drafts k tokens yields 1 + p1 + p1 p2 + .. tokens; pj is the probability that draft j is
right if the drafts before it are. An assistant is equally good at every depth, so it has one rate
(Leviathan et al. 2023, equation 1); each head has a rate of its own. Costs depend on models, device
and number of rows, so they are measured once at load. If memory is too short for that, nothing is
drafted.

Unless a request fixes the number of drafts, costs and acceptance decide twice: a window is prepared
for drafts only if they pay as it enters, and each step drafts as many tokens as pay among the
running rows. If the best number does not clearly beat none, nothing is drafted, and an assistant
has no memory. Meanwhile the estimates decay towards their prior, until a few drafts are worth
another try.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from whosaid.asr.engine.drafters import MAX_DRAFTS, NEWEST, DraftModel
from whosaid.asr.engine.memory import StateMemory
from whosaid.asr.engine.request import MAX_ROWS, DecodeOptions
from whosaid.asr.engine.rows import StepShape, padded
from whosaid.asr.model.draft_heads import MedusaModel
from whosaid.asr.model.encoder import AudioWindow, Encoder
from whosaid.runtime.errors import is_out_of_memory
from whosaid.timebase import SAMPLE_RATE

logger = logging.getLogger("endpoint")

MIN_SPEEDUP = 1.1  # measured costs are not exact
TOKENS_OF_A_WINDOW = 50  # in 15 to 30 s of speech; within them preparing a window has to pay
PRIOR_MEAN = 0.8  # acceptance before any draft
HEADS_PRIOR_MEAN = 0.7  # of heads, at every depth
PRIOR_WEIGHT = 12.0  # of the prior, in drafted tokens
HORIZON = 600.0  # drafted tokens after which older ones hardly count
DECAY = 0.97  # of the counts, for each window decoded without drafts

# The least of a few rounds that time every shape once counts, so that a busy moment of the machine
# does not weigh on one shape alone.
ROUNDS = 3
TIMED_ROWS = (1, 4, 12)
TIMED_KV_LEN = 64
TIMED_PROMPT = 4  # tokens
TIMED_SECONDS = 0.02  # of steps of one shape
UNTIMED_STEPS = 2


class DraftPolicy:
    """Decides how `model`, if any, drafts for the rows of one batch, at most `most` tokens a step,
    and none in steps of more than `most_rows` rows. A model that `follows` takes its state from the
    main model's passes instead of reading tokens.
    """

    def __init__(self, model: DraftModel | None, most_rows: int = MAX_ROWS) -> None:
        self.model, self.most_rows = model, most_rows
        heads = model if isinstance(model, MedusaModel) else None
        self.follows = heads is not None
        self.most = 0 if model is None else min(MAX_DRAFTS, heads.count) if heads else MAX_DRAFTS
        self._unread = 1 if self.follows else NEWEST

    def prepares(
        self, options: DecodeOptions, drafting: DraftLength | None, rows: int, new: int
    ) -> bool:
        """Return whether to draft for `new` windows with these options, in a batch of `rows` rows.
        The estimates of `drafting`, None if nothing was measured, decay if drafts do not pay.
        """
        if not options.assisted or self.model is None or rows > self.most_rows:
            return False
        if options.drafts is not None:
            return options.drafts > 0
        if drafting is None or drafting.pays(rows):
            return drafting is not None
        drafting.decay(new)
        return False

    def choose(
        self, draftable: Sequence[DecodeOptions], drafting: DraftLength | None, rows: int
    ) -> int:
        """Return how many tokens to draft if the options of the draftable rows are `draftable`."""
        if rows > self.most_rows:
            return 0
        fixed = [each.drafts for each in draftable if each.drafts is not None]
        if len(fixed) < len(draftable) and drafting is not None:
            fixed.append(drafting.choose(rows, len(draftable)))
        return min(max(fixed, default=0), self.most)

    def lag(self, drafts: int, longest: int) -> int:
        """Count a step of `drafts` drafts. Return the assistant's lag, at most `longest` tokens."""
        lag = min(self._unread, longest) if drafts else 1
        if not self.follows:
            self._unread = NEWEST if drafts else self._unread + 1
        return lag


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step by (rows, drafts), linear between measured points (no, few and many
    drafts). `preparing` is the seconds in which the drafter prepares one window.
    """

    seconds: Mapping[tuple[int, int], float]
    preparing: float = 0.0

    def step(self, rows: int, drafts: int) -> float:
        """Return the seconds of a step; beyond the measured rows they grow linearly."""
        counts = sorted({count for count, _ in self.seconds})
        known = [self._at(count, drafts) for count in counts]
        return float(np.interp(rows, counts, known)) * max(1.0, rows / counts[-1])

    def _at(self, rows: int, drafts: int) -> float:
        """Return the seconds at measured rows; drafts after the first few cost the same each."""
        if drafts == 0:
            return self.seconds[rows, 0]
        measured = sorted(k for count, k in self.seconds if count == rows and k > 0)
        few, many = measured[0], measured[-1]
        low, high = self.seconds[rows, few], self.seconds[rows, many]
        return low + (high - low) * (drafts - few) / max(1, many - few)


@dataclass
class AcceptanceRate:
    """How often drafts were right: `accepted` of `drafted`; newer drafts weigh more."""

    accepted: float = 0.0
    drafted: float = 0.0
    prior: float = PRIOR_MEAN

    @property
    def mean(self) -> float:
        return (self.accepted + self.prior * PRIOR_WEIGHT) / (self.drafted + PRIOR_WEIGHT)

    def observe(self, accepted: int, drafted: int) -> None:
        kept = max(0.0, 1.0 - drafted / HORIZON)
        self.accepted = self.accepted * kept + accepted
        self.drafted = self.drafted * kept + drafted


@dataclass
class DraftLength:
    """Chooses one of `lengths` by running `rates`, one for all depths or one per depth."""

    costs: StepCosts
    lengths: Sequence[int]
    rates: Sequence[AcceptanceRate] = field(default_factory=lambda: [AcceptanceRate()])
    _seconds: dict[int, list[float]] = field(default_factory=dict)

    def observe(self, accepted: Sequence[int], drafted: Sequence[int]) -> None:
        """Count a step's drafts by row: up to the first wrong one, and the right ones."""
        if len(self.rates) == 1:
            self.rates[0].observe(sum(accepted), sum(drafted))
            return
        for depth, rate in enumerate(self.rates, start=1):
            reached = sum(count >= depth for count in drafted)
            if not reached:
                break
            rate.observe(sum(count >= depth for count in accepted), reached)

    def decay(self, windows: int) -> None:
        for rate in self.rates:
            rate.accepted *= DECAY**windows
            rate.drafted *= DECAY**windows

    def choose(self, rows: int, draftable: int) -> int:
        """Return how many tokens to draft in a step of `rows` rows if `draftable` accept drafts."""
        return self._best(rows, draftable)[0] if draftable else 0

    def pays(self, rows: int) -> bool:
        """Return whether drafts for all `rows` rows gain more than preparing a window costs."""
        drafts, speed = self._best(rows, rows)
        saved = self._seconds[rows][0] / rows - 1 / speed
        return drafts > 0 and TOKENS_OF_A_WINDOW * saved > self.costs.preparing

    def _best(self, rows: int, draftable: int) -> tuple[int, float]:
        """Return the number of drafts with the most tokens a second, 0 if unclear, and those."""
        if rows not in self._seconds:
            self._seconds[rows] = [self.costs.step(rows, k) for k in (0, *self.lengths)]
        plain, *drafted = self._seconds[rows]
        gains = expected_tokens([round(rate.mean, 2) for rate in self.rates], self.lengths[-1])
        speeds = [
            (draftable * gains[drafts] + rows - draftable) / seconds
            for drafts, seconds in zip(self.lengths, drafted, strict=True)
        ]
        best = max(speeds)
        if best < MIN_SPEEDUP * rows / plain:
            return 0, rows / plain
        return self.lengths[speeds.index(best)], best


def expected_tokens(rates: Sequence[float], drafts: int) -> list[float]:
    """Return the mean tokens that a row gains in a step of 0 to `drafts` drafts. `rates` are the
    probabilities that each draft is right if those before it are; the last holds for deeper drafts.
    """
    gains, standing = [1.0], 1.0
    for depth in range(drafts):
        standing *= rates[min(depth, len(rates) - 1)]
        gains.append(gains[-1] + standing)
    return gains


def measured_drafting(memory: StateMemory, encoder: Encoder) -> DraftLength | None:
    """Time steps and the preparation of a window on finished rows; None without memory for it."""
    policy, runner = DraftPolicy(memory.draft_model), memory.runner
    lengths = [each for each in runner.draft_lengths if each <= policy.most] or [policy.most]
    try:
        capacity = memory.ensure_capacity(TIMED_ROWS[-1]).capacity
        if memory.ensure_drafter():
            shapes = [
                (rows, min(drafts, lengths[-1]))
                for rows in TIMED_ROWS
                for drafts in runner.timed_drafts
                if rows <= capacity
            ]
            seconds = dict.fromkeys(shapes, math.inf)
            for shape in ROUNDS * list(seconds):
                encoder.threads.adjust()
                seconds[shape] = min(seconds[shape], _time_step(memory, policy.follows, *shape))
            prepared = _time_preparing(memory, encoder)
            costs = StepCosts(seconds, max(0.0, prepared - seconds[1, 0]))
            rates = [AcceptanceRate()]
            if policy.follows:
                rates = [AcceptanceRate(prior=HEADS_PRIOR_MEAN) for _ in range(lengths[-1])]
            return DraftLength(costs, lengths, rates)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    finally:
        if not runner.on_cuda:
            memory.release()
    logger.warning("memory ran out while timing steps: nothing will be drafted")
    memory.release()
    return None


@torch.inference_mode()
def _time_preparing(memory: StateMemory, encoder: Encoder) -> float:
    """Return the least seconds of preparing a silent window and a step without drafts."""
    runner, view = memory.runner, memory.ensure_capacity(1).view(0, 1)
    assert view.drafter is not None
    encoded = encoder.main.positions.new_zeros((1, *encoder.main.positions.shape))
    tokens = torch.zeros(1, TIMED_PROMPT, dtype=torch.long, device=encoded.device)
    positions = torch.arange(TIMED_PROMPT, device=encoded.device)[None]
    silence = AudioWindow(np.zeros(SAMPLE_RATE, np.float32), encoded)
    shape = StepShape(0, 1, padded(TIMED_KV_LEN, runner.sizes.positions, view.cache.max_len))
    least = math.inf
    for _ in range(UNTIMED_STEPS + 1):
        started = time.perf_counter()
        view.drafter.listen(encoder.encode([silence], drafted=True))
        view.drafter.read_prompt(tokens, positions, encoded[:, :TIMED_PROMPT], tokens[:, 0])
        runner.launch(view, shape)()
        least = min(least, time.perf_counter() - started)
    return least


@torch.inference_mode()
def _time_step(memory: StateMemory, follows: bool, rows: int, drafts: int) -> float:
    """Return the least seconds of the steps that fit into TIMED_SECONDS, at least one. Cold caches
    made the first draft-free steps of small models 1.5 times slower than in a running batch, whose
    weights are in the processor's caches.
    """
    runner, state = memory.runner, memory.ensure_capacity(rows)
    view = state.view(0, padded(rows, runner.sizes.rows, state.capacity))
    kv_len = padded(TIMED_KV_LEN, runner.sizes.positions, state.cache.max_len)
    followed = follows and drafts > 0
    shape = StepShape(drafts, NEWEST if drafts and not followed else 1, kv_len, followed=followed)
    if runner.on_cuda:
        for _ in range(UNTIMED_STEPS):
            runner.launch(view, shape)()
    least, spent = math.inf, 0.0
    while spent < TIMED_SECONDS:
        started = time.perf_counter()
        runner.launch(view, shape)()
        took = time.perf_counter() - started
        least, spent = min(least, took), spent + took
    return least
