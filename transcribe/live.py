"""`scripts/transcribe --live`: audio that is still being spoken to a server, and its words to the
terminal.

The wire is OpenAI's realtime transcription, on `/v1/realtime` (docs/api.md). A server that is given
more than it takes reads no more for a while, and then nothing more is read of a source that waits;
what a microphone hears is kept. A session that is lost, or as long as the server lets one be, is
followed by another, as on the page.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
)

from answer.kept import Request, for_keeping
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
from transcribe.live_audio import BLOCK_SECONDS, BYTES_PER_SAMPLE, Source, choose_source
from transcribe.live_screen import LiveScreen
from transcribe.live_server import own_server
from transcribe.live_transcript import Event, LiveTranscript
from transcribe.options import STANDARD_INPUT
from transcribe.recent_audio import RecentAudio
from transcribe.recordings import (
    InTheWay,
    Recording,
    Work,
    asked_formats,
    fitting,
    refuse_to_overwrite,
    write_outputs,
)
from transcribe.screen import clock

PATH = "/v1/realtime"
NOT_FOUND = 404
MOST_MESSAGE = 2**26  # bytes; of the text of one item, with its words
ANSWER_SECONDS = 30.0
# For a source that is closed to give the rest, and for the server to take leave.
SECONDS_TO_CLOSE = 1.0
# WebSocket's statuses (RFC 6455, section 7.4.1): done, and the server cannot go on.
NORMAL_CLOSURE, INTERNAL_ERROR = 1000, 1011
# Told first; then the server completes what it heard, and answers all else with TAKES_NO_MORE.
ENDINGS = ("DRAINING", "session_expired", "session_idle")
TAKES_NO_MORE = "session_ending"
# Between two attempts to open another session; it doubles until words come, or one lasts longer.
LEAST_PAUSE, MOST_PAUSE = 2.0, 15.0
# Without either, until no other session is tried.
SECONDS_TO_RETRY = 300.0
FINAL = json.dumps({"type": "input_audio_buffer.commit", "final": True})
INCLUDE = [f"item.input_audio_transcription.{name}" for name in ("words", "segments")]
LOST = "the server is gone"
ELSEWHERE = "--output-dir writes elsewhere"

Say = Callable[[str], None]
Connect = Callable[[], AbstractAsyncContextManager[ClientConnection]]


def transcribe_live(options: Namespace, choose: Callable[[], ModelSettings], say: Say) -> int:
    """Show what is said, and write the files that are asked for; the exit status.

    `choose` names the models where no server is given, and `say` tells what is no answer. Raises
    Failed, Unusable where nothing can be heard, and InTheWay where a file could be written over.
    """
    if options.output_format:
        files = _output(options)
        refuse_to_overwrite([Work(files, ["json", *options.output_format])], ELSEWHERE)
        before = files.kept_answer() or {}
        if "made_with" in before and "live" not in before["made_with"]:
            raise InTheWay(
                f"{files.output('json')} is the answer to the whole recording; {ELSEWHERE}"
            )
    source = choose_source(options.recordings, options.microphone, options.realtime)
    transcript = LiveTranscript(dict(options.speaker_names or ()))
    session = LiveSession(source, transcript, say)

    async def hold(url: str, key: str | None) -> None:
        screen = LiveScreen(transcript, Console())
        # One's own server is lost with this process, and needs no proxy.
        foreign = options.url is not None
        await session.run(partial(_connected, url, key, foreign), options, screen, foreign)

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
async def _connected(url: str, key: str | None, by_proxy: bool) -> AsyncIterator[ClientConnection]:
    """A session's socket, `by_proxy` where the environment names one. Raises Unusable where there
    is no session to be had.
    """
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
            proxy=True if by_proxy else None,
        )
    except InvalidStatus as error:
        raise _refusal(error, key) from error
    except (InvalidProxy, ImportError) as error:  # SOCKS is read by a package of its own
        raise Unusable(f"{url}: {error}") from error
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


@dataclass(frozen=True, slots=True)
class Lost:
    """Why no more comes of a session. Where the server has told all that it took, `heard` is up to
    where that may be, in seconds of the audio.
    """

    reason: str
    heard: float | None = None


class LiveSession:
    """Audio of the `source` to a server, a `transcript` back: one session, or one after the other.

    `failed` is whether anything went wrong, all of which is said, a line each.
    """

    _audio: Audio
    _rate: int
    _recent: RecentAudio | None = None

    def __init__(self, source: Source, transcript: LiveTranscript, say: Say) -> None:
        self._source, self._transcript, self._say = source, transcript, say
        self._at_end = False  # of the source
        self._ended = False  # all audio was sent
        self._came = asyncio.Event()  # more of the source, or its end
        self._interrupted = asyncio.Event()
        self._pause, self._last_words = LEAST_PAUSE, 0.0
        self.failed = False

    @property
    def seconds(self) -> float:
        """The audio that was read."""
        return self._recent.seconds if self._recent else 0.0

    async def run(
        self, connect: Connect, options: Namespace, screen: LiveScreen, goes_on: bool
    ) -> None:
        """Send all audio, and show what the server tells, until it has told all. Raises Failed.

        Where it `goes_on`, another session takes the place of one that was lost. Ctrl+C ends the
        audio, and a second one cancels this.
        """
        async with AsyncExitStack() as held:
            held.enter_context(screen)
            held.enter_context(self._interruptible())
            if self._source.waits:  # for longer than a server lets a session be silent
                await self._open()
            async with connect() as connection:
                if not self._source.waits:
                    await self._open()
                rate, recent = self._rate, RecentAudio(self._rate)
                await self._begin(connection, session_update(options, rate, INCLUDE))
                self._recent, self._last_words = recent, time.monotonic()
                await held.enter_async_context(self._read_on(recent))
                lost = await self._hold(connection, screen, recent)
            # Words alone: a new session would call the same people something else.
            update = session_update(options, rate, INCLUDE[:1])
            while lost and goes_on and not self._interrupted.is_set():
                async with AsyncExitStack() as stack:
                    another = await self._open_again(stack, connect, update, lost, recent)
                    if another is None:
                        return
                    start = self._resume(recent, lost)
                    lost = await self._hold(another, screen, recent, start)
            if lost:
                self._fail(lost.reason)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl+C ends the audio in this block, once a session was held."""
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None

        def interrupt() -> None:
            if self._interrupted.is_set() or self._recent is None:
                running.cancel()
            self._interrupted.set()
            self._source.close()
            if self._recent is not None:
                loop.call_later(SECONDS_TO_CLOSE, self._audio.end)

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _open(self) -> None:
        """Begin the source. Raises Failed, OSError."""
        self._audio = Audio(self._source)
        self._rate = await self._audio.rate()

    async def _begin(self, connection: ClientConnection, update: Event) -> None:
        """Tell the server what will come, and wait until it agrees. Raises Failed."""
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

    async def _hold(
        self,
        connection: ClientConnection,
        screen: LiveScreen,
        recent: RecentAudio,
        start: float = 0.0,
    ) -> Lost | None:
        """A session that begins at `start`; how it was lost. Raises Failed."""
        began, self._ended = time.monotonic(), False
        sending = asyncio.ensure_future(self._send_all(connection, recent))

        def stop() -> float:
            sending.cancel()
            return recent.sent

        try:
            return await self._follow(connection, screen, start, stop)
        finally:
            if time.monotonic() - began > MOST_PAUSE:
                self._pause, self._last_words = LEAST_PAUSE, time.monotonic()
            sending.cancel()
            await asyncio.wait({sending})

    async def _open_again(
        self,
        stack: AsyncExitStack,
        connect: Connect,
        update: Event,
        lost: Lost,
        recent: RecentAudio,
    ) -> ClientConnection | None:
        """Another session, which has begun, until the `stack` is left; None where none is to be
        had, which is told.
        """
        told_all = lost.heard is not None
        if told_all and self._source.waits and not await self._goes_on(recent):
            return None
        reason = lost.reason
        while time.monotonic() - self._last_words < SECONDS_TO_RETRY:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._interrupted.wait(), self._pause)
            if self._interrupted.is_set():
                break
            self._pause = min(2 * self._pause, MOST_PAUSE)
            try:
                return await stack.enter_async_context(self._begun(connect, update))
            except Failed as error:
                if reason == lost.reason:
                    self._say(f"{reason}; another session is tried, Ctrl+C waits for none")
                reason = str(error)
        self._fail(reason)
        return None

    @asynccontextmanager
    async def _begun(self, connect: Connect, update: Event) -> AsyncIterator[ClientConnection]:
        async with connect() as connection:
            await self._begin(connection, update)
            yield connection

    def _resume(self, recent: RecentAudio, lost: Lost) -> float:
        """Where the next session begins, which hears again what came after the last final word."""
        until = self._transcript.written_until
        start = recent.go_back(until)
        self._transcript.break_off(start)
        self._say(f"{lost.reason}; another session goes on from {clock(start)}")
        told = max(until, lost.heard or 0.0)
        if start - told > BLOCK_SECONDS:
            missing = f"from {clock(told)} to {clock(start)} words may be missing"
            self._transcript.warnings.append(f"{missing}: the live session was lost")
            self._fail(missing)
        return start

    async def _follow(
        self,
        connection: ClientConnection,
        screen: LiveScreen,
        start: float,
        stop: Callable[[], float],
    ) -> Lost | None:
        """Show what the server tells until it tells no more, and `stop` sending where it takes
        none, which returns up to where it was sent.
        """
        ending: Lost | None = None
        failed = False
        try:
            while True:
                event = _event(await connection.recv())
                if _code(event) in ENDINGS:
                    # Whatever ends what is being completed already does not let it be completed.
                    finishes = ending is None and not self._ended
                    sent = stop()
                    ending = Lost(_message(event), sent if finishes else None)
                elif _code(event) != TAKES_NO_MORE or ending is None:
                    failed = failed or event["type"] == "error"
                    self._take(event, start)
                screen.show()
        except ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd else None
            if code == NORMAL_CLOSURE and self._ended:
                return None
            lost = ending or Lost("the server has ended the session" if error.rcvd else LOST)
            # Without an error before it, it is a web server's, whose pings were not answered.
            if code != INTERNAL_ERROR or not failed:
                return lost
            self._fail(lost.reason)
            return None

    def _take(self, event: Event, start: float) -> None:
        if event["type"] == "error":
            self._fail(_message(event))
            return
        try:
            self._transcript.take(event, start)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"the server sent {event['type']!a} in another form") from error
        if event["type"].endswith(".failed"):
            self._fail(_message(event))
        elif event.get("words"):
            self._pause, self._last_words = LEAST_PAUSE, time.monotonic()

    async def _send_all(self, connection: ClientConnection, recent: RecentAudio) -> None:
        """Send what was read and not sent, and then what comes of the source."""
        with suppress(ConnectionClosed):
            while data := await self._next(recent):
                await connection.send(data)
            if recent.missed:  # all times of this session would be wrong from here on
                await connection.close()
                return
            self._ended = True
            await connection.send(FINAL)

    async def _next(self, recent: RecentAudio) -> bytes:
        """What is to be sent next; nothing at the end, or where some of it was missed."""
        block = int(self._rate * BLOCK_SECONDS) * BYTES_PER_SAMPLE
        while not (data := recent.take(block)) and not self._at_end and not recent.missed:
            if self._source.waits:
                await self._read(recent)
            else:
                await self._came.wait()
                self._came.clear()
        return data

    async def _read(self, recent: RecentAudio) -> None:
        """Keep what comes of the source next, if it has not ended."""
        if self._at_end:
            return
        try:
            data = await self._audio.read()
        except (Failed, OSError) as error:
            self._fail(str(error))
            data = b""
        self._at_end = not data
        recent.push(data)
        self._came.set()

    async def _goes_on(self, recent: RecentAudio) -> bool:
        """Wait for what comes of the source, or for its end; False where Ctrl+C comes before."""
        coming = asyncio.ensure_future(self._read(recent))
        stopped = asyncio.ensure_future(self._interrupted.wait())
        await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for each in (coming, stopped):
            each.cancel()
        await asyncio.wait({coming, stopped})
        return not self._interrupted.is_set()

    @asynccontextmanager
    async def _read_on(self, recent: RecentAudio) -> AsyncIterator[None]:
        """In this block all is read that would be lost if nobody did, whatever a server takes."""

        async def read_all() -> None:
            while not self._source.waits and not self._at_end:
                await self._read(recent)

        reading = asyncio.ensure_future(read_all())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    def _fail(self, reason: str) -> None:
        self.failed = True
        self._say(" ".join(reason.split()))


class Audio:
    """A source's audio, read in a thread that nobody waits for: standard input may never end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[int | bytes | Exception] = asyncio.Queue(1)
        self._ended = False
        threading.Thread(target=self._read_all, daemon=True).start()

    async def rate(self) -> int:
        """The samples a second, which are known first. Raises Failed, OSError."""
        part = await self._part()
        assert isinstance(part, int)
        return part

    async def read(self) -> bytes:
        """What comes next; nothing at the end. Raises Failed, OSError."""
        if self._ended:
            return b""
        part = await self._part()
        assert isinstance(part, bytes)
        return part

    def end(self) -> None:
        """It ends here, also for who waits for more of it."""
        self._ended = True
        with suppress(asyncio.QueueFull):
            self._parts.put_nowait(b"")

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


def session_update(options: Namespace, rate: int, include: Sequence[str]) -> dict[str, Any]:
    """The event that says what comes and what is wanted of it."""
    words = [word.strip() for word in (options.hotwords or "").split(",")]
    # The server takes clips if it is asked for segments.
    clips = options.known_speakers or [] if INCLUDE[1] in include else []
    threshold = options.known_speaker_threshold if clips else None
    given = {
        "language": options.language,
        "prompt": options.prompt,
        "keywords": [word for word in words if word],
        "known_speaker_names": [clip["name"] for clip in clips],
        "known_speaker_references": [clip["reference"] for clip in clips],
        "known_speaker_threshold": None if threshold is None else float(threshold),
    }
    heard = {
        "format": {"type": "audio/pcm", "rate": rate},
        "transcription": {
            name: value for name, value in given.items() if value not in (None, "", [])
        },
        "turn_detection": {"type": "server_vad"},
    }
    session = {"type": "transcription", "audio": {"input": heard}, "include": list(include)}
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
    return str(_error(event).get("message") or "the server tells of an error")


def _code(event: Event) -> object:
    """What an error event is of; None of another, and where it does not say."""
    return _error(event).get("code") if event["type"] == "error" else None


def _error(event: Event) -> dict[str, Any]:
    error = event.get("error")
    return error if isinstance(error, dict) else {}


def _write_files(options: Namespace, transcript: LiveTranscript, seconds: float) -> None:
    """Raises Failed, OSError."""
    formats = options.output_format or ()
    if not formats:
        return
    given = parameters(options)
    layout = {name: value for name, value in given.items() if name in LAYOUT}
    asked = for_keeping({**layout, "output": asked_formats(formats, True)})
    recording = _output(options)
    made = {"live": True, **Request(None, given).to_json()}
    answer = transcript.answer(seconds, asked)
    answer = {"recording": {"name": recording.path.name}, "made_with": made, **answer}
    write_outputs(recording, answer, formats)


def _output(options: Namespace) -> Recording:
    """Files are named by the one that is heard or, of what has no name, by the time."""
    recordings: list[Path] = options.recordings
    path = Path(time.strftime("live-%Y%m%d-%H%M%S"))
    if recordings and recordings != [STANDARD_INPUT]:
        path = recordings[0]
    folder = path.parent if options.output_dir is None else options.output_dir
    return Recording(path, folder / fitting(path.stem))
