"""Moves a live session: bytes to samples, turns and passes; results to events for the client.

Everything is decided in the event loop by `live.session`. Bytes are read and speech is looked for
in a thread of `workers`; passes are decoded by the recogniser, with everybody else's. While the
client does not take its events nothing more is read from it, nor decoded for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

from asr import Hypothesis, Job, LivePass, Recogniser, Transcription, TranscriptionOptions
from errors import EndpointError
from live.audio_input import AudioInput, Heard
from live.events import LiveEvent
from live.item import WantedPass
from live.session import LiveSession, with_settings
from live.settings import AudioFormat, LiveSettings
from live.speakers import OpenSpeakers
from live.turn_detection import TurnDetector
from live.wanted_speakers import WantedSpeakers
from runtime.error_edge import endpoint_errors
from runtime.steps import run_steps
from transcript import Transcript

T = TypeVar("T")
Send = Callable[[list[LiveEvent]], Awaitable[None]]


class LiveDriver:
    """One session on a `recogniser`; for the event loop's thread.

    Events go to `send`, a list at a time and in order; passes have the `options` of files. Who
    speaks is found by what `open_speakers` returns, where the client wants to know. Calls of
    `append`, `commit`, `clear`, `change` and `finish` follow one another.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        workers: Executor,
        detector: TurnDetector,
        options: TranscriptionOptions,
        send: Send,
        open_speakers: OpenSpeakers,
    ) -> None:
        self._recogniser, self._workers, self._send = recogniser, workers, send
        self._input, self._options = AudioInput(detector), options
        window_seconds = recogniser.transcriber.models.window_seconds
        self.session = LiveSession(LiveSettings(), options, window_seconds, _new_ids())
        self._changed, self._sending = asyncio.Event(), asyncio.Lock()
        self._passes: dict[WantedPass, tuple[asyncio.Task[None], float]] = {}  # and when it began
        self._speakers = WantedSpeakers(open_speakers, workers, self._tell)
        self._running = asyncio.create_task(self._run())

    @property
    def slowed(self) -> float:
        """How many times as long as the client asked for the partial pass takes that is under way;
        0 where none is.
        """
        now = asyncio.get_running_loop().time()
        waits = [now - began for wanted, (_, began) in self._passes.items() if not wanted.final]
        return max(waits, default=0.0) / self.session.cadence

    async def append(self, data: bytes) -> None:
        """Hear more audio, in the session's format."""
        await self._hear(lambda: self._input.push(data))

    async def change(self, settings: LiveSettings, audio_format: AudioFormat) -> None:
        """Hear what comes next otherwise; speakers, from the first sample on. Raises
        InvalidParameter, InvalidReference, Unsupported, or what diarization raises.
        """
        known = self._recogniser.transcriber.validate(with_settings(self._options, settings))
        await self._speakers.change(settings, begun=self.session.seconds > 0)
        if audio_format is not self._input.format:
            await self._hear(self._input.flush)
        self._input.change(audio_format, settings.turn_detection)
        self.session.change(replace(settings, language=known.language))

    async def commit(self) -> None:
        """End the current item. Raises EmptyBuffer."""
        await self._hear(self._input.flush)
        self.session.commit()
        self._input.reset()
        self._changed.set()
        await self._tell()

    async def clear(self) -> None:
        """Forget the audio that is not committed."""
        await self._hear(self._input.flush)
        self._input.reset()
        self.session.clear()
        self._changed.set()
        await self._tell()

    async def finish(self) -> None:
        """No more audio comes: every item is completed when this returns."""
        await self._hear(self._input.flush)
        self.session.finish()
        self._changed.set()
        await self._running
        if found := await self._speakers.finish():
            async with self._sending:
                await self._send(found)

    async def close(self) -> None:
        """Forget all that is under way, and free its rows."""
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._speakers.close()

    async def _hear(self, read: Callable[[], Heard]) -> None:
        """Hear what `read` returns in another thread."""
        if self._running.done():
            self._running.result()  # raises what has ended it
        loop = asyncio.get_running_loop()
        samples, turns, silent_for = await loop.run_in_executor(self._workers, read)
        self._speakers.hear(samples)
        self.session.feed(samples, turns, silent_for)
        self._changed.set()
        await self._tell()

    async def _tell(self) -> None:
        """Send what there is to be told."""
        async with self._sending:
            if events := self._speakers.passing(self.session.take_events()):
                await self._send(events)

    async def _run(self) -> None:
        """Begin and drop passes as the session changes, until it is done."""
        async with asyncio.TaskGroup() as group:
            while not self.session.done:
                await self._changed.wait()
                self._changed.clear()
                for wanted, (task, _) in self._passes.items():
                    if not self.session.is_useful(wanted):
                        task.cancel()
                for wanted in iter(self.session.next_pass, None):
                    task = group.create_task(self._decode(wanted))
                    self._passes[wanted] = task, asyncio.get_running_loop().time()
                await self._tell()

    async def _decode(self, wanted: WantedPass) -> None:
        """Decode a pass and tell the session what came of it."""
        result: Hypothesis | Transcript | EndpointError | None = None
        try:
            with endpoint_errors():
                result = await self._decoded(wanted)
        except EndpointError as error:
            result = error
        finally:
            del self._passes[wanted]
            if result is None or isinstance(result, EndpointError):
                self.session.failed(wanted, result)
            self._changed.set()
        if not isinstance(result, EndpointError):
            self.session.passed(wanted, result)

    async def _decoded(self, wanted: WantedPass) -> Hypothesis | Transcript:
        """Raises EndpointError; frees the rows however it ends."""
        transcriber = self._recogniser.transcriber

        def start() -> LivePass | Transcription:
            if wanted.before is not None:
                return run_steps(transcriber.start(wanted.samples, wanted.options, wanted.before))
            return transcriber.live_pass(
                wanted.samples, wanted.options, wanted.prefix, wanted.draft
            )

        begun = await asyncio.get_running_loop().run_in_executor(self._workers, start)
        if isinstance(begun, LivePass):
            return await _result(self._recogniser.submit(begun))
        return await _result(self._recogniser.submit(begun))


async def _result(job: Job[T]) -> T:
    try:
        return await asyncio.wrap_future(job.result)
    finally:
        job.cancel()


def _new_ids() -> Iterator[str]:
    while True:
        yield f"item_{uuid.uuid4().hex[:24]}"
