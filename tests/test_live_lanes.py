"""Live windows beside all others, in counted steps: which waits for which, and how long."""

from tests.helpers.plain_batches import (
    ENCODE_SECONDS,
    STEP_SECONDS,
    Device,
    Script,
    engine_of,
    request_of,
    session_of,
)
from whosaid.asr.engine import scheduler
from whosaid.asr.engine.scheduler import LIVE_LINGERS, Limits
from whosaid.asr.engine.sequence import Lane
from whosaid.scheduling.fair_shares import WORK_WEIGHTS, WorkClass

ENDLESS = 10_000  # steps of a text
LONGEST_UNIT = max(ENCODE_SECONDS, STEP_SECONDS)
# Of the time beside live windows, for short recordings.
SHARE_BESIDE_LIVE = WORK_WEIGHTS[WorkClass.SHORT] / (
    WORK_WEIGHTS[WorkClass.SHORT] + WORK_WEIGHTS[WorkClass.LIVE]
)


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


def test_live_window_goes_before_rows_and_windows_of_files():
    engine = shared(device := Device())
    files(engine)
    live = session_of(engine, windows(), live=True)
    works = works_of(engine, device, 2)
    lane = Lane(1, live=True)
    assert [(each.what, each.lane) for each in works] == [("encode", lane), ("step", lane)]
    while not live.finished:
        works += works_of(engine, device)
    assert len(works) <= 5 + 2
    assert seconds(works, live=False) <= SHARE_BESIDE_LIVE * seconds(works, None) + LONGEST_UNIT


def test_on_a_gpu_live_windows_take_rows_that_recordings_leave():
    """Live windows share the steps of recordings there, because the number of steps is the cost."""
    engine = engine_of(device := Device(), Limits(shared=True), counts_steps=True)
    engine.scheduler.set_rows(Lane(1), 16)
    first = session_of(engine, windows(1, 1), live=True)
    endless = Script((ENDLESS, ENDLESS))
    long = session_of(engine, [request_of(endless, long=True) for _ in range(40)])
    works_of(engine, device, 60)
    short = session_of(engine, windows(40, ENDLESS))
    works_of(engine, device, 60)
    assert first.finished
    rows = [each.session for each in engine.batches[Lane(1)].rows]
    assert (rows.count(long), rows.count(short)) == (12, 2)  # an eighth is left
    live = session_of(engine, windows(2, 3), live=True)
    works = works_of(engine, device, 4)
    assert [each.what for each in works] == ["encode", "encode", "step", "step", "step"]
    assert len(live.finished) == 2
    assert {each.lane for each in device.works} == {Lane(1)}


def test_others_enter_singly_after_a_live_window(monkeypatch):
    """A speaker asks again soon, and then waits for one window."""
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
    assert engine.scheduler.callers_turn([WorkClass.LIVE]) is WorkClass.LIVE
    assert engine.scheduler.callers_turn([WorkClass.LIVE, WorkClass.SHORT]) is WorkClass.LIVE
    device.clock.now += 9.0
    engine.scheduler.charge_caller(WorkClass.LIVE, 9.0)
    assert engine.scheduler.callers_turn([WorkClass.LIVE]) is None
    engine.step()
    assert device.works[-1].lane == Lane(1)
