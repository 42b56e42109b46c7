"""Keys and values of a batch of rows, allocated once; each row has a length of its own.

A pass writes at given positions and attends to nothing beyond them, so the next pass overwrites
rejected tokens. Addresses never change, so CUDA graphs can be replayed. All layers of one kind are
one tensor. Each beam of a row has its own keys and values of the text; all share the audio's.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor


class RowTensors:
    """A dataclass of tensors with rows as their first dimension, and of nested RowTensors.

    Fields of other types, such as a model, belong to all rows.
    """

    def view(self, start: int, stop: int) -> Self:
        """Return rows `start` to `stop`, sharing memory."""
        return self._map(lambda each: each[start:stop], lambda part: part.view(start, stop))

    def take(self, rows: Tensor) -> Self:
        """Return the rows with the numbers `rows` (n,): caches share memory, all else is copied.

        `put` writes the copies back, so a CUDA graph over `take` and `put` serves any rows.
        """
        return self._map(lambda each: each.index_select(0, rows), lambda part: part.take(rows))

    def put(self, rows: Tensor, taken: Self) -> None:
        """Overwrite the rows with the numbers `rows` (n,) with the copies in `taken`."""
        for own, new in zip(self._parts(), taken._parts(), strict=True):
            if isinstance(own, Tensor):
                own.index_copy_(0, rows, new)
            elif isinstance(own, RowTensors):
                own.put(rows, new)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(each for each in self._parts() if isinstance(each, Tensor))

    def _map(
        self, of_tensor: Callable[[Tensor], Tensor], of_part: Callable[[RowTensors], RowTensors]
    ) -> Self:
        mapped = list[Any]()
        for each in self._parts():
            if isinstance(each, Tensor):
                mapped.append(of_tensor(each))
            else:
                mapped.append(of_part(each) if isinstance(each, RowTensors) else each)
        return type(self)(*mapped)

    def _parts(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class KVCache(RowTensors):
    """A cache whose tensors have rows as their second dimension.

    `text` (layers, rows x beams, 2, heads, max_len, head size) holds self-attention's keys and then
    its values, the beams of a row side by side. Cross-attention's `cross_keys` and `cross_values`
    are (layers, rows, heads, frames, head size).
    `alignment_queries` (alignment heads of all layers, rows x beams, max_len, head size) are kept
    for word times, which then need no second pass. `selected` (n,) holds the numbers of a pass's
    rows, None for all rows; a replayed CUDA graph reads them.
    """

    text: Tensor
    cross_keys: Tensor
    cross_values: Tensor
    alignment_queries: Tensor
    num_beams: int = 1
    selected: Tensor | None = None

    @property
    def max_len(self) -> int:
        return self.text.shape[4]

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the parts of `text`, `cross_keys` and `cross_values`, by layer."""
        return [*zip(self.text, self.cross_keys, self.cross_values, strict=True)]

    def view(self, start: int, stop: int) -> KVCache:
        beams = slice(start * self.num_beams, stop * self.num_beams)
        return KVCache(
            self.text[:, beams],
            self.cross_keys[:, start:stop],
            self.cross_values[:, start:stop],
            self.alignment_queries[:, beams],
            self.num_beams,
        )

    def take(self, rows: Tensor) -> KVCache:
        """Return a cache of the rows with the numbers `rows` (n,), sharing memory.

        Supports `fill_cross_kv`, `clear`, `first_beams`, `copy_first_beams` and passes with one
        beam. A pass gathers the rows that it reads.
        """
        return replace(self, selected=rows)

    def put(self, rows: Tensor, taken: KVCache) -> None:
        """Do nothing, because taken rows share memory."""

    def tree(self, row: int, length: int, more: int) -> KVCache:
        """Return a cache of a copy of the first `length` positions of `row`, and of `more`. The
        keys and values of the audio are shared. The row has one beam, or no position is copied.
        """

        def own(each: Tensor) -> Tensor:
            longer = each.new_empty(
                each.shape[0], 1, *each.shape[2:-2], length + more, each.shape[-1]
            )
            longer[..., :length, :] = each[:, row : row + 1, ..., :length, :]
            return longer

        return KVCache(
            own(self.text),
            self.cross_keys[:, row : row + 1],
            self.cross_values[:, row : row + 1],
            own(self.alignment_queries),
        )

    def first_beams(self) -> KVCache:
        """Return a cache of every row's first beam, sharing memory."""
        first = slice(None, None, self.num_beams)
        return replace(
            self,
            text=self.text[:, first],
            alignment_queries=self.alignment_queries[:, first],
            num_beams=1,
        )

    def copy_first_beams(self, length: int) -> None:
        """Copy the first `length` positions of every row's first beam to its other beams."""
        beams, rows = self._split_beams(self.text), self.places(slice(None))
        beams[:, rows, 1:, :, :, :length] = beams[:, rows, :1, :, :, :length]

    def clear(self, length: int) -> None:
        """Zero self-attention's first `length` positions in all rows."""
        written = self._split_beams(self.text)[..., :length, :]
        if self.selected is None:
            written.zero_()
        else:
            written.index_fill_(1, self.selected, 0.0)

    def places(self, rows: slice) -> slice | Tensor:
        """Return the numbers in the cache of `rows` of a pass."""
        return rows if self.selected is None else self.selected[rows]

    def gathered(self, of_layer: Tensor) -> Tensor:
        """Return a pass's rows of one layer's tensor (rows, ..)."""
        return of_layer if self.selected is None else of_layer.index_select(0, self.selected)

    def move(self, source: int, target: int) -> None:
        for each in self._by_row():
            each[:, target].copy_(each[:, source])

    def _by_row(self) -> list[Tensor]:
        """Return all tensors, rows as their second dimension."""
        own = (self.text, self.alignment_queries)
        return [*map(self._split_beams, own), self.cross_keys, self.cross_values]

    def _split_beams(self, each: Tensor) -> Tensor:
        """(.., rows x beams, ..) -> (.., rows, beams, ..), sharing memory."""
        rows = each.shape[1] // self.num_beams
        return each.view(each.shape[0], rows, self.num_beams, *each.shape[2:])


def zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros with the type and device of `like`. On a CPU a page takes memory only when it is
    first written. Raises MemoryError if there is no address space.
    """
    if like.device.type != "cpu" or not math.prod(shape):
        return like.new_zeros(*shape)
    count = math.prod(shape) * like.element_size()
    try:
        pages = mmap.mmap(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no addresses for {count} bytes") from error
    return torch.frombuffer(pages, dtype=torch.uint8).view(like.dtype).view(shape)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Return `values` on `device`. The host does not wait for CUDA; torch reuses pinned memory."""
    if values.device == device or device.type != "cuda":
        return values.to(device)
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values).to(device, non_blocking=True)
