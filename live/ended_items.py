"""The items of a session that have ended, as long as anything is to be done with them."""

from __future__ import annotations

from live.item import Item
from timebase import SAMPLE_RATE

SHORTEST_ITEM = SAMPLE_RATE // 10  # what the client commits, by OpenAI's rule


class EndedItems:
    """Those whose text is `unfinished`, in order, and those that are heard again with what follows,
    as far as a window of `longest` samples holds both. `until` is the sample up to which all audio
    is committed or forgotten: the next item begins there, or later.
    """

    def __init__(self, longest: int) -> None:
        self.unfinished: list[Item] = []
        self.until = 0
        self._said: list[Item] = []
        self._longest = longest

    def add(self, item: Item, end: int) -> None:
        """An item ends there."""
        item.end = self.until = end
        self.unfinished.append(item)
        self._said.append(item)

    def skip(self, until: int) -> None:
        """No item needs the audio up to there, nor may another one begin in it."""
        self.until = max(self.until, until)

    def clear(self, until: int) -> None:
        """The audio up to there is forgotten, and what was said before heard with nothing else:
        what lies between is missing.
        """
        self.until = until
        self._said.clear()

    def heard_with(self, item: Item, end: int) -> list[Item]:
        """The items before this one, in its language, that are heard with it up to `end`."""
        found: list[Item] = []
        for each in reversed(self._said):
            if each is item or each.begin >= item.begin:
                continue
            if each.language != item.language or end - each.begin > self._longest:
                break
            found.insert(0, each)
        return found

    def forget(self, begin: int) -> int:
        """Forget the items that are heard with nothing that is unfinished or begins at `begin`, or
        later. Returns the first sample that is still needed.
        """
        first = min([begin, *(each.begin for each in self.unfinished)])
        reach = first + SHORTEST_ITEM - self._longest
        self._said = [each for each in self._said if each.begin >= reach]
        return min([first, *(each.begin for each in self._said)])
