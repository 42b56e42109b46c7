"""Entry point of Hugging Face's containers (`custom` task): transcribes speech, with speakers.

Environment variables name the models (`config.ModelSettings`): a Whisper that transcribes, a
smaller one that drafts for it, and a diarization model. A request has `inputs`, the audio in
base64, and `parameters`, which override the defaults of `config.InferenceConfig`.
"""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

# hf-serve imports this file by its path and leaves the repository off the import path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from config import ModelSettings
from whosaid.runtime import modules_that_stay
from whosaid.runtime.event_loop import EventLoopThread

with modules_that_stay():
    import psutil
    import torch

    from whosaid.answer.response import response
    from whosaid.asr import (
        DEFAULT_LIMITS,
        EngineCounts,
        EngineThread,
        Limits,
        Transcriber,
        load_whisper,
        start_transcriber,
        with_assistant,
    )
    from whosaid.audio import sandbox
    from whosaid.audio.decode import AudioLimits
    from whosaid.diarization import import_ahead, load_diarizer
    from whosaid.diarization.diarizer import Diarizer
    from whosaid.endpoint import Decoded, Endpoint, Event, Finished, Models, Workers
    from whosaid.endpoint.loading import (
        adapted,
        checkpoint,
        exit_on_failure,
        read_settings,
        request_errors,
        timed,
    )
    from whosaid.endpoint.request import TranscriptionRequest
    from whosaid.runtime.device import (
        choose_device,
        choose_dtype,
        prepare_device,
        warn_if_memory_is_short,
    )
    from whosaid.runtime.errors import loading
    from whosaid.runtime.on_demand import OnDemand

logger = logging.getLogger("endpoint")


class TranscriptionEndpoint(Endpoint):
    """Runs the steps of every request, for the handler and the server."""

    async def stream(self, request: TranscriptionRequest) -> AsyncGenerator[Event]:
        with self.steps(request) as steps:
            await steps.enrol()  # reference clips of known speakers
            # File -> samples at 16 kHz -> speaker turns, in the diarization thread
            yield Decoded(await steps.decode(), not steps.decoded)
            async for progress in steps.recognise():  # speech -> windows -> tokens -> words
                yield progress
            async for share in steps.find_speakers():  # which the other thread has begun to find
                yield share
            await steps.decode_overlaps()  # once for each speaker, if several talk at once
            yield Finished(await steps.attribute())  # words -> speakers (diarization_utils)


class EndpointHandler:
    """Answers requests from any number of threads; the engine batches their windows together."""

    def __init__(
        self, path: str = "", settings: ModelSettings | None = None, serves: bool = True
    ) -> None:
        """Load the models; `load_endpoint` describes `settings` and `serves`. `path` is unused."""
        self.endpoint = load_endpoint(settings, serves)
        self._event_loop = EventLoopThread("endpoint")

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answer one request body with text, timed chunks and speaker segments.

        Raises only ClientError (the servers answer 400) and ServerError (500).
        """
        return self._event_loop.run(respond(self.endpoint, data))

    def parse(self, data: object) -> TranscriptionRequest:
        """Validate a request body without answering it. Raises ClientError."""
        return self.endpoint.parse(data)


async def respond(endpoint: Endpoint, data: object) -> dict[str, Any]:
    """Return the JSON object that answers a body, `{"inputs": ..., "parameters": {...}}`.

    Raises ClientError or ServerError. Cancelling frees the request's rows of the batch.
    """
    began = time.perf_counter()
    with request_errors(endpoint):
        async with endpoint.use_models():  # loads them again, if they were idle
            request = await asyncio.to_thread(endpoint.parse, data)
            answer = await endpoint.answer(request)
        seconds = time.perf_counter() - began
        logger.info("%.1f s of audio answered in %.2f s", answer.duration, seconds)
        return await asyncio.to_thread(response, answer, request.config)


def load_endpoint(
    settings: ModelSettings | None = None,
    serves: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    max_decoded_bytes: float = inf,
) -> TranscriptionEndpoint:
    """Load the models in `settings`, by default those in the environment.

    `limits` bound the batch; `max_decoded_bytes` bounds the decoded audio of all requests. Raises
    SystemExit with one line if a model cannot be loaded. If the device is lost, a process that
    `serves` restarts without CUDA graphs (`runtime.servers`).
    """
    settings = settings or read_settings()
    seconds = {"start": time.time() - psutil.Process().create_time()}
    with exit_on_failure(settings, serves):
        device = choose_device(settings.device)
        dtype = choose_dtype(settings.dtype, device)
        prepare_device(device)
        sandbox.start()  # the confined process that decodes untrusted audio
        if settings.diarization_model is not None:
            import_ahead()  # after the fork, because a thread imports
        threads = torch.get_num_threads()
        asr = timed(partial(load_asr, settings, device, dtype, limits), "asr", seconds)
        diarization = timed(partial(load_diarization, settings, device), "diarization", seconds)
        thread = EngineThread()
        load = partial(Models.load, asr, diarization, threads, EngineCounts(), thread)
        models = OnDemand(load(), load, Models.close, settings.idle_unload_seconds, thread.close)
        audio = AudioLimits(settings.max_audio_seconds, settings.max_audio_bytes)
        endpoint = TranscriptionEndpoint(Workers(models, audio, device, threads, max_decoded_bytes))
    sandbox.log_layers()
    phases = ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items())
    precision = str(dtype).removeprefix("torch.")
    logger.info("models ready on %s in %s after %s", device.type, precision, phases)
    endpoint.load_seconds = seconds
    return endpoint


def load_asr(
    settings: ModelSettings, device: torch.device, dtype: torch.dtype, limits: Limits
) -> Transcriber:
    asr, assistant = settings.asr_model, settings.assistant_model
    with loading("ASR_MODEL", asr.name):
        models = load_whisper(checkpoint(asr, settings), device, dtype)
    models = adapted(models, settings)  # to follow one speaker of several, if there are weights
    if assistant is not None:
        with loading("ASSISTANT_MODEL", assistant.name):
            models = with_assistant(models, checkpoint(assistant, settings))
    return start_transcriber(models, settings.cuda_graphs, limits)


def load_diarization(settings: ModelSettings, device: torch.device) -> Diarizer | None:
    if (model := settings.diarization_model) is None:
        return None
    with loading("DIARIZATION_MODEL", model.name):
        diarizer = load_diarizer(model.name, model.revision, settings.token, device)
    warn_if_memory_is_short(device)
    return diarizer
