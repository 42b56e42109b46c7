"""Answers the requests of many clients with one set of models, for the handler and the server."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager

from config import InferenceConfig
from whosaid.answer.response import Answer
from whosaid.asr import Recogniser, Transcriber
from whosaid.diarization.diarizer import Diarizer
from whosaid.diarization.thread import DiarizationClient, SessionSpeakers
from whosaid.endpoint.events import Event, answer_of
from whosaid.endpoint.request import (
    Inputs,
    TranscriptionRequest,
    Upload,
    read_body,
    unused_wishes,
    wanted_speakers,
    wanted_transcription,
)
from whosaid.endpoint.request_steps import RequestSteps
from whosaid.endpoint.workers import Models, Workers
from whosaid.errors import Unsupported
from whosaid.payload.parameters import ReferenceClip
from whosaid.runtime.on_demand import OnDemand


class Endpoint(ABC):
    """Answers requests of many clients; a subclass puts the steps of a request in order.

    Everything that needs the models, from the validation of a request on, runs within
    `use_models`, unless the models of the `workers` stay in memory.
    """

    def __init__(self, workers: Workers) -> None:
        self.workers, self.limits, self._models = workers, workers.limits, workers.on_demand
        self.counts = self.recogniser.counts  # since the start, of all engines
        self.load_seconds: dict[str, float] = {}  # of the latest load, by part
        self.outstanding = 0  # accepted requests that are not answered
        if self.diarizer is not None:
            workers.diarization.warm_up(self.diarizer)
        # The engine's thread holds the models. It ends with an endpoint that nobody closed, too.
        weakref.finalize(self, _stop, self._models).atexit = False

    def use_models(self) -> AbstractAsyncContextManager[Models]:
        """Hold the models in memory during the block; load them first if they are not."""
        return self._models.use()

    @property
    def idle(self) -> bool:
        return self._models.current is None

    @property
    def alive(self) -> bool:
        """Return whether requests can be answered, perhaps after the models have loaded."""
        models = self._models.current
        return models is None or models.recogniser.alive

    @property
    def failure(self) -> BaseException | None:
        """Return the error that stopped the engine for good; None while requests are answered."""
        models = self._models.current
        return None if models is None else models.recogniser.failure

    @property
    def recogniser(self) -> Recogniser:
        return self.models.recogniser

    @property
    def transcriber(self) -> Transcriber:
        return self.recogniser.transcriber

    @property
    def diarizer(self) -> Diarizer | None:
        return self.models.diarizer

    @property
    def models(self) -> Models:
        return self._models.in_use

    @property
    def held_audio_bytes(self) -> int:
        return self.workers.preparation.held_bytes

    def close(self) -> None:
        """End the threads; requests that still run fail."""
        self._models.close()
        self.workers.shutdown()

    def parse(self, data: object, as_text: bool = False) -> TranscriptionRequest:
        """Check a body, a dict of `inputs` and `parameters`, which `as_text` are text of a query
        string or form. Raises InvalidRequest, InvalidParameter or Unsupported.
        """
        return self.request_of(*read_body(data, as_text))

    def request_of(
        self, inputs: Sequence[Inputs], config: InferenceConfig, warnings: tuple[str, ...] = ()
    ) -> TranscriptionRequest:
        """Return the request with checked options; `warnings` go before its own warnings.

        Raises InvalidParameter or Unsupported.
        """
        can = None if self.diarizer is None else self.diarizer.capabilities
        speakers = wanted_speakers(config, can)
        wanted = wanted_transcription(config, by_speaker=config.separate or speakers is not None)
        options = self.transcriber.validate(wanted)
        warnings += unused_wishes(config, can)
        return TranscriptionRequest(Upload(inputs), config, options, speakers, warnings)

    async def answer(self, request: TranscriptionRequest) -> Answer:
        """Return the answer. Raises EndpointError. Cancelling the task frees the request's rows."""
        return await answer_of(self.stream(request))

    @abstractmethod
    def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        """Yield Decoded, any number of Transcribed, of Diarized, and Finished.

        Raises EndpointError. Closing the iterator frees the request's rows.
        """

    @contextmanager
    def steps(self, request: TranscriptionRequest) -> Iterator[RequestSteps]:
        """Yield the request's steps; the end of the block frees its rows, samples and turns."""
        self.outstanding += 1
        try:
            with ExitStack() as resources:
                yield RequestSteps(self.workers, request, resources)
        finally:
            self.outstanding -= 1

    async def session_speakers(
        self, clips: Sequence[ReferenceClip], threshold: float | None
    ) -> SessionSpeakers:
        """Return a live session's diarization, which names the speakers of `clips` by `threshold`.
        Raises Unsupported, InvalidReference, and the errors of `Diarizer.diarize`.
        """
        if self.diarizer is None:
            raise Unsupported("no diarization model is loaded", "speakers")
        can = self.diarizer.capabilities
        config = InferenceConfig(known_speakers=[*clips], known_speaker_threshold=threshold)
        client = DiarizationClient(self.workers.diarization, self.diarizer)
        known = await self.workers.enrol(client, config)
        # A stream has no voices: known speakers are named at the session's end.
        stream = self.diarizer.stream() if can.streams and not clips else None
        return SessionSpeakers(client, known, threshold, stream, unused_wishes(config, can))


def _stop(models: OnDemand[Models]) -> None:
    if models.current is not None:
        models.current.recogniser.stop()
