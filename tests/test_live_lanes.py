"""Live windows beside all others, in counted steps and on a clock that counts them: what waits for
what, and for how long.
"""

from __future__ import annotations

import plain_batches
import pytest
from plain_batches import (
    ENCODE_SECONDS,
    STEP_SECONDS,
    Device,
    Script,
    engine_of,
    request_of,
    session_of,
)

from whosaid.asr.engine import scheduler
from whosaid.asr.engine.request import Lane
from whosaid.asr.engine.scheduler import LIVE_LINGERS, WINDOW_STEPS, Limits
from whosaid.runtime.turns import WORK_WEIGHTS, Work

ENDLESS = 10_000  # steps of a text
LONGEST_UNIT = max(ENCODE_SECONDS, STEP_SECONDS)
# Of the time beside live windows, for short recordings.
SHARE_BESIDE_LIVE = WORK_WEIGHTS[Work.SHORT] / (WORK_WEIGHTS[Work.SHORT] + WORK_WEIGHTS[Work.LIVE])


def windows(count=1, steps=4, rejected=False):
    return [request_of(Script((steps, steps), rejected)) for _ in range(count)]


def shared(device):
    return engine_of(device, Limits(shared=True))


def files(engine, count=40, steps=ENDLESS, **options):
    """A long recording whose rows run: its windows, and others that wait."""
    client = session_of(engine, windows(count, steps), **options)
    for _ in range(30):
        engine.step()
    return client


def works_of(engine, device, steps=1):
    """Return the work of some steps."""
    done = len(device.works)
    for _ in range(steps):
        engine.step()
    return device.works[done:]


def seconds(works, live):
    """Return the seconds of live steps or of others; None means all."""
    return sum(each.seconds for each in works if live is None or each.lane.live is live)


def test_a_live_window_goes_before_all_rows_and_windows_of_files():
    engine = shared(device := Device())
    files(engine)
    live = session_of(engine, windows(), live=True)
    works = works_of(engine, device, 2)
    assert [(each.what, each.lane) for each in works] == [
        ("encode", Lane(1, live=True)),
        ("step", Lane(1, live=True)),
    ]
    while not live.finished:
        works += works_of(engine, device)
    assert len(works) <= 5 + 2
    assert seconds(works, live=False) <= SHARE_BESIDE_LIVE * seconds(works, None) + LONGEST_UNIT


def test_on_a_device_that_works_ahead_of_the_clock_steps_are_counted(monkeypatch):
    monkeypatch.setattr(plain_batches, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(plain_batches, "ENCODE_SECONDS", 0.0)
    engine = engine_of(device := Device(), Limits(shared=True), counts_steps=True)
    files(engine, count=24)
    session_of(engine, windows(1, ENDLESS), live=True)
    works = works_of(engine, device, 400)
    costs = {"encode": WINDOW_STEPS, "step": 1}
    others = sum(costs[each.what] for each in works if not each.lane.live)
    every = sum(costs[each.what] for each in works)
    assert others / every == pytest.approx(SHARE_BESIDE_LIVE, rel=0.1)


def test_after_a_live_window_others_enter_one_by_one_for_a_while(monkeypatch):
    """A speaker asks again soon, and waits then for one of them."""
    monkeypatch.setattr(scheduler, "HOLD_SECONDS", 10.0)
    engine = shared(device := Device())
    session_of(engine, windows(1, 1), live=True)
    for _ in range(2):
        engine.step()
    until = device.clock.now + LIVE_LINGERS
    session_of(engine, windows(900, 30), batch_size=900)
    while device.clock.now < until:
        assert len(works_of(engine, device)) == 1
    session_of(engine, windows(9, 30))
    assert max(len(works_of(engine, device)) for _ in range(40)) > 1


def test_a_live_caller_is_asked_before_all_other_work():
    engine = shared(device := Device())
    files(engine)
    assert engine.scheduler.callers_turn([Work.LIVE]) is Work.LIVE
    assert engine.scheduler.callers_turn([Work.LIVE, Work.SHORT]) is Work.LIVE
    device.clock.now += 9.0
    engine.scheduler.charge_caller(Work.LIVE, 9.0)
    assert engine.scheduler.callers_turn([Work.LIVE]) is None
    engine.step()
    assert device.works[-1].lane == Lane(1)
