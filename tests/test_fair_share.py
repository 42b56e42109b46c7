"""Turns among clients, by examples; the scheduler's tests have the rest."""

from __future__ import annotations

from collections import Counter

from plain_batches import request_of

from asr.engine.fair_share import FairShare, Room
from asr.engine.lane_queue import LONGEST_WAITING_EVERY
from asr.engine.request import DecodeOptions
from asr.engine.sequence import Sequence
from asr.engine.session import Client

NAMES = "abcde"


def room(free: int, share: int = 99, for_long: float = 99.0, short_turns: int = 99) -> Room:
    return Room(free, share, for_long, short_turns)


class Queue:
    """Windows of clients by name, a capital for those of long recordings; `turns` knows all."""

    def __init__(self, batch_size: int = 99) -> None:
        self.clients = {name: Client(DecodeOptions(batch_size=batch_size)) for name in NAMES}
        self.turns = FairShare()
        self.turns.keep(self.clients.values())

    def chosen(self, waiting: str, room: Room, rows: str = "") -> str:
        """Who is chosen, where clients have so many `rows`."""
        made = {
            Sequence(self.clients[name.lower()], request_of(long=name.isupper())): name
            for name in waiting
        }
        held = Counter(self.clients[name] for name in rows)
        return "".join(made[each] for each in self.turns.choose(made, held, room))

    def give(self, names: str) -> None:
        for name in names:
            self.turns.give(self.clients[name])


def test_the_client_with_the_fewest_rows_is_next():
    assert Queue().chosen("aabbcc", room(4), rows="aab") == "cbca"


def test_of_equal_ones_it_is_whose_last_turn_is_longest_ago():
    queue = Queue()
    queue.give("cab")
    assert queue.chosen("abc", room(3)) == "cab"


def test_who_comes_anew_waits_behind_those_who_wait():
    queue = Queue()
    queue.give("abd")
    queue.turns.keep([queue.clients["a"], queue.clients["b"]])
    queue.turns.keep(queue.clients.values())
    assert queue.chosen("cba", room(3)) == "abc"


def test_no_client_has_more_than_its_share_or_its_batch_size():
    assert Queue().chosen("aaaab", room(5, share=2)) == "aba"
    assert Queue(batch_size=1).chosen("aaaab", room(5)) == "ab"


def test_long_recordings_have_the_room_that_is_theirs_and_their_turn():
    assert Queue().chosen("ABCd", room(4, for_long=2.0)) == "dAB"
    shorts = "b" * 2 * LONGEST_WAITING_EVERY
    found = Queue().chosen("A" * 9 + shorts, room(99, short_turns=1))
    assert found.startswith("bA" + "b" * (LONGEST_WAITING_EVERY - 1) + "A")
