"""Whose turn it is, by plain values: fewest rows first, everybody in the end, nobody beyond a batch
size, and what becomes of a batch that failed.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_batches import (
    ENCODE_SECONDS,
    STEP_SECONDS,
    Clock,
    Device,
    Script,
    client_of,
    executor_of,
    request_of,
)

from asr.engine.fallback import Fallback
from asr.engine.lane_queue import LONGEST_WAITING_EVERY
from asr.engine.request import DecodeOptions, DecodeResult
from asr.engine.scheduler import (
    GATHERING_STEPS,
    IN_VAIN,
    MAX_ENCODER_BATCH,
    Limits,
    Load,
    Scheduler,
)
from asr.engine.sequence import Lane, Sequence, Status
from asr.engine.session import Client

GOOD = DecodeResult((1,), 0.0, (), 0.0)
REJECTED = DecodeResult((1,), 0.0, (), 0.0, text_logprob=-9.0)
BEAMS = 5  # of a retry
PLAIN, IN_BEAMS, LIVE, LONG = Lane(1), Lane(BEAMS), Lane(1, live=True), Lane(1, long=True)


class Drive:
    """A scheduler and clients by name."""

    def __init__(self, rows_cost=False, **limits):
        self.clock = Clock()
        self.scheduler = Scheduler(Limits(**limits), self.clock, rows_cost)
        self.clients = {}

    def add(self, name, count=1, long=False, **options):
        """Queue windows of a client, which is made where the name is new."""
        if name not in self.clients:
            self.clients[name] = Client(DecodeOptions(**options))
        client = self.clients[name]
        apart = self.scheduler.long_apart
        added = [Sequence(client, request_of(long=long), apart) for _ in range(count)]
        self.scheduler.add(added)
        return added

    def plan(self, rows=128, lane=PLAIN, encoded=0, newcomers=False, began=None):
        load = Load(rows, self.clock.now if began is None else began, encoded, newcomers)
        return self.scheduler.plan(lane, load)

    def enter(self, rows=128, lane=PLAIN, took=0.0):
        """Let in whoever is next, all of them. Returns their sequences."""
        entered, began = [], self.clock.now
        while (plan := self.plan(rows, lane)).entering:
            self.clock.now += took
            self.scheduler.entered(plan, len(plan.entering), began)
            entered += plan.entering
        return entered

    def finish(self, *sequences, result=GOOD):
        """A step of their batch in which some finish. Returns those that are done."""
        (lane,) = {each.lane for each in sequences}
        finished = [(each, result) for each in sequences]
        return [each for each, _ in self.scheduler.stepped(lane, finished)]

    def names(self, sequences):
        by_client = {client: name for name, client in self.clients.items()}
        return "".join(by_client[each.client] for each in sequences)


# Who gets a row


def test_free_rows_go_to_the_client_with_the_fewest():
    drive = Drive()
    drive.add("a", 2)
    drive.enter()
    drive.add("a", 6)
    drive.add("b", 2)
    drive.add("c")
    assert drive.plan(rows=2).entering == []
    plan = drive.plan(rows=7)
    assert drive.names(plan.entering) == "bcbaa"
    assert plan.rows == 7


def test_no_client_exceeds_its_batch_size_in_all_batches_together():
    drive = Drive()
    (first,) = drive.add("b", batch_size=3, fallback=Fallback())
    drive.enter()
    drive.finish(first, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [first]
    drive.add("a", 6, batch_size=2)
    drive.add("b", 4)
    assert Counter(drive.names(drive.enter())) == {"a": 2, "b": 2}


def test_no_more_rows_than_the_limits_and_memory_allow():
    drive = Drive(max_rows=3)
    drive.add("a", 9)
    assert len(drive.enter(rows=2)) == 2
    assert len(drive.enter(rows=9)) == 1
    assert drive.enter() == []


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 9), st.integers(1, 6))),
    st.integers(1, MAX_ENCODER_BATCH),
)
def test_every_row_is_given_that_may_be(clients, rows):
    drive = Drive()
    for name, (count, batch_size) in clients.items():
        drive.add(name, count, batch_size=batch_size)
    entering = drive.plan(rows).entering if clients else []
    possible = {name: min(count, batch_size) for name, (count, batch_size) in clients.items()}
    assert len(entering) == len(set(entering)) == min(rows, sum(possible.values()))
    got = Counter(drive.names(entering))
    for name, count in got.items():
        for other in clients:
            assert count <= got[other] + 1 or got[other] == possible[other], name


def test_of_equals_the_one_that_waited_longest_is_next():
    """Five recordings without end share four rows: all get on alike."""
    drive, running, served = Drive(), deque(), Counter()
    for name in "abcde":
        drive.add(name, 40)
    for _ in range(100):
        entered = drive.enter(rows=4)
        running += entered
        served.update(drive.names(entered))
        drive.finish(running.popleft())
    assert max(served.values()) - min(served.values()) <= 1


def test_turns_are_kept_while_clients_wait_in_another_batch():
    """Each newcomer has a row and goes on to beams, in front of those who wait there, as rejected
    texts do: there the one that came first is next all the same.
    """
    drive, order = Drive(), []
    for number, name in enumerate("abcdefgh"):
        drive.add(name, fallback=Fallback())
        drive.finish(*drive.enter(rows=1), result=REJECTED)
        if number >= 3:
            entered = drive.enter(rows=1, lane=IN_BEAMS)
            order += drive.names(entered)
            drive.finish(*entered)
    assert order == ["a", "b", "c", "d", "e"]


def test_a_client_that_comes_back_has_no_old_turn():
    drive = Drive()
    drive.finish(*drive.add("a") and drive.enter())
    drive.add("b")
    drive.add("c")
    drive.finish(*drive.enter(rows=1))
    drive.add("a")
    assert drive.names(drive.enter(rows=1)) == "c"


def test_a_clients_own_windows_keep_their_order():
    drive = Drive()
    added = drive.add("a", 20)
    assert drive.plan().entering == added[:MAX_ENCODER_BATCH]


# Long recordings


def test_long_recordings_leave_a_quarter_of_the_rows_where_others_may_come():
    for shared, expected in ((False, [1, 2, 3, 4, 12]), (True, [1, 2, 3, 3, 9])):
        got = []
        for rows in (1, 2, 3, 4, 12):
            drive = Drive(shared=shared)
            drive.add("a", 9, long=True)
            drive.add("b", 9, long=True)
            got.append(len(drive.enter(rows)))
        assert got == expected


def test_short_recordings_go_first_and_every_eighth_row_to_who_waits_longest():
    drive, got = Drive(), ""
    drive.add("L", 40, long=True)
    drive.add("s", 80, batch_size=80)
    for _ in range(32):
        entered = drive.enter(rows=1)
        got += drive.names(entered)
        drive.finish(*entered)
    assert got.count("L") == 32 // LONGEST_WAITING_EVERY
    assert got.index("L") == LONGEST_WAITING_EVERY - 1


def test_rows_that_other_batches_give_in_between_take_no_long_recordings_turn():
    drive, got = Drive(), ""
    drive.add("L", long=True)
    for name in "abcdefghijklmnop":
        drive.add(name, fallback=Fallback())
        entered = drive.enter(rows=1)
        got += drive.names(entered)
        drive.finish(*entered, result=REJECTED)
        if entered[0].status is Status.RETRYING:
            drive.finish(*drive.enter(rows=1, lane=IN_BEAMS))
    assert got.index("L") == LONGEST_WAITING_EVERY - 1


def test_a_long_recordings_turn_that_falls_into_its_rest_is_not_lost():
    drive = Drive(shared=True)
    scheduler, clock = drive.scheduler, drive.clock
    drive.add("L", long=True)
    drive.add("s", 40, batch_size=40)
    scheduler.long_share.count(clock.now - 100.0)
    for _ in range(LONGEST_WAITING_EVERY + 3):
        entered = drive.enter(rows=1)
        assert drive.names(entered) == "s"
        drive.finish(*entered)
    clock.now += 300.0
    assert drive.names(drive.enter(rows=1)) == "L"


def test_beside_short_ones_long_ones_have_a_quarter_of_the_time():
    drive = Drive(shared=True)
    drive.add("L", 1, long=True)
    (long,) = drive.enter(took=2.0)
    drive.finish(long)
    drive.add("s", 1)
    drive.enter()
    drive.add("L", 9, long=True)
    for later, count in ((0.0, 0), (5.9, 0), (0.1, 6)):
        drive.clock.now += later
        assert len(drive.plan(rows=8).entering) == count  # of which two stay free


def test_alone_long_ones_need_not_rest():
    drive = Drive(shared=True)
    drive.add("L", 3, long=True)
    drive.enter(rows=1, took=2.0)
    assert len(drive.enter(rows=8)) == 2


def test_the_last_windows_of_a_long_recording_are_no_short_one():
    drive = Drive(shared=True)
    drive.add("L", 3, long=True)
    drive.add("L", 3)
    drive.finish(*drive.enter(rows=1, took=2.0))
    assert len(drive.enter(rows=8)) == 5


def test_where_rows_cost_long_recordings_have_rows_apart_if_others_may_come():
    for shared, rows_cost in itertools.product([False, True], repeat=2):
        drive = Drive(shared=shared, rows_cost=rows_cost)
        (long,), (short,) = drive.add("L", 1, long=True), drive.add("s")
        (live,) = drive.add("l", long=True, live=True)
        assert long.lane == (LONG if shared and rows_cost else PLAIN)
        assert (short.lane, live.lane) == (PLAIN, LIVE)


def test_long_recordings_apart_rest_beside_short_ones_three_times_as_long_as_they_took():
    drive = Drive(shared=True, rows_cost=True, max_rows=8)
    scheduler, clock = drive.scheduler, drive.clock
    drive.add("L", 9, long=True)
    assert len(drive.enter(lane=LONG)) == 8
    scheduler.count_other(LONG, clock.now - 2.0)
    assert scheduler.allows_lane(LONG)
    (short,) = drive.add("s")
    for later, allowed in ((0.0, False), (5.9, False), (0.1, True)):
        clock.now += later
        assert scheduler.allows_lane(LONG) is allowed
        assert scheduler.allows_lane(PLAIN)
    scheduler.count_other(LONG, clock.now - 2.0)
    drive.finish(*drive.enter())
    assert short.status is Status.DONE
    assert scheduler.allows_lane(LONG)


def test_long_recordings_do_not_rest_for_their_own_last_windows_or_who_may_not_enter():
    drive = Drive(shared=True, rows_cost=True)
    scheduler, clock = drive.scheduler, drive.clock
    drive.add("L", 3, long=True)
    drive.enter(lane=LONG)
    drive.add("L", 3)
    scheduler.count_other(LONG, clock.now - 2.0)
    assert scheduler.allows_lane(LONG)
    drive.add("s")
    assert not scheduler.allows_lane(LONG)
    scheduler.wait_for_others(LONG)
    assert scheduler.allows_lane(LONG)


# Encoding beside others


def test_who_runs_gets_more_rows_only_after_as_long_in_steps_as_newcomers_took():
    drive = Drive(hold_seconds=math.inf)
    drive.add("a")
    drive.add("b")
    drive.enter(took=2.0)
    drive.add("a", 2)
    drive.add("c", 2)
    drive.clock.now += 1.9
    plan = drive.plan()
    assert drive.names(plan.entering) == "c"
    drive.scheduler.entered(plan, 0, drive.clock.now)
    drive.clock.now += 0.1
    assert Counter(drive.names(drive.plan().entering)) == {"a": 2, "c": 2}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("beside", ["nobody", "another", "a newcomer"])
def test_encoding_pauses_beside_others(beside, shared):
    drive = Drive(hold_seconds=2.0, shared=shared)
    drive.add("a", MAX_ENCODER_BATCH + 2)
    if beside == "another":
        drive.add("b")
    newcomers, began = beside == "a newcomer", drive.clock.now
    plan = drive.plan(newcomers=newcomers)
    pauses = shared or beside != "nobody"
    assert plan.until == (began + 2.0 if pauses else math.inf)
    drive.clock.now += 2.0
    drive.scheduler.entered(plan, len(plan.entering), began)
    later = drive.plan(encoded=len(plan.entering), newcomers=newcomers, began=began)
    assert bool(later.entering) is not pauses
    # Alone in a shared engine it looks for newcomers only, and goes on.
    assert later.decodes is (beside != "nobody" or not pauses)
    if pauses:
        drive.clock.now += 2.0  # as much time in steps as the newcomers took
        assert drive.plan(newcomers=newcomers).entering


def test_a_pause_of_which_nothing_would_follow_is_none():
    drive = Drive(hold_seconds=2.0, shared=True)
    drive.add("a", 3)
    began = drive.clock.now
    plan = drive.plan(rows=2)
    drive.clock.now += 9.0
    drive.scheduler.entered(plan, 2, began)
    later = drive.plan(rows=2, encoded=2, began=began)
    assert (later.entering, later.decodes) == ([], True)


def test_those_for_whom_there_was_no_time_keep_their_places():
    drive = Drive()
    added = drive.add("a", 5)
    plan = drive.plan()
    drive.scheduler.entered(plan, 2, drive.clock.now)
    statuses = [each.status for each in added]
    assert statuses == [Status.RUNNING] * 2 + [Status.WAITING] * 3
    assert drive.plan().entering == added[2:]


def test_where_nobody_entered_nothing_has_changed():
    drive = Drive()
    added = drive.add("a", 3)
    plan = drive.plan()
    drive.scheduler.entered(plan, 0, drive.clock.now - 9.0)
    assert (drive.scheduler.waiting, drive.scheduler.running) == (3, 0)
    assert drive.plan() == plan
    assert plan.entering == added


def test_what_is_drafted_for_is_encoded_apart():
    drive = Drive()
    one = drive.add("a", assisted=True)
    drive.add("b", 2)
    one += drive.add("a")
    drive.add("c", assisted=True, drafts=3)
    plan = drive.plan()
    assert plan.entering == one
    assert plan.rows == 5


# Rejected texts


def test_a_rejected_text_is_queued_for_its_retry_before_all_others():
    drive = Drive()
    drive.add("b", num_beams=BEAMS)
    one, other = drive.add("a", 2, fallback=Fallback())
    drive.enter()
    assert drive.finish(one, other, result=REJECTED) == []
    assert {each.status for each in (one, other)} == {Status.RETRYING}
    assert drive.clients["a"].stats.retries == 2
    assert [each.num_beams for each in (one, other)] == [BEAMS] * 2
    assert drive.scheduler.queued(IN_BEAMS) == [drive.clients["a"], drive.clients["b"]]
    assert drive.names(drive.enter(lane=IN_BEAMS)) == "baa"  # by rows and turns
    assert drive.finish(one, other, result=REJECTED) == [one, other]  # there is no third attempt
    assert {each.status for each in (one, other)} == {Status.DONE}


def test_a_retry_by_as_many_beams_leaves_its_row_too():
    drive = Drive()
    (one,) = drive.add("a", num_beams=BEAMS, fallback=Fallback())
    drive.enter(lane=IN_BEAMS)
    assert drive.finish(one, result=REJECTED) == []
    assert (one.status, drive.scheduler.running) == (Status.RETRYING, 0)
    assert drive.enter(lane=IN_BEAMS) == [one]


@pytest.mark.parametrize("fallback", [None, Fallback(None), Fallback(1, True)])
def test_without_another_attempt_a_text_is_kept(fallback):
    drive = Drive()
    (one,) = drive.add("a", fallback=fallback)
    drive.enter()
    assert drive.finish(one, result=REJECTED) == [one]


def gathered():
    """A client with a rejected text, and a row that may yet be rejected."""
    drive = Drive()
    one, other = drive.add("a", 2, fallback=Fallback())
    drive.enter()
    drive.finish(one, result=REJECTED)
    return drive, one, other


def test_rejected_texts_of_a_client_are_decoded_again_together():
    drive, one, other = gathered()
    assert drive.enter(lane=IN_BEAMS) == []
    drive.finish(other, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [other, one]


def test_a_rejected_text_waits_so_many_steps_of_plain_rows_at_most():
    drive, one, _ = gathered()
    for _ in range(GATHERING_STEPS):
        assert drive.plan(lane=IN_BEAMS).entering == []
        drive.scheduler.stepped(PLAIN, [])
        drive.scheduler.stepped(IN_BEAMS, [])  # these do not count
    assert drive.plan(lane=IN_BEAMS).entering == [one]


def test_a_rejected_text_waits_for_nobody_elses():
    drive = Drive()
    (one,) = drive.add("a", fallback=Fallback())
    drive.add("b", fallback=Fallback())
    drive.enter()
    drive.finish(one, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [one]


def test_a_text_that_is_rejected_later_joins_those_that_run_again():
    drive, one, other = gathered()
    (third,) = drive.add("a")
    drive.enter()
    drive.finish(other, result=REJECTED)
    for _ in range(GATHERING_STEPS):
        drive.scheduler.stepped(PLAIN, [])
    assert drive.enter(lane=IN_BEAMS) == [other, one]
    drive.add("a")
    drive.enter()
    drive.finish(third, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [third]


# After a failure


def test_preempted_sequences_begin_again_in_their_order():
    drive = Drive()
    added = drive.add("a", 5)
    drive.enter(rows=2)
    plan = drive.plan(rows=4)
    assert [each.status for each in plan.entering] == [Status.PREPARING] * 2
    drive.scheduler.preempt(PLAIN)
    assert {each.status for each in added} == {Status.WAITING}
    assert (drive.scheduler.running, drive.scheduler.waiting) == (0, 5)
    assert drive.plan().entering == added


def test_a_preempted_retry_stays_one():
    drive, one, other = gathered()
    drive.finish(other, result=REJECTED)
    drive.enter(lane=IN_BEAMS)
    drive.scheduler.preempt(IN_BEAMS)
    assert [each.status for each in (one, other)] == [Status.RETRYING] * 2
    assert drive.enter(lane=IN_BEAMS) == [other, one]


def test_those_that_are_isolated_run_client_by_client_before_all_others():
    drive = Drive()
    scheduler = drive.scheduler
    suspects = [*drive.add("a", 2), *drive.add("b", 1)]
    scheduler.isolate(PLAIN)
    drive.add("a")
    drive.add("c")
    assert drive.enter() == suspects[:2]
    assert drive.enter() == []
    drive.finish(suspects[0])
    assert drive.enter() == []
    drive.finish(suspects[1])
    assert drive.enter() == suspects[2:]
    assert drive.enter() == []
    drive.finish(suspects[2])
    assert drive.names(drive.enter()) == "ca"


def test_a_client_that_leaves_or_is_retried_elsewhere_holds_up_nobody_apart():
    drive = Drive()
    drive.add("a", 2)
    (b,) = drive.add("b", fallback=Fallback())
    drive.add("c")
    drive.scheduler.isolate(PLAIN)
    drive.enter()
    drive.scheduler.cancel(drive.clients["a"])
    assert drive.names(drive.enter()) == "b"
    drive.finish(b, result=REJECTED)
    assert drive.names(drive.enter()) == "c"


def test_nothing_is_kept_of_who_ran_apart():
    """Their windows hold on to whole recordings."""
    drive = Drive()
    first, second = drive.add("a"), drive.add("b")
    known = [weakref.ref(each) for each in (*first, *second)]
    drive.scheduler.isolate(PLAIN)
    assert drive.enter() == first
    drive.finish(*first)
    drive.scheduler.cancel(drive.clients["b"])
    del first, second
    gc.collect()
    assert [each() for each in known] == [None, None]


def test_a_starved_batch_waits_until_others_end_and_then_runs_alone():
    drive = Drive()
    scheduler = drive.scheduler
    (plain,) = drive.add("a")
    drive.enter()
    (beams,) = drive.add("b", num_beams=BEAMS)
    drive.add("c")
    scheduler.wait_for_others(IN_BEAMS)
    assert drive.enter(lane=IN_BEAMS) == drive.enter() == []
    assert drive.plan().decodes
    drive.finish(plain)
    assert drive.enter() == []
    assert drive.enter(lane=IN_BEAMS) == [beams]
    drive.add("b")
    assert drive.enter(lane=IN_BEAMS) == drive.enter() == []
    drive.finish(beams)
    assert drive.names(drive.enter()) == "c"
    assert drive.names(drive.enter(lane=IN_BEAMS)) == "b"


def test_starved_batches_have_their_turns_in_order():
    drive = Drive()
    scheduler = drive.scheduler
    sequences = {}
    for num_beams in (1, 2, 5):
        (sequences[num_beams],) = drive.add(str(num_beams), num_beams=num_beams)
    drive.enter()
    for num_beams in (5, 2, 5):
        scheduler.wait_for_others(Lane(num_beams))
    drive.finish(sequences[1])
    order = []
    for _ in range(2):
        for num_beams in (2, 5):
            order += drive.enter(lane=Lane(num_beams))
        drive.finish(order[-1])
    assert order == [sequences[5], sequences[2]]


def test_a_starved_batch_that_is_cancelled_holds_up_nobody():
    drive = Drive()
    drive.add("b", num_beams=BEAMS)
    drive.add("a")
    drive.scheduler.wait_for_others(IN_BEAMS)
    drive.scheduler.cancel(drive.clients["b"])
    assert drive.names(drive.enter()) == "a"


def test_who_had_a_part_in_a_failure():
    drive = Drive()
    drive.add("a")
    drive.enter()
    drive.add("b")
    drive.add("c", num_beams=BEAMS)
    drive.plan(rows=2)
    drive.add("d")
    assert (
        "".join(n for n, c in drive.clients.items() if c in drive.scheduler.suspects(PLAIN)) == "ab"
    )
    assert [drive.clients[name] for name in "abd"] == drive.scheduler.queued(PLAIN)
    assert drive.scheduler.others_run(IN_BEAMS)
    assert not drive.scheduler.others_run(PLAIN)
    assert [drive.scheduler.is_idle(Lane(each)) for each in (1, BEAMS, 7)] == [False, True, True]


def test_cancelling_a_client_leaves_the_others_theirs():
    drive = Drive()
    mine = drive.add("a", 4, batch_size=2)
    others = drive.add("b", 3)
    drive.enter()
    assert drive.scheduler.cancel(drive.clients["a"]) == mine[:2]
    assert {each.status for each in mine} == {Status.DONE}
    assert drive.scheduler.clients == {drive.clients["b"]}
    assert (drive.scheduler.running, drive.scheduler.waiting) == (len(others), 0)
    assert drive.scheduler.busy
    drive.scheduler.cancel(drive.clients["b"])
    assert not drive.scheduler.busy


def test_a_status_that_cannot_follow_is_refused():
    drive = Drive()
    (one,) = drive.add("a")
    drive.enter()
    drive.finish(one)
    with pytest.raises(AssertionError):
        drive.scheduler.add([one])
    plan = drive.scheduler.plan(PLAIN, Load(9, 0.0))._replace(entering=[one])
    with pytest.raises(AssertionError, match=r"DONE is not followed by .*WAITING"):
        drive.scheduler.entered(plan, 0, 0.0)


def test_beside_live_windows_rows_step_before_more_is_encoded_for_clients_that_come_and_go():
    device = Device()
    executor = executor_of(device, Limits(shared=True))
    stays = client_of(executor, [request_of(Script((40, 1)))])
    while not stays.finished:
        executor.scheduler.beside_live.see()
        goes = client_of(executor, [request_of(Script((40, 1)))])
        executor.step()
        executor.step()
        executor.cancel(goes)
    works = "".join(each.what[0] for each in device.works)
    steps_between = [len(steps) for steps in works.split("e")][2:-2]
    least = math.ceil(IN_VAIN * ENCODE_SECONDS / STEP_SECONDS)
    assert len(steps_between) > 3
    assert min(steps_between) >= least


def test_without_rows_that_could_step_a_newcomer_enters_though_others_have_left():
    device = Device()
    executor = executor_of(device, Limits(shared=True))
    for _ in range(3):
        executor.scheduler.beside_live.see()
        goes = client_of(executor, [request_of(Script((40, 1)))])
        executor.step()
        executor.cancel(goes)
    assert [each.what for each in device.works] == ["encode"] * 3
