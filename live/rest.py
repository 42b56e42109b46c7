"""Finds the words of an item's final text that follow the words already sent."""

from __future__ import annotations

from collections.abc import Sequence

from live.commit import spoken
from transcript import Word

# How many of the last sent words are compared with the final text, and how many seconds before them
# a word of the final text may end to be compared.
COMPARED, SECONDS = 16, 10.0


def words_after(sent: Sequence[Word], whole: Sequence[Word]) -> list[Word]:
    """Return the words of the `whole` text that follow the `sent` ones.

    Both were decoded from different parts of the audio, so they may differ. The sent words are
    aligned with the part of the whole text that needs the fewest word edits (Sellers 1980, "The
    theory and computation of evolutionary distances"); of several, with the closest in time.
    """
    if not sent:
        return list(whole)
    last = sent[-COMPARED:]
    end, first = last[-1].end, len(whole)
    for index, word in enumerate(whole):
        if word.end >= last[0].start - SECONDS:
            first = index
            break
    candidates = whole[first:]
    distances = _distances(
        [spoken(word.text) for word in last], [spoken(w.text) for w in candidates]
    )
    ends = [candidates[0].start if candidates else end, *(word.end for word in candidates)]
    best = min(range(len(ends)), key=lambda place: (distances[place], abs(ends[place] - end)))
    return list(candidates[best:])


def _distances(pattern: Sequence[str], text: Sequence[str]) -> list[int]:
    """Return for each prefix of `text`, the empty one included, the least edits that turn `pattern`
    into some suffix of that prefix.
    """
    row = [0] * (len(text) + 1)
    for count, wanted in enumerate(pattern, 1):
        above, row = row, [count]
        for place, found in enumerate(text):
            row.append(min(above[place] + (wanted != found), above[place + 1] + 1, row[place] + 1))
    return row
