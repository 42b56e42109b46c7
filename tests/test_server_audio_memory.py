"""The samples of all requests together, bounded at every moment, whoever comes, waits or leaves."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Audio
from server.audio_memory import AudioMemory


class Clients:
    """Requests for audio of given sizes, in bytes, that stay until they are told to go."""

    def __init__(self, limit) -> None:
        self.memory = AudioMemory(limit)
        self.decoded: list[int] = []
        self.held, self.highest, self.decoding = 0, 0, 0

    async def decode(self, size) -> Audio:
        assert self.decoding == 0
        self.decoding += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.decoding -= 1
        return Audio(np.zeros(size // 4, np.float32), 1.0, ())

    async def ask(self, number, size, go) -> None:
        async with self.memory.decoded(lambda: self.decode(size)) as audio:
            self.decoded.append(number)
            self.held += audio.samples.nbytes
            self.highest = max(self.highest, self.held)
            assert self.memory.held == self.held
            try:
                await go.wait()
            finally:
                self.held -= audio.samples.nbytes


@given(
    sizes=st.lists(st.integers(1, 500).map(lambda samples: 4 * samples), min_size=1, max_size=20),
    limit=st.integers(1, 2_000),
    seed=st.integers(0, 99),
)
def test_no_more_is_held_than_the_limit_and_one_recording(sizes, limit, seed):
    """Some leave early; all others are decoded, in the order in which they came."""

    async def run() -> Clients:
        clients, chance = Clients(limit), random.Random(seed)
        going = [asyncio.Event() for _ in sizes]
        tasks = [
            asyncio.ensure_future(clients.ask(number, *each))
            for number, each in enumerate(zip(sizes, going, strict=True))
        ]
        for number in chance.sample(range(len(sizes)), len(sizes)):
            for _ in range(chance.randrange(9)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                tasks[number].cancel()
            going[number].set()
        await asyncio.wait(tasks)
        left = {number for number, task in enumerate(tasks) if task.cancelled()}
        assert left | {*clients.decoded} == {*range(len(sizes))}
        return clients

    clients = asyncio.run(run())
    assert clients.highest < limit + max(sizes)
    assert clients.decoded == sorted(clients.decoded)
    assert clients.memory.held == 0


def test_what_cannot_be_decoded_holds_nothing_and_gives_its_turn_on():
    async def fail() -> Audio:
        raise ValueError("no audio")

    async def run() -> None:
        clients, go = Clients(100), asyncio.Event()
        with pytest.raises(ValueError, match="no audio"):
            async with clients.memory.decoded(fail):
                pass
        assert clients.memory.held == 0
        go.set()
        await clients.ask(0, 1_000, go)
        assert clients.decoded == [0]

    asyncio.run(run())


def test_beyond_the_limit_the_next_waits_until_one_has_gone():
    async def run() -> None:
        clients = Clients(400)
        first, others = asyncio.Event(), asyncio.Event()
        tasks = [
            asyncio.ensure_future(clients.ask(number, size, first if number == 0 else others))
            for number, size in enumerate((200, 200, 4, 4))
        ]
        for _ in range(50):
            await asyncio.sleep(0)
        assert clients.decoded == [0, 1]
        first.set()
        await tasks[0]
        for _ in range(50):
            await asyncio.sleep(0)
        assert clients.decoded == [0, 1, 2, 3]
        others.set()
        await asyncio.wait(tasks[1:])

    asyncio.run(run())
