"""A live session's driver reports a busy machine."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from whosaid.asr import TranscriptionOptions
from whosaid.live.driver import LiveDriver
from whosaid.live.turn_detection import SpeechStarted

AHEAD = 50  # seconds


class Speaking:
    """A detector that hears speech from the first sample on."""

    silent_for = 0.0

    def push(self, samples):
        return [SpeechStarted(0)] if len(samples) else []


def test_audio_ahead_of_real_time_is_no_delay_and_a_pass_under_way_is():
    held = threading.Event()
    models = SimpleNamespace(window_seconds=30.0)
    transcriber = SimpleNamespace(models=models, live_pass=lambda *_: held.wait(60))
    recogniser = SimpleNamespace(transcriber=transcriber)

    async def tell(events):
        pass

    async def run(workers):
        driver = LiveDriver(recogniser, workers, Speaking(), TranscriptionOptions(), tell, None)
        idle = driver.slowed
        await driver.append(bytes(AHEAD * 48_000))
        while not (slowed := driver.slowed):
            await asyncio.sleep(0)
        held.set()
        await driver.close()
        return idle, slowed, driver.slowed

    with ThreadPoolExecutor(2) as workers:
        idle, slowed, ended = asyncio.run(run(workers))
    assert (idle, ended) == (0, 0)
    assert 0 < slowed < AHEAD
