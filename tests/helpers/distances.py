"""Distances by their definitions."""


def edits(left, right):
    """Return Levenshtein's distance, by its recursion."""
    row = [*range(len(right) + 1)]
    for place, item in enumerate(left, 1):
        above, row = row, [place]
        for column, other in enumerate(right, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (item != other)))
    return row[-1]
