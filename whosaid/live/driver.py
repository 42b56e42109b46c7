"""Runs a live session: bytes become samples, turns and passes; results become events.

`live.session` decides everything, in the event loop. A thread of `workers` decodes bytes and
detects speech. The recogniser decodes passes, together with all other requests. While a client does
not read its events, nothing more is read from it or decoded for it (back-pressure).
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import replace
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whosaid.asr import (
    EngineJob,
    Hypothesis,
    LivePass,
    Recogniser,
    Transcription,
    TranscriptionOptions,
)
from whosaid.errors import EndpointError, InvalidParameter
from whosaid.live.audio_stream import AudioStream
from whosaid.live.events import LiveEvent
from whosaid.live.item import WantedPass
from whosaid.live.session import LiveSession
from whosaid.live.settings import AudioFormat, LiveSettings, TurnSettings
from whosaid.live.speakers import LiveSpeakers, OpenSpeakers
from whosaid.live.turn_detection import Turn, TurnDetector
from whosaid.runtime.errors import endpoint_errors
from whosaid.scheduling.steps import run_steps
from whosaid.transcript import Transcript

T = TypeVar("T")
Send = Callable[[list[LiveEvent]], Awaitable[None]]
# Samples (n,) at 16 kHz, starts and stops of speech in them, and seconds of silence at their end.
Detected = tuple[NDArray[np.float32], list[Turn], float]


class AudioInput:
    """Decodes bytes in `format` and detects speech in them; for one thread at a time."""

    def __init__(self, detector: TurnDetector) -> None:
        self.format = AudioFormat.PCM_24000
        self._stream = AudioStream(self.format)
        self._detector = detector

    def push(self, data: bytes) -> Detected:
        return self._detected(self._stream.push(data))

    def flush(self) -> Detected:
        """Return the samples that the resampler still holds, with their turns."""
        return self._detected(self._stream.flush())

    def change(self, audio_format: AudioFormat, turns: TurnSettings | None) -> None:
        """Change the settings for the bytes that follow. Flush before a change of format."""
        if audio_format is not self.format:
            self.format, self._stream = audio_format, AudioStream(audio_format)
        self._detector.change(turns or TurnSettings())

    def reset(self) -> None:
        self._detector.reset()

    def _detected(self, samples: NDArray[np.float32]) -> Detected:
        return samples, self._detector.push(samples), self._detector.silent_for


class LiveDriver:
    """One session on a `recogniser`; for the event loop.

    `send` gets the events in order, a list at a time. Passes have the `options` of files.
    `open_speakers` opens diarization, if the client wants speakers. `append`, `commit`, `clear`,
    `change` and `finish` must not overlap.
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
        self._input = AudioInput(detector)
        window_seconds = recogniser.transcriber.capabilities.window_seconds
        ids = (f"item_{uuid.uuid4().hex[:24]}" for _ in count())
        self.session = LiveSession(LiveSettings(), options, window_seconds, ids)
        self._changed, self._sending = asyncio.Event(), asyncio.Lock()
        self._passes: dict[WantedPass, tuple[asyncio.Task[None], float]] = {}  # and its start time
        self._open_speakers = open_speakers
        self._speakers: LiveSpeakers | None = None
        self._about_speakers = _about_speakers(LiveSettings())
        self._running = asyncio.create_task(self._run())

    @property
    def slowed(self) -> float:
        """Running time of the partial pass over the requested cadence; 0 without a pass."""
        now = asyncio.get_running_loop().time()
        waits = [now - began for wanted, (_, began) in self._passes.items() if not wanted.final]
        return max(waits, default=0.0) / self.session.cadence

    async def append(self, data: bytes) -> None:
        await self._feed(lambda: self._input.push(data))

    async def change(self, settings: LiveSettings, audio_format: AudioFormat) -> None:
        """Use other settings from now on. Raises InvalidParameter, for speakers after the first
        audio too, InvalidReference, Unsupported, and the errors of diarization.
        """
        known = self._recogniser.transcriber.validate(self.session.options_for(settings))
        await self._change_speakers(settings)
        if audio_format is not self._input.format:
            await self._feed(self._input.flush)
        self._input.change(audio_format, settings.turn_detection)
        self.session.change(replace(settings, language=known.language))

    async def commit(self) -> None:
        """End the current item. Raises EmptyBuffer."""
        await self._end_item(self.session.commit)

    async def clear(self) -> None:
        await self._end_item(self.session.clear)

    async def _end_item(self, end: Callable[[], None]) -> None:
        await self._feed(self._input.flush)
        end()
        self._input.reset()
        self._changed.set()
        await self._tell()

    async def finish(self) -> None:
        """End the audio, and wait until every item is completed."""
        await self._feed(self._input.flush)
        self.session.finish()
        self._changed.set()
        await self._running
        if self._speakers is not None:
            events = await self._speakers.finish()
            async with self._sending:
                await self._send(events)

    async def close(self) -> None:
        """Cancel all passes, free their rows, and drop the audio."""
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._speakers is not None:
            await self._speakers.close()

    async def _change_speakers(self, settings: LiveSettings) -> None:
        """Start or stop diarization. Raises InvalidParameter after the first audio."""
        about = _about_speakers(settings)
        if about == self._about_speakers:
            return
        speakers: LiveSpeakers | None = None
        if settings.speakers:
            if self.session.seconds > 0:
                text = "must be set, with known ones and their threshold, before the first audio"
                raise InvalidParameter(text, "speakers")
            finder = await self._open_speakers(
                settings.known_speakers, settings.known_speaker_threshold
            )
            speakers = LiveSpeakers(finder, self._recogniser, self._workers, self._tell)
        if self._speakers is not None:
            await self._speakers.close()
        self._speakers, self._about_speakers = speakers, about

    async def _feed(self, read: Callable[[], Detected]) -> None:
        """Call `read` in a worker thread, and feed its result to the session."""
        if self._running.done():
            self._running.result()  # raises the exception that ended it
        loop = asyncio.get_running_loop()
        samples, turns, silent_for = await loop.run_in_executor(self._workers, read)
        if self._speakers is not None:
            self._speakers.push(samples)
        self.session.feed(samples, turns, silent_for)
        self._changed.set()
        await self._tell()

    async def _tell(self) -> None:
        async with self._sending:
            events = self.session.take_events()
            if self._speakers is not None:
                events = self._speakers.with_speakers(events)
            if events:
                await self._send(events)

    async def _run(self) -> None:
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
        """Decode a pass, and free its rows even if it fails. Raises EndpointError."""
        transcriber = self._recogniser.transcriber

        def start() -> LivePass | Transcription:
            if wanted.before is not None:
                samples, options = wanted.samples, wanted.options
                return run_steps(transcriber.start(samples, options, prior=wanted.before))
            return transcriber.live_pass(
                wanted.samples, wanted.options, wanted.prefix, wanted.draft
            )

        begun = await asyncio.get_running_loop().run_in_executor(self._workers, start)
        if isinstance(begun, LivePass):
            return await _result(self._recogniser.submit(begun))
        return await _result(self._recogniser.submit(begun))


async def _result(job: EngineJob[T]) -> T:
    try:
        return await asyncio.wrap_future(job.result)
    finally:
        job.cancel()


def _about_speakers(settings: LiveSettings) -> tuple[object, ...]:
    """Return the settings that may not change after the first audio."""
    return settings.speakers, settings.known_speakers, settings.known_speaker_threshold
