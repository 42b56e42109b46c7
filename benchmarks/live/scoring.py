"""Scores a live session: the delay of each word.

For every engine the end of a word is taken from the endpoint's answer for the whole file, so that
no engine is measured by its own times. The texts are aligned (Levenshtein), and words equal in both
are timed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rapidfuzz.distance import Levenshtein

from benchmarks.live.replay import Replay
from benchmarks.real.scoring import plain

# A word's text, and a second of the audio's clock: when it ends, or when it became final.
Timed = tuple[str, float]


@dataclass
class Session:
    """The results of one session for its client.

    `words` have the seconds at which they became final. `deltas` and `completed` are texts. `waits`
    are the seconds from the end of an item's audio, the silence after which the detector calls it
    ended, to its `completed`. `failure` is "" if the session ended as it should.
    """

    words: list[Timed] = field(default_factory=list)
    deltas: str = ""
    completed: str = ""
    waits: list[float] = field(default_factory=list)
    failure: str = ""


def session_of(done: Replay) -> Session:
    """Return the texts and times of a replay from the events that its client got."""
    session = Session(failure=done.failure)
    deltas: dict[str, str] = {}
    completed: dict[str, str] = {}
    ends: dict[str, float] = {}
    for arrival in done.arrivals:
        event = arrival.event
        item = event.get("item_id", "")
        match event["type"].rpartition(".")[2]:
            case "delta":
                deltas[item] = deltas.get(item, "") + event["delta"]
                session.words += [(word, arrival.second) for word in event["delta"].split()]
            case "completed":
                completed[item] = event["transcript"]
                if item in ends:
                    session.waits.append(arrival.second - ends[item])
            case "speech_stopped":
                ends[item] = event["audio_end_ms"] / 1000
            case "error" | "failed":
                session.failure = session.failure or f"{event['type']}: {event['error']}"
    session.deltas = " ".join(text.strip() for text in deltas.values())
    session.completed = " ".join(completed.values())
    return session


def delays(words: Sequence[Timed], expected: Sequence[Timed]) -> list[float]:
    """Return the seconds from the end of each of the `expected` words until it was final."""
    theirs, ours = ([plain(text) for text, _ in each] for each in (expected, words))
    return [
        words[block.b + step][1] - expected[block.a + step][1]
        for block in Levenshtein.editops(theirs, ours).as_matching_blocks()
        for step in range(block.size)
    ]
