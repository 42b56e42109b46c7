"""The compared engines: this project, faster-whisper's two modes, transformers.

    ours   ours-5@bfloat16   batched@int8   sequential-5   pipeline

An engine is a text, FORM[-BEAMS][@PRECISION]. Each is called as its users call it, with a file, at
its own defaults but for language, batch size, beams and word times. Packages are imported in the
engine's process.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import av

from benchmarks.options import BATCHED, FORMS, OURS, PIPELINE, SEQUENTIAL
from benchmarks.real.manifest import Recording
from config import ModelSettings
from tests.support.audio_files import request_body
from whosaid.transcript import Word

TEXT = re.compile(r"(?P<form>\w+)(-(?P<beams>\d+))?(@(?P<precision>\w+))?")
# transformers' precisions; for any other it computes in float32.
FLOATS = ("float32", "bfloat16", "float16")
PRECISION, BATCH_SIZE = "float32", 24


@dataclass(frozen=True)
class Spec:
    """An engine with its settings."""

    name: str
    form: str
    beams: int = 1
    precision: str = PRECISION

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an engine's text. Raises ValueError if it is none."""
        found = TEXT.fullmatch(text)
        if found is None or found["form"] not in FORMS:
            known = ", ".join(FORMS)
            raise ValueError(f"engine {text!r} is none of {known} with -BEAMS or @PRECISION")
        beams, precision = int(found["beams"] or 1), found["precision"] or PRECISION
        return cls(text, found["form"], beams, precision)


@dataclass(frozen=True)
class Setting:
    """The settings that all engines of a run share.

    `model` is a folder of transformers', `converted` the same weights for CTranslate2.
    """

    model: Path
    converted: Path
    device: str


class Ours:
    """The endpoint, sent a request with the file in base64."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        from handler import EndpointHandler

        wanted = {"device": setting.device, "dtype": spec.precision}
        settings = ModelSettings.for_models(str(setting.model)).model_copy(update=wanted)
        self.endpoint = EndpointHandler(settings=settings)
        self.parameters: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_beams": spec.beams}
        self.parameters |= {"return_timestamps": "word", "diarize": False}

    def transcribe(self, recording: Recording) -> str:
        """Return the answer's text."""
        return str(self._answer(recording)["text"])

    def words(self, recording: Recording) -> list[Word]:
        return [Word(each["word"], *each["timestamp"]) for each in self._answer(recording)["words"]]

    def _answer(self, recording: Recording) -> dict[str, Any]:
        parameters = {**self.parameters, "language": recording.language}
        body = request_body(recording.audio.read_bytes(), **parameters)
        answer: dict[str, Any] = self.endpoint(body)
        return answer


class FasterWhisper:
    """faster-whisper's `BatchedInferencePipeline`, or its `WhisperModel`.

    Its own default is five beams. It decodes files itself, to 16 bits: on some recordings that
    decides whether it loops.
    """

    def __init__(self, spec: Spec, setting: Setting) -> None:
        import faster_whisper.audio
        import torch
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        faster_whisper.audio.av = _AnyAv()
        given = {"compute_type": spec.precision, "cpu_threads": torch.get_num_threads()}
        model = WhisperModel(str(setting.converted), device=setting.device, **given)
        self.options = {"beam_size": spec.beams, "word_timestamps": True}
        self.engine: Any = model
        if spec.form == BATCHED:
            self.engine = BatchedInferencePipeline(model)
            self.options["batch_size"] = BATCH_SIZE

    def transcribe(self, recording: Recording) -> str:
        """Return the text of all segments; sampling is seeded."""
        return "".join(segment.text for segment in self._segments(recording))

    def words(self, recording: Recording) -> list[Word]:
        words = (word for segment in self._segments(recording) for word in segment.words)
        return [Word(word.word, float(word.start), float(word.end)) for word in words]

    def _segments(self, recording: Recording) -> Iterable[Any]:
        import ctranslate2

        ctranslate2.set_random_seed(0)
        given = {"language": recording.language, **self.options}
        found: tuple[Iterable[Any], Any] = self.engine.transcribe(str(recording.audio), **given)
        return found[0]


class _AnyAv:
    """PyAV as faster-whisper's decoder uses it, which names an argument that PyAV 19 dropped."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(av, name)

    def open(self, file: str, mode: Literal["r"], metadata_errors: str) -> Any:  # noqa: ANN401
        del metadata_errors
        return av.open(file, mode=mode)


class Pipeline:
    """transformers' pipeline, with samples from this project's decoder (included in the time),
    because with a file it needs the ffmpeg program.
    """

    def __init__(self, spec: Spec, setting: Setting) -> None:
        import torch

        from benchmarks import pipeline
        from whosaid.asr import Checkpoint, load_whisper

        dtype = getattr(torch, spec.precision) if spec.precision in FLOATS else torch.float32
        models = load_whisper(Checkpoint(str(setting.model)), torch.device(setting.device), dtype)
        self.pipeline = pipeline.Pipeline(models, num_beams=spec.beams)

    def transcribe(self, recording: Recording) -> str:
        samples = recording.samples()
        return self.pipeline.transcribe(samples, BATCH_SIZE, recording.language, "word")


MAKERS: Mapping[str, Callable[[Spec, Setting], Any]] = {
    OURS: Ours,
    BATCHED: FasterWhisper,
    SEQUENTIAL: FasterWhisper,
    PIPELINE: Pipeline,
}


class Measured:
    """An engine in its own process, whose time is measured."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        self.engine = MAKERS[spec.form](spec, setting)

    def transcribe(self, recording: Recording) -> tuple[str, float]:
        """Return the recording's text, and wall seconds."""
        started = time.perf_counter()
        text = self.engine.transcribe(recording)
        return text, time.perf_counter() - started
