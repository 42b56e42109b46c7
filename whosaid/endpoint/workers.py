"""The models and threads that the requests of all clients share.

One engine thread decodes the windows of all requests together, and one thread diarizes. A few
preparation threads, without OpenMP threads of their own, decode audio, find speech and assemble
answers. Every queue serves short recordings first, by seconds of audio
(`scheduling.shortest_first`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

import torch

from config import InferenceConfig
from whosaid.asr import EngineCounts, EngineThread, Recogniser, Transcriber
from whosaid.audio.decode import AudioLimits
from whosaid.diarization.diarizer import Diarizer
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.diarization.thread import DiarizationClient, DiarizationThread
from whosaid.runtime.device import set_threads
from whosaid.runtime.errors import endpoint_errors
from whosaid.runtime.on_demand import OnDemand
from whosaid.scheduling.shortest_first import QueuedAudio, ShortestFirst

# Processors for each preparation thread: the other processors compute.
PROCESSORS_PER_THREAD = 4
# An unopened file counts as 16-bit samples at 16 kHz: the first step, which opens it, is short.
GUESSED_BYTES_PER_SECOND = 32_000

T = TypeVar("T")


@dataclass
class Models:
    """The models that answer requests; `diarizer` is None if no diarization model is named."""

    recogniser: Recogniser
    diarizer: Diarizer | None

    @classmethod
    def load(
        cls,
        asr: Callable[[], Transcriber],
        diarization: Callable[[], Diarizer | None],
        threads: int,
        counts: EngineCounts,
        thread: EngineThread,
    ) -> Self:
        """Load both in the engine's thread: OpenMP keeps threads for each calling thread."""
        try:
            recogniser = Recogniser(asr, threads, counts, thread)
            try:
                return cls(recogniser, recogniser.run(diarization))
            except Exception:
                recogniser.close()
                raise
        except BaseException:  # of a signal, too, which does not wait for the load
            thread.end()
            raise

    def close(self) -> None:
        self.recogniser.close()


class Workers:
    """The models, and the threads beside the engine's, for the steps of all requests.

    `limits` apply to each audio file, `max_decoded_bytes` (approximately) to the samples of all
    requests together. Diarization on `device` uses `threads` OpenMP threads; the number of
    preparation threads follows from `threads`.
    """

    def __init__(
        self,
        models: OnDemand[Models],
        limits: AudioLimits,
        device: torch.device,
        threads: int,
        max_decoded_bytes: float = inf,
    ) -> None:
        self.on_demand, self.limits = models, limits
        begin, count = partial(set_threads, 1), max(1, threads // PROCESSORS_PER_THREAD)
        self.preparation = ShortestFirst("preparation", count, max_decoded_bytes, begin)
        self.diarization = DiarizationThread(threads, device)

    @property
    def models(self) -> Models:
        return self.on_demand.in_use

    def shutdown(self) -> None:
        self.preparation.shutdown()
        self.diarization.shutdown()

    async def prepare(
        self, recording: QueuedAudio, steps: Coroutine[Any, None, T], decodes: bool = False
    ) -> T:
        """Run `steps` in a preparation thread and return their result. Raises EndpointError."""
        with endpoint_errors():
            return await asyncio.wrap_future(self.preparation.submit(recording, steps, decodes))

    async def enrol(self, speakers: DiarizationClient, config: InferenceConfig) -> KnownVoices:
        """Embed the voices of a request's reference clips, each queued as a recording of its own.
        Returns the names without voices if the request is not diarized.
        """
        clips, find_speech = config.known_speakers, self.models.recogniser.transcriber.find_speech
        enrolment = speakers.enrolment(find_speech, self.limits, config.sampling_rate)
        if enrolment is None or not clips:
            return KnownVoices({clip.name: () for clip in clips})
        for clip in clips:
            if clip.voice is not None:
                enrolment.enrol_voice(clip.name, clip.voice)
                continue
            guess = len(clip.reference) / GUESSED_BYTES_PER_SECOND
            with self.preparation.recording(guess) as recording:
                samples = await self.prepare(recording, enrolment.decode(clip), decodes=True)
                await speakers.enrol(enrolment, recording, clip.name, samples)
        return enrolment.known
