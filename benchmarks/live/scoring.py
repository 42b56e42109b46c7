"""Scores a live session: the delay of each word, and words that were taken back.

For every engine the end of a word is taken from the endpoint's answer for the whole file, so that
no engine is measured by its own times. The texts are aligned (Levenshtein), and words equal in both
are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rapidfuzz.distance import Levenshtein

from benchmarks.live.replay import Arrival, Replay

# A word's text and the second at which it ends.
Ended = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Told:
    """A word, the second at which it became final (`told`), and the second at which it was first
    `shown`, even as a guess. Seconds are of the audio's clock.
    """

    text: str
    told: float
    shown: float


@dataclass
class Session:
    """The texts and times that a client got in one session.

    `deltas` and `completed` are texts. `waits` are the seconds from the end of an item's audio, the
    silence after which the detector calls it ended, to its `completed`. `retracted` counts the
    events that took back final words, and `errors` the server's error events and failed items.
    """

    words: list[Told] = field(default_factory=list)
    deltas: str = ""
    completed: str = ""
    waits: list[float] = field(default_factory=list)
    retracted: int = 0
    errors: int = 0


@dataclass
class _Item:
    """An item of a session; `shown` has all texts that the client displayed, each with its second:
    the final words, and the final words with the guess.
    """

    deltas: list[str] = field(default_factory=list)
    words: list[tuple[str, float]] = field(default_factory=list)
    shown: list[tuple[float, list[str]]] = field(default_factory=list)
    completed: str | None = None
    late: int = 0  # deltas after `completed`

    @property
    def retracted(self) -> int:
        """Return the number of deltas after `completed`, plus one if the deltas differ from the
        words.
        """
        words = "".join(text for text, _ in self.words)
        return self.late + ("".join(self.deltas).strip() != words.strip())

    def told(self) -> list[Told]:
        """Return the item's words with their seconds. A word counts as shown from the first event
        that has it at its final position.
        """
        found = []
        for place, (text, second) in enumerate(self.words):
            stood = (
                at
                for at, texts in self.shown
                if len(texts) > place and plain(texts[place]) == plain(text)
            )
            found.append(Told(text, second, min(second, next(stood, second))))
        return found


def session_of(done: Replay) -> Session:
    """Return the texts and times of a replay from the events that its client got."""
    items: dict[str, _Item] = {}
    session = Session()
    ends: dict[str, float] = {}
    for each in done.arrivals:
        event = each.event
        kind = event["type"].rpartition(".")[2]
        if kind in ("delta", "words", "completed"):
            _note(items.setdefault(event["item_id"], _Item()), kind, each)
        if kind == "completed" and event["item_id"] in ends:
            session.waits.append(each.second - ends[event["item_id"]])
        elif kind == "speech_stopped":
            ends[event["item_id"]] = event["audio_end_ms"] / 1000
        elif kind in ("error", "failed"):
            session.errors += 1
    for item in items.values():
        session.words += item.told()
        session.retracted += item.retracted
    session.deltas = " ".join("".join(item.deltas).strip() for item in items.values())
    session.completed = " ".join(item.completed or "" for item in items.values())
    return session


def _note(item: _Item, kind: str, arrival: Arrival) -> None:
    event = arrival.event
    if kind == "delta":
        item.deltas.append(event["delta"])
        item.late += item.completed is not None
    elif kind == "completed":
        item.completed = event["transcript"]
    else:
        item.words += [(word["word"], arrival.second) for word in event["words"]]
        texts = [text for text, _ in item.words] + event["unstable"].split()
        item.shown.append((arrival.second, texts))


def plain(word: str) -> str:
    """Return a word as it is compared: its letters and digits in lower case."""
    return "".join(filter(str.isalnum, word.casefold()))


def delays(words: Sequence[Told], expected: Sequence[Ended]) -> tuple[list[float], list[float]]:
    """Return the seconds from each word's end until it was final, and until it was first shown."""
    theirs, ours = [plain(text) for text, _ in expected], [plain(word.text) for word in words]
    same = [
        (words[block.b + step], expected[block.a + step][1])
        for block in Levenshtein.editops(theirs, ours).as_matching_blocks()
        for step in range(block.size)
    ]
    return [word.told - end for word, end in same], [word.shown - end for word, end in same]
