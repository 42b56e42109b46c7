"""Weighted fair queueing: shares of the time, and what idle classes may not save."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whosaid.scheduling.fair_shares import WORK_WEIGHTS, FairShares, WorkClass

SECONDS = st.floats(0.01, 2.0)
READY = st.sets(st.sampled_from([*WorkClass]), min_size=1)


def run(turns, ready, seconds, of=lambda _: 0.01):
    """Seconds by class while the same classes are ready."""
    spent, total = Counter(), 0.0
    while total < seconds:
        chosen = turns.next(ready)
        spent[chosen] += of(chosen)
        total += of(chosen)
        turns.charge(chosen, of(chosen))
    return spent


def test_ready_classes_share_the_time_by_their_weights():
    spent = run(FairShares(WORK_WEIGHTS), WorkClass, 130.0)
    for work, weight in WORK_WEIGHTS.items():
        assert spent[work] == pytest.approx(10 * weight, rel=0.01)


@given(READY, st.fixed_dictionaries(dict.fromkeys(WorkClass, SECONDS)))
def test_shares_deviate_by_one_unit_at_most(ready, units):
    spent = run(FairShares(WORK_WEIGHTS), ready, 10.0, units.get)
    virtual = [spent[work] / WORK_WEIGHTS[work] for work in ready]
    longest = max(units[each] / WORK_WEIGHTS[each] for each in ready)
    assert max(virtual) - min(virtual) <= longest + 1e-6


def test_first_of_equal_classes_goes_first():
    turns = FairShares(WORK_WEIGHTS)
    assert turns.next(WorkClass) is WorkClass.LIVE
    assert turns.next([WorkClass.LONG, WorkClass.SHORT]) is WorkClass.SHORT
    assert turns.next([]) is None


@pytest.mark.parametrize("seconds", [{"LONG": 100.0}, {"LONG": 1.0, "SHORT": 100.0}])
def test_a_lone_class_owes_nothing_and_an_idle_one_saves_nothing(seconds):
    turns = FairShares(WORK_WEIGHTS)
    for name, alone in seconds.items():
        run(turns, [WorkClass[name]], alone)
    spent = run(turns, [WorkClass.SHORT, WorkClass.LONG], 40.0)
    assert spent[WorkClass.LONG] == pytest.approx(10.0, rel=0.01)


@given(st.lists(st.tuples(READY, SECONDS), max_size=60))
def test_a_class_that_stays_ready_waits_for_its_share_alone(rounds):
    """The last unit of a class, at most 2 s, is worth 12 times as long of both others, and a unit
    of each."""
    turns = FairShares(WORK_WEIGHTS)
    for ready, seconds in rounds:
        turns.charge(turns.next(ready), seconds)
    waited = 0.0
    while (chosen := turns.next(WorkClass)) is not WorkClass.LONG:
        turns.charge(chosen, 1.0)
        waited += 1.0
    assert waited <= 12.0 * 2.0 + 2.0


@given(st.lists(READY, max_size=20))
def test_asking_twice_changes_nothing(rounds):
    turns = FairShares(WORK_WEIGHTS)
    for ready in rounds:
        chosen = turns.next(ready)
        assert turns.next(ready) is chosen
        turns.charge(chosen, 0.5)
