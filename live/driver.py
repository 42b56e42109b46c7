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

import numpy as np
from numpy.typing import NDArray

from asr import Hypothesis, Job, LivePass, Recogniser, Transcription, TranscriptionOptions
from errors import EndpointError, InvalidParameter
from live.audio_stream import AudioStream
from live.events import LiveEvent
from live.item import WantedPass
from live.session import LiveSession
from live.settings import AudioFormat, LiveSettings, TurnSettings
from live.speakers import LiveSpeakers, OpenSpeakers
from live.turn_detection import Turn, TurnDetector
from runtime.error_edge import endpoint_errors
from transcript import Transcript

T = TypeVar("T")
Send = Callable[[list[LiveEvent]], Awaitable[None]]
Heard = tuple[NDArray[np.float32], list[Turn], float]


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
        self._detector, self._options = detector, options
        self._format = AudioFormat.PCM_24000
        self._stream = AudioStream(self._format)
        window_seconds = recogniser.models.window_seconds
        self.session = LiveSession(LiveSettings(), options, window_seconds, _new_ids())
        self._changed, self._sending = asyncio.Event(), asyncio.Lock()
        self._passes: dict[WantedPass, tuple[asyncio.Task[None], float]] = {}  # and when it began
        self._open_speakers = open_speakers
        self._speakers: LiveSpeakers | None = None
        self._wanted_speakers = _about_speakers(LiveSettings())
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
        await self._hear(lambda: self._stream.push(data))

    async def change(self, settings: LiveSettings, audio_format: AudioFormat) -> None:
        """Hear what comes next otherwise; speakers, from the first sample on. Raises
        InvalidParameter, InvalidReference, Unsupported, or what diarization raises.
        """
        options = replace(
            self._options,
            language=settings.language,
            prompt=settings.prompt or "",
            hotwords=settings.keywords,
        )
        known = self._recogniser.validate(options)
        await self._change_speakers(settings)
        if audio_format is not self._format:
            await self._hear(self._stream.flush)
            self._format, self._stream = audio_format, AudioStream(audio_format)
        self._detector.change(settings.turn_detection or TurnSettings())
        self.session.change(replace(settings, language=known.language))

    async def commit(self) -> None:
        """End the current item. Raises EmptyBuffer."""
        await self._hear(self._stream.flush)
        self.session.commit()
        self._detector.reset()
        self._changed.set()
        await self._tell()

    async def clear(self) -> None:
        """Forget the audio that is not committed."""
        await self._hear(self._stream.flush)
        self._detector.reset()
        self.session.clear()
        self._changed.set()
        await self._tell()

    async def finish(self) -> None:
        """No more audio comes: every item is completed when this returns."""
        await self._hear(self._stream.flush)
        self.session.finish()
        self._changed.set()
        await self._running
        if self._speakers is not None:
            found = await self._speakers.finish()
            async with self._sending:
                await self._send(found)

    async def close(self) -> None:
        """Forget all that is under way, and free its rows."""
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._speakers is not None:
            await self._speakers.close()

    async def _change_speakers(self, settings: LiveSettings) -> None:
        wanted = _about_speakers(settings)
        if wanted == self._wanted_speakers:
            return
        if settings.speakers and self.session.seconds:
            text = "should be asked for, with known ones and their threshold, before audio comes"
            raise InvalidParameter(f"speakers: {text}")
        found: LiveSpeakers | None = None
        if settings.speakers:
            finder = await self._open_speakers(
                settings.known_speakers, settings.known_speaker_threshold
            )
            found = LiveSpeakers(finder, self._workers, self._tell)
        if self._speakers is not None:
            await self._speakers.close()
        self._speakers, self._wanted_speakers = found, wanted

    async def _hear(self, read: Callable[[], NDArray[np.float32]]) -> None:
        """Hear the samples that `read` returns in another thread."""
        if self._running.done():
            self._running.result()  # raises what has ended it

        def listen() -> Heard:
            samples = read()
            return samples, self._detector.push(samples), self._detector.silent_for

        loop = asyncio.get_running_loop()
        samples, turns, silent_for = await loop.run_in_executor(self._workers, listen)
        if self._speakers is not None:
            self._speakers.hear(samples)
        self.session.feed(samples, turns, silent_for)
        self._changed.set()
        await self._tell()

    async def _tell(self) -> None:
        """Send what there is to be told."""
        async with self._sending:
            events = self.session.take_events()
            if self._speakers is not None:
                events = self._speakers.passing(events)
            if events:
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

        def start() -> LivePass | Transcription:
            if wanted.before is not None:
                return self._recogniser.transcriber.start(
                    wanted.samples, wanted.options, wanted.before
                )
            return self._recogniser.live_pass(
                wanted.samples, wanted.options, wanted.prefix, wanted.draft
            )

        begun = await asyncio.get_running_loop().run_in_executor(self._workers, start)
        if isinstance(begun, LivePass):
            return await _result(self._recogniser.submit(begun))
        return await _result(self._recogniser.submit(begun))


def _about_speakers(settings: LiveSettings) -> tuple[object, ...]:
    """What should stay as it is once audio came."""
    return settings.speakers, settings.known_speakers, settings.known_speaker_threshold


async def _result(job: Job[T]) -> T:
    try:
        return await asyncio.wrap_future(job.result)
    finally:
        job.cancel()


def _new_ids() -> Iterator[str]:
    while True:
        yield f"item_{uuid.uuid4().hex[:24]}"
