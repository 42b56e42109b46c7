"""The entry point of Hugging Face's containers: speech to text with speakers, for a `custom` task.

Three models make the endpoint, each named by an environment variable (`config.ModelSettings`):
Whisper transcribes (ASR_MODEL), a smaller Whisper drafts for it (ASSISTANT_MODEL, speculative
decoding), and a diarizer finds the speakers (DIARIZATION_MODEL). A request is `inputs`, the audio
in base64, and `parameters`, which replace the defaults of `config.InferenceConfig`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

# hf-serve imports this file by its path and leaves the repository off the import path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from config import ModelSettings
from runtime import modules_that_stay
from runtime.environment import nvidia_device_present
from runtime.event_loop import EventLoopThread

with modules_that_stay():
    import torch

    from answer.response import response
    from asr import (
        DEFAULT_LIMITS,
        Limits,
        Recogniser,
        Transcriber,
        load_whisper,
        start_transcriber,
        with_assistant,
    )
    from audio import sandbox
    from audio.decode import AudioLimits
    from diarization import load_diarizer
    from endpoint import Endpoint
    from loading import checkpoint, exit_on_failure, read_settings, request_errors
    from runtime.device import choose_device, choose_dtype, prepare_device
    from runtime.errors import loading

if TYPE_CHECKING:
    from diarization.diarizer import Diarizer
    from transcription_request import TranscriptionRequest

logger = logging.getLogger("endpoint")


class EndpointHandler:
    """Answers requests of any number of threads; their windows share the batch of the engine."""

    def __init__(
        self, path: str = "", settings: ModelSettings | None = None, serves: bool = True
    ) -> None:
        """Load the models of `settings`, by default those of the environment.

        `path`, the server's copy of this repository, is unused. `serves`: see `load_endpoint`.
        """
        self.endpoint = load_endpoint(settings, serves)
        self._event_loop = EventLoopThread("endpoint")

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answer one request body with text, timed chunks and speaker segments.

        Raises ClientError, for which the servers answer 400, or ServerError (500), and no other.
        """
        return self._event_loop.run(respond(self.endpoint, data))

    def parse(self, data: object) -> TranscriptionRequest:
        """Validate a request body without answering it. Raises ClientError."""
        return self.endpoint.parse(data)


async def respond(endpoint: Endpoint, data: object) -> dict[str, Any]:
    """Answer a request body, `{"inputs": ..., "parameters": {...}}`, with JSON values.

    Raises ClientError or ServerError. Cancelling frees the rows of the request.
    """
    began = time.perf_counter()
    with request_errors(endpoint):
        request = await asyncio.to_thread(endpoint.parse, data)
        with endpoint.call(request) as call:
            await call.enrol()  # reference clips of known speakers
            seconds = await call.decode()  # audio file -> samples at 16 kHz
            call.diarize()  # in the diarization thread, beside the next step
            async for _ in call.recognise():  # speech -> windows -> tokens -> words
                pass
            answer = await call.attribute()  # words -> speakers (diarization_utils)
        logger.info("%.1f s of audio answered in %.2f s", seconds, time.perf_counter() - began)
        return await asyncio.to_thread(response, answer, request.config)


def load_endpoint(
    settings: ModelSettings | None = None,
    serves: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    max_decoded_bytes: float = inf,
) -> Endpoint:
    """Load the models of `settings`, by default those of the environment.

    `limits` bound the batch, `max_decoded_bytes` the decoded audio of all requests. A failure ends
    the process by a SystemExit of one line. If the device is lost, a process that `serves` starts
    again without CUDA graphs (`runtime.restart`).
    """
    settings = settings or read_settings()
    began = time.perf_counter()
    with exit_on_failure(settings, serves), ExitStack() as undo:
        device = choose_device(settings.device, nvidia_device_present())
        dtype = choose_dtype(settings.dtype, device)
        prepare_device(device)
        sandbox.start()  # the confined process that decodes untrusted audio
        threads = torch.get_num_threads()
        # Each thread has OpenMP threads of its own, so models load in the thread that uses them.
        recogniser = Recogniser(partial(load_asr, settings, device, dtype, limits), threads)
        undo.callback(recogniser.close)
        diarizer = recogniser.run(partial(load_diarization, settings, device))
        undo.pop_all()
    seconds, precision = time.perf_counter() - began, str(dtype).removeprefix("torch.")
    logger.info("models ready on %s in %s after %.1f s", device.type, precision, seconds)
    audio = AudioLimits(settings.max_audio_seconds, settings.max_audio_bytes)
    return Endpoint(recogniser, diarizer, audio, device, threads, max_decoded_bytes)


def load_asr(
    settings: ModelSettings, device: torch.device, dtype: torch.dtype, limits: Limits
) -> Transcriber:
    """Whisper, with the assistant that drafts for it, if one is named."""
    asr, assistant = settings.asr_model, settings.assistant_model
    with loading("ASR_MODEL", asr.name):
        models = load_whisper(checkpoint(asr, settings), device, dtype)
    if assistant is not None:
        with loading("ASSISTANT_MODEL", assistant.name):
            models = with_assistant(models, checkpoint(assistant, settings))
    return start_transcriber(models, settings.cuda_graphs, limits)


def load_diarization(settings: ModelSettings, device: torch.device) -> Diarizer | None:
    """The diarization pipeline, if one is named."""
    model = settings.diarization_model
    if model is None:
        return None
    with loading("DIARIZATION_MODEL", model.name):
        return load_diarizer(model.name, model.revision, settings.token, device)
