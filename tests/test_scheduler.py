"""The scheduler's choices, on plain values: fewest rows first, every session in the end, no
session above its batch size, and recovery of a failed batch."""

import itertools
import math
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.plain_batches import (
    ENCODE_SECONDS,
    STEP_SECONDS,
    Clock,
    Device,
    Script,
    engine_of,
    request_of,
    session_of,
)
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Share
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.scheduler import (
    GATHERING_STEPS,
    HOLD_SECONDS,
    IN_VAIN,
    MAX_ENCODER_BATCH,
    PART_WEIGHTS,
    Limits,
    Part,
    Plan,
    Scheduler,
)
from whosaid.asr.engine.sequence import DecodeSequence, Lane
from whosaid.asr.engine.session import Session
from whosaid.scheduling.fair_shares import WORK_WEIGHTS, WorkClass

GOOD = DecodeResult((1,), 0.0, (), 0.0)
REJECTED = DecodeResult((1,), 0.0, (), 0.0, text_logprob=-9.0)
BEAMS = 5  # of a retry
PLAIN, IN_BEAMS, LIVE, LONG = Lane(1), Lane(BEAMS), Lane(1, live=True), Lane(1, long=True)


class Drive:
    """A scheduler and sessions by name, whose steps take a second."""

    def __init__(self, rows_cost=False, **limits):
        self.scheduler = Scheduler(Limits(**limits), rows_cost)
        self.scheduler.clock = self.clock = Clock()
        self.sessions = {}

    def add(self, name, count=1, long=False, **options):
        """Queue windows of a session, which is made if the name is new."""
        if name not in self.sessions:
            self.sessions[name] = Session(None, DecodeOptions(**options))
        session = self.sessions[name]
        lanes = self.scheduler.own_lanes
        added = [DecodeSequence(session, request_of(long=long), lanes) for _ in range(count)]
        self.scheduler.add(added)
        return added

    def plan(self, rows=128, lane=PLAIN):
        """Return the next entry into a lane that has so many rows; None if there is none."""
        scheduler = self.scheduler
        queue = scheduler._queue(lane)
        queue.most, queue.full = rows, False
        units = [it for it in scheduler._units() if it.lane == lane and it.part is Part.ENTER]
        with mock.patch.object(scheduler, "_units", return_value=units):
            return scheduler.next()

    def enter(self, rows=128, lane=PLAIN, took=0.0):
        """Let in every next sequence; return them."""
        entered = []
        while plan := self.plan(rows, lane):
            self.clock.now += took
            self.scheduler.entered(plan, len(plan.entering), took)
            entered += plan.entering
        return entered

    def finish(self, *sequences, result=GOOD, lane=None):
        """Take a step of their batch in which some finish; return those that are done."""
        lanes = {each.lane for each in sequences} if lane is None else {lane}
        (lane,) = lanes
        plan = Plan(lane, WorkClass.SHORT, [], 0, math.inf)
        finished = [(each, result) for each in sequences]
        return [each for each, _ in self.scheduler.stepped(plan, finished, 1.0)]

    def run(self, seconds, encode=1.0, step=1.0, steps=10):
        """Do the next work for so long; texts take `steps`. Return seconds by class and part."""
        spent, left = Counter(), Counter()
        until = self.clock.now + seconds
        while self.clock.now < until and (plan := self.scheduler.next()):
            part = Part.ENTER if plan.entering else Part.STEP
            took = encode * len(plan.entering) or step
            self.clock.now += took
            spent[plan.work, part] += took
            if plan.entering:
                self.scheduler.entered(plan, len(plan.entering), took)
                continue
            running = list(self.scheduler._queue(plan.lane).running)
            left.update(running)
            ended = [(each, GOOD) for each in running if left[each] == steps]
            self.scheduler.stepped(plan, ended, took)
        return spent

    def queued(self, lane):
        queue = self.scheduler._queue(lane)
        return [each for each in queue if each not in queue.running]

    def names(self, sequences):
        by_session = {session: name for name, session in self.sessions.items()}
        return "".join(by_session[each.session] for each in sequences)


# Who gets a row


def test_free_rows_go_to_the_client_with_the_fewest():
    drive = Drive()
    drive.add("a", 2)
    drive.enter()
    drive.add("a", 6)
    drive.add("b", 2)
    drive.add("c")
    assert drive.plan(rows=2) is None
    plan = drive.plan(rows=7)
    assert drive.names(plan.entering) == "bcbaa"
    assert plan.rows == 7


def test_rows_are_shared_by_client_and_weight():
    """Two sessions of a share are one client; a share of weight 2 has twice the rows."""
    drive = Drive()
    heavy = Share("heavy", 2)
    for name, share in {"a": heavy, "b": heavy, "c": Share("light", 1), "d": None}.items():
        drive.add(name, 8, share=share)
    assert Counter(drive.names(drive.enter(rows=12))) == {"a": 3, "b": 3, "c": 3, "d": 3}


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


def test_a_returning_client_has_no_old_turn():
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


def test_long_recordings_leave_a_quarter_of_a_shared_engine():
    for shared, expected in ((False, [1, 2, 3, 4, 12]), (True, [1, 2, 3, 3, 9])):
        got = []
        for rows in (1, 2, 3, 4, 12):
            drive = Drive(shared=shared)
            drive.add("a", 9, long=True)
            drive.add("b", 9, long=True)
            got.append(len(drive.enter(rows)))
        assert got == expected


def test_costly_rows_give_long_recordings_their_own_lane():
    for shared, rows_cost in itertools.product([False, True], repeat=2):
        drive = Drive(shared=shared, rows_cost=rows_cost)
        (long,), (short,) = drive.add("L", 1, long=True), drive.add("s")
        (live,) = drive.add("l", long=True, live=True)
        assert long.lane == (LONG if shared and rows_cost else PLAIN)
        assert (short.lane, live.lane) == (PLAIN, LIVE)


@pytest.mark.parametrize("rows_cost", [False, True])
def test_classes_share_the_time_by_their_weights(rows_cost):
    drive = Drive(rows_cost=rows_cost, shared=True)
    for name, options in (("L", {"long": True}), ("s", {}), ("l", {"live": True})):
        drive.add(name, 999, **options)
    spent = drive.run(520.0, encode=0.5)
    total = sum(WORK_WEIGHTS.values())
    for work, weight in WORK_WEIGHTS.items():
        of_class = sum(seconds for (each, _), seconds in spent.items() if each is work)
        assert of_class == pytest.approx(520.0 * weight / total, rel=0.05)


def test_endless_short_recordings_do_not_starve_a_long_one():
    """Recordings share rows, as on a GPU; any number of rows is enough."""
    for rows in (1, 2, 8):
        drive = Drive(shared=True, max_rows=rows)
        (long,) = drive.add("L", 1, long=True)
        drive.add("s", 999, batch_size=99)
        drive.run(100.0)
        assert long not in set(drive.queued(PLAIN)), rows


# Entering beside others


def test_rows_and_newcomers_do_not_starve_each_other():
    drive = Drive(shared=True)
    for name in "abcdefgh":
        drive.add(name, 99)
    spent = drive.run(100.0, encode=0.5, step=0.1, steps=9999)
    assert spent[WorkClass.SHORT, Part.ENTER] > 0
    drive = Drive(shared=True)
    drive.add("a", 999, batch_size=999)
    drive.add("b", 999, batch_size=999)
    spent = drive.run(100.0, encode=0.5, step=0.1, steps=40)
    share = PART_WEIGHTS[Part.STEP] / (PART_WEIGHTS[Part.STEP] + PART_WEIGHTS[Part.ENTER])
    assert spent[WorkClass.SHORT, Part.STEP] == pytest.approx(100.0 * share, rel=0.1)


def test_a_lone_session_fills_its_rows_before_they_step():
    drive = Drive(shared=True)
    drive.add("a", 24)
    parts = []
    while drive.scheduler.waiting:
        plan = drive.scheduler.next()
        parts.append(bool(plan.entering))
        drive.scheduler.entered(plan, 1, 1.0)
    assert parts == [True] * 24


def test_encoding_pauses_beside_others_or_if_others_may_come():
    for shared, names in itertools.product([False, True], ["a", "ab"]):
        drive = Drive(shared=shared)
        for name in names:
            drive.add(name, 2)
        pauses = shared or names == "ab"
        assert drive.plan().until == (drive.clock.now + HOLD_SECONDS if pauses else math.inf)


def test_windows_with_drafts_are_encoded_apart():
    drive = Drive()
    one = drive.add("a", assisted=True)
    drive.add("b", 2)
    one += drive.add("a")
    drive.add("c", assisted=True, drafts=3)
    plan = drive.plan()
    assert plan.entering == one
    assert plan.rows == 5


# Rejected texts


def test_a_rejected_text_is_queued_first_for_its_retry():
    drive = Drive()
    drive.add("b", num_beams=BEAMS)
    one, other = drive.add("a", 2, fallback=Fallback())
    drive.enter()
    assert drive.finish(one, other, result=REJECTED) == []
    assert drive.queued(IN_BEAMS)[-2:] == [one, other]
    assert drive.sessions["a"].stats.retries == 2
    assert [each.num_beams for each in (one, other)] == [BEAMS] * 2
    assert drive.names(drive.enter(lane=IN_BEAMS)) == "baa"  # by rows and turns
    assert drive.finish(one, other, result=REJECTED) == [one, other]  # there is no third attempt
    assert drive.scheduler.sessions == [drive.sessions["b"]]


def gathered():
    """Make a client with a rejected text, and a row that may yet be rejected."""
    drive = Drive()
    one, other = drive.add("a", 2, fallback=Fallback())
    drive.enter()
    drive.finish(one, result=REJECTED)
    return drive, one, other


def test_rejected_texts_of_a_client_are_retried_together():
    drive, one, other = gathered()
    assert drive.enter(lane=IN_BEAMS) == []
    drive.finish(other, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [other, one]


def test_a_rejected_text_waits_for_bounded_steps():
    drive, one, _ = gathered()
    for _ in range(GATHERING_STEPS):
        assert drive.plan(lane=IN_BEAMS) is None
        drive.finish(lane=PLAIN)
        drive.finish(lane=IN_BEAMS)  # these do not count
    assert drive.plan(lane=IN_BEAMS).entering == [one]


def test_a_rejected_text_waits_for_nobody_elses():
    drive = Drive()
    (one,) = drive.add("a", fallback=Fallback())
    drive.add("b", fallback=Fallback())
    drive.enter()
    drive.finish(one, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [one]


def test_a_later_rejected_text_joins_running_retries():
    drive, one, other = gathered()
    (third,) = drive.add("a")
    drive.enter()
    drive.finish(other, result=REJECTED)
    for _ in range(GATHERING_STEPS):
        drive.finish(lane=PLAIN)
    assert drive.enter(lane=IN_BEAMS) == [other, one]
    drive.add("a")
    drive.enter()
    drive.finish(third, result=REJECTED)
    assert drive.enter(lane=IN_BEAMS) == [third]


# After a failure


def test_requeued_sequences_begin_again_in_their_order():
    drive = Drive()
    added = drive.add("a", 5)
    drive.enter(rows=2)
    assert drive.plan(rows=4).entering == added[2:4]
    drive.scheduler.requeue(PLAIN)
    assert (drive.scheduler.running, drive.scheduler.waiting) == (0, 5)
    assert drive.plan().entering == added


def test_isolated_sequences_run_first_session_by_session():
    drive = Drive()
    scheduler = drive.scheduler
    suspects = [*drive.add("a", 2), *drive.add("b", 1)]
    scheduler.isolate(suspects)
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


def test_an_isolated_window_passes_its_clients_retry():
    drive = Drive()
    _, isolated = drive.add("a", 2)
    drive.add("b")
    drive.scheduler.isolate([isolated])
    assert drive.enter() == [isolated]
    drive.finish(isolated)
    assert drive.names(drive.enter()) == "ba"
    assert drive.queued(PLAIN) == []


def test_a_cancelled_or_retried_suspect_blocks_no_isolated_one():
    drive = Drive()
    suspects = drive.add("a", 2)
    (b,) = drive.add("b", fallback=Fallback())
    drive.add("c")
    drive.scheduler.isolate([*suspects, b])
    drive.enter()
    drive.scheduler.cancel(drive.sessions["a"])
    assert drive.names(drive.enter()) == "b"
    drive.finish(b, result=REJECTED)
    assert drive.names(drive.enter()) == "c"


def test_a_starved_batch_runs_alone_after_the_others():
    drive = Drive()
    scheduler = drive.scheduler
    (plain,) = drive.add("a")
    drive.enter()
    (beams,) = drive.add("b", num_beams=BEAMS)
    drive.add("c")
    scheduler.wait_for_others(IN_BEAMS)
    assert drive.enter(lane=IN_BEAMS) == drive.enter() == []
    assert drive.scheduler.next().entering == []
    drive.add("d")
    scheduler.cancel(drive.sessions["d"])
    drive.finish(plain)
    assert drive.enter() == []
    assert drive.enter(lane=IN_BEAMS) == [beams]
    drive.add("b")
    assert drive.enter(lane=IN_BEAMS) == drive.enter() == []
    drive.finish(beams)
    assert drive.names(drive.enter()) == "c"
    assert drive.names(drive.enter(lane=IN_BEAMS)) == "b"


def test_rows_step_between_clients_that_come_and_go():
    device = Device()
    engine = engine_of(device, Limits(shared=True))
    stays = session_of(engine, [request_of(Script((60, 1)))])
    while not stays.finished:
        goes = session_of(engine, [request_of(Script((60, 1)))])
        engine.step()
        engine.step()
        engine.cancel(goes)
    works = "".join(each.what[0] for each in device.works)
    steps_between = [len(steps) for steps in works.split("e")][2:-2]
    least = IN_VAIN * ENCODE_SECONDS / PART_WEIGHTS[Part.ENTER] / STEP_SECONDS
    assert len(steps_between) > 3
    assert min(steps_between) > least - 1


def test_a_newcomer_enters_an_engine_without_rows():
    device = Device()
    engine = engine_of(device, Limits(shared=True))
    for _ in range(3):
        goes = session_of(engine, [request_of(Script((40, 1)))])
        engine.step()
        engine.cancel(goes)
    assert [each.what for each in device.works] == ["encode"] * 3
