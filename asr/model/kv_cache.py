"""Keys and values of a batch of rows, allocated once; each row has a length of its own.

The cache stores no lengths. A pass writes at given positions and attends to nothing beyond them, so
the next pass overwrites rejected tokens, and addresses never change: CUDA graphs replay over them.
All layers of one kind are one tensor, so that one operation moves or clears a row. The beams of a
row have their own keys and values of the text and share those of the audio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class KVCache:
    """A cache whose tensors have rows as their second dimension.

    Self-attention's `keys` and `values` are (layers, rows x beams, heads, max_len, head size), the
    beams of a row side by side; cross-attention's are (layers, rows, heads, frames, head size).
    `alignment_queries` (alignment heads of all layers, rows x beams, max_len, head size) serve word
    times, which then need no second pass. `selected` (n,) holds the numbers of the rows of a pass,
    None for all rows; a replayed CUDA graph reads them.
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
        """Return the number of positions of a row."""
        return self.keys.shape[3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.keys,
            self.values,
            self.cross_keys,
            self.cross_values,
            self.alignment_queries,
        )

    def view(self, start: int, stop: int) -> KVCache:
        """Return rows `start` to `stop`, which share memory."""
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
        """Return a cache of the rows with the numbers (n,), which shares memory.

        Serves `fill_cross_kv`, `clear`, `first_beams` and passes with one beam. A pass gathers the
        rows that it reads.
        """
        return replace(self, selected=rows)

    def first_beams(self) -> KVCache:
        """Return the first beam of every row, which shares memory."""
        first = slice(None, None, self.num_beams)
        return replace(
            self,
            keys=self.keys[:, first],
            values=self.values[:, first],
            alignment_queries=self.alignment_queries[:, first],
            num_beams=1,
        )

    def copy_first_beams(self, length: int) -> None:
        """Copy the first `length` positions of every row's first beam to its other beams."""
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
        """Return the indices in the tensors of some `rows` of a pass."""
        return rows if self.selected is None else self.selected[rows]

    def gathered(self, of_layer: Tensor) -> Tensor:
        """Return the rows of a pass, of a layer's tensor (rows, ..)."""
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
        """Return all tensors with rows as their second dimension."""
        own = (self.keys, self.values, self.alignment_queries)
        return [*map(self._split_beams, own), self.cross_keys, self.cross_values]

    def _split_beams(self, each: Tensor) -> Tensor:
        """(.., rows x beams, ..) -> (.., rows, beams, ..), sharing memory."""
        rows = each.shape[1] // self.num_beams
        return each.view(each.shape[0], rows, self.num_beams, *each.shape[2:])
