"""The engines that are compared: this project, faster-whisper's two forms, transformers.

    ours   ours:num_beams=5   batched@int8:beam_size=5   sequential:vad_filter=true

An engine is a text, FORM[@PRECISION][:NAME=VALUE,...]. The names are what its users pass
(parameters of a request, arguments of faster-whisper's `transcribe`, generation options of
transformers), so any of their settings can be measured, new ones without a change here. Each is
called as its users call it, with a file, at its own defaults but for language, batch size and
beams.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import av

from benchmarks.apart import Apart
from benchmarks.options import BATCHED, FORMS, OURS, PIPELINE, SEQUENTIAL, SHORT
from benchmarks.real.manifest import Recording
from benchmarks.timing import reset_peak, resident_peak
from config import ModelSettings
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE

TEXT = re.compile(r"(?P<form>\w+)(@(?P<precision>\w+))?(:(?P<options>.+))?")
LIMITS = AudioLimits(max_seconds=24 * 3600.0, max_bytes=2**31)
CHUNK_SECONDS = 30
# The precisions that transformers has; at others it computes in float32.
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Spec:
    """An engine with its settings; `precision` is None if the run's is meant."""

    name: str
    form: str
    precision: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read an engine's text or a short name. Raises ValueError if it is neither."""
        name = text.strip()
        found = TEXT.fullmatch(SHORT.get(name, name))
        if found is None or found["form"] not in FORMS:
            known = ", ".join((*FORMS, *SHORT))
            raise ValueError(
                f"engine {name!r} is none of {known}, nor FORM[@PRECISION][:NAME=VALUE]"
            )
        options = {}
        for part in filter(None, re.split(r",(?=\w+=)", found["options"] or "")):
            key, equals, value = part.partition("=")
            if not equals:
                raise ValueError(f"engine {name!r}: {part} is not NAME=VALUE")
            options[key.strip()] = _value(value)
        return cls(name, found["form"], found["precision"], options)

    @property
    def beams(self) -> int:
        return int(self.options.get("num_beams", self.options.get("beam_size", 1)))


@dataclass(frozen=True)
class Setting:
    """The settings that all engines of a run share.

    `model` is a folder of transformers', `converted` the same weights for CTranslate2.
    """

    model: Path
    converted: Path
    device: str
    precision: str
    threads: int
    batch_size: int
    words: bool


class Engine(Protocol):
    """A loaded engine."""

    def transcribe(self, recording: Recording) -> str:
        """Return the text of a whole recording."""


class Ours:
    """The endpoint, sent a request with the file in base64."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        from handler import EndpointHandler

        settings = ModelSettings.for_models(str(setting.model))
        wanted = {"device": setting.device, "dtype": spec.precision or setting.precision}
        known = {
            name: value for name, value in wanted.items() if name in type(settings).model_fields
        }
        self.endpoint = EndpointHandler(settings=settings.model_copy(update=known))
        self.parameters = {"batch_size": setting.batch_size, "diarize": False, **spec.options}
        if setting.words:
            self.parameters["return_timestamps"] = "word"

    def transcribe(self, recording: Recording) -> str:
        """Return the answer's text. Raises ValueError if the endpoint knows no such parameter."""
        body = {
            "inputs": base64.b64encode(recording.audio.read_bytes()).decode(),
            "parameters": {**self.parameters, "language": recording.language},
        }
        answer = self.endpoint(body)
        for warning in answer["warnings"]:
            if warning.startswith("unknown"):
                raise ValueError(warning)
        return str(answer["text"])


class FasterWhisper:
    """faster-whisper's `BatchedInferencePipeline`, or with `batched` False its `WhisperModel`.

    Greedy unless its options say otherwise; its own default is five beams. It decodes files itself,
    to 16 bits: on some recordings that decides whether it loops.
    """

    def __init__(self, spec: Spec, setting: Setting) -> None:
        import faster_whisper.audio
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        faster_whisper.audio.av = _AnyAv()
        precision = spec.precision or setting.precision
        model = WhisperModel(
            str(setting.converted),
            device=setting.device,
            compute_type=precision,
            cpu_threads=setting.threads,
        )
        self.options = {"beam_size": 1, "word_timestamps": setting.words}
        self.engine: Any = model
        if spec.form == BATCHED:
            self.engine = BatchedInferencePipeline(model)
            self.options["batch_size"] = setting.batch_size
        self.options |= spec.options

    def transcribe(self, recording: Recording) -> str:
        """Return the text of all segments; what is sampled is seeded."""
        import ctranslate2

        ctranslate2.set_random_seed(0)
        file = str(recording.audio)
        segments, _ = self.engine.transcribe(file, language=recording.language, **self.options)
        return "".join(segment.text for segment in segments)


class _AnyAv:
    """PyAV as faster-whisper's decoder uses it, which names an argument that PyAV 19 dropped."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(av, name)

    def open(self, file: str, mode: Literal["r"], metadata_errors: str) -> Any:  # noqa: ANN401
        del metadata_errors
        return av.open(file, mode=mode)


class Pipeline:
    """transformers' pipeline as insanely-fast-whisper calls it: strided chunks of 30 s in batches.

    Greedy unless its options say otherwise. It gets samples from this project's decoder, in its own
    time; given a file it would want a program.
    """

    def __init__(self, spec: Spec, setting: Setting) -> None:
        import torch
        from transformers import AutomaticSpeechRecognitionPipeline

        from tests.support.transformers_models import in_transformers
        from whosaid.asr import Checkpoint, load_whisper

        named = spec.precision or setting.precision
        dtype = getattr(torch, named) if named in FLOATS else torch.float32
        models = load_whisper(Checkpoint(str(setting.model)), torch.device(setting.device), dtype)
        tokenizer: Any = models.tokenizer
        self.pipeline = AutomaticSpeechRecognitionPipeline(
            model=in_transformers(models.model),
            tokenizer=tokenizer,
            feature_extractor=models.feature_extractor,
            device=models.device,
        )
        self.batch_size = setting.batch_size
        self.timestamps = "word" if setting.words else True
        self.generate = {"task": "transcribe", "num_beams": 1, **spec.options}
        if not models.special_tokens.multilingual:
            del self.generate["task"]
        self.multilingual = models.special_tokens.multilingual

    def transcribe(self, recording: Recording) -> str:
        """Return the text of a whole recording."""
        language = {"language": recording.language} if self.multilingual else {}
        answer: Any = self.pipeline(
            {"raw": decoded(recording), "sampling_rate": SAMPLE_RATE},
            chunk_length_s=CHUNK_SECONDS,
            batch_size=self.batch_size,
            return_timestamps=self.timestamps,
            generate_kwargs={**self.generate, **language},
        )
        return str(answer["text"])


MAKERS: Mapping[str, Callable[[Spec, Setting], Engine]] = {
    OURS: Ours,
    BATCHED: FasterWhisper,
    SEQUENTIAL: FasterWhisper,
    PIPELINE: Pipeline,
}


# The engine of this process.
_loaded: list[Engine] = []


@dataclass(frozen=True)
class Heard:
    """A recording's text by one engine, wall seconds, and the process's peak memory in MiB."""

    text: str
    seconds: float
    peak: float


class EngineProcess:
    """A running engine. Raises EngineFailed if it cannot be loaded."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        self.spec = spec
        self._apart = Apart(spec.name)
        self._apart.call(_load, spec, setting)

    def transcribe(self, recording: Recording) -> Heard:
        """Let the engine transcribe a recording. Raises EngineFailed."""
        heard = self._apart.call(_transcribe, recording)
        assert isinstance(heard, Heard)
        return heard

    def close(self) -> None:
        self._apart.close()


def _load(spec: Spec, setting: Setting) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(setting.threads)
    _loaded.append(MAKERS[spec.form](spec, setting))


def _transcribe(recording: Recording) -> Heard:
    reset_peak()
    started = time.perf_counter()
    text = _loaded[0].transcribe(recording)
    return Heard(text, time.perf_counter() - started, resident_peak())


def decoded(recording: Recording) -> Any:  # noqa: ANN401
    """Return the recording's samples (n,), float32, mono at 16 kHz, by this project's decoder."""
    return decode_audio(recording.audio.read_bytes(), SAMPLE_RATE, LIMITS).samples


def _value(text: str) -> Any:  # noqa: ANN401
    """Return a JSON value, or the text if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
