"""Recovery from a failed step, for sessions and for the number of rows."""

import pytest

from tests.helpers.plain_batches import (
    LOST,
    Device,
    Script,
    engine_of,
    most_rows,
    request_of,
    session_of,
)
from tests.helpers.refusals import refused
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import MAX_ROWS
from whosaid.asr.engine.scheduler import RESTORING_STEPS
from whosaid.asr.engine.sequence import Lane
from whosaid.errors import OutOfMemory


def run(engine, steps=500):
    """Step until nothing runs or waits; fewer steps than these are needed."""
    for _ in range(steps):
        if not engine.scheduler.busy or engine.lost is not None:
            return
        engine.step()
    raise AssertionError("it does not end")


def windows(count=1, **script):
    return [request_of(Script(**script)) for _ in range(count)]


def answered(client):
    return [request for request, _ in client.finished]


def check_answers(clients, asked):
    for client, requests in zip(clients, asked, strict=True):
        assert client.error is None
        assert set(answered(client)) == set(requests)


def test_transient_failure_costs_no_answer():
    engine = engine_of(device := Device())
    for where in ("entry", "step", "read"):
        asked = [windows(3, steps=(4, 1)) for _ in range(3)]
        clients = [session_of(engine, each) for each in asked]
        device.faults[where] = ValueError(where)
        run(engine)
        check_answers(clients, asked)


@pytest.mark.parametrize("where", ["entry", "step", "read"])
def test_faulty_session_fails_alone(where):
    engine = engine_of(Device())
    asked = [windows(2, steps=(3, 1)) for _ in range(4)]
    clients = [session_of(engine, each) for each in asked]
    bad = session_of(engine, windows(2, steps=(3, 1), poison=where))
    run(engine)
    assert str(bad.error) == where
    check_answers(clients, asked)


def test_rejected_text_beside_a_failure_is_answered_once():
    engine = engine_of(Device())
    (request,) = windows(rejected=True, steps=(2, 2))
    good = session_of(engine, [request], fallback=Fallback())
    bad = session_of(engine, windows(rejected=True, steps=(2, 2), poison="read"))
    run(engine)
    assert answered(good) == [request]
    assert good.error is None
    assert isinstance(bad.error, ValueError)


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("total", [5, 6, 7, 11])
def test_batches_that_do_not_fit_beside_each_other_take_turns(total, tells):
    engine = engine_of(Device(total=total, tells=tells))
    asked = [windows(6, steps=(3, 1)) for _ in range(2)]
    pairs = zip(asked, (1, 5), strict=True)
    clients = [session_of(engine, each, num_beams=beams) for each, beams in pairs]
    run(engine)
    check_answers(clients, asked)


def test_fewer_rows_are_tried_where_a_step_does_not_fit():
    device = Device(total=8, scratch=3)
    engine = engine_of(device)
    client = session_of(engine, requests := windows(8, steps=(3, 1)))
    run(engine)
    assert (client.error, set(answered(client))) == (None, set(requests))
    assert most_rows(engine, Lane(1)) == 4
    assert device.failures == 1


def test_all_rows_are_tried_again_after_successful_steps(caplog):
    device = Device(total=8, scratch=3)
    engine = engine_of(device)
    session_of(engine, windows(8, steps=(RESTORING_STEPS, 1)))
    for _ in range(4):
        engine.step()
    assert most_rows(engine, Lane(1)) == 4
    assert "8 windows at once do not fit into memory: at most 4" in caplog.text
    device.total = 99
    for _ in range(RESTORING_STEPS):
        engine.step()
    assert most_rows(engine, Lane(1)) == MAX_ROWS
    assert device.failures == 1


def test_idle_batches_release_memory_before_rows_are_halved():
    engine = engine_of(Device(total=12))
    for num_beams in (1, 5, 1, 5):
        requests = windows(12 // num_beams)
        client = session_of(engine, requests, num_beams=num_beams)
        run(engine)
        assert (client.error, answered(client)) == (None, requests)
    assert {most_rows(engine, Lane(each)) for each in (1, 5)} == {MAX_ROWS}


@pytest.mark.parametrize(("total", "kept"), [(18, 0), (19, 1)])
def test_idle_memory_is_taken_only_if_rows_need_it(total, kept):
    engine = engine_of(Device(total=total, tells=True))
    session_of(engine, windows(12, steps=(60, 1)))
    session_of(engine, windows(1), num_beams=2)
    while engine.scheduler.running < 12 or engine.scheduler.waiting or engine.batches[Lane(2)].rows:
        engine.step()
    plain, beams = (engine.batches[Lane(each)] for each in (1, 2))
    assert (plain.memory.capacity, beams.memory.capacity, beams.rows) == (12, 1, [])
    session_of(engine, windows(5, steps=(60, 1)))
    while engine.scheduler.waiting:
        engine.step()
    assert (plain.memory.capacity, beams.memory.capacity) == (17, kept)


def test_lane_whose_single_window_does_not_fit_fails():
    engine = engine_of(Device(total=4))
    beams = [session_of(engine, windows(2), num_beams=5) for _ in range(2)]
    plain = session_of(engine, requests := windows(3, steps=(3, 1)))
    run(engine)
    for client in beams:
        assert isinstance(client.error, OutOfMemory)
    assert (plain.error, set(answered(plain))) == (None, set(requests))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_batch_is_not_refused_for_what_others_hold_idle(steps):
    """Room was made for it, and taken again by a newcomer, who may have gone before its turn."""
    engine = engine_of(Device(total=5))
    session_of(engine, windows())
    run(engine)
    late = session_of(engine, requests := windows(steps=(2, 1)), num_beams=5)
    engine.step()
    assert engine.batches[Lane(1)].memory.capacity == 0
    newcomer = session_of(engine, short := windows(steps=(steps, 1)))
    run(engine)
    assert (late.error, newcomer.error) == (None, None)
    assert (answered(late), answered(newcomer)) == (requests, short)


def test_a_starved_batch_gets_through_though_others_keep_coming():
    """The batch's steps fit beside no other rows; when another batch starts, it loses its rows."""
    engine = engine_of(Device(total=6, scratch=1))
    late = session_of(engine, requests := windows(steps=(9, 1)), num_beams=5)
    for _ in range(60):
        session_of(engine, windows(steps=(2, 1)))
        engine.step()
    assert (late.error, answered(late)) == (None, requests)


def test_lost_device_fails_all_sessions_once():
    device = Device()
    engine = engine_of(device)
    given = [{"num_beams": beams, "batch_size": 2} for beams in (1, 1, 2, 5)]
    clients = [session_of(engine, windows(3, steps=(9, 1)), **each) for each in given]
    engine.step()
    device.lost = True
    assert engine.step() == 0
    clients.append(session_of(engine, windows()))
    engine.cancel(clients[0])
    assert engine.step() == 0
    assert device.failures == 1  # not one for each batch
    for client in clients:
        assert str(client.error) == LOST
        assert answered(client) == []


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a kernel failed")])
def test_rows_that_cannot_be_freed_are_nobodys_fault(error):
    device = Device()
    engine = engine_of(device)
    asked = windows(2, steps=(5, 1))
    stays, leaves = session_of(engine, asked), session_of(engine, windows(2, steps=(5, 1)))
    engine.step()
    device.faults["eviction"] = error
    engine.cancel(leaves)
    batch = engine.batches[Lane(1)]
    assert batch.rows == []
    assert (batch.memory.capacity > 0) == isinstance(error, ValueError)
    run(engine)
    assert (stays.error, set(answered(stays))) == (None, set(asked))
    assert answered(leaves) == []


def test_device_lost_while_freeing_rows_fails_the_others():
    device = Device()
    engine = engine_of(device)
    stays, leaves = (session_of(engine, windows(2, steps=(5, 1))) for _ in range(2))
    engine.step()
    device.lost = True
    engine.cancel(leaves)
    assert str(stays.error) == LOST


def test_room_for_something_else_is_made_by_idle_batches_first():
    engine = engine_of(Device())
    session_of(engine, windows(), num_beams=5)
    run(engine)
    client = session_of(engine, requests := windows(2, steps=(4, 1)))
    engine.step()
    held = []
    for _ in range(2):
        engine.make_room()
        held.append([engine.batches[Lane(each)].memory.capacity for each in (1, 5)])
    assert held == [[2, 0], [0, 0]]
    with refused("OUT_OF_MEMORY"):
        engine.make_room()
    run(engine)
    assert set(answered(client)) == set(requests)
