"""Which items of one sequence stand for which of another: Levenshtein's fewest edits.

A row of the table is a few operations over all columns, and every so many rows one is kept, from
which those between are computed again on the way back: 20,000 words take seconds and few megabytes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.int32]
NONE = -1


def pair_items(left: Items, right: Items) -> Items:
    """For each of `left` (n,) the place of its partner in `right` (m,), equal or put in its place;
    `NONE` where it was left out. Partners are in order. Takes n + m of memory times a root.
    """
    count = math.isqrt(len(left)) + 1
    row = np.arange(len(right) + 1, dtype=np.int32)
    kept = {0: row}
    for place in range(len(left)):
        row = _next_row(row, left[place], right)
        if (place + 1) % count == 0:
            kept[place + 1] = row
    partners = np.full(len(left), NONE, np.int32)
    column = len(right)
    for first in sorted(kept, reverse=True):
        part = left[first : first + count]
        rows = [kept[first]]
        for item in part:
            rows.append(_next_row(rows[-1], item, right))
        column = _trace(np.array(rows), part, right, column, partners[first : first + count])
    return partners


def _next_row(row: Items, item: np.int32, right: Items) -> Items:
    """The least edits from the items up to `item` to each beginning of `right`."""
    columns = np.arange(len(row), dtype=np.int32)
    following = row + 1
    following[1:] = np.minimum(following[1:], row[:-1] + (right != item))
    # What is put in costs one a column, so the best is a running minimum beside that slope.
    least: Items = np.minimum.accumulate(following - columns) + columns
    return least


def _trace(rows: Items, left: Items, right: Items, column: int, partners: Items) -> int:
    """Go back through `rows` (n + 1, columns) of `left` (n,) from a `column` of the last one, and
    note `partners` (n,); the column of the first row.
    """
    number = len(left)
    while number:
        edits, above = rows[number, column], rows[number - 1]
        if column and edits == above[column - 1] + (left[number - 1] != right[column - 1]):
            number, column = number - 1, column - 1
            partners[number] = column
        elif edits == above[column] + 1:
            number -= 1
        else:
            column -= 1
    return column
