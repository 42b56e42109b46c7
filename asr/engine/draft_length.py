"""How many tokens to draft: from what a step costs on this device and how many drafts were right.

A step that drafts k tokens yields (1 - a^(k+1)) / (1 - a) tokens if each is accepted with
probability a (Leviathan et al. 2023, equation 1), and costs k steps of the assistant and a longer
pass of the main model. Both costs depend on the models, the device and the number of rows in ways
no formula gives, so they are measured once at load.

The one decision: where the best k does not clearly beat none, nothing is drafted, so that asking
for an assistant never costs time. While drafting is off, the acceptance estimate decays towards its
prior, until a few drafts are worth another try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

MAX_DRAFTS = 10
# Rounds of measuring: at least, at most, and the seconds after which the least has to do.
MIN_ROUNDS, MAX_ROUNDS, ENOUGH_SECONDS = 2, 4, 0.5
# Preparing a window for drafts costs a little too, and measured costs are not exact.
MIN_SPEEDUP = 1.1
PRIOR_MEAN = 0.8  # acceptance before anything is known
PRIOR_WEIGHT = 12.0  # drafted tokens that the prior is worth
HORIZON = 600.0  # drafted tokens after which older ones hardly count
DECAY = 0.97  # of the counts, for each window decoded without drafts


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step by number of rows and of drafts; between the measured ones linear."""

    seconds: Mapping[tuple[int, int], float]

    @classmethod
    def measure(
        cls,
        rows: Sequence[int],
        drafts: Sequence[int],
        time_step: Callable[[int, int], float],
    ) -> StepCosts:
        """The least of a few calls of `time_step(rows, drafts)`, in seconds.

        `drafts` are 0, few and many. The calls for one shape are spread over rounds, so that a
        moment in which the machine was busy does not weigh on one alone. Large models get fewer
        rounds; their times vary less.
        """
        shapes = [(count, k) for count in rows for k in drafts]
        rounds: list[dict[tuple[int, int], float]] = []
        spent = 0.0
        while len(rounds) < MIN_ROUNDS or (len(rounds) < MAX_ROUNDS and spent < ENOUGH_SECONDS):
            rounds.append({shape: time_step(*shape) for shape in shapes})
            spent += sum(rounds[-1].values())
        return cls({shape: min(each[shape] for each in rounds) for shape in shapes})

    def step(self, rows: int, drafts: int) -> float:
        """Seconds of a step of `drafts` drafts over `rows` rows; beyond those measured linear."""
        counts = sorted({count for count, _ in self.seconds})
        known = [self._at(count, drafts) for count in counts]
        return float(np.interp(rows, counts, known)) * max(1.0, rows / counts[-1])

    def _at(self, rows: int, drafts: int) -> float:
        """At measured rows: each draft after the first few costs the same."""
        if drafts == 0:
            return self.seconds[rows, 0]
        few, many = sorted(k for count, k in self.seconds if count == rows and k > 0)
        low, high = self.seconds[rows, few], self.seconds[rows, many]
        return low + (high - low) * (drafts - few) / (many - few)


@dataclass
class DraftLength:
    """The running estimate for one assistant.

    `accepted` of `drafted` tokens were right, newer ones counting more. `lengths` are the numbers
    of drafts to choose from.
    """

    costs: StepCosts
    lengths: Sequence[int]
    accepted: float = 0.0
    drafted: float = 0.0
    _best: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def acceptance(self) -> float:
        """The probability that the next drafted token is right."""
        return (self.accepted + PRIOR_MEAN * PRIOR_WEIGHT) / (self.drafted + PRIOR_WEIGHT)

    def observe(self, accepted: int, drafted: int) -> None:
        """Count the drafts of a step."""
        kept = max(0.0, 1.0 - drafted / HORIZON)
        self.accepted = self.accepted * kept + accepted
        self.drafted = self.drafted * kept + drafted

    def decay(self, windows: int) -> None:
        """Forget a little, for `windows` that are decoded without drafts."""
        self.accepted *= DECAY**windows
        self.drafted *= DECAY**windows

    def choose(self, rows: int, draftable: int) -> int:
        """How many tokens to draft in a step of `rows` rows of which `draftable` accept drafts."""
        if not draftable:
            return 0
        percent = round(100 * self.acceptance)
        key = (rows, draftable, percent)
        if key not in self._best:
            self._best[key] = self._search(rows, draftable, percent / 100)
        return self._best[key]

    def _search(self, rows: int, draftable: int, acceptance: float) -> int:
        def speed(drafts: int) -> float:
            tokens = draftable * expected_tokens(acceptance, drafts) + rows - draftable
            return tokens / self.costs.step(rows, drafts)

        best = max(self.lengths, key=speed)
        return best if speed(best) >= MIN_SPEEDUP * speed(0) else 0


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens a row gains in a step, on average."""
    return float(sum(acceptance**k for k in range(drafts + 1)))
