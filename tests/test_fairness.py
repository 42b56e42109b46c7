"""How long a short request takes beside a hundred long ones, on a clock that counts what is done:
windows encoded, steps of the batch, windows read. Loop and scheduler are the recogniser's own.
"""

from __future__ import annotations

import statistics
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np

from asr import Limits, Recogniser
from asr.engine.request import DecodeOptions, Request
from asr.engine.scheduler import Load, Scheduler
from asr.engine.sequence import Lane, Sequence
from asr.engine.session import Client
from transcript import Transcript

# Seconds, as Whisper base takes them on two processors: a window's encoding, a step and a row more
# in it, a window's reading. A window has so many steps.
ENCODE, STEP, ROW, READ = 0.25, 0.03, 0.002, 0.01
STEPS = {8: 40, 30: 120}
ROWS = 32


class Engine:
    """Rows without a model, that are given out as the scheduler says."""

    def __init__(self) -> None:
        self.time, self.steps = 0.0, 0
        self.scheduler = Scheduler(Limits(shared=True), lambda: self.time)
        self.running: dict[Sequence, int] = {}  # steps to its end
        self.on_step = lambda: None

    def step(self, newcomers: bool, live: bool = False) -> int:
        if self.scheduler.busy and self._admit(newcomers):
            self._decode()
        self.steps += 1
        self.on_step()
        return len(self.running)

    def _admit(self, newcomers: bool) -> bool:
        """As the engine does it: windows are encoded one by one, until it is time."""
        load = Load(ROWS, self.time, newcomers=newcomers)
        while (plan := self.scheduler.plan(Lane(1), load)).entering:
            began, entered = self.time, 0
            for each in plan.entering:
                if entered and self.time >= plan.until:
                    break
                self.time += ENCODE
                self.running[each] = STEPS[len(each.request.samples)]
                entered += 1
            self.scheduler.entered(plan, entered, began)
            load = load._replace(encoded=load.encoded + entered)
        return plan.decodes

    def _decode(self) -> None:
        if self.running:
            self.time += STEP + ROW * len(self.running)
        self.running = {each: left - 1 for each, left in self.running.items()}
        ended = [each for each, left in self.running.items() if not left]
        for each, result in self.scheduler.stepped(Lane(1), [(each, None) for each in ended]):
            del self.running[each]
            each.client.finished.append((each.request, result))


class Recording:
    """Hears its language, has its windows decoded, and reads them one by one."""

    session, live = None, False

    def __init__(self, engine, windows, length) -> None:
        self.engine, self.length = engine, length
        self.client, self.transcript = Client(DecodeOptions()), None
        self.heard, self.unasked, self.windows_left = False, windows, windows
        self.windows_read = 0

    @property
    def seconds(self):
        windows = self.windows_read + self.windows_left
        return float(self.length * self.windows_read), float(self.length * windows)

    def step(self) -> bool:
        if not self.heard:
            self.engine.time += ENCODE
            self.heard = True
            self._ask(24)
            return True
        if not self.client.finished:
            return False
        self.client.finished.popleft()
        self.engine.time += READ
        self.windows_read += 1
        self.windows_left -= 1
        if not self.windows_left:
            self.transcript = Transcript((), "en")
        self._ask(1)
        return True

    def _ask(self, count) -> None:
        request = Request(None, np.zeros(self.length), (1,), windows_left=self.windows_left)
        asked = min(count, self.unasked)
        self.unasked -= asked
        self.engine.scheduler.add(Sequence(self.client, request) for _ in range(asked))

    def take_chunks(self):
        return ()

    def close(self) -> None:
        for each in self.engine.scheduler.cancel(self.client):
            del self.engine.running[each]


def seconds_of_short_ones(long, count=30, pause=17):
    """What each of `count` short requests takes, one every `pause` steps and more, beside `long`
    ones; and the windows of these that were read meanwhile.
    """
    engine, took, ended = Engine(), [], SimpleQueue()
    others = [Recording(engine, 20, 30) for _ in range(long)]
    waiting = iter(range(count))

    def ask():
        if engine.steps % pause or next(waiting, None) is None:
            return
        came = engine.time

        def note(_):
            took.append(engine.time - came)
            if len(took) == count:
                ended.put(None)

        recogniser.submit(Recording(engine, 1, 8)).result.add_done_callback(note)

    engine.on_step = ask
    recogniser = Recogniser(lambda: SimpleNamespace(engine=engine), 1)
    for each in others:
        recogniser.submit(each)
    ended.get(timeout=60)
    recogniser.close()
    return took, sum(each.windows_read for each in others)


def test_beside_a_hundred_long_ones_a_short_one_takes_at_most_five_times_as_long():
    alone = ENCODE + ENCODE + STEPS[8] * (STEP + ROW) + READ
    took, read = seconds_of_short_ones(100)
    assert statistics.quantiles(took, n=20)[-1] <= 5 * alone
    assert read > 0


def test_long_ones_get_on_beside_short_ones_without_end():
    """Short ones come faster than they can be answered."""
    _, read = seconds_of_short_ones(3, count=200, pause=3)
    assert read >= 10
