"""Loads the models to check, named by the environment, like the endpoint, and the conversation
that they transcribe.

It loads no diarizer, because a rented GPU machine may lack pyannote.
"""

import gc
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from config import REPOSITORY, ModelReference, ModelSettings
from tests.support.audio_files import conversation
from whosaid.asr import Checkpoint, Transcriber, TranscriptionOptions, load_whisper, with_assistant
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.runtime.errors import loading
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
LANGUAGE = "en"

Samples = NDArray[np.float32]


def lasting(samples: Samples, seconds: float) -> Samples:
    """Return samples, repeated or cut to last so many seconds."""
    return np.resize(samples, round(seconds * SAMPLE_RATE))


@dataclass
class Subject:
    """Models on a device, and the recording that they transcribe; `load` sets `transcriber`."""

    settings: ModelSettings
    device: torch.device
    dtype: torch.dtype
    quick: bool
    recording: Samples = field(default_factory=conversation)
    load_seconds: float = 0.0
    transcriber: Transcriber = field(init=False)

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def engine(self) -> DecodeEngine:
        return self.transcriber.engine

    @property
    def graphs(self) -> CudaGraphRunner | None:
        """Return the runner of CUDA graphs; None on a CPU or if they are off."""
        runner = self.engine.runner
        return runner if isinstance(runner, CudaGraphRunner) and runner.enabled else None

    @property
    def assisted(self) -> bool:
        return self.settings.assistant_model is not None

    def load(self) -> None:
        """Load the models and capture graphs, as the endpoint does at start."""
        started = time.perf_counter()
        models = load_models(self.settings, self.device, self.dtype)
        self.transcriber = Transcriber(models, cuda_graphs=self.settings.cuda_graphs)
        self.load_seconds = time.perf_counter() - started

    def reference(self) -> DecodeEngine:
        """Return an engine of the main model alone, in float32 on the CPU."""
        settings = self.settings.model_copy(update={"assistant_model": None})
        return DecodeEngine(load_models(settings, torch.device("cpu"), torch.float32))

    def transcribe(self, recording: Samples, batch_size: int, assisted: bool) -> Transcript:
        """Transcribe samples with timestamps, in English."""
        decode = DecodeOptions(batch_size=batch_size, assisted=assisted)
        options = self.transcriber.validate(TranscriptionOptions(language=LANGUAGE, decode=decode))
        return self.transcriber.transcribe(recording, options)

    def windows(self) -> list[Request]:
        """Return the conversation's windows that can be decoded at once, each cut at pauses."""
        transcriber, samples = self.transcriber, self.recording
        limit = int(transcriber.models.window_seconds * SAMPLE_RATE)
        schedule = Schedule(samples, transcriber.detect_speech(samples), limit)
        prompt = transcriber.models.special_tokens.prompt(LANGUAGE, "transcribe", True)
        return [
            Request(number, schedule.samples(window), prompt)
            for number, window in enumerate(schedule.ready())
        ]


def load_models(settings: ModelSettings, device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """Return the main model and its assistant. Raises StartError naming the variable of one that
    fails.
    """
    with loading("ASR_MODEL", settings.asr_model.name):
        models = load_whisper(_checkpoint(settings.asr_model, settings), device, dtype)
    if settings.assistant_model is not None:
        with loading("ASSISTANT_MODEL", settings.assistant_model.name):
            models = with_assistant(models, _checkpoint(settings.assistant_model, settings))
    gc.collect()
    return models


def _checkpoint(model: ModelReference, settings: ModelSettings) -> Checkpoint:
    return Checkpoint(model.name, model.revision, settings.token)
