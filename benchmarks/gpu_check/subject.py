"""The models that are checked: those that the environment names, loaded as the endpoint loads them.

The endpoint's own classes are used, but not `handler.py`, which needs pyannote; a rented GPU
machine may lack it.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.gpu_check.recording import Recording, read_conversation
from config import DEMO_MODELS, REPOSITORY, ModelReference, ModelSettings
from whosaid.asr import Checkpoint, Transcriber, TranscriptionOptions, load_whisper, with_assistant
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, DecodeResult, Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.vad import DetectSpeech, SpeechDetector
from whosaid.runtime.errors import loading
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

BATCH, LARGE_BATCH = 8, 24  # of transcripts, and of windows decoded for comparison
ENGLISH = "en"

Texts = dict[int, DecodeResult]


class LogRecords(logging.Handler):
    """Keeps what the endpoint logs as warnings or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def log_kept() -> Iterator[LogRecords]:
    """Collect the endpoint's warnings while the block runs."""
    logger, records = logging.getLogger("endpoint"), LogRecords()
    logger.addHandler(records)
    try:
        yield records
    finally:
        logger.removeHandler(records)


@dataclass
class Subject:
    """Models on a device, and the recording that they transcribe.

    `allocated_before` are the device's bytes before `load`. `transcriber` raises RuntimeError if
    the models did not load.
    """

    settings: ModelSettings
    device: torch.device
    dtype: torch.dtype
    quick: bool
    recording: Recording = field(default_factory=read_conversation)
    detect_speech: DetectSpeech = field(default_factory=SpeechDetector)
    load_seconds: float = 0.0
    allocated_before: int = 0
    _transcriber: Transcriber | None = None

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def transcriber(self) -> Transcriber:
        if self._transcriber is None:
            raise RuntimeError("the models are not loaded")
        return self._transcriber

    @property
    def loaded(self) -> bool:
        return self._transcriber is not None

    @property
    def graphs(self) -> CudaGraphRunner | None:
        """The runner of CUDA graphs while they are on; None on a CPU and where they are off."""
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
        self._transcriber = Transcriber(
            models, detect_speech=self.detect_speech, cuda_graphs=self.settings.cuda_graphs
        )
        self.load_seconds = time.perf_counter() - started

    def reference(self) -> DecodeEngine:
        """Return an engine of the main model alone, in float32 on the CPU."""
        settings = self.settings.model_copy(update={"assistant_model": None})
        return DecodeEngine(load_models(settings, torch.device("cpu"), torch.float32))

    def transcribe(self, recording: Recording, batch_size: int, assisted: bool) -> Transcript:
        """Transcribe a recording with timestamps, in English if the model knows it."""
        decode = DecodeOptions(batch_size=batch_size, assisted=assisted)
        language = language_of(self.transcriber.models)
        options = self.transcriber.validate(TranscriptionOptions(language=language, decode=decode))
        return self.transcriber.transcribe(recording.samples, options)

    def windows(self) -> list[Request]:
        """Return the conversation's windows that can be decoded at once, each cut at pauses."""
        transcriber, samples = self.transcriber, self.recording.samples
        limit = int(transcriber.models.window_seconds * SAMPLE_RATE)
        schedule = Schedule(samples, transcriber.detect_speech(samples), limit)
        special_tokens = transcriber.models.special_tokens
        prompt = special_tokens.prompt(language_of(transcriber.models), "transcribe", True)
        return [
            Request(number, schedule.samples(window), prompt)
            for number, window in enumerate(schedule.ready())
        ]


def decode(
    engine: DecodeEngine,
    windows: Sequence[Request],
    drafts: int,
    options: DecodeOptions | None = None,
) -> Texts:
    """Return an engine's results for windows, by number.

    Without `options` it decodes greedily with `drafts` drafts a step.
    """
    if options is None:
        options = DecodeOptions(batch_size=LARGE_BATCH, assisted=drafts > 0, drafts=drafts)
    results: Texts = {}
    with engine.session(options) as session:
        session.add(list(windows))
        while not session.done:
            results |= {request.key: result for request, result in session.step()}
    return results


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
    if model is None:
        return "none"
    path = Path(model.name)
    if path.is_relative_to(REPOSITORY):
        return path.relative_to(REPOSITORY).as_posix()
    return model.name if model.revision is None else f"{model.name}@{model.revision}"


def _checkpoint(model: ModelReference, settings: ModelSettings) -> Checkpoint:
    return Checkpoint(model.name, model.revision, settings.token)
