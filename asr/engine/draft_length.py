"""How many tokens to draft: from what a round costs on this device and how many drafts proved right
lately.

A round that drafts k tokens yields (1 - a^(k+1)) / (1 - a) tokens if each is accepted with chance a
(Leviathan et al. 2023, equation 1), and costs k steps of the assistant and a longer pass of the
main model. Both costs depend on the models, the device and the number of rows in ways no formula
gives, so they are measured once at load. The one decision: where the best k does not clearly beat
none, nothing is drafted, so that asking for an assistant never costs time. While nothing is drafted
nothing is learnt about the assistant; the memory of its failures therefore fades with every window,
until a few drafts are worth another try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

DRAFTS = (1, 2, 3, 4, 6, 8, 10)
MOST_DRAFTS = DRAFTS[-1]
MEASURED_DRAFTS = (0, 1, 6)  # the second draft and each further one cost the same
LEAST_TURNS, MOST_TURNS, ENOUGH = 2, 4, 0.5  # of measuring; seconds after which the least has to do
CLEAR_GAIN = (
    1.1  # preparing a window for drafts costs a little too, and measured costs are not exact
)
HOPED = 0.8  # acceptance before anything is known
HOPE = 12.0  # drafted tokens that the hope is worth
MEMORY = 600.0  # drafted tokens after which older ones have faded
FADING = 0.97  # of the memory, each window that is not drafted


@dataclass(frozen=True)
class Costs:
    """Seconds of a round by number of rows and of drafts; beside the measured ones on straight
    lines.
    """

    seconds: Mapping[tuple[int, int], float]

    @classmethod
    def measure(cls, rows: Sequence[int], time_round: Callable[[int, int], float]) -> Costs:
        """The least of a few calls of `time_round(rows, drafts)`, in seconds, over `rows` and a few
        draft lengths.

        The calls for one shape lie apart, so that a moment in which the machine was busy does not
        weigh on one alone; large models get fewer of them, which vary less.
        """
        shapes = [(count, drafts) for count in rows for drafts in MEASURED_DRAFTS]
        turns: list[dict[tuple[int, int], float]] = []
        while len(turns) < LEAST_TURNS or (
            len(turns) < MOST_TURNS and sum(map(_total, turns)) < ENOUGH
        ):
            turns.append({shape: time_round(*shape) for shape in shapes})
        return cls({shape: min(turn[shape] for turn in turns) for shape in shapes})

    def round(self, rows: int, drafts: int) -> float:
        """Seconds of a round of `drafts` drafts over `rows` rows; beyond the measured rows in
        proportion.
        """
        counts = sorted({count for count, _ in self.seconds})
        known = [self._over(count, drafts) for count in counts]
        return float(np.interp(rows, counts, known)) * max(1.0, rows / counts[-1])

    def _over(self, rows: int, drafts: int) -> float:
        none, one, many = (self.seconds[rows, known] for known in MEASURED_DRAFTS)
        return (
            none if drafts == 0 else one + (many - one) * (drafts - 1) / (MEASURED_DRAFTS[-1] - 1)
        )


@dataclass
class DraftLength:
    """The running judgement of one assistant. `accepted` of `judged` drafts were right, newer ones
    counting more.
    """

    costs: Costs
    accepted: float = 0.0
    judged: float = 0.0
    _best: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def acceptance(self) -> float:
        """The chance that the next drafted token is right."""
        return (self.accepted + HOPED * HOPE) / (self.judged + HOPE)

    def observe(self, accepted: int, judged: int) -> None:
        """Counts the drafts of a round."""
        kept = max(0.0, 1.0 - judged / MEMORY)
        self.accepted = self.accepted * kept + accepted
        self.judged = self.judged * kept + judged

    def fade(self, windows: int) -> None:
        """Forgets a little, for `windows` that are decoded without drafts."""
        self.accepted *= FADING**windows
        self.judged *= FADING**windows

    def choose(self, rows: int, draftable: int) -> int:
        """How many tokens to draft in a round of `rows` rows of which `draftable` may accept
        any.
        """
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
            return tokens / self.costs.round(rows, drafts)

        best = max(DRAFTS, key=speed)
        return best if speed(best) >= CLEAR_GAIN * speed(0) else 0


def _total(turn: Mapping[tuple[int, int], float]) -> float:
    return sum(turn.values())


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens a row gains in a round, on average."""
    return float(sum(acceptance**k for k in range(drafts + 1)))
