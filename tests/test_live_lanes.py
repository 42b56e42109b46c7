"""Live windows beside all others, in counted steps and on a clock that counts them: what waits for
what, and for how long.
"""

from __future__ import annotations

import plain_batches
import pytest
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
from asr.engine.scheduler import Limits
from asr.engine.sequence import Lane
from asr.engine.shares import LIVE_LINGERS, LIVE_STEPS, SHARE_BESIDE_LIVE, BesideLive, Share

ENDLESS = 10_000  # steps of a text
LONGEST_THING = max(ENCODE_SECONDS, STEP_SECONDS)


def windows(count=1, steps=4, rejected=False):
    return [request_of(Script((steps, steps), rejected)) for _ in range(count)]


def shared(device, **limits):
    return executor_of(device, Limits(shared=True, **limits))


def files(executor, count=40, steps=ENDLESS, **options):
    """A long recording whose rows run: its windows, and others that wait."""
    client = client_of(executor, windows(count, steps), **options)
    for _ in range(30):
        executor.step()
    return client


def work_of(executor, device, newcomers=False, live=False):
    """What one step does."""
    done = len(device.works)
    executor.step(newcomers, live)
    return device.works[done:]


def seconds(works, live):
    return sum(each.seconds for each in works if each.lane.live is live)


def test_a_part_of_the_time_is_a_rest_after_each_thing_that_was_done():
    clock = Clock()
    share = Share(1 / 4, clock)
    began, clock.now = clock.now, clock.now + 2.0
    share.count(began)
    for later, allowed in ((0.0, False), (5.9, False), (0.2, True)):
        clock.now += later
        assert share.allows(others_wait=True) is allowed
        assert share.allows(others_wait=False)


def test_where_the_clock_tells_nothing_live_rows_take_some_steps_between_other_things():
    beside = BesideLive(clock := Clock())
    beside.count(clock.now)
    for _ in range(LIVE_STEPS):
        assert not beside.allows(waits=False, runs=True)
        assert beside.allows(waits=True, runs=False)
        beside.stepped()
    assert beside.allows(waits=False, runs=True)


def test_a_live_window_goes_before_all_rows_and_windows_of_files():
    executor = shared(device := Device())
    files(executor)
    live = client_of(executor, windows(), live=True)
    works = work_of(executor, device)
    assert [(each.what, each.lane) for each in works] == [
        ("encode", Lane(1, live=True)),
        ("step", Lane(1, live=True)),
    ]
    steps = 1
    while not live.finished:
        assert len([each for each in work_of(executor, device) if not each.lane.live]) <= 1
        steps += 1
    assert steps == 4


def test_rows_that_pause_for_live_ones_are_kept():
    executor = shared(device := Device())
    client = client_of(executor, requests := windows(24, 20))
    for _ in range(30):
        executor.step()
    client_of(executor, windows(6, 10), live=True)
    while executor.scheduler.busy:
        executor.step()
    encoded = [each.lane for each in device.works if each.what == "encode"]
    assert (encoded.count(Lane(1)), encoded.count(Lane(1, live=True))) == (24, 6)
    assert {request for request, _ in client.finished} == set(requests)


def test_beside_live_rows_all_others_together_have_a_quarter_of_the_time():
    executor = shared(device := Device())
    for num_beams in (1, 2, 5):
        files(executor, num_beams=num_beams)
    client_of(executor, windows(1, ENDLESS), live=True)
    works = [work_of(executor, device) for _ in range(1000)]
    assert all(len([each for each in some if not each.lane.live]) <= 1 for some in works)
    every = [each for some in works for each in some]
    part = seconds(every, live=False) / sum(each.seconds for each in every)
    assert 0.7 * SHARE_BESIDE_LIVE <= part <= SHARE_BESIDE_LIVE
    turns = [each.lane for each in every if not each.lane.live]
    assert {turns[number : number + 3].count(Lane(2)) for number in range(len(turns) - 2)} == {1}


def test_on_a_device_that_works_ahead_of_the_clock_others_have_one_step_in_a_few(monkeypatch):
    monkeypatch.setattr(plain_batches, "STEP_SECONDS", 0.0)
    executor = shared(device := Device())
    files(executor, count=24)
    client_of(executor, windows(1, ENDLESS), live=True)
    works = [each for _ in range(100) for each in work_of(executor, device)]
    others = [each for each in works if not each.lane.live]
    assert 100 // (LIVE_STEPS + 1) <= len(others) <= 1 + 100 // LIVE_STEPS


def test_files_beside_live_ones_encode_and_decode_in_turns():
    executor = shared(device := Device())
    client_of(executor, windows(1, ENDLESS), live=True)
    client_of(executor, windows(12, ENDLESS))
    works = [each for _ in range(200) for each in work_of(executor, device)]
    whats = [each.what for each in works if not each.lane.live]
    assert whats[:24] == ["encode", "step"] * 12


def test_after_a_live_window_others_go_on_in_small_things_for_a_while():
    """Whoever speaks asks again soon, and waits then for one of them."""
    executor = shared(device := Device())
    client_of(executor, windows(1, 1), live=True)
    executor.step()
    until = device.clock.now + LIVE_LINGERS
    client_of(executor, windows(200, 30), batch_size=24)
    while device.clock.now < until - 1.0:
        assert len(work_of(executor, device)) == 1
    while device.clock.now < until:
        executor.step()
    assert max(len(work_of(executor, device)) for _ in range(40)) > 1


def test_who_is_about_to_come_is_waited_for_too():
    executor = shared(device := Device())
    files(executor)
    assert work_of(executor, device)
    assert work_of(executor, device, newcomers=True, live=True) == []
    executor.scheduler.clock.now += 9.0
    assert len(work_of(executor, device, live=True)) == 1


@pytest.mark.parametrize("num_beams", [1, 5])
def test_live_windows_without_end_starve_no_file(num_beams):
    executor = shared(device := Device())
    client = client_of(executor, windows(8, 5), num_beams=num_beams)
    speaking = [client_of(executor, windows(1, 3), live=True) for _ in range(3)]
    for _ in range(400):
        executor.step()
        for number, each in enumerate(speaking):
            if each.finished:
                speaking[number] = client_of(executor, windows(1, 3), live=True)
    assert len(client.finished) == 8
    assert seconds(device.works, live=True) > 0.6 * sum(each.seconds for each in device.works)


def test_files_without_end_delay_no_live_window_by_more_than_their_part():
    """Each comes somewhere within what files do, and takes its own time, a third more, and one
    thing that runs when it comes.
    """
    executor = shared(device := Device())
    files(executor, count=4000, steps=12)
    alone = ENCODE_SECONDS + 20 * STEP_SECONDS
    for _ in range(40):
        came = device.clock.now
        executor.step()  # of which it waits for all, at worst
        live = client_of(executor, windows(1, 20), live=True)
        while not live.finished:
            executor.step()
        assert device.clock.now - came <= alone / (1 - SHARE_BESIDE_LIVE) + 2 * LONGEST_THING


def test_live_ones_go_in_the_order_in_which_they_came():
    executor = shared(Device(), max_rows=1)
    clients = [client_of(executor, windows(2, 2), live=True) for _ in range(3)]
    order = []
    while executor.scheduler.busy:
        executor.step()
        order += [number for number, each in enumerate(clients) if len(each.finished) > 0]
        for each in clients:
            each.finished.clear()
    assert order == [0, 1, 2] * 2


def test_what_is_left_of_a_live_recording_makes_it_no_long_one():
    executor = shared(Device(), max_rows=1)
    long = client_of(executor, [request_of(long=True)], live=True)
    short = client_of(executor, windows(1, 1), live=True)
    executor.step()
    assert (len(long.finished), len(short.finished)) == (1, 0)


def test_a_live_text_that_is_rejected_stays_live():
    executor = shared(device := Device())
    files(executor)
    live = client_of(executor, windows(1, 3, rejected=True), fallback=Fallback(), live=True)
    done = len(device.works)
    while not live.finished:
        executor.step()
    lanes = [each.lane for each in device.works[done:]]
    assert lanes.count(Lane(5, live=True)) == 1 + 3
    assert lanes.count(Lane(1, live=True)) == 1 + 3
    assert lanes.count(Lane(1)) <= 2


def test_rejected_texts_of_files_are_gathered_by_the_steps_of_files():
    executor = shared(Device())
    client = client_of(
        executor, windows(1, 3, rejected=True) + windows(1, 300), fallback=Fallback()
    )
    client_of(executor, windows(1, ENDLESS), live=True)
    for _ in range(100):
        executor.step()
    assert executor.scheduler.lanes == [Lane(1), Lane(1, live=True), Lane(5)]
    assert [len(executor.batches[lane].rows) for lane in executor.scheduler.lanes] == [1, 1, 0]
    assert not client.finished


def test_a_live_window_that_finds_no_memory_waits_for_rows_that_go_on_meanwhile():
    """They have all of the time, as it could not use any."""
    executor = shared(Device(total=6))
    client = client_of(executor, requests := windows(6, 8))
    for _ in range(8):
        executor.step()
    assert len(executor.batches[Lane(1)].rows) == 6
    live = client_of(executor, windows(1, 2), live=True)
    steps = 0
    while not live.finished:
        executor.step()
        steps += 1
    assert steps <= 8 + 4
    assert (live.error, client.error) == (None, None)
    assert {request for request, _ in client.finished} == set(requests)


def test_an_idle_live_batch_gives_its_memory_to_others():
    executor = shared(Device(total=8, tells=True))
    client_of(executor, windows(3, 1), live=True)
    while executor.scheduler.busy:
        executor.step()
    assert executor.batches[Lane(1, live=True)].memory.capacity == 3
    client_of(executor, windows(8, 6))
    while executor.scheduler.busy:
        executor.step()
    assert executor.batches[Lane(1, live=True)].memory.capacity == 0
    assert executor.batches[Lane(1)].memory.capacity == 8
