"""Keys and values of a batch of rows, allocated once, each row at a length of its own.

The cache stores no lengths. A pass writes at the positions it is given and attends to nothing
beyond them, so rejected tokens are simply overwritten by the next pass, and the addresses never
change: CUDA graphs replay over them. All layers of one kind are one tensor, so that a row is moved
or cleared by an operation a kind rather than one a layer. The beams of a row have keys and values
of their own for the text and share those of the audio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class KVCache:
    """Rows are the second dimension of every tensor.

    Self-attention's `keys` and `values` are (layers, rows x beams, heads, max_len, head size), the
    beams of a row side by side; cross-attention's (layers, rows, heads, frames, head size).
    `alignment_queries` (alignment heads of all layers, rows x beams, max_len, head size) are kept
    for word times, which then need no second pass. `selected` (n,) are the numbers of the rows that
    a pass is about, where they are not all: a CUDA graph reads them where it is replayed.
    """

    keys: Tensor
    values: Tensor
    cross_keys: Tensor
    cross_values: Tensor
    alignment_queries: Tensor
    num_beams: int = 1
    selected: Tensor | None = None

    @property
    def max_len(self) -> int:
        """How many positions a row holds."""
        return self.keys.shape[3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is held."""
        return (
            self.keys,
            self.values,
            self.cross_keys,
            self.cross_values,
            self.alignment_queries,
        )

    def view(self, start: int, stop: int) -> KVCache:
        """Rows `start` to `stop`, sharing memory."""
        beams = slice(start * self.num_beams, stop * self.num_beams)
        return KVCache(
            self.keys[:, beams],
            self.values[:, beams],
            self.cross_keys[:, start:stop],
            self.cross_values[:, start:stop],
            self.alignment_queries[:, beams],
            self.num_beams,
        )

    def select(self, rows: Tensor) -> KVCache:
        """The rows with the numbers (n,), in any places, sharing memory: for `fill_cross_kv`,
        `clear`, `first_beams` and, of one beam, a pass; what a pass reads of them is gathered.
        """
        return replace(self, selected=rows)

    def first_beams(self) -> KVCache:
        """The first beam of every row alone, sharing memory."""
        first = slice(None, None, self.num_beams)
        return replace(
            self,
            keys=self.keys[:, first],
            values=self.values[:, first],
            alignment_queries=self.alignment_queries[:, first],
            num_beams=1,
        )

    def copy_first_beams(self, length: int) -> None:
        """Give the first `length` positions of every row's first beam to its other beams."""
        for each in (self.keys, self.values):
            beams = self._split_beams(each)
            rows = self.places(slice(None))
            beams[:, rows, 1:, :, :length] = beams[:, rows, :1, :, :length]

    def clear(self, length: int) -> None:
        """Zero self-attention's first `length` positions in all rows."""
        for each in (self.keys, self.values):
            if self.selected is None:
                each[:, :, :, :length].zero_()
            else:
                self._split_beams(each)[..., :length, :].index_fill_(1, self.selected, 0.0)

    def places(self, rows: slice) -> slice | Tensor:
        """Where some of the rows that a pass is about stand in the tensors."""
        return rows if self.selected is None else self.selected[rows]

    def gathered(self, of_layer: Tensor) -> Tensor:
        """What a pass reads of a layer's tensor (rows, ..): the rows that it is about."""
        return of_layer if self.selected is None else of_layer.index_select(0, self.selected)

    def move(self, source: int, target: int) -> None:
        """Overwrite row `target` with row `source`."""
        for each in self._by_row():
            each[:, target].copy_(each[:, source])

    def copy_rows(self, other: KVCache, rows: int) -> None:
        """Overwrite the first `rows` rows with those of `other`."""
        for target, source in zip(self._by_row(), other._by_row(), strict=True):
            target[:, :rows].copy_(source[:, :rows])

    def _by_row(self) -> list[Tensor]:
        """All tensors, the rows their second dimension."""
        own = (self.keys, self.values, self.alignment_queries)
        return [*map(self._split_beams, own), self.cross_keys, self.cross_values]

    def _split_beams(self, each: Tensor) -> Tensor:
        """(.., rows x beams, ..) -> (.., rows, beams, ..), sharing memory."""
        rows = each.shape[1] // self.num_beams
        return each.view(each.shape[0], rows, self.num_beams, *each.shape[2:])
