"""Finds the words of an item's final text that follow the words already sent."""

from __future__ import annotations

from collections.abc import Sequence

from whosaid.live.commit import spoken
from whosaid.transcript import Word

# Number of last sent words that are compared with the final text, and seconds before them from
# which words of the final text are compared.
COMPARED, SECONDS = 16, 10.0


def words_after(sent: Sequence[Word], whole: Sequence[Word]) -> list[Word]:
    """Return the words of the `whole` text that follow the `sent` words.

    Sent and whole text were decoded from different parts of the audio, so they may differ. The last
    sent words are aligned with the part of the whole text that needs the fewest word edits (Sellers
    1980, "The theory and computation of evolutionary distances"). Of several parts, the closest in
    time counts.
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
    """Return for each prefix of `text`, including the empty prefix, the fewest edits that turn
    `pattern` into a suffix of that prefix.
    """
    row = [0] * (len(text) + 1)
    for count, wanted in enumerate(pattern, 1):
        above, row = row, [count]
        for place, found in enumerate(text):
            row.append(min(above[place] + (wanted != found), above[place + 1] + 1, row[place] + 1))
    return row
