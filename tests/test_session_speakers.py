"""Live sessions of an endpoint with the models that ship: speakers as in the file, known names, and
no text that waits for speakers."""

import asyncio
import base64
import threading
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from config import DEMO_MODELS
from diarization_utils import attribute, speaker_segments
from tests.helpers.recogniser_stand_ins import EndlessDiarizer, TurnsOfSeconds
from tests.helpers.refusals import refused
from tests.support.audio_files import conversation, request_body, speech, wav_file
from whosaid.diarization.diarizer import Pause
from whosaid.errors import ModelError
from whosaid.live.audio_buffer import AudioBuffer
from whosaid.live.driver import LiveDriver
from whosaid.live.events import Completed, LiveEvent, SegmentEvent, SpeakersFound, Words
from whosaid.live.settings import AudioFormat, LiveSettings
from whosaid.payload.parameters import ReferenceClip
from whosaid.transcript import SpeakerMatch

SETTINGS = LiveSettings(language="en", turn_detection=None, speakers=True)
PIECE = 8_000  # bytes
pytestmark = pytest.mark.skipif(not DEMO_MODELS.is_dir(), reason="the demo models are not here")


class NoTurns:
    """A detector that finds no speech: no text is looked for before its item ends."""

    silent_for = 0.0

    def push(self, samples: np.ndarray) -> list[Any]:
        return []

    def change(self, settings: object) -> None:
        pass

    def reset(self) -> None:
        pass


class Told(list[LiveEvent]):
    """A session's events; `came` is set by type when one arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.came: defaultdict[type, asyncio.Event] = defaultdict(asyncio.Event)

    def extend(self, events: Iterable[LiveEvent]) -> None:
        for event in events:
            self.append(event)
            self.came[type(event)].set()


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return conversation()[: 8 * 16_000]


@pytest.fixture
def endpoint(demo_endpoint, monkeypatch):
    monkeypatch.setattr(demo_endpoint.models, "diarizer", demo_endpoint.diarizer)
    return demo_endpoint


def asked(endpoint, samples: np.ndarray, **parameters):
    return endpoint.parse(request_body(wav_file(samples, 16_000), language="en", **parameters))


@asynccontextmanager
async def session(endpoint, told: list[LiveEvent]):
    async def send(events: list[LiveEvent]) -> None:
        told.extend(events)

    options = asked(endpoint, np.zeros(160)).options
    with ThreadPoolExecutor(1) as workers:
        given = (NoTurns(), options, send, endpoint.session_speakers)
        driver = LiveDriver(endpoint.recogniser, workers, *given)
        try:
            yield driver
        finally:
            await driver.close()


async def say(driver: LiveDriver, samples: np.ndarray) -> None:
    data = np.rint(samples * 32_768).clip(-32_768, 32_767).astype("<i2").tobytes()
    for start in range(0, len(data), PIECE):
        await driver.append(data[start : start + PIECE])


async def spoken(endpoint, samples: np.ndarray, settings: LiveSettings) -> list[LiveEvent]:
    told: list[LiveEvent] = []
    async with session(endpoint, told) as driver:
        await driver.change(settings, AudioFormat.PCM_16000)
        await say(driver, samples)
        await driver.finish()
    return told


def place(told: list[LiveEvent], kind: type) -> list[int]:
    return [place for place, each in enumerate(told) if isinstance(each, kind)]


def clip() -> dict[str, str]:
    return {"name": "Anna", "reference": base64.b64encode(wav_file(speech(4.0), 16_000)).decode()}


def test_nobody_is_named_below_the_clients_threshold(endpoint, samples):
    """Files have the same rule; without the threshold the clip would be similar enough."""
    request = asked(endpoint, samples, known_speakers=[clip()], known_speaker_threshold=1)
    (expected,) = asyncio.run(endpoint.answer(request)).known_speakers
    known = tuple(request.config.known_speakers)
    settings = replace(SETTINGS, known_speakers=known, known_speaker_threshold=1.0)
    told = asyncio.run(spoken(endpoint, samples, settings))
    assert isinstance(told[-1], SpeakersFound)
    (found,) = told[-1].known_speakers
    assert (found.label, found.matched) == (expected.label, False)
    assert found.similarity == pytest.approx(expected.similarity, abs=0.02)
    assert "Anna" not in {each.speaker for each in told if isinstance(each, SegmentEvent)}


def test_a_session_of_one_item_equals_the_file(endpoint, samples):
    request = asked(endpoint, samples, known_speakers=[clip()])
    answer = asyncio.run(endpoint.answer(request))
    known = tuple(request.config.known_speakers)
    told = asyncio.run(spoken(endpoint, samples, replace(SETTINGS, known_speakers=known)))
    segments = [each for each in told if isinstance(each, SegmentEvent)]
    expected = [(each.text, each.speaker) for each in answer.segments]
    assert [(each.text, each.speaker) for each in segments] == expected
    assert {"Anna"} < {each.speaker for each in segments}
    for each, other in zip(segments, answer.segments, strict=True):
        assert (each.start, each.end) == pytest.approx((other.start, other.end), abs=0.05)
    assert isinstance(told[-1], SpeakersFound)
    (found,), (expected,) = told[-1].known_speakers, answer.known_speakers
    assert (found.name, found.label, found.matched) == (expected.name, expected.label, True)
    assert place(told, Completed)[-1] < place(told, SegmentEvent)[0]


async def test_text_is_completed_while_diarization_has_not_ended(endpoint, samples):
    go_on = threading.Event()
    endpoint.models.diarizer = TurnsOfSeconds(lambda _: go_on.wait(60))
    told = Told()

    async with session(endpoint, told) as driver:
        await driver.change(SETTINGS, AudioFormat.PCM_16000)
        await say(driver, samples[: 5 * 16_000])
        finishing = asyncio.ensure_future(driver.finish())
        await told.came[Completed].wait()
        assert not finishing.done()
        assert place(told, SegmentEvent) == []
        go_on.set()
        await finishing
    named = {each.speaker for each in told if isinstance(each, SegmentEvent)}
    assert named <= {"SPEAKER_00", "SPEAKER_01"}
    assert place(told, SegmentEvent)


async def test_a_vanished_client_ends_its_diarization(endpoint, samples):
    endpoint.models.diarizer = diarizer = EndlessDiarizer()
    async with session(endpoint, []) as driver:
        await driver.change(SETTINGS, AudioFormat.PCM_16000)
        await say(driver, samples[: 3 * 16_000])
        finishing = asyncio.ensure_future(driver.finish())
        assert await asyncio.to_thread(diarizer.begun.wait, 60)
        finishing.cancel()
        await asyncio.wait([finishing])
    assert await asyncio.to_thread(diarizer.ended.wait, 60)


async def test_a_failed_diarization_is_raised_after_all_text(endpoint, samples):
    def fail(_: Pause) -> None:
        raise ModelError("broken")

    endpoint.models.diarizer = TurnsOfSeconds(fail)
    told: list[LiveEvent] = []

    async with session(endpoint, told) as driver:
        await driver.change(SETTINGS, AudioFormat.PCM_16000)
        await say(driver, samples[: 3 * 16_000])
        with pytest.raises(ModelError):
            await driver.finish()
    assert place(told, Completed)
    assert not place(told, SegmentEvent)


async def test_refused_settings_change_nothing(endpoint, samples):
    useless = (ReferenceClip(name="Anna", reference="AAAA"),)
    told: list[LiveEvent] = []

    async with session(endpoint, told) as driver:
        with refused("INVALID_REFERENCE", "known_speakers[0]"):
            await driver.change(replace(SETTINGS, known_speakers=useless), AudioFormat.PCM_16000)
        endpoint.models.diarizer = None
        with refused("UNSUPPORTED", "speakers"):
            await driver.change(SETTINGS, AudioFormat.PCM_16000)
        plain = replace(SETTINGS, speakers=False)
        await driver.change(plain, AudioFormat.PCM_16000)
        await say(driver, samples[:16_000])
        endpoint.models.diarizer = TurnsOfSeconds()
        with refused("INVALID_PARAMETER", "speakers"):
            await driver.change(SETTINGS, AudioFormat.PCM_16000)
        await driver.change(replace(plain, delay="high"), AudioFormat.PCM_16000)
        await driver.finish()
    assert not place(told, SegmentEvent)
    assert not place(told, SpeakersFound)


async def test_speakers_may_be_given_up_while_people_speak(endpoint, samples):
    endpoint.models.diarizer = TurnsOfSeconds(lambda _: pytest.fail("nobody asks any more"))
    told: list[LiveEvent] = []

    async with session(endpoint, told) as driver:
        await driver.change(SETTINGS, AudioFormat.PCM_16000)
        await say(driver, samples[:16_000])
        await driver.change(replace(SETTINGS, speakers=False), AudioFormat.PCM_16000)
        await say(driver, samples[16_000:32_000])
        await driver.finish()
    assert place(told, Completed)
    assert not place(told, SegmentEvent)
    assert not place(told, SpeakersFound)


def test_names_without_voices_are_unmatched_with_a_warning(endpoint, samples):
    endpoint.models.diarizer = TurnsOfSeconds()
    known = (ReferenceClip(name="Anna", reference="AAAA"),)
    settings = replace(SETTINGS, known_speakers=known)
    told = asyncio.run(spoken(endpoint, samples[: 3 * 16_000], settings))
    warning = "known_speakers are ignored: the diarization model compares no voices"
    assert told[-1] == SpeakersFound((SpeakerMatch("Anna"),), (warning,))


def test_a_streaming_diarizers_turns_reach_words_and_segments(endpoint, samples, tmp_path):
    """The thread runs other clips and recordings too, and pieces have any size."""
    nemotron = pytest.importorskip("test_nemotron_diarizer")
    if not nemotron.HERE:
        pytest.skip("transformers has the model from 5.18 on")
    samples = samples[: 8 * 16_000]
    diarizer = nemotron.loaded(nemotron.save(tmp_path))
    diarizer.capabilities = replace(diarizer.capabilities, streams=True)
    endpoint.models.diarizer = diarizer
    told = asyncio.run(spoken(endpoint, samples, SETTINGS))
    (completed,) = [each for each in told if isinstance(each, Completed)]
    found = diarizer.stream().push(as_kept(samples), last=True)
    found = found.touching(completed.transcript.speech)
    chunks = attribute(completed.transcript.chunks, found.turns, found.exclusive)
    segments = [each for each in told if isinstance(each, SegmentEvent)]
    alone = speaker_segments(chunks)
    expected = [(each.text, each.start, each.end) for each in alone]
    assert [(each.text, each.start, each.end) for each in segments] == expected
    pairs = {(one.speaker, each.speaker) for one, each in zip(segments, alone, strict=True)}
    assert 1 < len(pairs) == len({one for one, _ in pairs}) == len({each for _, each in pairs})
    assert any(isinstance(each, Words) for each in told)


def as_kept(samples: np.ndarray) -> np.ndarray:
    kept = AudioBuffer()
    kept.append((np.rint(samples * 32_768) / 32_768).astype(np.float32))
    return kept.samples(0, kept.stop)
