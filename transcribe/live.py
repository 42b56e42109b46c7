"""`scripts/transcribe --live`: audio that is still being spoken to a server, and its words to the
terminal.

The wire is OpenAI's realtime transcription, on `/v1/realtime` (docs/api.md). A server that is given
more than it takes reads no more for a while, and then nothing more is read of the source.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
)

from commands.options import LAYOUT, parameters
from commands.parser import FAILED
from config import ModelSettings
from server.settings import ServerSettings
from transcribe.client import (
    CONNECT_SECONDS,
    UNAUTHORIZED,
    Failed,
    Unusable,
    endpoint,
    nobody_listens,
    refusal_reason,
    unauthorized,
)
from transcribe.live_audio import BYTES_PER_SAMPLE, Source, choose_source
from transcribe.live_screen import LiveScreen
from transcribe.live_server import own_server
from transcribe.live_transcript import Event, LiveTranscript
from transcribe.options import STANDARD_INPUT
from transcribe.recordings import Recording, asked_formats, write_outputs

PATH = "/v1/realtime"
NOT_FOUND = 404
MOST_MESSAGE = 2**26  # bytes; of the text of one item, with its words
ANSWER_SECONDS = 30.0
# For a source that is closed to give the rest, and for the server to take leave.
SECONDS_TO_CLOSE = 1.0
NORMAL_CLOSURE = 1000
FINAL = json.dumps({"type": "input_audio_buffer.commit", "final": True})
INCLUDE = [f"item.input_audio_transcription.{name}" for name in ("words", "segments")]
LOST = "the server is gone"

Say = Callable[[str], None]


def transcribe_live(options: Namespace, choose: Callable[[], ModelSettings], say: Say) -> int:
    """Show what is said, and write the files that are asked for; the exit status.

    `choose` names the models where no server is given, and `say` tells what is no answer. Raises
    Failed, or Unusable where nothing can be heard.
    """
    source = choose_source(options.recordings, options.microphone, options.realtime)
    transcript = LiveTranscript()
    session = LiveSession(source, transcript, say)

    async def hold(url: str, key: str | None) -> None:
        async with _connected(url, key) as connection:
            await session.run(connection, options, LiveScreen(transcript, Console()))

    with _server(options, choose) as (url, key):
        try:
            asyncio.run(hold(url, key))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            source.close()
            if session.seconds:
                _write_files(options, transcript, session.seconds)
    return FAILED if session.failed else 0


@contextmanager
def _server(
    options: Namespace, choose: Callable[[], ModelSettings]
) -> Iterator[tuple[str, str | None]]:
    """The address and the key of the server of `--url`, or of one of this process."""
    if options.url is None:
        with own_server(choose) as (url, key):
            yield url, key
    else:
        secret = ServerSettings.from_environment().api_key
        yield options.url, secret.get_secret_value() if secret else None


def websocket_address(url: str) -> str:
    """Where live sessions are held by the server at `url`."""
    scheme, where, path, _, _ = urlsplit(endpoint(url))
    scheme = {"http": "ws", "https": "wss"}[scheme]
    return urlunsplit((scheme, where, path.rstrip("/") + PATH, "intent=transcription", ""))


@asynccontextmanager
async def _connected(url: str, key: str | None) -> AsyncIterator[ClientConnection]:
    """A session's socket. Raises Unusable where there is no session to be had."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection = await connect(
            websocket_address(url),
            additional_headers=headers,
            compression=None,
            open_timeout=CONNECT_SECONDS,
            close_timeout=SECONDS_TO_CLOSE,
            ping_timeout=None,  # a server that has enough audio for now reads no pings either
            max_size=MOST_MESSAGE,
        )
    except InvalidStatus as error:
        raise _refusal(error, key) from error
    except (InvalidMessage, InvalidHandshake, InvalidURI) as error:
        raise Unusable(f"{url} does not answer as a transcription server") from error
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        why = "Connection refused" if refused else error.strerror or "no answer"
        raise Unusable(nobody_listens(url, why)) from error
    async with connection:
        yield connection


def _refusal(error: InvalidStatus, key: str | None) -> Unusable:
    response = error.response
    status = response.status_code
    reason = refusal_reason(status, dict(response.headers.raw_items()), response.body or b"")
    if status == UNAUTHORIZED:
        return unauthorized(reason, key)
    if status == NOT_FOUND:
        return Unusable(f"{reason}: the server has no live sessions")
    return Unusable(reason)


class LiveSession:
    """One session: audio of the `source` to the server, a `transcript` back.

    `failed` is whether anything went wrong, all of which is said, a line each.
    """

    def __init__(self, source: Source, transcript: LiveTranscript, say: Say) -> None:
        self._source, self._transcript, self._say = source, transcript, say
        self._bytes, self._rate = 0, 1
        self._ended = False  # all audio was sent
        self._interrupted = False
        self.failed = False

    @property
    def seconds(self) -> float:
        """The audio that was sent."""
        return self._bytes / BYTES_PER_SAMPLE / self._rate

    async def run(
        self, connection: ClientConnection, options: Namespace, screen: LiveScreen
    ) -> None:
        """Send all audio, and show what the server tells, until it has told all. Raises Failed.

        Ctrl+C ends the audio, and a second one cancels this.
        """
        audio = Audio(self._source)
        self._rate = await audio.rate()
        await self._begin(connection, session_update(options, self._rate))
        sending = asyncio.ensure_future(self._send_all(connection, audio))
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None

        def interrupt() -> None:
            if self._interrupted:
                running.cancel()
            self._interrupted = True
            self._source.close()
            loop.call_later(SECONDS_TO_CLOSE, sending.cancel)

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            with screen:
                await self._follow(connection, screen)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            sending.cancel()
            await asyncio.wait({sending})

    async def _begin(self, connection: ClientConnection, update: Event) -> None:
        """Tell the server what will come, and wait until it agrees."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.send(json.dumps(update))
                while (event := _event(await connection.recv()))["type"] != "session.updated":
                    if event["type"] == "error":
                        raise Failed(_message(event))
        except TimeoutError as error:
            raise Failed("the server does not answer") from error
        except ConnectionClosed as error:
            raise Failed(LOST) from error

    async def _follow(self, connection: ClientConnection, screen: LiveScreen) -> None:
        try:
            while True:
                self._take(_event(await connection.recv()))
                screen.show()
        except ConnectionClosed as error:
            if error.rcvd is None:
                self._fail(LOST)
            elif error.rcvd.code != NORMAL_CLOSURE or not self._ended:
                self._fail("the server has ended the session")

    def _take(self, event: Event) -> None:
        if event["type"] == "error":
            self._fail(_message(event))
            return
        try:
            self._transcript.take(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"the server sent {event['type']!a} in another form") from error
        if event["type"].endswith(".failed"):
            self._fail(_message(event))

    async def _send_all(self, connection: ClientConnection, audio: Audio) -> None:
        with suppress(ConnectionClosed):
            try:
                while data := await audio.read():
                    await connection.send(data)
                    self._bytes += len(data)
            except asyncio.CancelledError:
                if not self._interrupted:
                    raise
            except (Failed, OSError) as error:
                self._fail(str(error))
            self._ended = True
            await connection.send(FINAL)

    def _fail(self, reason: str) -> None:
        self.failed = True
        self._say(" ".join(reason.split()))


class Audio:
    """A source's audio, read in a thread that nobody waits for: standard input may never end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[int | bytes | Exception] = asyncio.Queue(1)
        threading.Thread(target=self._read_all, daemon=True).start()

    async def rate(self) -> int:
        """The samples a second, which are known first. Raises Failed, OSError."""
        part = await self._part()
        assert isinstance(part, int)
        return part

    async def read(self) -> bytes:
        """What comes next; nothing at the end. Raises Failed, OSError."""
        part = await self._part()
        assert isinstance(part, bytes)
        return part

    async def _part(self) -> int | bytes:
        part = await self._parts.get()
        if isinstance(part, Exception):
            raise part
        return part

    def _read_all(self) -> None:
        try:
            self._hand_over(self._source.open())
            while data := self._source.read():
                self._hand_over(data)
            self._hand_over(data)
        except _Left:
            pass
        except Exception as error:
            with suppress(_Left):
                self._hand_over(error)

    def _hand_over(self, part: int | bytes | Exception) -> None:
        """Wait until there is room for it. Raises _Left where nobody reads any more."""
        putting = self._parts.put(part)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        except (CancelledError, RuntimeError) as error:
            putting.close()
            raise _Left from error


class _Left(Exception):
    """The event loop has ended."""


def session_update(options: Namespace, rate: int) -> dict[str, Any]:
    """The event that says what comes and what is wanted of it."""
    words = [word.strip() for word in (options.hotwords or "").split(",")]
    given = {
        "language": options.language,
        "prompt": options.prompt,
        "keywords": [word for word in words if word],
    }
    heard = {
        "format": {"type": "audio/pcm", "rate": rate},
        "transcription": {name: value for name, value in given.items() if value},
        "turn_detection": {"type": "server_vad"},
    }
    session = {"type": "transcription", "audio": {"input": heard}, "include": INCLUDE}
    return {"type": "session.update", "session": session}


def _event(message: str | bytes) -> Event:
    """Raises Failed for what is no event."""
    try:
        event = json.loads(message)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise Failed("the server sent what is no event")
    return event


def _message(event: Event) -> str:
    error = event.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or "the server tells of an error")


def _write_files(options: Namespace, transcript: LiveTranscript, seconds: float) -> None:
    """Raises Failed, OSError."""
    formats = options.output_format or ()
    if not formats:
        return
    layout = {name: value for name, value in parameters(options).items() if name in LAYOUT}
    asked = {**layout, "output": asked_formats(formats)}
    if options.return_timestamps is not None:
        asked["return_timestamps"] = options.return_timestamps
    answer = transcript.answer(seconds, asked)
    write_outputs(_output(options), answer, formats)


def _output(options: Namespace) -> Recording:
    """Files are named by the one that is heard or, of what has no name, by the time."""
    recordings: list[Path] = options.recordings
    path = Path(time.strftime("live-%Y%m%d-%H%M%S"))
    if recordings and recordings != [STANDARD_INPUT]:
        path = recordings[0]
    folder = path.parent if options.output_dir is None else options.output_dir
    return Recording(path, folder / path.stem)
