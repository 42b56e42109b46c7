"""A live session's driver reports a busy machine."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.helpers.recogniser_stand_ins import StandInRecogniser
from whosaid.asr import TranscriptionOptions
from whosaid.live.driver import LiveDriver
from whosaid.live.settings import AudioFormat, LiveSettings
from whosaid.live.turn_detection import SpeechStarted

AHEAD = 50  # seconds


class Silent:
    """A detector that hears no speech."""

    silent_for = 0.0

    def push(self, samples):
        return []

    def change(self, settings):
        pass


class Speaking:
    """A detector that hears speech from the first sample on."""

    silent_for = 0.0

    def push(self, samples):
        return [SpeechStarted(0)] if len(samples) else []


def test_running_pass_counts_as_delay_and_early_audio_not():
    held = threading.Event()
    recogniser = StandInRecogniser()
    recogniser.transcriber.live_pass = lambda *_: held.wait(60)

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


def test_no_sample_is_lost_between_two_formats():
    async def tell(events):
        pass

    async def run(workers):
        options = TranscriptionOptions()
        driver = LiveDriver(StandInRecogniser(), workers, Silent(), options, tell, None)
        await driver.append(bytes(48_000))
        await driver.change(LiveSettings(), AudioFormat.PCM_16000)
        await driver.append(bytes(32_000))
        await driver.close()
        return driver.session.seconds

    with ThreadPoolExecutor(1) as workers:
        assert asyncio.run(run(workers)) == 2.0
