"""A client that speaks in real time: it sends audio like a microphone, and times every event by
that audio's clock.

The clock is 0 when the first sample is spoken. A piece is sent when its last sample has been
spoken, whatever the server answers. So an event at second 7.3 arrives 7.3 s after the start of the
recording, however late client or server are.
"""

import asyncio
import base64
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE

PIECE = SAMPLE_RATE // 10  # samples sent at once
SILENCE_MS = 500  # the detector's, OpenAI's default
# Seconds after its audio after which a session that does not end is given up.
PATIENCE_S = 300.0
NORMAL = 1000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A server event, and the second of the audio at which it arrived."""

    second: float
    event: dict[str, Any]


@dataclass
class Replay:
    """A session's events, and the `spoken` seconds of audio sent. `failure` is the reason of an
    unexpected end, else "".
    """

    arrivals: list[Arrival] = field(default_factory=list)
    spoken: float = 0.0
    failure: str = ""


async def replay(
    url: str, samples: Samples, language: str | None, most: float | None = None
) -> Replay:
    """Speak at most `most` seconds of `samples` (n,) at 16 kHz to the server at the http `url`."""
    done = Replay()
    address = url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    samples = samples if most is None else samples[: max(PIECE, round(most * SAMPLE_RATE))]
    longest = len(samples) / SAMPLE_RATE + PATIENCE_S
    try:
        async with asyncio.timeout(longest), connect(address, max_size=None, proxy=None) as socket:
            started = time.perf_counter()
            with suppress(ConnectionClosed):
                await socket.send(json.dumps(_settings(language)))
            speaking = _speak(socket, samples, started, done)
            await asyncio.gather(speaking, _hear(socket, started, done))
            if socket.close_code != NORMAL:
                done.failure = f"closed with {socket.close_code}"
    except (InvalidStatus, OSError, TimeoutError) as error:
        done.failure = " ".join(str(error).split()) or type(error).__name__
    return done


async def _speak(socket: ClientConnection, samples: Samples, started: float, done: Replay) -> None:
    """Send all pieces in time, then the final commit."""
    with suppress(ConnectionClosed):
        whole = (np.clip(samples, -1, 1) * 32767).astype("<i2")
        for start in range(0, len(whole), PIECE):
            piece = whole[start : start + PIECE]
            done.spoken += len(piece) / SAMPLE_RATE
            await asyncio.sleep(max(0.0, started + done.spoken - time.perf_counter()))
            audio = base64.b64encode(piece.tobytes()).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))


async def _hear(socket: ClientConnection, started: float, done: Replay) -> None:
    """Record every event until the socket closes."""
    with suppress(ConnectionClosed):
        async for message in socket:
            done.arrivals.append(Arrival(time.perf_counter() - started, json.loads(message)))


def _settings(language: str | None) -> dict[str, Any]:
    """Return a session's settings: PCM at 16 kHz, OpenAI's default detector."""
    turns = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
    heard: dict[str, Any] = {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}}
    heard |= {"transcription": {"language": language}, "turn_detection": turns}
    session = {"type": "transcription", "audio": {"input": heard}}
    return {"type": "session.update", "session": session}
