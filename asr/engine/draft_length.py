"""How many tokens to draft: from what a step costs on this device and how many drafts were right.

A step that drafts k tokens yields 1 + p1 + p1 p2 + .. tokens, where pj is how often draft j is
right if those before it were, and costs k steps of the assistant, or the heads, and a longer pass
of the main model. An assistant is as good at every depth, so one rate is kept for it (Leviathan et
al. 2023, equation 1); heads that look farther ahead are right less often, so each has a rate of its
own. Costs depend on the models, the device and the number of rows in ways no formula gives, so they
are measured once at load.

Where the best k does not clearly beat none, nothing is drafted, so that asking for a drafter never
costs time. While drafting is off, the estimates decay towards their prior, until a few drafts are
worth another try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

MAX_DRAFTS = 10
# Rounds of measuring: at least, at most, and the seconds after which the least has to do.
MIN_ROUNDS, MAX_ROUNDS, ENOUGH_SECONDS = 3, 4, 0.5
MIN_SPEEDUP = 1.1  # measured costs are not exact
TOKENS_OF_A_WINDOW = 50  # of 15 to 30 s of speech; fewer are no reason to prepare a window
PRIOR_MEAN = 0.8  # acceptance before anything is known
HEADS_PRIOR_MEAN = 0.7  # of heads, at every depth
PRIOR_WEIGHT = 12.0  # drafted tokens that the prior is worth
HORIZON = 600.0  # drafted tokens after which older ones hardly count
DECAY = 0.97  # of the counts, for each window decoded without drafts


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step by number of rows and of drafts (none, few and many); between the measured
    ones linear. `preparing` are seconds for which the drafter hears and reads one window.
    """

    seconds: Mapping[tuple[int, int], float]
    preparing: float = 0.0

    @classmethod
    def least_of(cls, rounds: Iterator[Mapping[tuple[int, int], float]]) -> StepCosts:
        """The least of a few rounds, each of which times every shape once.

        So a moment in which the machine was busy does not weigh on one shape alone. Of large models
        fewer rounds are taken; their times vary less.
        """
        taken: list[Mapping[tuple[int, int], float]] = []
        spent = 0.0
        while len(taken) < MIN_ROUNDS or (len(taken) < MAX_ROUNDS and spent < ENOUGH_SECONDS):
            taken.append(next(rounds))
            spent += sum(taken[-1].values())
        return cls({shape: min(each[shape] for each in taken) for shape in taken[0]})

    def step(self, rows: int, drafts: int) -> float:
        """Seconds of a step of `drafts` drafts over `rows` rows; beyond those measured linear."""
        counts = sorted({count for count, _ in self.seconds})
        known = [self._at(count, drafts) for count in counts]
        return float(np.interp(rows, counts, known)) * max(1.0, rows / counts[-1])

    def _at(self, rows: int, drafts: int) -> float:
        """At measured rows: each draft after the first few costs the same."""
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
        """One for each of the heads."""
        return [cls(prior=HEADS_PRIOR_MEAN) for _ in range(depths)]

    @property
    def mean(self) -> float:
        """The probability that the next one is right."""
        return (self.accepted + self.prior * PRIOR_WEIGHT) / (self.drafted + PRIOR_WEIGHT)

    def observe(self, accepted: int, drafted: int) -> None:
        """Count drafts."""
        kept = max(0.0, 1.0 - drafted / HORIZON)
        self.accepted = self.accepted * kept + accepted
        self.drafted = self.drafted * kept + drafted

    def decay(self, windows: int) -> None:
        """Forget a little."""
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
        """Count the drafts of a step: those of each row up to its first wrong one, and the right
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
        """Forget a little, for `windows` that are decoded without drafts."""
        for rate in self.rates:
            rate.decay(windows)

    def choose(self, rows: int, draftable: int) -> int:
        """How many tokens to draft in a step of `rows` rows of which `draftable` accept drafts."""
        return self._best(rows, draftable)[0] if draftable else 0

    def pays(self, rows: int) -> bool:
        """Whether a window among `rows` rows, all drafted for, gains more by drafts than preparing
        it for them costs.
        """
        drafts, speed = self._best(rows, rows)
        saved = self._seconds[rows][0] / rows - 1 / speed
        return drafts > 0 and TOKENS_OF_A_WINDOW * saved > self.costs.preparing

    def _best(self, rows: int, draftable: int) -> tuple[int, float]:
        """The number of drafts for the most tokens a second of all rows, and that speed; 0 drafts
        unless they clearly beat none.
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
    """Tokens a row gains in a step of 0 to `drafts` drafts, on average.

    `rates` are the probabilities that each draft is right if those before it were; the last is that
    of all that follow.
    """
    gains, standing = [1.0], 1.0
    for depth in range(drafts):
        standing *= rates[min(depth, len(rates) - 1)]
        gains.append(gains[-1] + standing)
    return gains
