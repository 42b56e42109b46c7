"""A client that speaks in real time: audio goes out as a microphone would give it, and every event
that comes is timed by that audio's clock.

The clock is 0 when the first sample is spoken. A piece goes out when its last sample has been
spoken, whatever was answered; so an event that comes at second 7.3 comes 7.3 s after the recording
began, however late the client or the server is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE

PIECE = SAMPLE_RATE // 10  # samples sent at once
SILENCE_MS = 500  # of the detector: OpenAI's default
# After which a session that does not end by itself is given up, beyond its audio.
PATIENCE_S = 300.0
NORMAL = 1000
WORDS = "item.input_audio_transcription.words"


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event of the server, and the second of the audio at which it came."""

    second: float
    event: dict[str, Any]


@dataclass
class Replay:
    """A session: the events, and `spoken` seconds of audio that went out. `failure` says how it
    ended otherwise than asked, else it is empty.
    """

    arrivals: list[Arrival] = field(default_factory=list)
    spoken: float = 0.0
    failure: str = ""


async def replay(
    url: str, samples: Samples, language: str | None, most: float | None = None
) -> Replay:
    """Speak `samples` (n,) at 16 kHz to the server at `url`, of http; at most so many seconds."""
    done = Replay()
    address = url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription"
    samples = samples if most is None else samples[: max(PIECE, round(most * SAMPLE_RATE))]
    longest = len(samples) / SAMPLE_RATE + PATIENCE_S
    try:
        async with asyncio.timeout(longest), connect(address, max_size=None, proxy=None) as socket:
            started = time.perf_counter()
            speaking = _speak(socket, _settings(language), samples, started, done)
            await asyncio.gather(speaking, _hear(socket, started, done))
            if socket.close_code != NORMAL:
                done.failure = f"closed with {socket.close_code}"
    except (InvalidStatus, OSError, TimeoutError) as error:
        done.failure = " ".join(str(error).split()) or type(error).__name__
    return done


async def _speak(
    socket: ClientConnection,
    settings: dict[str, Any],
    samples: Samples,
    started: float,
    done: Replay,
) -> None:
    """Send settings, then all pieces in time, and that there are no more."""
    with suppress(ConnectionClosed):
        await socket.send(json.dumps(settings))
        for piece in _pieces(samples):
            done.spoken += len(piece) / SAMPLE_RATE
            await asyncio.sleep(max(0.0, started + done.spoken - time.perf_counter()))
            audio = base64.b64encode(piece.tobytes()).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))


async def _hear(socket: ClientConnection, started: float, done: Replay) -> None:
    """Note every event until the socket closes."""
    with suppress(ConnectionClosed):
        async for message in socket:
            done.arrivals.append(Arrival(time.perf_counter() - started, json.loads(message)))


def _pieces(samples: Samples) -> Iterator[np.ndarray[Any, np.dtype[np.int16]]]:
    whole = (np.clip(samples, -1, 1) * 32767).astype("<i2")
    for start in range(0, len(whole), PIECE):
        yield whole[start : start + PIECE]


def _settings(language: str | None) -> dict[str, Any]:
    """Return a session's settings: PCM at 16 kHz, OpenAI's default detector, words with times."""
    turns = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
    heard = {
        "format": {"type": "audio/pcm", "rate": SAMPLE_RATE},
        "transcription": {"language": language},
        "turn_detection": turns,
    }
    session = {"type": "transcription", "audio": {"input": heard}, "include": [WORDS]}
    return {"type": "session.update", "session": session}
