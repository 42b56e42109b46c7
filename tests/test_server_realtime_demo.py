"""Live sessions on the demo's models, by OpenAI's client: the bundled conversation, as said."""

from __future__ import annotations

import asyncio
import base64
from contextlib import contextmanager

import numpy as np
import openai
import pytest
from asgi import asynchronous
from test_server_lifecycle import listening

from tests.support.audio_files import conversation
from whosaid.server.app import create_app
from whosaid.server.lifecycle import DrainingServer
from whosaid.server.realtime.drivers import LiveDrivers
from whosaid.server.settings import ServerSettings

PREFIX = "conversation.item.input_audio_transcription"
WORDS, SEGMENTS = (f"item.input_audio_transcription.{name}" for name in ("words", "segments"))
PIECE = 4_000  # samples, a quarter of a second


def pcm(seconds: float) -> bytes:
    """The beginning of the conversation, 16 bits at 16 kHz."""
    samples = conversation()[: int(16_000 * seconds)]
    return (samples * 32_767).astype(np.int16).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def url(demo_endpoint):
    with listens(demo_endpoint) as address:
        yield address


@contextmanager
def listens(endpoint):
    drivers = LiveDrivers(endpoint)
    settings = ServerSettings(page=False, live_ahead_seconds=3600)
    app = create_app(endpoint, settings, drivers)
    with listening(DrainingServer(app, endpoint, 600)) as (host, port):
        yield f"http://{host}:{port}/v1"


async def talk(url: str, audio: bytes, given: dict, include=(WORDS,)) -> list:
    """All events of a session that hears the audio and is then completed."""
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="none") as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        given = {"format": {"type": "audio/pcm", "rate": 16000}, **given}
        session = {"type": "transcription", "audio": {"input": given}, "include": [*include]}
        await connection.session.update(session=session)
        for place in range(0, len(audio), 2 * PIECE):
            data = base64.b64encode(audio[place : place + 2 * PIECE]).decode()
            await connection.input_audio_buffer.append(audio=data)
        await connection.send({"type": "input_audio_buffer.commit", "final": True})
        return [event async for event in connection]


@pytest.mark.slow
def test_a_conversation_is_written_as_it_is_said_and_ends_as_its_file_would(url):
    events = asyncio.run(talk(url, pcm(10.2), {}))
    kinds = [event.type for event in events]
    assert "error" not in kinds
    assert kinds[:2] == ["session.created", "session.updated"]
    completed = [event for event in events if event.type == f"{PREFIX}.completed"]
    assert " ".join(event.transcript for event in completed) == (
        "good morning how can i help you my name is david and i live in london "
        "i would like to book a ticket for two people on friday at nine"
    )
    starts = [event for event in events if event.type.endswith("speech_started")]
    assert [event.item_id for event in starts] == [event.item_id for event in completed]
    for item in completed:
        own = [event for event in events if getattr(event, "item_id", None) == item.item_id]
        deltas = "".join(event.delta for event in own if event.type == f"{PREFIX}.delta")
        assert deltas.split()[:3] == item.transcript.split()[:3]
        times = [(word["start"], word["end"]) for word in item.words]
        assert times == sorted(times)
        (start,) = [event.audio_start_ms for event in own if event.type.endswith("speech_started")]
        assert times[0][0] >= start / 1000 - 0.5
        assert kinds.index(f"{PREFIX}.completed") < len(kinds) - 1


@pytest.mark.slow
def test_speakers_follow_the_last_commit_where_the_diarizer_needs_the_whole(url):
    events = asyncio.run(talk(url, pcm(10.2), {}, (WORDS, SEGMENTS)))
    assert events[-1].type == "session.speakers"
    completed = [event for event in events if event.type == f"{PREFIX}.completed"]
    segments = [event for event in events if event.type == f"{PREFIX}.segment"]
    assert {event.item_id for event in segments} == {event.item_id for event in completed}
    said = " ".join(event.text.strip() for event in segments)
    assert said == " ".join(event.transcript for event in completed)
    assert segments[0].speaker != segments[-1].speaker
    assert None not in {event.speaker for event in segments}


@pytest.mark.slow
@asynchronous
async def test_several_clients_at_once_hear_what_each_hears_alone(url):
    options = {"turn_detection": None}
    found = await asyncio.gather(*(talk(url, pcm(each), options) for each in (3.0, 6.0, 3.0)))
    said = [
        [event.transcript for event in events if event.type == f"{PREFIX}.completed"]
        for events in found
    ]
    assert said[0] == said[2] == ["good morning how can i help you"]
    assert len(said[1]) == 1
    assert said[1][0].startswith("good morning how can i help you my name is david")
