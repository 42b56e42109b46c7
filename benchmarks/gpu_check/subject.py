"""Loads the models to check, named by the environment, like the endpoint.

It uses the endpoint's classes, but not `handler.py`, because that needs pyannote, which a rented
GPU machine may lack.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.gpu_check.recording import Samples
from config import DEMO_MODELS, REPOSITORY, ModelReference, ModelSettings
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

BATCH = 8  # of transcripts
ENGLISH = "en"


@dataclass
class Subject:
    """Models on a device, and the recording that they transcribe.

    `allocated_before` are the device's bytes before `load`, which sets `transcriber`.
    """

    settings: ModelSettings
    device: torch.device
    dtype: torch.dtype
    quick: bool
    recording: Samples = field(default_factory=conversation)
    load_seconds: float = 0.0
    allocated_before: int = 0
    transcriber: Transcriber = field(init=False)

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def graphs(self) -> CudaGraphRunner | None:
        """Return the runner of CUDA graphs; None on a CPU or if they are off."""
        runner = self.transcriber.engine.runner
        return runner if isinstance(runner, CudaGraphRunner) and runner.enabled else None

    @property
    def assisted(self) -> bool:
        return self.settings.assistant_model is not None

    @property
    def is_demo(self) -> bool:
        return Path(self.settings.asr_model.name).is_relative_to(DEMO_MODELS)

    def load(self) -> None:
        """Load the models and capture graphs, as the endpoint does at start."""
        if self.on_cuda:
            self.allocated_before = torch.cuda.memory_allocated(self.device)
        started = time.perf_counter()
        models = load_models(self.settings, self.device, self.dtype)
        self.transcriber = Transcriber(models, cuda_graphs=self.settings.cuda_graphs)
        self.load_seconds = time.perf_counter() - started

    def reference(self) -> DecodeEngine:
        """Return an engine of the main model alone, in float32 on the CPU."""
        settings = self.settings.model_copy(update={"assistant_model": None})
        return DecodeEngine(load_models(settings, torch.device("cpu"), torch.float32))

    def transcribe(self, recording: Samples, batch_size: int, assisted: bool) -> Transcript:
        """Transcribe samples with timestamps, in English if the model knows it."""
        decode = DecodeOptions(batch_size=batch_size, assisted=assisted)
        language = language_of(self.transcriber.models)
        options = self.transcriber.validate(TranscriptionOptions(language=language, decode=decode))
        return self.transcriber.transcribe(recording, options)

    def windows(self) -> list[Request]:
        """Return the conversation's windows that can be decoded at once, each cut at pauses."""
        transcriber, samples = self.transcriber, self.recording
        limit = int(transcriber.models.window_seconds * SAMPLE_RATE)
        schedule = Schedule(samples, transcriber.detect_speech(samples), limit)
        special_tokens = transcriber.models.special_tokens
        prompt = special_tokens.prompt(language_of(transcriber.models), "transcribe", True)
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


def language_of(models: WhisperModels) -> str | None:
    """Return English if the model knows it, else its first language; None if it names none."""
    languages = models.special_tokens.languages
    if not languages or ENGLISH in languages:
        return ENGLISH
    return next(iter(languages))


def model_name(model: ModelReference | None) -> str:
    """Return a hub id, or a folder, relative to this repository if it is inside."""
    return str(model or "none").removeprefix(f"{REPOSITORY}/")


def _checkpoint(model: ModelReference, settings: ModelSettings) -> Checkpoint:
    return Checkpoint(model.name, model.revision, settings.token)
