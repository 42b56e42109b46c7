"""The ended items of a session that are still needed."""

from __future__ import annotations

from whosaid.live.item import Item
from whosaid.timebase import SAMPLE_RATE

SHORTEST_ITEM = SAMPLE_RATE // 10  # least samples that a client may commit, by OpenAI's rule


class EndedItems:
    """Ended items that have no final text (`unfinished`, in order) or that serve as context.

    The final pass of a later item reads an item again as context, if a window of `longest` samples
    holds both. Audio before sample `until` is committed or dropped: no later item begins before it.
    """

    def __init__(self, longest: int) -> None:
        self.unfinished: list[Item] = []
        self.until = 0
        self._context: list[Item] = []
        self._longest = longest

    def add(self, item: Item, end: int) -> None:
        """End `item` at sample `end`."""
        item.end = self.until = end
        self.unfinished.append(item)
        self._context.append(item)

    def skip(self, until: int) -> None:
        """Let no item begin before sample `until`, because nothing needs the audio before it."""
        self.until = max(self.until, until)

    def clear(self, until: int) -> None:
        """Drop the audio before sample `until`. Later items have no earlier items as context,
        because the audio between them is missing.
        """
        self.until = until
        self._context.clear()

    def context(self, item: Item, end: int) -> list[Item]:
        """Return the items before `item`, in its language, that fit into its window up to `end`."""
        found: list[Item] = []
        for each in reversed(self._context):
            if each is item or each.begin >= item.begin:
                continue
            if each.language != item.language or end - each.begin > self._longest:
                break
            found.insert(0, each)
        return found

    def forget(self, begin: int) -> int:
        """Drop the context that no unfinished item and no item from `begin` on needs. Return the
        first sample that is still needed.
        """
        first = min([begin, *(each.begin for each in self.unfinished)])
        reach = first + SHORTEST_ITEM - self._longest
        self._context = [each for each in self._context if each.begin >= reach]
        return min([first, *(each.begin for each in self._context)])
