"""`scripts/transcribe --live`: transcribes audio while it is spoken, and shows words as they come.

Models in this process transcribe it, or with `--url` a running server.
"""

from __future__ import annotations

import asyncio
import signal
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from config import ModelSettings
from whosaid.answer.kept import Request, for_keeping
from whosaid.cli.options import LAYOUT, parameters
from whosaid.cli.parser import FAILED
from whosaid.server.settings import ServerSettings
from whosaid.transcribe.client import Failed, Unusable
from whosaid.transcribe.live_audio import BLOCK_SECONDS, Audio, Source, choose_source
from whosaid.transcribe.live_transcript import Event, LiveTranscript, error_message
from whosaid.transcribe.options import STANDARD_INPUT
from whosaid.transcribe.printing import LiveScreen
from whosaid.transcribe.recordings import (
    InTheWay,
    Recording,
    Work,
    asked_formats,
    fitting,
    refuse_to_overwrite,
    write_outputs,
)
from whosaid.transcribe.screen import clock

# Seconds for a closed source to deliver the rest.
SECONDS_TO_CLOSE = 1.0
ELSEWHERE = "--output-dir writes elsewhere"


def transcribe_live(
    options: Namespace, choose: Callable[[], ModelSettings], say: Callable[[str], None]
) -> int:
    """Show the transcript, and write the requested files; return the exit status.

    `choose` returns the models if no server is given; `say` prints all lines but the transcript's.
    Raises Failed, Unusable if nothing can be transcribed, and InTheWay if a file would be
    overwritten.
    """
    if options.output_format:
        _refuse_to_overwrite(options)
    source = choose_source(options.recordings, options.microphone, options.realtime)
    live = LiveRun(source, LiveTranscript(dict(options.speaker_names or ())), say)
    transcribe = _on_server(options, live) if options.url else _on_models(options, choose, live)
    try:
        asyncio.run(live.run(transcribe))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        source.close()
        if live.seconds:
            _write_files(options, live.transcript, live.seconds)
    return FAILED if live.failed else 0


class LiveRun:
    """The audio of a `source`, and its `transcript` on the screen.

    `failed`: an error occurred, and `say` got a line about it.
    """

    def __init__(
        self, source: Source, transcript: LiveTranscript, say: Callable[[str], None]
    ) -> None:
        self.transcript, self.say, self.failed = transcript, say, False
        self.interrupted, self.last_words = asyncio.Event(), time.monotonic()
        self._source, self._screen = source, LiveScreen(transcript, Console())
        self._audio: Audio | None = None

    @property
    def seconds(self) -> float:
        return self._audio.seconds if self._audio else 0.0

    async def run(self, transcribe: Callable[[Audio], Awaitable[None]]) -> None:
        """Transcribe all audio. Raises Failed, OSError.

        Ctrl+C ends the audio, and a second one cancels the task.
        """
        audio = Audio(self._source)
        with self._screen.shown(), self._interruptible(audio):
            await audio.begin()
            self._audio, self.last_words = audio, time.monotonic()
            await transcribe(audio)
        if audio.failure is not None:
            self.fail(str(audio.failure))

    @contextmanager
    def _interruptible(self, audio: Audio) -> Iterator[None]:
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


def _on_server(options: Namespace, live: LiveRun) -> Callable[[Audio], Awaitable[None]]:
    try:
        from whosaid.transcribe.live_remote import RemoteSessions
    except ImportError as error:
        package = error.name
        raise Unusable(f"--live needs the package {package}: scripts/setup installs it") from error
    key = ServerSettings.from_environment().api_key
    secret = key.get_secret_value() if key else None
    return RemoteSessions(options.url, secret, options, live).transcribe


def _on_models(
    options: Namespace, choose: Callable[[], ModelSettings], live: LiveRun
) -> Callable[[Audio], Awaitable[None]]:
    from whosaid.transcribe.local import load

    endpoint = load(choose)
    from whosaid.transcribe.live_local import transcribe_locally

    return partial(transcribe_locally, endpoint, options, live.take)


def _refuse_to_overwrite(options: Namespace) -> None:
    files = _output(options)
    refuse_to_overwrite([Work(files, ["json", *options.output_format])], ELSEWHERE)
    before = files.kept_answer() or {}
    if "made_with" in before and "live" not in before["made_with"]:
        raise InTheWay(f"{files.output('json')} has the answer to the whole recording; {ELSEWHERE}")


def _write_files(options: Namespace, transcript: LiveTranscript, seconds: float) -> None:
    formats = options.output_format or ()
    if not formats:
        return
    given = parameters(options)
    layout = {name: value for name, value in given.items() if name in LAYOUT}
    asked = for_keeping({**layout, "output": asked_formats(formats, True)})
    recording = _output(options)
    made = {"live": True, **Request(None, given).to_json()}
    answer = transcript.answer(seconds, asked)
    told = {"name": recording.name, "path_sha256": recording.path_digest}
    answer = {"recording": told, "made_with": made, **answer}
    write_outputs(recording, answer, formats)


def _output(options: Namespace) -> Recording:
    """Return the outputs' path: named like the played file, or else by the time."""
    recordings: list[Path] = options.recordings
    path = Path(time.strftime("live-%Y%m%d-%H%M%S"))
    if recordings and recordings != [STANDARD_INPUT]:
        path = recordings[0]
    folder = path.parent if options.output_dir is None else options.output_dir
    return Recording(path, folder / fitting(path.stem))
