"""Who holds bytes and who gives way, against bodies that come in any order and at any pace."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errors import EndpointError
from server.errors import Busy, SlowBody
from server.places import PATIENCE_S, WAITED_FOR_BYTES_PER_S, Pace, Places


class House:
    """Places by a clock of its own; `lost` has the names of senders that gave way."""

    def __init__(self, most=9, max_bytes=1000) -> None:
        self.time, self.lost, self.stack = 0.0, [], ExitStack()
        self.places = Places(most, max_bytes, lambda: self.time)

    def enter(self, name):
        return self.stack.enter_context(self.places.take(lambda error: self.tell(name, error)))

    def tell(self, name, error):
        assert isinstance(error, SlowBody)
        self.lost.append(name)


def test_the_slowest_of_those_that_are_late_gives_way_and_only_where_it_must():
    house = House(most=3, max_bytes=2**30)
    first, second, third = (house.enter(name) for name in ("first", "second", "third"))
    house.time = PATIENCE_S - 1
    second.grow(2**20)
    third.grow(2**20)
    house.time = PATIENCE_S + 0.5
    third.complete = True
    house.enter("fourth")
    assert house.lost == ["first"]
    with pytest.raises(SlowBody):
        first.grow(1)
    with pytest.raises(Busy):
        house.enter("fifth")
    house.time = 2 * PATIENCE_S
    house.enter("sixth")
    assert house.lost == ["first", "second"]
    house.stack.close()
    assert (house.places.taken, house.places.held_bytes) == (0, 0)


def test_bytes_of_slow_senders_go_to_who_sends():
    """Three send most of a large body at once, then drip: together they leave room for small ones,
    and a large one takes theirs.
    """
    house = House(max_bytes=1000)
    drips = [house.enter(name) for name in "abc"]
    for each in drips:
        for size in range(10, 400, 10):
            try:
                each.grow(size)
            except Busy:
                break
    assert house.places.held_bytes + 20 <= 1000
    house.enter("small").grow(10)
    house.time = PATIENCE_S + 1
    large = house.enter("large")
    large.grow(400)
    large.complete = True
    assert house.lost == ["a", "b"]
    assert house.places.held_bytes <= 1000


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=8),
    order=st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 300), st.sampled_from([0.0, 0.5, 9.0])),
        max_size=80,
    ),
)
def test_no_complete_body_loses_the_limit_holds_and_somebody_gets_through(sizes, order):
    house = House(max_bytes=1000)
    bodies = {name: house.enter(name) for name in range(len(sizes))}
    complete, refused = set(), set()

    def send(name, part):
        body = bodies[name]
        if name in complete or name in refused or name in house.lost:
            return
        try:
            body.grow(min(sizes[name], body.size + part))
        except EndpointError:
            refused.add(name)
            house.places.leave(body)
            return
        if body.size == sizes[name]:
            body.complete = True
            complete.add(name)

    for name, part, pause in order:
        house.time += pause
        send(name % len(sizes), part)
        held = [body.size for name, body in bodies.items() if name not in {*house.lost, *refused}]
        assert house.places.held_bytes == sum(held) <= 1000
        assert complete.isdisjoint(house.lost)
    for name in bodies:
        send(name, 900)
    assert complete


def test_a_pace_forgives_a_pause_and_not_a_store_of_bytes():
    pace = Pace(100, 5.0, now=0.0)
    pace.came(10**9, 1.0)
    assert pace.due == 6.0
    pace.came(100, 5.0)
    assert pace.due == 7.0
    steady = Pace(WAITED_FOR_BYTES_PER_S, PATIENCE_S, 0.0)
    for second in range(1, 100):
        assert steady.due >= second
        steady.came(WAITED_FOR_BYTES_PER_S, float(second))
