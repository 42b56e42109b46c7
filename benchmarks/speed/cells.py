"""The pairs of models to time, and the cells of the table for each.

Cells are chosen by hand and are not a full product. A recording of n windows is not decoded at
batches above n. Four full batches of windows are timed by ours alone. With a deep model, the
pipeline and CTranslate2 are timed at one acceptance, because they do not depend on it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tests.support.model_pairs import BASE, deep_pair, demo_pair, random_pair
from whosaid.asr.checkpoint.loading import WhisperModels

# The columns of the table.
PIPELINE, CT2, OURS, ASSISTED = COLUMNS = ("pipeline", "CTranslate2", "ours", "ours assisted")
OWN = (OURS, ASSISTED)
# Acceptance of the deep pair: the noise in its assistant that gives about that acceptance.
NOISE = {0.9: 0.43, 0.6: 0.67, 0.3: 0.84}


@dataclass(frozen=True)
class Cell:
    """`seconds` of whole audio; or, with `window`, four batches of windows of at most that many
    seconds.
    """

    batch: int
    columns: Sequence[str]
    seconds: int = 0
    window: int = 0

    @property
    def name(self) -> str:
        if self.window:
            return f"{4 * self.batch} windows of {self.window} s"
        return f"{self.seconds} s" if self.seconds < 600 else f"{self.seconds // 60} min"


@dataclass(frozen=True)
class Pair:
    """A main model with its assistant, and the cells in which they are timed."""

    name: str
    load: Callable[[torch.device, torch.dtype], WhisperModels]
    cells: tuple[Cell, ...]
    max_tokens: int | None = None


def pairs() -> Iterator[Pair]:
    """Yield all pairs of models that are timed; deep pairs by acceptance, whole audio at 0.9."""
    minute = (Cell(1, COLUMNS, 60), Cell(4, COLUMNS, 60))
    cells = (*minute, Cell(24, COLUMNS, 600))
    yield Pair("demo models", demo_pair, cells)
    yield Pair("base size", partial(random_pair, BASE, 0.05), cells, max_tokens=60)
    for acceptance, noise in NOISE.items():
        windows = tuple(Cell(batch, OWN, window=15) for batch in (1, 8, 24))
        first = (*minute, Cell(24, OWN, 600)) if acceptance == 0.9 else ()
        yield Pair(f"deep pair, {acceptance}", partial(deep_pair, noise), (*first, *windows))


def quick_pairs() -> Iterator[Pair]:
    """Yield the pairs of a short smoke test: every kind of model and column, little audio."""
    cells = (Cell(1, COLUMNS, 8), Cell(2, OWN, window=8))
    yield Pair("demo models", demo_pair, cells)
    yield Pair("deep pair, 0.9", partial(deep_pair, NOISE[0.9]), cells)
    yield Pair("base size", partial(random_pair, BASE, 0.05), cells[:1], max_tokens=20)
