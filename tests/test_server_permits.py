"""Permits, against bodies that grow in any order."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from whosaid.server.admission import Permits
from whosaid.server.errors import Refusal


def test_large_bodies_leave_room_for_small_ones():
    permits = Permits(9, 1000)
    with ExitStack() as stack:
        for _ in range(3):
            permit = stack.enter_context(permits.take())
            with suppress(Refusal):
                for size in range(10, 400, 10):
                    permit.grow(size)
        stack.enter_context(permits.take()).grow(10)
        assert permits.held_bytes <= 1000
    assert (permits.taken, permits.held_bytes) == (0, 0)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=8),
    order=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 300)), max_size=80),
)
def test_the_limit_holds_and_a_body_gets_through(sizes, order):
    permits = Permits(9, 1000)
    with ExitStack() as stack:
        bodies = [stack.enter_context(permits.take()) for _ in sizes]
        complete, refused = set(), set()

        def send(name, part):
            body = bodies[name]
            if name in complete or name in refused:
                return
            try:
                body.grow(min(sizes[name], body.size + part))
            except Refusal:
                refused.add(name)
                body.leave()
                return
            if body.size == sizes[name]:
                complete.add(name)

        for name, part in order:
            send(name % len(sizes), part)
            assert permits.held_bytes == sum(body.size for body in bodies) <= 1000
        for name in range(len(bodies)):
            send(name, 900)
        assert complete
