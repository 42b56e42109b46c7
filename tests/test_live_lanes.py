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

from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import Lane
from whosaid.asr.engine.scheduler import LIVE_LINGERS, WINDOW_STEPS, Limits
from whosaid.runtime.turns import WORK_WEIGHTS, Work

ENDLESS = 10_000  # steps of a text
LONGEST_UNIT = max(ENCODE_SECONDS, STEP_SECONDS)
# Of the time beside live windows, for short recordings.
SHARE_BESIDE_LIVE = WORK_WEIGHTS[Work.SHORT] / (WORK_WEIGHTS[Work.SHORT] + WORK_WEIGHTS[Work.LIVE])


def windows(count=1, steps=4, rejected=False):
    return [request_of(Script((steps, steps), rejected)) for _ in range(count)]


def shared(device, **limits):
    return engine_of(device, Limits(shared=True, **limits))


def files(engine, count=40, steps=ENDLESS, **options):
    """A long recording whose rows run: its windows, and others that wait."""
    client = session_of(engine, windows(count, steps), **options)
    for _ in range(30):
        engine.step()
    return client


def works_of(engine, device, steps=1):
    """What some steps do."""
    done = len(device.works)
    for _ in range(steps):
        engine.step()
    return device.works[done:]


def seconds(works, live):
    """Of live ones or others; of all for None."""
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


def test_rows_that_pause_for_live_ones_are_kept():
    engine = shared(device := Device())
    client = session_of(engine, requests := windows(24, 20))
    for _ in range(30):
        engine.step()
    session_of(engine, windows(6, 10), live=True)
    while engine.scheduler.busy:
        engine.step()
    encoded = [each.lane for each in device.works if each.what == "encode"]
    assert (encoded.count(Lane(1)), encoded.count(Lane(1, live=True))) == (24, 6)
    assert {request for request, _ in client.finished} == set(requests)


def test_beside_live_rows_all_others_together_have_a_quarter_of_the_time():
    engine = shared(device := Device())
    for num_beams in (1, 2, 5):
        files(engine, num_beams=num_beams)
    session_of(engine, windows(1, ENDLESS), live=True)
    works = works_of(engine, device, 1000)
    part = seconds(works, live=False) / seconds(works, None)
    assert 0.9 * SHARE_BESIDE_LIVE <= part <= 1.02 * SHARE_BESIDE_LIVE
    steps = [each.lane for each in works if not each.lane.live and each.what == "step"]
    assert {steps[number : number + 3].count(Lane(2)) for number in range(len(steps) - 2)} == {1}


def test_long_recordings_have_a_tenth_of_the_time_beside_live_rows():
    engine = shared(device := Device())
    session_of(engine, [request_of(Script((ENDLESS, 1)), long=True)])
    session_of(engine, windows(1, ENDLESS), live=True)
    works = works_of(engine, device, 1000)
    assert seconds(works, live=False) / seconds(works, None) == pytest.approx(1 / 10, rel=0.05)


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


def test_after_a_live_window_others_enter_one_by_one_for_a_while():
    """A speaker asks again soon, and waits then for one of them."""
    engine = shared(device := Device(), hold_seconds=10.0)
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


@pytest.mark.parametrize("num_beams", [1, 5])
def test_live_windows_without_end_starve_no_file(num_beams):
    engine = shared(device := Device())
    client = session_of(engine, windows(8, 5), num_beams=num_beams)
    speaking = [session_of(engine, windows(1, 3), live=True) for _ in range(3)]
    for _ in range(400):
        engine.step()
        for number, each in enumerate(speaking):
            if each.finished:
                speaking[number] = session_of(engine, windows(1, 3), live=True)
    assert len(client.finished) == 8
    assert seconds(device.works, live=True) > 0.6 * sum(each.seconds for each in device.works)


def test_files_without_end_delay_no_live_window_by_more_than_their_part():
    """Each comes somewhere within what files do, and takes its own time, a third more, and one
    thing that runs when it comes.
    """
    engine = shared(device := Device())
    files(engine, count=4000, steps=12)
    alone = ENCODE_SECONDS + 20 * STEP_SECONDS
    for _ in range(40):
        came = device.clock.now
        engine.step()  # of which it waits for all, at worst
        live = session_of(engine, windows(1, 20), live=True)
        while not live.finished:
            engine.step()
        assert device.clock.now - came <= alone / (1 - SHARE_BESIDE_LIVE) + 2 * LONGEST_UNIT


def test_live_windows_go_in_the_order_in_which_they_came():
    engine = shared(Device(), max_rows=1)
    sessions = [session_of(engine, windows(2, 2), live=True) for _ in range(3)]
    order = []
    while engine.scheduler.busy:
        engine.step()
        order += [number for number, each in enumerate(sessions) if len(each.finished) > 0]
        for each in sessions:
            each.finished.clear()
    assert order == [0, 1, 2] * 2


def test_a_live_text_that_is_rejected_stays_live():
    engine = shared(device := Device())
    files(engine)
    live = session_of(engine, windows(1, 3, rejected=True), fallback=Fallback(), live=True)
    done = len(device.works)
    while not live.finished:
        engine.step()
    lanes = [each.lane for each in device.works[done:]]
    assert lanes.count(Lane(5, live=True)) == 1 + 3
    assert lanes.count(Lane(1, live=True)) == 1 + 3
    assert lanes.count(Lane(1)) <= 2


def test_rejected_texts_of_files_are_gathered_by_the_steps_of_files():
    engine = shared(Device())
    client = session_of(engine, windows(1, 3, rejected=True) + windows(1, 300), fallback=Fallback())
    session_of(engine, windows(1, ENDLESS), live=True)
    for _ in range(100):
        engine.step()
    assert engine.scheduler.lanes == [Lane(1), Lane(1, live=True), Lane(5)]
    assert [len(engine.batches[lane].rows) for lane in engine.scheduler.lanes] == [1, 1, 0]
    assert not client.finished


def test_a_live_window_that_finds_no_memory_waits_for_rows_that_go_on_meanwhile():
    """They have all of the time, as it could not use any."""
    engine = shared(Device(total=6))
    client = session_of(engine, requests := windows(6, 8))
    for _ in range(8):
        engine.step()
    assert len(engine.batches[Lane(1)].rows) == 6
    live = session_of(engine, windows(1, 2), live=True)
    steps = 0
    while not live.finished:
        engine.step()
        steps += 1
    assert steps <= 8 + 4
    assert (live.error, client.error) == (None, None)
    assert {request for request, _ in client.finished} == set(requests)


def test_an_idle_live_batch_gives_its_memory_to_others():
    engine = shared(Device(total=8, tells=True))
    session_of(engine, windows(3, 1), live=True)
    while engine.scheduler.busy:
        engine.step()
    assert engine.batches[Lane(1, live=True)].memory.capacity == 3
    session_of(engine, windows(8, 6))
    while engine.scheduler.busy:
        engine.step()
    assert engine.batches[Lane(1, live=True)].memory.capacity == 0
    assert engine.batches[Lane(1)].memory.capacity == 8
