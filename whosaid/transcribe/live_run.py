"""One run of `scripts/transcribe --live`: its source of audio, and its transcript on the screen."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from whosaid.transcribe.client import Failed
from whosaid.transcribe.live_audio import BLOCK_SECONDS, Source, SourceAudio
from whosaid.transcribe.live_transcript import Event, LiveTranscript, error_message
from whosaid.transcribe.printing import LiveScreen
from whosaid.transcribe.screen import clock

# Seconds for a closed source to deliver the rest.
SECONDS_TO_CLOSE = 1.0


class LiveRun:
    """The audio of a `source`, and its `transcript` on the screen. `failed`: an error occurred, and
    `say` got a line about it.
    """

    def __init__(
        self, source: Source, transcript: LiveTranscript, say: Callable[[str], None]
    ) -> None:
        self.transcript, self.say, self.failed = transcript, say, False
        self.interrupted, self.last_words = asyncio.Event(), time.monotonic()
        self._source, self._screen = source, LiveScreen(transcript, Console())
        self._audio: SourceAudio | None = None

    @property
    def seconds(self) -> float:
        return self._audio.seconds if self._audio else 0.0

    async def run(self, transcribe: Callable[[SourceAudio], Awaitable[None]]) -> None:
        """Transcribe all audio. Ctrl+C ends it, another one the task. Raises Failed, OSError."""
        audio = SourceAudio(self._source)
        with self._screen.shown(), self._interruptible(audio):
            await audio.begin()
            self._audio, self.last_words = audio, time.monotonic()
            await transcribe(audio)
        if audio.failure is not None:
            self.fail(str(audio.failure))

    @contextmanager
    def _interruptible(self, audio: SourceAudio) -> Iterator[None]:
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None

        def interrupt() -> None:
            if self.interrupted.is_set() or self._audio is None:
                running.cancel()
            self.interrupted.set()
            self._source.close()
            loop.call_later(SECONDS_TO_CLOSE, audio.end)

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def take(self, event: Event) -> None:
        """Add an event of a session to the transcript, and show it. Raises Failed."""
        kind = event["type"]
        if kind == "error":
            self.fail(error_message(event))
            return
        try:
            self.transcript.take(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"the server sent {kind!a} in another form") from error
        if kind.endswith(".failed"):
            self.fail(error_message(event))
        elif event.get("words"):
            self.last_words = time.monotonic()
        self._screen.show()

    def break_off(self, unheard: float) -> None:
        """Keep the text of a lost session; the last `unheard` seconds may have no text."""
        now = self.seconds
        since = max(self.transcript.break_off(now), now - unheard)
        self._screen.show()
        if now - since > BLOCK_SECONDS:
            missing = f"from {clock(since)} to {clock(now)} words may be missing"
            self.transcript.warnings.append(f"{missing}: the live session was lost")
            self.fail(missing)

    def fail(self, reason: str) -> None:
        self.failed = True
        self.say(" ".join(reason.split()))
