"""What an item's whole text adds to the words that were sent while it was spoken."""

from __future__ import annotations

from collections.abc import Sequence

from live.commit import spoken
from transcript import Word

# Of the words that were sent the last ones tell where the whole text goes on, and words of it that
# end so many seconds before the last of them are no candidates.
COMPARED, SECONDS = 16, 10.0


def words_after(sent: Sequence[Word], whole: Sequence[Word]) -> list[Word]:
    """The words of the `whole` text that follow those that were `sent`.

    The two were decoded from different parts of the audio, so they may differ. The whole text goes
    on behind that part of it which the sent words are closest to in words (Sellers 1980, "The
    theory and computation of evolutionary distances"), of several the closest in time.
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
    """The least edits that turn `pattern` into what ends before each place of `text`, wherever that
    begins; one number more than `text` has words.
    """
    row = [0] * (len(text) + 1)
    for count, wanted in enumerate(pattern, 1):
        above, row = row, [count]
        for place, found in enumerate(text):
            row.append(min(above[place] + (wanted != found), above[place + 1] + 1, row[place] + 1))
    return row
