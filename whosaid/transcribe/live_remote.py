"""Live sessions on a running server, over OpenAI's Realtime protocol (docs/api.md).

If the server has enough audio, it stops reading for a while, and then a source that waits is not
read either. If a session is lost or ends, a new one continues with the unsent audio; so little is
sent ahead of real time, or minutes would be lost in the sockets' buffers.
"""

import asyncio
import json
import time
from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidProxy,
    InvalidStatus,
    ProxyError,
    WebSocketException,
)

from config import InferenceConfig
from whosaid.runtime.environment import proxy_of
from whosaid.transcribe.client import (
    CONNECT_SECONDS,
    UNAUTHORIZED,
    Failed,
    Unusable,
    endpoint,
    nobody_listens,
    refusal_reason,
    unauthorized,
)
from whosaid.transcribe.live_audio import BYTES_PER_SAMPLE, MOST_AHEAD_SECONDS, SourceAudio
from whosaid.transcribe.live_run import LiveRun
from whosaid.transcribe.live_transcript import Event, error_message
from whosaid.transcribe.screen import clock

PATH = "/v1/realtime"
NOT_FOUND = 404
MOST_MESSAGE = 2**26  # bytes; the text of an item, with its words
ANSWER_SECONDS = 30.0
SECONDS_TO_CLOSE = 1.0
# WebSocket's close statuses (RFC 6455, section 7.4.1): done; the server shuts down or failed.
NORMAL_CLOSURE, INTERNAL_ERROR = 1000, 1011
# After one of these errors a server completes the received audio, and refuses more with
# TAKES_NO_MORE.
ENDINGS = ("DRAINING", "session_expired", "session_idle")
TAKES_NO_MORE = "session_ending"
# Seconds between two attempts to open a new session.
LEAST_PAUSE, MOST_PAUSE = 2.0, 15.0
# Seconds without words or a lasting session, after which no new session is tried.
SECONDS_TO_RETRY = 300.0
LEAST_AHEAD = 1.0  # seconds; a microphone's blocks may come late
FINAL = json.dumps({"type": "input_audio_buffer.commit", "final": True})
INCLUDE = [f"item.input_audio_transcription.{name}" for name in ("words", "segments")]
LOST = "the server is gone"


@dataclass(frozen=True, slots=True)
class Lost:
    """A session ended too soon; the last `unheard` seconds of the audio may have no text."""

    reason: str
    unheard: float = inf


@dataclass
class RemoteSessions:
    """A run's sessions on the server at `url`, one after the other."""

    url: str
    key: str | None
    options: Namespace
    live: LiveRun
    _final: bool = field(default=False, init=False)  # whether all audio was sent
    _played_at: float = field(default=0.0, init=False)  # when the sent audio would be played

    async def transcribe(self, audio: SourceAudio) -> None:
        """Send all audio, and handle all events. Raises Failed."""
        lost = await self._hold(await self._open(audio.rate, INCLUDE), audio)
        while lost is not None:
            self.live.break_off(lost.unheard)
            # Servers close idle sessions, so open the next one only when there is audio.
            if not await audio.more() or self.live.interrupted.is_set():
                if lost.unheard:
                    self.live.fail(lost.reason)
                return
            another = await self._open_again(audio.rate, lost.reason)
            if another is None:
                return
            now = clock(audio.seconds)
            self.live.say(f"{lost.reason}; its text stays, a new session continues from {now}")
            lost = await self._hold(another, audio)

    async def _open(self, rate: int, include: list[str]) -> ClientConnection:
        """Open a session. Raises Failed, or Unusable if the server cannot have one."""
        connection = await self._connected()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.send(json.dumps(session_update(self.options, rate, include)))
                while (event := _event(await connection.recv()))["type"] != "session.updated":
                    if event["type"] == "error":
                        raise Failed(error_message(event))
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError):
                raise Failed("the server does not answer") from error
            if isinstance(error, ConnectionClosed):
                raise Failed(LOST) from error
            raise
        return connection

    async def _open_again(self, rate: int, reason: str) -> ClientConnection | None:
        """Open a new session; print a message and return None if that fails."""
        live, pause, first = self.live, LEAST_PAUSE, True
        while time.monotonic() - live.last_words < SECONDS_TO_RETRY:
            with suppress(TimeoutError):
                await asyncio.wait_for(live.interrupted.wait(), pause)
            if live.interrupted.is_set():
                break
            pause = min(2 * pause, MOST_PAUSE)
            try:
                # Only words: a new session would label the same people differently.
                return await self._open(rate, INCLUDE[:1])
            except Failed as error:
                if first:
                    live.say(f"{reason}; trying a new session, Ctrl+C stops")
                first, reason = False, str(error)
        live.fail(reason)
        return None

    async def _hold(self, connection: ClientConnection, audio: SourceAudio) -> Lost | None:
        """Run a session to its end; return how it was lost. Raises Failed."""
        began, self._final, self._played_at = time.monotonic(), False, 0.0
        sending = asyncio.ensure_future(self._send_all(connection, audio))
        try:
            return await self._follow(connection, sending)
        finally:
            if time.monotonic() - began > MOST_PAUSE:
                self.live.last_words = time.monotonic()
            sending.cancel()
            await asyncio.wait({sending})
            await connection.close()

    async def _follow(
        self, connection: ClientConnection, sending: asyncio.Future[None]
    ) -> Lost | None:
        ending: Lost | None = None
        failed = False
        try:
            while True:
                event = _event(await connection.recv())
                code = _code(event)
                if code in ENDINGS:
                    # If the session was already ending, such an error means that it cannot be
                    # completed.
                    complete = ending is None and not self._final
                    ending = Lost(error_message(event), self._unread() if complete else inf)
                    sending.cancel()
                elif code != TAKES_NO_MORE or ending is None:
                    failed = failed or event["type"] == "error"
                    self.live.take(event)
        except ConnectionClosed as error:
            status = error.rcvd.code if error.rcvd else None
            if status == NORMAL_CLOSURE and self._final:
                return None
            lost = ending or Lost("the server has ended the session" if error.rcvd else LOST)
            # Without an earlier error this close comes from a web server whose pings were not
            # answered.
            if status != INTERNAL_ERROR or not failed:
                return lost
            self.live.fail(lost.reason)
            return None

    async def _send_all(self, connection: ClientConnection, audio: SourceAudio) -> None:
        with suppress(ConnectionClosed):
            while data := await audio.take():
                seconds = len(data) / BYTES_PER_SAMPLE / audio.rate
                self._played_at = max(self._played_at, time.monotonic()) + seconds
                try:
                    await connection.send(data)
                except ConnectionClosed:
                    audio.put_back(data)  # for the next session
                    raise
                ahead = self._played_at - time.monotonic() - MOST_AHEAD_SECONDS
                await asyncio.sleep(max(0.0, ahead))
            self._final = True
            await connection.send(FINAL)

    def _unread(self) -> float:
        """Return the sent seconds that the server, which reads in real time, may not have read."""
        ahead = self._played_at - time.monotonic()
        return ahead if ahead > LEAST_AHEAD else 0.0

    async def _connected(self) -> ClientConnection:
        url, key, proxy = self.url, self.key, proxy_of(endpoint(self.url))
        try:
            return await connect(
                websocket_address(url),
                proxy=proxy.url if proxy else None,
                additional_headers={"Authorization": f"Bearer {key}"} if key else {},
                compression=None,
                open_timeout=CONNECT_SECONDS,
                close_timeout=SECONDS_TO_CLOSE,
                ping_timeout=None,  # a server with enough audio does not read pings either
                max_size=MOST_MESSAGE,
            )
        except InvalidStatus as error:
            raise _refusal(error, key) from error
        except (InvalidProxy, ProxyError, ImportError) as error:  # SOCKS needs another package
            why = "its address is not understood" if isinstance(error, InvalidProxy) else str(error)
            raise Unusable(nobody_listens(url, why, proxy)) from error
        except WebSocketException as error:
            raise Unusable(f"{url} does not answer as a transcription server") from error
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            why = "Connection refused" if refused else error.strerror or "no answer"
            raise Unusable(nobody_listens(url, why, proxy)) from error


def websocket_address(url: str) -> str:
    scheme, where, path, _, _ = urlsplit(endpoint(url))
    scheme = {"http": "ws", "https": "wss"}[scheme]
    return urlunsplit((scheme, where, path.rstrip("/") + PATH, "intent=transcription", ""))


def _refusal(error: InvalidStatus, key: str | None) -> Unusable:
    response = error.response
    status = response.status_code
    reason = refusal_reason(status, dict(response.headers.raw_items()), response.body or b"")
    if status == UNAUTHORIZED:
        return unauthorized(reason, key)
    if status == NOT_FOUND:
        return Unusable(f"{reason}: the server has no live sessions")
    return Unusable(reason)


def session_update(options: Namespace, rate: int, include: list[str]) -> dict[str, Any]:
    # The server accepts clips only with segments.
    clips = options.known_speakers or [] if INCLUDE[1] in include else []
    threshold = options.known_speaker_threshold if clips else None
    read = InferenceConfig.read({"hotwords": options.hotwords or ""})
    given = {
        "language": options.language,
        "prompt": options.prompt,
        "keywords": read.model_dump(mode="json", include={"hotwords"})["hotwords"],
        "known_speaker_names": [clip["name"] for clip in clips],
        "known_speaker_references": [
            clip["reference"] if "reference" in clip else json.dumps(clip["voice"])
            for clip in clips
        ],
        "known_speaker_threshold": None if threshold is None else float(threshold),
    }
    audio = {
        "format": {"type": "audio/pcm", "rate": rate},
        "transcription": {
            name: value for name, value in given.items() if value not in (None, "", [])
        },
        "turn_detection": {"type": "server_vad"},
    }
    session = {"type": "transcription", "audio": {"input": audio}, "include": include}
    return {"type": "session.update", "session": session}


def _event(message: str | bytes) -> Event:
    try:
        event = json.loads(message)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise Failed("the server sent an invalid event")
    return event


def _code(event: Event) -> object:
    error = event.get("error") if event["type"] == "error" else None
    return error.get("code") if isinstance(error, dict) else None
