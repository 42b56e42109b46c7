"""How long a short request takes beside a hundred long ones, on a clock that counts what is done:
windows encoded, steps of the batch, windows read. The loop and the admission are the server's own.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from queue import SimpleQueue

import numpy as np
from asr.engine.admission import Admission
from server.engine_loop import EngineLoop

from asr.engine.request import DecodeOptions, Request
from asr.engine.sequence import Sequence
from transcript import DecodeStats, Transcript

# Seconds, as Whisper base takes them on two processors: a window's encoding, a step and a row more
# in it, a window's reading. A window has so many steps.
ENCODE, STEP, ROW, READ = 0.25, 0.03, 0.002, 0.01
STEPS = {8: 40, 30: 120}
ROWS = 32


class Engine:
    """Rows without a model, that are given out as the scheduler does."""

    def __init__(self) -> None:
        self.time, self.steps = 0.0, 0
        self.admission = Admission()
        self.admission.clock = lambda: self.time
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, int] = {}
        self.on_step = lambda: None

    @property
    def running_rows(self) -> int:
        return len(self.running)

    def step_all(self) -> None:
        self._admit()
        self.steps += 1
        if self.running:
            self.time += STEP + ROW * len(self.running)
        for each in list(self.running):
            self.running[each] -= 1
            if not self.running[each]:
                del self.running[each]
                each.session.finished.append(each)
        self.on_step()

    def _admit(self) -> None:
        admission, rows = self.admission, Counter(each.session for each in self.running)
        must_pause = admission.pause(self.waiting, rows)
        while self.waiting:
            rows = Counter(each.session for each in self.running)
            for_long = admission.rows_for_long(ROWS, self.waiting, self.running)
            chosen = admission.choose(
                self.waiting, rows, ROWS - len(self.running), admission.share(ROWS, rows), for_long
            )
            if not chosen:
                return
            began, sequence = self.time, chosen[0]
            self.time += ENCODE
            self.waiting.remove(sequence)
            self.running[sequence] = STEPS[len(sequence.request.samples)]
            admission.count([sequence], began)
            if must_pause():
                return


class Session:
    """Who has rows."""

    stats = DecodeStats()

    def __init__(self) -> None:
        self.finished: deque[Sequence] = deque()


class Recording:
    """Hears its language, has its windows decoded, and reads them one by one."""

    def __init__(self, engine, windows, length) -> None:
        self.engine, self.length = engine, length
        self.session, self.transcript = Session(), None
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
        if not self.session.finished:
            return False
        self.session.finished.popleft()
        self.engine.time += READ
        self.windows_read += 1
        self.windows_left -= 1
        if not self.windows_left:
            self.transcript = Transcript((), "en")
        self._ask(1)
        return True

    def _ask(self, count) -> None:
        request = Request(None, np.zeros(self.length), (1,), windows_left=self.windows_left)
        for _ in range(min(count, self.unasked)):
            self.unasked -= 1
            self.engine.waiting.append(
                Sequence(request, DecodeOptions(), self.session, self.session.stats)
            )

    def take_chunks(self):
        return ()

    def close(self) -> None:
        self.engine.waiting = deque(
            each for each in self.engine.waiting if each.session is not self.session
        )


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

        def tell(event):
            if isinstance(event, Transcript):
                took.append(engine.time - came)
                if len(took) == count:
                    ended.put(None)

        loop.submit(Recording(engine, 1, 8), tell)

    engine.on_step = ask
    loop = EngineLoop(engine)
    for each in others:
        loop.submit(each, lambda _: None)
    ended.get(timeout=60)
    loop.close()
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
