"""What follows a failure: the whole table, what is remembered, and how it is carried out."""

from __future__ import annotations

import itertools

import pytest
from plain_batches import LOST, Device, Script, client_of, executor_of, request_of

from asr.engine.executor import kind_of
from asr.engine.fallback import Fallback
from asr.engine.recovery import (
    LONGEST_PATIENCE,
    MAX_ROWS,
    SHORTEST_PATIENCE,
    Failure,
    Kind,
    Remedy,
    RowLimit,
    remedy,
)
from asr.engine.scheduler import Limits
from asr.engine.sequence import Lane
from errors import OutOfMemory

FAILURES = [
    Failure(*values)
    for values in itertools.product(Kind, (0, 1, 2, 9), (0, 1, 2, 9), (False, True), (False, True))
]


def test_what_follows():
    """Each remedy under its conditions, written the other way round, and no other beside it."""
    for failure in FAILURES:
        kind, sessions, rows, room_made, others_hold = failure
        lost, short = kind is Kind.DEVICE_LOST, kind is Kind.OUT_OF_MEMORY
        expected = {
            Remedy.GIVE_UP_DEVICE: lost,
            Remedy.TRY_AGAIN: short and room_made,
            Remedy.FEWER_ROWS: short and not room_made and rows >= 2,
            Remedy.WAIT_FOR_OTHERS: short and not room_made and rows < 2 and others_hold,
            Remedy.ONE_BY_ONE: not short and not lost and sessions >= 2,
            Remedy.FAIL_SESSION: not short and not lost and sessions == 1,
            Remedy.FAIL_QUEUE: (short and not room_made and rows < 2 and not others_hold)
            or (not short and not lost and sessions == 0),
        }
        follows = [each for each, follows in expected.items() if follows]
        assert follows == [remedy(failure)], failure


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, Kind.OUT_OF_MEMORY),
        (RuntimeError(LOST), Kind.DEVICE_LOST),
        (RuntimeError("a shape"), Kind.OTHER),
        (ValueError("CUDA error"), Kind.OTHER),
    ],
)
def test_what_an_error_means(error, kind):
    assert kind_of(error) is kind


# How many rows are tried


def after_steps(limit, count):
    """The limit after so many steps that succeeded."""
    for _ in range(count):
        limit.count_step(1)
    return limit.rows


def test_half_of_what_failed_is_tried(caplog):
    limit = RowLimit()
    assert limit.rows == MAX_ROWS
    for failed, rows in ((64, 32), (9, 4), (1, 1)):
        limit.halve(failed)
        assert limit.rows == rows
    assert "64 windows at once do not fit into memory: at most 32" in caplog.text


def test_more_rows_are_tried_again_after_some_steps_and_later_after_each_failure():
    limit = RowLimit()
    limit.halve(64)
    limits = [after_steps(limit, SHORTEST_PATIENCE) for _ in range(4)]
    assert limits == [48, 72, 108, MAX_ROWS]
    limit.halve(64)
    limit.halve(64)
    assert after_steps(limit, SHORTEST_PATIENCE) == 32
    assert after_steps(limit, SHORTEST_PATIENCE) == 48
    for _ in range(20):
        limit.halve(2)
    assert after_steps(limit, LONGEST_PATIENCE - 1) == 1
    assert after_steps(limit, 1) == 2


def test_what_failed_is_tried_once_more_and_then_not_before_it_has_succeeded():
    limit = RowLimit()
    assert limit.may_try_again(8)
    assert not limit.may_try_again(8)
    limit.count_step(7)
    assert not limit.may_try_again(8)
    limit.count_step(8)
    assert limit.may_try_again(8)
    assert limit.may_try_again(4)
    limit.wait_for_others()
    assert limit.may_try_again(4)


# How it is carried out


def run(executor, steps=500):
    """Until nothing runs or waits; fewer steps than these are needed."""
    for _ in range(steps):
        if not executor.scheduler.busy or executor.lost is not None:
            return
        executor.step()
    raise AssertionError("it does not end")


def windows(count=1, **script):
    return [request_of(Script(**script)) for _ in range(count)]


def answered(client):
    return [request for request, _ in client.finished]


def test_a_failure_that_passes_costs_nobody_an_answer():
    executor = executor_of(device := Device())
    for where in ("entry", "step", "read"):
        asked = [windows(3, steps=(4, 1)) for _ in range(3)]
        clients = [client_of(executor, each) for each in asked]
        device.faults[where] = ValueError(where)
        run(executor)
        for client, requests in zip(clients, asked, strict=True):
            assert client.error is None
            assert set(answered(client)) == set(requests)


@pytest.mark.parametrize("where", ["entry", "step", "read"])
def test_who_is_at_fault_fails_alone(where):
    executor = executor_of(Device())
    asked = [windows(2, steps=(3, 1)) for _ in range(4)]
    clients = [client_of(executor, each) for each in asked]
    bad = client_of(executor, windows(2, steps=(3, 1), poison=where))
    run(executor)
    assert str(bad.error) == where
    for client, requests in zip(clients, asked, strict=True):
        assert client.error is None
        assert set(answered(client)) == set(requests)


def test_a_text_that_is_rejected_when_its_neighbour_cannot_be_read_is_told_once():
    executor = executor_of(Device())
    (request,) = windows(rejected=True, steps=(2, 2))
    good = client_of(executor, [request], fallback=Fallback())
    bad = client_of(executor, windows(rejected=True, steps=(2, 2), poison="read"))
    run(executor)
    assert answered(good) == [request]
    assert good.error is None
    assert isinstance(bad.error, ValueError)


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("total", [5, 6, 7, 11])
def test_batches_that_do_not_fit_beside_each_other_take_turns(total, tells):
    executor = executor_of(Device(total=total, tells=tells))
    asked = [windows(6, steps=(3, 1)) for _ in range(2)]
    clients = [
        client_of(executor, each, num_beams=beams)
        for each, beams in zip(asked, (1, 5), strict=True)
    ]
    run(executor)
    for client, requests in zip(clients, asked, strict=True):
        assert client.error is None
        assert set(answered(client)) == set(requests)


def test_fewer_rows_are_tried_where_a_step_does_not_fit():
    device = Device(total=8, scratch=3)
    executor = executor_of(device)
    client = client_of(executor, requests := windows(8, steps=(3, 1)))
    run(executor)
    assert (client.error, set(answered(client))) == (None, set(requests))
    assert executor.limits[Lane(1)].rows == 4
    assert device.failures == 1


def test_idle_batches_give_back_their_memory_before_fewer_rows_are_tried():
    executor = executor_of(Device(total=12))
    for num_beams in (1, 5, 1, 5):
        requests = windows(12 // num_beams)
        client = client_of(executor, requests, num_beams=num_beams)
        run(executor)
        assert (client.error, answered(client)) == (None, requests)
    assert {executor.limits[Lane(each)].rows for each in (1, 5)} == {MAX_ROWS}


@pytest.mark.parametrize(("total", "kept"), [(18, 0), (19, 1)])
def test_beside_running_rows_idle_memory_is_taken_if_new_rows_do_not_fit_without(total, kept):
    executor = executor_of(Device(total=total, tells=True))
    client_of(executor, windows(12, steps=(60, 1)))
    client_of(executor, windows(1), num_beams=2)
    executor.step()
    plain, beams = (executor.batches[Lane(each)] for each in (1, 2))
    assert (plain.memory.capacity, beams.memory.capacity, beams.rows) == (12, 1, [])
    client_of(executor, windows(5, steps=(60, 1)))
    for _ in range(9):
        executor.step()
    assert (plain.memory.capacity, beams.memory.capacity) == (17, kept)


def test_where_one_window_does_not_fit_its_queue_is_told_and_others_are_answered():
    executor = executor_of(Device(total=4))
    beams = [client_of(executor, windows(2), num_beams=5) for _ in range(2)]
    plain = client_of(executor, requests := windows(3, steps=(3, 1)))
    run(executor)
    for client in beams:
        assert isinstance(client.error, OutOfMemory)
    assert (plain.error, set(answered(plain))) == (None, set(requests))


def test_a_batch_that_waits_for_others_is_not_refused_for_what_they_hold_idle():
    """Room was made for it before, and taken again by a newcomer."""
    device = Device(total=5)
    executor = executor_of(device)
    client_of(executor, windows())
    run(executor)
    late = client_of(executor, requests := windows(steps=(2, 1)), num_beams=5)
    executor.step()
    assert executor.batches[Lane(1)].memory.capacity == 0
    newcomer = client_of(executor, windows(steps=(3, 1)))
    run(executor)
    assert (late.error, newcomer.error) == (None, None)
    assert answered(late) == requests


def test_a_batch_is_not_refused_for_what_another_has_taken_and_left_idle_again():
    """Room was made for it, and before it was its turn somebody came and went."""
    executor = executor_of(Device(total=5))
    client_of(executor, windows())
    run(executor)
    late = client_of(executor, requests := windows(steps=(2, 1)), num_beams=5)
    executor.step()
    assert executor.batches[Lane(1)].memory.capacity == 0
    newcomer = client_of(executor, short := windows())
    run(executor)
    assert (late.error, newcomer.error) == (None, None)
    assert (answered(late), answered(newcomer)) == (requests, short)


def test_a_starved_batch_gets_through_though_others_keep_coming():
    """Its steps fit beside nobody's row, and each time one begins anew it has lost its own."""
    executor = executor_of(Device(total=6, scratch=1))
    late = client_of(executor, requests := windows(steps=(9, 1)), num_beams=5)
    for _ in range(60):
        client_of(executor, windows(steps=(2, 1)))
        executor.step()
    assert (late.error, answered(late)) == (None, requests)


def test_a_lost_device_is_told_to_all_and_asked_nothing_more():
    device = Device()
    executor = executor_of(device)
    clients = [
        client_of(executor, windows(3, steps=(9, 1)), num_beams=beams, batch_size=2)
        for beams in (1, 1, 2, 5)
    ]
    executor.step()
    device.lost = True
    assert executor.step() == 0
    clients.append(client_of(executor, windows()))
    executor.cancel(clients[0])
    assert executor.step() == 0
    assert device.failures == 1  # not one for each batch
    for client in clients:
        assert str(client.error) == LOST
        assert answered(client) == []


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a kernel failed")])
def test_rows_that_cannot_be_freed_are_nobodys_fault(error):
    device = Device()
    executor = executor_of(device)
    asked = windows(2, steps=(5, 1))
    stays, leaves = client_of(executor, asked), client_of(executor, windows(2, steps=(5, 1)))
    executor.step()
    device.faults["eviction"] = error
    executor.cancel(leaves)
    assert executor.batches[Lane(1)].rows == []
    run(executor)
    assert (stays.error, set(answered(stays))) == (None, set(asked))
    assert answered(leaves) == []


def test_a_device_that_is_lost_when_rows_are_freed_is_told_to_those_that_stay():
    device = Device()
    executor = executor_of(device)
    stays, leaves = (client_of(executor, windows(2, steps=(5, 1))) for _ in range(2))
    executor.step()
    device.lost = True
    executor.cancel(leaves)
    assert str(stays.error) == LOST


def test_room_for_something_else_is_made_by_idle_batches_first():
    executor = executor_of(Device())
    client_of(executor, windows(), num_beams=5)
    run(executor)
    client = client_of(executor, requests := windows(2, steps=(4, 1)))
    executor.step()
    held = []
    for _ in range(2):
        executor.make_room()
        held.append([executor.batches[Lane(each)].memory.capacity for each in (1, 5)])
    assert held == [[2, 0], [0, 0]]
    with pytest.raises(OutOfMemory, match="one window"):
        executor.make_room()
    run(executor)
    assert set(answered(client)) == set(requests)


def test_alone_in_a_shared_engine_newcomers_are_looked_for_between_passes_of_the_encoder():
    """Nothing is decoded before all are in; with a newcomer it is, beside encoding."""
    executor = executor_of(Device(), Limits(hold_seconds=0.1, shared=True))
    client_of(executor, windows(8, steps=(50, 1)), batch_size=8)
    rows = []
    while executor.scheduler.waiting:
        rows.append(executor.step(newcomers=len(rows) == 1))
    entered = len(executor.batches[Lane(1)].rows)
    assert entered == 8
    assert rows[0] == 0
    assert rows[1] > 0
    assert executor.step() == 8
