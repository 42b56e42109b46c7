"""Whose turn it is for a free row, among clients that share a batch."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from asr.engine.lane_queue import LONGEST_WAITING_EVERY
from asr.engine.sequence import Sequence
from asr.engine.session import Client


class Room(NamedTuple):
    """Rows of a batch that may be given now.

    So many are `free`, `for_long` of them for long recordings; no client has more than `share`, or
    than its batch size. After `short_turns` short recordings it is the turn of who waits longest,
    until that has been a long one.
    """

    free: int
    share: int
    for_long: float
    short_turns: int


class FairShare:
    """Remembers when each client was given a row last, or came."""

    def __init__(self) -> None:
        self._given = 0  # rows so far
        self._last: dict[Client, int] = {}

    def give(self, client: Client) -> None:
        """A client was given a row."""
        self._given += 1
        self._last[client] = self._given

    def keep(self, clients: Iterable[Client]) -> None:
        """These are the clients there are; who is new came just now."""
        self._last = {each: self._last.get(each, self._given) for each in clients}

    def choose(
        self, waiting: Iterable[Sequence], rows: Counter[Client], room: Room
    ) -> list[Sequence]:
        """As many of the waiting sequences as there is room for. `rows` are those that clients
        have. A client's own sequences keep their order.
        """
        queues: dict[Client, deque[Sequence]] = defaultdict(deque)
        for sequence in waiting:
            queues[sequence.client].append(sequence)
        clients, turn = list(queues), self._given
        chosen: list[Sequence] = []
        for_long, due = room.for_long, room.short_turns
        orders: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
        for place, each in enumerate(clients):
            heapq.heappush(orders[queues[each][0].long], (rows[each], self._last[each], place))
        while len(chosen) < room.free:
            kinds = [long for long, order in orders.items() if order and (for_long > 0 or not long)]
            if not kinds:
                break
            long = kinds[0]
            if due <= 0:
                long = min(kinds, key=lambda kind: orders[kind][0])
            taken, _, place = heapq.heappop(orders[long])
            queue = queues[clients[place]]
            if taken >= min(room.share, queue[0].options.batch_size):
                continue
            chosen.append(queue.popleft())
            for_long -= long
            due = LONGEST_WAITING_EVERY - 1 if long else due - 1
            turn += 1
            if queue:
                heapq.heappush(orders[queue[0].long], (taken + 1, turn, place))
        return chosen
