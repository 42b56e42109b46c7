"""A live session on models of this process."""

import asyncio
import time
from argparse import Namespace
from collections.abc import Callable

from config import InferenceConfig
from whosaid.cli.options import parameters
from whosaid.endpoint import Endpoint
from whosaid.errors import EndpointError
from whosaid.live.events import LiveEvent
from whosaid.live.settings import AudioFormat, LiveSettings
from whosaid.server.realtime.drivers import LiveDrivers
from whosaid.server.realtime.server_events import EventEncoder
from whosaid.server.realtime.session_config import SEGMENTS, WORDS
from whosaid.transcribe.client import Failed
from whosaid.transcribe.live_audio import MOST_AHEAD_SECONDS, SourceAudio
from whosaid.transcribe.live_transcript import Event


async def transcribe_locally(
    endpoint: Endpoint, options: Namespace, take: Callable[[Event], None], audio: SourceAudio
) -> None:
    """Transcribe all audio; `take` gets the events of a session. Raises Failed."""
    encoder = EventEncoder((WORDS, SEGMENTS), endpoint.transcriber.token_bytes)

    async def send(events: list[LiveEvent]) -> None:
        for message in filter(None, map(encoder.message, events)):
            take(message)

    driver = LiveDrivers(endpoint)(send)
    formats = {each.rate: each for each in (AudioFormat.PCM_16000, AudioFormat.PCM_24000)}
    began = time.monotonic()
    try:
        await driver.change(_settings(endpoint, options), formats[audio.rate])
        while data := await audio.take():
            await driver.append(data)
            ahead = audio.seconds - (time.monotonic() - began) - MOST_AHEAD_SECONDS
            await asyncio.sleep(max(0.0, ahead))
        await driver.finish()
    except EndpointError as error:
        raise Failed(str(error)) from error
    finally:
        await driver.close()


def _settings(endpoint: Endpoint, options: Namespace) -> LiveSettings:
    given = InferenceConfig.read(parameters(options))
    clips = tuple(given.known_speakers)
    return LiveSettings(
        language=given.language,
        prompt=given.prompt,
        keywords=tuple(given.hotwords or ()),
        speakers=endpoint.diarizer is not None or bool(clips),
        known_speakers=clips,
        known_speaker_threshold=given.known_speaker_threshold,
    )
