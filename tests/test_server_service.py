"""The service against the handler: the same answers, whatever runs beside, and nobody waits."""

from __future__ import annotations

import asyncio
import base64

import pytest

from config import ModelSettings
from diarization.pipeline import Diarization
from handler import EndpointHandler
from response import response
from server.service import Service
from testing.audio_files import conversation
from transcript import SpeakerTurn

OPTIONS = [
    {"language": "en"},
    {"language": "en", "return_timestamps": False},
    {"language": "de", "return_timestamps": "word"},
    {"prompt": "word300 word301", "hotwords": ["word302"]},
    {"language": "en", "num_beams": 3},
    {"assisted": True},
    {"assisted": True, "return_timestamps": "word", "language": "en", "batch_size": 1},
    {"multilingual": True},
    {"language": "en", "diarize": True, "num_speakers": 2},
    {"language": "de", "task": "translate", "chunk_length_s": 2, "output": ["srt"]},
]


class Speakers:
    """Takes turns of a second; remembers which events it was given."""

    def __init__(self):
        self.cancelled = []

    def diarize(self, samples, hints, cancelled):
        self.cancelled.append(cancelled)
        seconds = range(int(len(samples) / 16_000) + 1)
        turns = tuple(SpeakerTurn(f"SPEAKER_0{s % 2}", s, s + 1.0) for s in seconds)
        return Diarization(turns, turns, hints)


@pytest.fixture(scope="module")
def handler(whisper_folder, assistant_folder) -> EndpointHandler:
    settings = ModelSettings(
        asr_model=str(whisper_folder), assistant_model=str(assistant_folder), dtype="float32"
    )
    made = EndpointHandler(settings=settings)
    made.diarizer = Speakers()
    return made


@pytest.fixture
def service(handler):
    made = Service(handler)
    yield made
    made.close()


@pytest.fixture(scope="module")
def recording(wav):
    """Base64 of the first `seconds` of a conversation."""

    def make(seconds):
        return base64.b64encode(wav(conversation()[: seconds * 16_000])).decode()

    return make


def parsed(handler, inputs, **parameters):
    return handler.parse({"inputs": inputs, "parameters": {"diarize": False, **parameters}})


async def events_of(service, request):
    return [event async for event in service.stream(request)]


def test_requests_at_once_are_answered_as_one_by_one(handler, service, recording):
    bodies = [
        {"inputs": recording(3 + place % 5), "parameters": {"diarize": False, **options}}
        for place, options in enumerate(OPTIONS)
    ]
    expected = [handler(body) for body in bodies]

    async def together():
        return await asyncio.gather(*(service.answer(handler.parse(body)) for body in bodies))

    answers = asyncio.run(together())
    for body, answer, alone in zip(bodies, answers, expected, strict=True):
        assert response(answer, handler.parse(body).config) == alone
    assert (service.outstanding, service.running_rows, service.waiting_windows) == (0, 0, 0)
    assert service.counts.rows / service.counts.steps > 1
