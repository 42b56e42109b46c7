"""The order in which work is done, against a queue that grows old in steps."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import CancelledError
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.shortest_first import AUDIO_A_SECOND, ShortestFirst


class Held:
    """A queue whose thread waits until `go`, by a clock of its own; `done` are the names of work in
    the order in which it was done.
    """

    def __init__(self) -> None:
        self.time, self.done, self.go = 0.0, [], threading.Event()
        self.queue = ShortestFirst("test", lambda: self.time)
        running = threading.Event()
        self.first = self.queue.submit(0, lambda: (running.set(), self.go.wait(60)))
        assert running.wait(60)

    def submit(self, name, seconds):
        return self.queue.submit(seconds, lambda: self.done.append(name))

    def end(self):
        self.go.set()
        self.queue.shutdown()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 7200)), max_size=12))
def test_the_shortest_is_first_and_waiting_makes_shorter(works):
    """Each time, of what is left, the one with the fewest seconds less its credit for waiting."""
    held, left = Held(), {}
    for name, (pause, seconds) in enumerate(works):
        held.time += pause
        left[name] = held.time, seconds
        held.submit(name, seconds)
    last = held.queue.submit(1e9, lambda: None)
    held.go.set()
    last.result(60)
    held.end()

    def length(name):
        came, seconds = left[name]
        return seconds - AUDIO_A_SECOND * (held.time - came)

    lengths = [length(name) for name in held.done]
    assert sorted(held.done) == list(range(len(works)))
    assert lengths == pytest.approx(sorted(lengths))


def test_ten_minutes_are_passed_for_one_and_no_longer():
    held = Held()
    held.submit("long", 600)
    for minute in range(3):
        held.time = 60.0 * minute
        held.submit(minute, 10)
    last = held.queue.submit(1e9, lambda: None)
    held.go.set()
    last.result(60)
    held.end()
    assert held.done == [0, "long", 1, 2]


def test_what_it_returns_and_raises_comes_back():
    queue = ShortestFirst("test")
    assert queue.submit(1, lambda: 5).result(60) == 5
    with pytest.raises(ZeroDivisionError):
        queue.submit(1, lambda: 1 / 0).result(60)
    assert queue.submit(1, lambda: 6).result(60) == 6
    queue.shutdown()
    with pytest.raises(RuntimeError):
        queue.submit(1, lambda: 7)


def test_cancelled_work_is_not_begun_and_the_end_cancels_what_waits():
    held = Held()
    cancelled, kept = held.submit("cancelled", 1), held.submit("kept", 2)
    assert cancelled.cancel()
    after = held.queue.submit(3, lambda: None)
    held.go.set()
    after.result(60)
    assert held.done == ["kept"]
    assert kept.done()
    held.end()
    held = Held()
    waiting = held.submit("never", 1)
    threading.Timer(0.05, held.go.set).start()
    held.queue.shutdown()
    with pytest.raises(CancelledError):
        waiting.result(60)
    assert held.done == []


class Samples:
    """What work holds on to."""


def test_cancelled_work_is_forgotten_while_other_work_runs():
    held = Held()
    samples = [Samples(), Samples()]
    asked = [held.queue.submit(number, partial(id, each)) for number, each in enumerate(samples)]
    cancelled, kept = map(weakref.ref, samples)
    del samples
    assert asked[0].cancel()
    assert cancelled() is None
    assert kept() is not None
    assert not held.first.done()
    held.end()
    assert kept() is None
