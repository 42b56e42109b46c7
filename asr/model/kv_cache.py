"""Keys and values of a batch of rows, allocated once, each row at a length of its own.

The one decision: the cache stores no lengths. A pass writes at the positions it is given and
attends to nothing beyond them, so rejected tokens are simply overwritten by the next pass, and the
addresses never change: CUDA graphs replay over them. The beams of a row have keys and values of
their own for the text and share those of the audio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class KVCache:
    """One tensor per decoder layer in each field.

    Self-attention's `keys` and `values` are (rows x beams, heads, max_len, head size), the beams of
    a row side by side; cross-attention's (rows, heads, frames, head size). `alignment_queries`
    (rows x beams, alignment heads, max_len, head size) are kept for word times, which then need no
    second pass.
    """

    keys: Tensors
    values: Tensors
    cross_keys: Tensors
    cross_values: Tensors
    alignment_queries: Tensors
    num_beams: int = 1

    @property
    def max_len(self) -> int:
        """How many positions a row holds."""
        return self.keys[0].shape[2]

    def view(self, start: int, stop: int) -> KVCache:
        """Rows `start` to `stop`, sharing memory."""
        beams = slice(start * self.num_beams, stop * self.num_beams)
        return KVCache(
            tuple(each[beams] for each in self.keys),
            tuple(each[beams] for each in self.values),
            tuple(each[start:stop] for each in self.cross_keys),
            tuple(each[start:stop] for each in self.cross_values),
            tuple(each[beams] for each in self.alignment_queries),
            self.num_beams,
        )

    def first_beams(self) -> KVCache:
        """The first beam of every row alone, sharing memory."""
        first = slice(None, None, self.num_beams)
        return replace(
            self,
            keys=tuple(each[first] for each in self.keys),
            values=tuple(each[first] for each in self.values),
            alignment_queries=tuple(each[first] for each in self.alignment_queries),
            num_beams=1,
        )

    def copy_first_beams(self, length: int) -> None:
        """Give the first `length` positions of every row's first beam to its other beams."""
        for each in (*self.keys, *self.values):
            beams = self._split_beams(each)
            beams[:, 1:, :, :length] = beams[:, :1, :, :length]

    def clear(self, length: int) -> None:
        """Zero self-attention's first `length` positions in all rows."""
        for each in (*self.keys, *self.values):
            each[:, :, :length].zero_()

    def move(self, source: int, target: int) -> None:
        """Overwrite row `target` with row `source`."""
        for each in self._by_row():
            each[target].copy_(each[source])

    def copy_rows(self, other: KVCache, rows: int) -> None:
        """Overwrite the first `rows` rows with those of `other`."""
        for target, source in zip(self._by_row(), other._by_row(), strict=True):
            target[:rows].copy_(source[:rows])

    def _by_row(self) -> list[Tensor]:
        """All tensors, the rows their first dimension."""
        own = (*self.keys, *self.values, *self.alignment_queries)
        return [*map(self._split_beams, own), *self.cross_keys, *self.cross_values]

    def _split_beams(self, each: Tensor) -> Tensor:
        """(rows x beams, ..) -> (rows, beams, ..), sharing memory."""
        return each.view(each.shape[0] // self.num_beams, self.num_beams, *each.shape[1:])

    def _kinds(self) -> tuple[Tensors, ...]:
        return (
            self.keys,
            self.values,
            self.cross_keys,
            self.cross_values,
            self.alignment_queries,
        )
