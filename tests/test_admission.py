"""Whose turn it is: the fewest rows first, everybody in the end, nobody beyond a batch size."""

from __future__ import annotations

import math
from collections import Counter, deque

import numpy as np
from asr.engine.admission import (
    LONG_WINDOWS,
    LONGEST_WAITING_EVERY,
    Admission,
    Quarantine,
    encoded_together,
)
from hypothesis import given
from hypothesis import strategies as st

from asr.engine.request import DecodeOptions, Request
from asr.engine.sequence import Sequence
from transcript import DecodeStats


def sequences_of(session, count, **options):
    request = Request(session, np.zeros(1, np.float32), (1,))
    asked = DecodeOptions(**{"batch_size": 24, **options})
    return [Sequence(request, asked, session, DecodeStats()) for _ in range(count)]


def names(sequences):
    return "".join(each.session for each in sequences)


def test_free_rows_go_to_the_session_with_the_fewest():
    waiting = sequences_of("a", 6) + sequences_of("b", 2) + sequences_of("c", 1)
    assert names(Admission().choose(waiting, Counter(a=2), 5)) == "bcbaa"
    assert names(Admission().choose(waiting, Counter(), 4)) == "abca"
    assert names(Admission().choose(waiting, Counter(), 0)) == ""


def test_no_session_exceeds_its_batch_size():
    waiting = sequences_of("a", 6, batch_size=2) + sequences_of("b", 4, batch_size=3)
    assert names(Admission().choose(waiting, Counter(b=2), 24)) == "aab"


def long_ones(session, count):
    request = Request(session, np.zeros(1, np.float32), (1,), windows_left=LONG_WINDOWS + 1)
    return [Sequence(request, DecodeOptions(), session, DecodeStats()) for _ in range(count)]


def test_long_recordings_leave_a_quarter_of_the_rows_to_those_that_are_expected():
    admission, waiting = Admission(), long_ones("a", 3) + long_ones("b", 3)
    assert admission.rows_for_long(24, waiting, []) == math.inf
    admission.newcomer = lambda: False
    rows = [admission.rows_for_long(each, waiting, []) for each in (1, 2, 3, 4, 32)]
    assert rows == [1, 2, 3, 3, 24]
    running = long_ones("c", 4) + sequences_of("d", 1)
    assert admission.rows_for_long(8, waiting, running) == 2
    assert names(admission.choose(waiting, Counter(), 8, for_long=2)) == "ab"
    assert names(admission.choose(waiting, Counter(), 8, for_long=0)) == ""


def test_short_recordings_go_first_and_every_eighth_row_to_who_waits_longest():
    admission, got = Admission(), []
    waiting = [*long_ones("L", 40), *sequences_of("s", 80, batch_size=80)]
    for _ in range(32):
        (each,) = admission.choose(waiting, Counter(s=3), 1)
        waiting.remove(each)
        admission.count([each], 0.0)
        got.append(each.session)
    assert got.count("L") == 32 // LONGEST_WAITING_EVERY
    assert got.index("L") == LONGEST_WAITING_EVERY - 1


def test_beside_short_ones_long_ones_have_a_quarter_of_the_time():
    admission, now = Admission(), [10.0]
    admission.clock, admission.newcomer = lambda: now[0], lambda: True
    short, long = sequences_of("s", 1), long_ones("L", 9)
    now[0] = 12.0
    admission.count(long[:1], 10.0)
    for moment, rows in ((12.0, 0), (17.9, 0), (18.0, 6)):
        now[0] = moment
        assert admission.rows_for_long(8, long, short) == rows
        assert admission.rows_for_long(8, long + short, []) == rows
        assert admission.rows_for_long(8, long, []) == 6


def test_of_equals_the_one_that_waited_longest_is_next():
    """Five recordings without end share four rows: all get on alike."""
    admission = Admission()
    waiting = [each for name in "abcde" for each in sequences_of(name, 40)]
    running, served = deque(), Counter()
    for _ in range(100):
        free = 4 - len(running)
        rows = Counter(each.session for each in running)
        for each in admission.choose(waiting, rows, free):
            waiting.remove(each)
            running.append(each)
            admission.count([each], 0.0)
            served[each.session] += 1
        running.popleft()
    assert max(served.values()) - min(served.values()) <= 1


def test_turns_are_kept_while_sessions_wait_in_another_lane():
    """Each newcomer has a row in one lane and goes on to the other, in front of those who wait
    there, as rejected texts do: there the one that came first is next all the same.
    """
    admission, order = Admission(), []
    first, second = deque(), deque()
    admission.elsewhere = lambda: {each.session for each in (*first, *second)}

    def serve(lane):
        (each,) = admission.choose(lane, Counter(), 1)
        lane.remove(each)
        admission.count([each], 0.0)
        return each

    for name in "abcdefgh":
        first.extend(sequences_of(name, 1))
        second.appendleft(serve(first))
        if len(second) > 3:
            order.append(serve(second).session)
    assert order == ["a", "b", "c", "d", "e"]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.integers(1, 6))),
    st.integers(0, 20),
)
def test_every_row_is_given_that_may_be(sessions, free):
    waiting = [
        each
        for name, (count, batch_size) in sessions.items()
        for each in sequences_of(name, count, batch_size=batch_size)
    ]
    chosen = Admission().choose(waiting, Counter(), free)
    possible = {name: min(count, batch_size) for name, (count, batch_size) in sessions.items()}
    assert len(chosen) == len(set(chosen)) == min(free, sum(possible.values()))
    given_rows = Counter(each.session for each in chosen)
    for name, rows in given_rows.items():
        for other in sessions:
            assert rows <= given_rows[other] + 1 or given_rows[other] == possible[other], name


def test_who_runs_gets_more_rows_only_after_as_long_in_steps_as_newcomers_took():
    admission = Admission()
    admission.clock = lambda: 3.0
    admission.count(sequences_of("a", 1), 1.0)
    both, waiting = Counter(a=1, b=1), sequences_of("a", 2) + sequences_of("c", 2)
    admission.clock = lambda: 4.9
    assert names(admission.choose(waiting, both, 8, admission.share(8, both))) == "c"
    assert admission.share(8, Counter(a=1)) == 8
    admission.clock = lambda: 5.0
    assert admission.share(8, both) == 8


def test_newcomers_are_encoded_without_pause_where_only_one_session_is_there():
    admission, now, came = Admission(hold_seconds=2.0), [10.0], [False]
    admission.clock = lambda: now[0]
    one, other = sequences_of("a", 2), sequences_of("b", 1)
    alone = admission.pause(one, Counter(a=3))
    beside = admission.pause(one, Counter(b=1)), admission.pause(one + other, Counter())
    assert not alone()
    assert not any(pause() for pause in beside)
    now[0] = 12.0
    assert not alone()
    assert all(pause() for pause in beside)
    admission.newcomer = lambda: came[0]
    expecting = admission.pause(one, Counter())
    now[0] = 14.0
    assert not expecting()
    came[0] = True  # while windows are encoded
    assert expecting()
    now[0] = 13.9
    assert not expecting()


def test_sequences_apart_run_session_by_session_before_all_others():
    quarantine, suspects = Quarantine(), [*sequences_of("a", 2), *sequences_of("b", 1)]
    late = sequences_of("a", 1) + sequences_of("c", 1)
    waiting = suspects + late
    quarantine.begin(suspects)
    assert quarantine.allowed(waiting, []) == suspects[:2]
    assert quarantine.allowed(waiting[2:], suspects[:2]) == []
    assert quarantine.allowed(waiting[2:], []) == suspects[2:]
    assert quarantine.allowed(late, suspects[2:]) == []
    assert quarantine.allowed(late, []) == late


def test_what_is_drafted_for_is_encoded_apart():
    one, other, fixed = (
        sequences_of("a", 2, assisted=True),
        sequences_of("b", 2),
        sequences_of("c", 1, assisted=True, drafts=3),
    )
    assert encoded_together([one[0], *other, one[1], *fixed]) == one
