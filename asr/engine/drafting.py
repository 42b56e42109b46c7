"""Decides how many tokens to draft, by the cost of a step on this device and the drafts accepted.

A step that drafts k tokens yields 1 + p1 + p1 p2 + .. tokens, where pj is how often draft j is
right if those before it were, and costs k steps of the assistant, or the heads, and a longer pass
of the main model. An assistant is as good at every depth, so one rate is kept for it (Leviathan et
al. 2023, equation 1); heads that look farther ahead are right less often, so each has a rate of its
own. Costs depend on the models, the device and the number of rows in ways no formula gives, so they
are measured once at load. If too little memory is free for that, nothing is drafted.

Unless a request fixes the number of drafts, costs and acceptance decide twice. A window is prepared
for drafts only if they pay as it enters, preparing included; each step then drafts as many tokens
as pay among the rows that run. If the best number does not clearly beat none, nothing is drafted,
so asking for a drafter never costs time: an assistant then has no memory and reads nothing, and no
step keeps up the state of heads. While drafting is off, the estimates decay towards their prior,
until a few drafts are worth another try.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from asr.engine.drafters import MAX_DRAFTS, DraftModel
from asr.engine.request import DecodeOptions
from asr.engine.state import StepShape
from asr.model.draft_heads import MedusaModel
from runtime.errors import is_out_of_memory
from timebase import SAMPLE_RATE

if TYPE_CHECKING:
    from asr.engine.batch import DecodeContext
    from asr.engine.state import StateMemory

logger = logging.getLogger("endpoint")

NEWEST = 2  # tokens that an assistant may not have read after a step with drafts
MIN_SPEEDUP = 1.1  # measured costs are not exact
TOKENS_OF_A_WINDOW = 50  # of 15 to 30 s of speech; fewer are no reason to prepare a window
PRIOR_MEAN = 0.8  # acceptance before anything is known
HEADS_PRIOR_MEAN = 0.7  # of heads, at every depth
PRIOR_WEIGHT = 12.0  # drafted tokens that the prior is worth
HORIZON = 600.0  # drafted tokens after which older ones hardly count
DECAY = 0.97  # of the counts, for each window decoded without drafts

# Rounds of measuring: at least, at most, and the seconds after which the least number is enough.
MIN_ROUNDS, MAX_ROUNDS, ENOUGH_SECONDS = 3, 4, 0.5
TIMED_ROWS = (1, 4, 12)
TIMED_KV_LEN = 64
TIMED_PROMPT = 4  # tokens
TIMED_SECONDS = 0.02  # of steps of one shape
UNTIMED_STEPS = 2


class DraftPolicy:
    """How the rows of one batch are drafted for by `model`, if it has one.

    A model that `follows` takes its state from the main model's passes instead of reading tokens.
    `most` are the tokens it can draft in a step.
    """

    def __init__(self, model: DraftModel | None) -> None:
        self.model = model
        heads = model if isinstance(model, MedusaModel) else None
        self.follows = heads is not None
        self.most = 0 if model is None else min(MAX_DRAFTS, heads.count) if heads else MAX_DRAFTS
        self._unread = 1 if self.follows else NEWEST

    def prepares(
        self, options: DecodeOptions, drafting: DraftLength | None, rows: int, new: int
    ) -> bool:
        """Tell whether to draft for `new` windows with these options, which make `rows` rows.

        `drafting` is None if nothing was measured. Its estimates decay if drafts do not pay.
        """
        if not options.assisted or self.model is None:
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
        """Return how many tokens to draft for rows with the options `draftable`, among `rows`."""
        fixed = [each.drafts for each in draftable if each.drafts is not None]
        if len(fixed) < len(draftable) and drafting is not None:
            fixed.append(drafting.choose(rows, len(draftable)))
        return min(max(fixed, default=0), self.most)

    def lag(self, drafts: int, longest: int) -> int:
        """Count a step of so many drafts. Return the assistant's lag in it, if no row is longer
        than `longest`.
        """
        lag = min(self._unread, longest) if drafts else 1
        if not self.follows:
            self._unread = NEWEST if drafts else self._unread + 1
        return lag

    def shape(self, shape: StepShape) -> StepShape:
        """Return the step as this model runs it: a state that follows is kept up."""
        follows = self.follows and shape.drafts > 0
        return shape._replace(assistant_lag=1, followed=True) if follows else shape


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step by number of rows and of drafts (none, few and many); between the measured
    ones linear. `preparing` are the seconds in which the drafter prepares one window.
    """

    seconds: Mapping[tuple[int, int], float]
    preparing: float = 0.0

    @classmethod
    def least_of(cls, rounds: Iterator[Mapping[tuple[int, int], float]]) -> StepCosts:
        """Return the least of a few rounds, each of which times every shape once.

        So a moment in which the machine was busy does not weigh on one shape alone. Large models
        get fewer rounds; their times vary less.
        """
        taken: list[Mapping[tuple[int, int], float]] = []
        spent = 0.0
        while len(taken) < MIN_ROUNDS or (len(taken) < MAX_ROUNDS and spent < ENOUGH_SECONDS):
            taken.append(next(rounds))
            spent += sum(taken[-1].values())
        return cls({shape: min(each[shape] for each in taken) for shape in taken[0]})

    def step(self, rows: int, drafts: int) -> float:
        """Return the seconds of a step; beyond the measured rows they grow linearly."""
        counts = sorted({count for count, _ in self.seconds})
        known = [self._at(count, drafts) for count in counts]
        return float(np.interp(rows, counts, known)) * max(1.0, rows / counts[-1])

    def _at(self, rows: int, drafts: int) -> float:
        """Return the seconds at measured rows: each draft after the first few costs the same."""
        if drafts == 0:
            return self.seconds[rows, 0]
        measured = sorted(k for count, k in self.seconds if count == rows and k > 0)
        few, many = measured[0], measured[-1]
        low, high = self.seconds[rows, few], self.seconds[rows, many]
        return low + (high - low) * (drafts - few) / max(1, many - few)


@dataclass
class AcceptanceRate:
    """How often drafts were right: `accepted` of `drafted`, newer ones counting more."""

    accepted: float = 0.0
    drafted: float = 0.0
    prior: float = PRIOR_MEAN

    @classmethod
    def by_depth(cls, depths: int) -> list[AcceptanceRate]:
        """Return one rate for each of the heads."""
        return [cls(prior=HEADS_PRIOR_MEAN) for _ in range(depths)]

    @property
    def mean(self) -> float:
        """The probability that the next draft is right."""
        return (self.accepted + self.prior * PRIOR_WEIGHT) / (self.drafted + PRIOR_WEIGHT)

    def observe(self, accepted: int, drafted: int) -> None:
        kept = max(0.0, 1.0 - drafted / HORIZON)
        self.accepted = self.accepted * kept + accepted
        self.drafted = self.drafted * kept + drafted

    def decay(self, windows: int) -> None:
        self.accepted *= DECAY**windows
        self.drafted *= DECAY**windows


@dataclass
class DraftLength:
    """The running estimate for one drafter.

    `lengths` are the numbers of drafts to choose from. `rates` holds one rate for drafts at every
    depth, or one for each depth.
    """

    costs: StepCosts
    lengths: Sequence[int]
    rates: Sequence[AcceptanceRate] = field(default_factory=lambda: [AcceptanceRate()])
    _seconds: dict[int, list[float]] = field(default_factory=dict)

    def observe(self, accepted: Sequence[int], drafted: Sequence[int]) -> None:
        """Count the drafts of a step: of each row those up to its first wrong one, and the right
        ones among them.
        """
        if len(self.rates) == 1:
            self.rates[0].observe(sum(accepted), sum(drafted))
            return
        for depth, rate in enumerate(self.rates, start=1):
            reached = sum(count >= depth for count in drafted)
            if not reached:
                break
            rate.observe(sum(count >= depth for count in accepted), reached)

    def decay(self, windows: int) -> None:
        """Forget a little, because `windows` are decoded without drafts."""
        for rate in self.rates:
            rate.decay(windows)

    def choose(self, rows: int, draftable: int) -> int:
        """Return how many tokens to draft in a step of `rows` rows if `draftable` accept drafts."""
        return self._best(rows, draftable)[0] if draftable else 0

    def pays(self, rows: int) -> bool:
        """Tell whether a window among `rows` rows, all drafted for, gains more by drafts than
        preparing it for them costs.
        """
        drafts, speed = self._best(rows, rows)
        saved = self._seconds[rows][0] / rows - 1 / speed
        return drafts > 0 and TOKENS_OF_A_WINDOW * saved > self.costs.preparing

    def _best(self, rows: int, draftable: int) -> tuple[int, float]:
        """Return the number of drafts for the most tokens a second of all rows, and that speed.

        The number is 0 unless drafts clearly beat none.
        """
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
    """Return the tokens that a row gains on average in a step of 0 to `drafts` drafts.

    `rates` are the probabilities that each draft is right if the drafts before it were; the last
    holds for all deeper drafts.
    """
    gains, standing = [1.0], 1.0
    for depth in range(drafts):
        standing *= rates[min(depth, len(rates) - 1)]
        gains.append(gains[-1] + standing)
    return gains


def measured_drafting(memory: StateMemory, context: DecodeContext) -> DraftLength | None:
    """Time steps and the preparation of a window with the memory's drafter. Return the estimate
    for it, or None if the device's memory does not suffice.

    The timed rows are finished, which costs the same and changes nothing.
    """
    policy = DraftPolicy(memory.draft_model)
    try:
        capacity = memory.ensure_capacity(TIMED_ROWS[-1]).capacity
        if memory.ensure_drafter():
            rows = [count for count in TIMED_ROWS if count <= capacity]
            costs = StepCosts.least_of(_rounds(memory, context, rows))
            prepared = _time_preparing(memory, context)
            costs = replace(costs, preparing=max(0.0, prepared - costs.step(1, 0)))
            lengths = draft_lengths(memory, context)
            if policy.follows:
                return DraftLength(costs, lengths, AcceptanceRate.by_depth(lengths[-1]))
            return DraftLength(costs, lengths)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    finally:
        if not context.runner.pipelined:
            memory.release()
    logger.warning("memory ran out while timing steps: nothing will be drafted")
    memory.release()
    return None


def draft_lengths(memory: StateMemory, context: DecodeContext) -> list[int]:
    """Return the numbers of drafts worth trying that the drafter can make."""
    most = DraftPolicy(memory.draft_model).most
    return [each for each in context.runner.draft_lengths if each <= most] or [most]


def _rounds(
    memory: StateMemory, context: DecodeContext, rows: Sequence[int]
) -> Iterator[dict[tuple[int, int], float]]:
    """Yield the seconds of a step of every shape, again and again.

    The drafts are none, few and many; few and many are alike if the drafter can make one alone.
    """
    longest = draft_lengths(memory, context)[-1]
    drafts = sorted({min(each, longest) for each in context.runner.timed_drafts})
    while True:
        yield {(n, k): _time_step(memory, context, n, k) for n in rows for k in drafts}


@torch.inference_mode()
def _time_preparing(memory: StateMemory, context: DecodeContext) -> float:
    """Return the least seconds in which the drafter prepares a silent window, and a step without
    drafts follows, for whose result the host waits.
    """
    encoder, view = context.encoder, memory.ensure_capacity(1).view(0, 1)
    assert view.drafter is not None
    encoded = encoder.main.positions.new_zeros((1, *encoder.main.positions.shape))
    tokens = torch.zeros(1, TIMED_PROMPT, dtype=torch.long, device=encoded.device)
    positions = torch.arange(TIMED_PROMPT, device=encoded.device)[None]
    hidden, silence = encoded[:, :TIMED_PROMPT], np.zeros(SAMPLE_RATE, np.float32)
    least = float("inf")
    for _ in range(UNTIMED_STEPS + 1):
        started = time.perf_counter()
        view.drafter.listen(encoder.encode([silence], drafted=True, known=[encoded]))
        view.drafter.read_prompt(tokens, positions, hidden, tokens[:, 0])
        kv_len = context.runner.padded("positions", TIMED_KV_LEN)
        context.runner.launch(view, context.filters, StepShape(0, 1, kv_len))()
        least = min(least, time.perf_counter() - started)
    return least


@torch.inference_mode()
def _time_step(memory: StateMemory, context: DecodeContext, rows: int, drafts: int) -> float:
    """Return the least seconds of the steps that fit into TIMED_SECONDS, one at least.

    The least, because cold caches made the first draft-free steps of small models 1.5 times slower
    than in a running batch, whose weights are in the processor's caches.
    """
    if context.encoder.threads is not None:
        context.encoder.threads.adjust()
    state, padded = memory.ensure_capacity(rows), context.runner.padded
    view = state.view(0, min(padded("rows", rows), state.capacity))
    kv_len = min(padded("positions", TIMED_KV_LEN), state.main.cache.max_len)
    shape = DraftPolicy(memory.draft_model).shape(StepShape(drafts, 2 if drafts else 1, kv_len))
    if context.runner.pipelined:
        for _ in range(UNTIMED_STEPS):
            context.runner.launch(view, context.filters, shape)()
    least, spent = float("inf"), 0.0
    while spent < TIMED_SECONDS:
        started = time.perf_counter()
        context.runner.launch(view, context.filters, shape)()
        took = time.perf_counter() - started
        least, spent = min(least, took), spent + took
    return least
