"""From the environment to an endpoint: models load in the thread that will compute with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf

import torch

from asr import (
    DEFAULT_LIMITS,
    Checkpoint,
    Limits,
    Recogniser,
    Transcriber,
    load_whisper,
    start_transcriber,
    with_assistant,
)
from audio import sandbox
from audio.decode import AudioLimits
from config import ModelReference, ModelSettings, misspelt_variables, nvidia_device_present
from diarization.diarizer import Diarizer
from diarization.loading import load_diarizer
from endpoint import Endpoint
from errors import EndpointError, StartError
from runtime.device import choose_device, choose_dtype, prepare_device
from runtime.device_errors import is_device_lost
from runtime.error_edge import causes
from runtime.model_errors import loading
from runtime.restart import restart_without_graphs
from runtime.server_logs import hide_bodies, keep_one_line
from runtime.versions import describe_versions

logger = logging.getLogger("endpoint")


def load_endpoint(
    settings: ModelSettings | None = None,
    serves: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    max_decoded_bytes: float = inf,
) -> Endpoint:
    """The endpoint on the models that `settings`, by default the environment, name.

    `limits` are the scheduler's; `max_decoded_bytes` is `Endpoint`'s. Ends the process
    where it cannot serve: SystemExit, which prints one line and passes through the servers.
    Where the device is lost meanwhile, a process that `serves` begins again without CUDA graphs
    (`runtime.restart`).
    """
    hide_bodies()
    try:
        settings = settings or _environment_settings()
        return _load(settings, limits, max_decoded_bytes)
    except StartError as error:
        lost = any(is_device_lost(cause) for cause in causes(error))
        if lost and serves and settings is not None and settings.cuda_graphs:
            restart_without_graphs(str(error))
        keep_one_line(str(error))
        raise SystemExit(str(error)) from error


def _load(settings: ModelSettings, limits: Limits, max_decoded_bytes: float) -> Endpoint:
    started = time.perf_counter()
    logger.info(describe_versions())
    for line in misspelt_variables(ModelSettings):
        logger.warning(line)
    device = choose_device(settings.device, nvidia_device_present())
    dtype = choose_dtype(settings.dtype, device)
    prepare_device(device)
    threads = torch.get_num_threads()
    sandbox.start()
    logger.info("loading %s", ", ".join(model.name for model in settings.models))
    recogniser = Recogniser(partial(_load_whisper, settings, device, dtype, limits), threads)
    try:
        diarizer = recogniser.run(partial(_load_diarizer, settings, device))
    except Exception:
        recogniser.close()  # the error may be kept, and holds on to it
        raise
    seconds = time.perf_counter() - started
    logger.info(
        "models ready on %s in %s after %.1f s",
        device.type,
        str(dtype).removeprefix("torch."),
        seconds,
    )
    audio = AudioLimits(settings.max_audio_seconds, settings.max_audio_bytes)
    return Endpoint(recogniser, diarizer, audio, device, threads, max_decoded_bytes)


def _load_whisper(
    settings: ModelSettings, device: torch.device, dtype: torch.dtype, limits: Limits
) -> Transcriber:
    asr, assistant = settings.asr_model, settings.assistant_model
    with loading("ASR_MODEL", asr.name):
        models = load_whisper(_checkpoint(asr, settings), device, dtype)
    if assistant is not None:
        with loading("ASSISTANT_MODEL", assistant.name):
            models = with_assistant(models, _checkpoint(assistant, settings))
    with _start_errors():
        return start_transcriber(models, settings.cuda_graphs, limits)


def _load_diarizer(settings: ModelSettings, device: torch.device) -> Diarizer | None:
    pipeline = settings.diarization_model
    if pipeline is None:
        return None
    with loading("DIARIZATION_MODEL", pipeline.name):
        return load_diarizer(pipeline.name, pipeline.revision, settings.token, device)


def _environment_settings() -> ModelSettings:
    try:
        return ModelSettings.from_environment()
    except ValueError as error:
        raise StartError(str(error)) from error


def _checkpoint(model: ModelReference, settings: ModelSettings) -> Checkpoint:
    return Checkpoint(model.name, model.revision, settings.token)


@contextmanager
def _start_errors() -> Iterator[None]:
    """Say in one line what keeps the loaded models from running."""
    try:
        yield
    except EndpointError as error:
        raise StartError(str(error)) from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise StartError(f"the models do not run: {type(error).__name__}: {reason}") from error
