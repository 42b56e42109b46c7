"""Keys and values of a batch of rows, allocated once, each row at a length of its own.

The one decision: the cache stores no lengths. A pass writes at the positions it is given and
attends to nothing beyond them, so rejected tokens are simply overwritten by the next pass, and the
addresses never change: CUDA graphs replay over them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KVCache:
    """One tensor per decoder layer in each field.

    Self-attention's `keys` and `values` are (rows, heads, max_len, head size), cross-attention's
    (rows, heads, frames, head size). `alignment_queries` (rows, alignment heads, max_len, head
    size) are kept for word times, which then need no second pass.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    cross_keys: tuple[Tensor, ...]
    cross_values: tuple[Tensor, ...]
    alignment_queries: tuple[Tensor, ...]

    @property
    def max_len(self) -> int:
        """How many positions a row holds."""
        return self.keys[0].shape[2]

    def view(self, start: int, stop: int) -> KVCache:
        """Rows `start` to `stop`, sharing memory."""
        return KVCache(*(tuple(each[start:stop] for each in kind) for kind in self._kinds()))

    def move(self, source: int, target: int) -> None:
        """Overwrite row `target` with row `source`."""
        for kind in self._kinds():
            for each in kind:
                each[target].copy_(each[source])

    def copy_rows(self, other: KVCache, rows: int) -> None:
        """Overwrite the first `rows` rows with those of `other`."""
        for ours, theirs in zip(self._kinds(), other._kinds(), strict=True):
            for target, source in zip(ours, theirs, strict=True):
                target[:rows].copy_(source[:rows])

    def _kinds(self) -> tuple[tuple[Tensor, ...], ...]:
        return (
            self.keys,
            self.values,
            self.cross_keys,
            self.cross_values,
            self.alignment_queries,
        )
