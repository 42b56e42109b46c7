"""The engines that are compared: transformers' pipeline, CTranslate2 and this project.

All of them hold the same weights and are called as their users call them. An engine's work beyond
decoding (overlapping chunks, a second pass, language detection) is part of its time. Where weights
are random and no text ever ends, `max_tokens` makes every engine write that many tokens for each
window.
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, cast

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutomaticSpeechRecognitionPipeline

from benchmarks.apart import Apart
from benchmarks.speed.recordings import cut
from tests.support.speech import Samples
from tests.support.transformers_models import decoder_alone, in_transformers
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.asr.model.encoder import LogMel
from whosaid.asr.transcriber import Transcriber
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import DecodeStats

LANGUAGE = "en"
LATEST_FIRST_TIMESTAMP = 1_500  # where a checkpoint sets none
CHUNK_SECONDS = 30
Tokens = tuple[int, ...]
# CTranslate2's model, in its own process.
_loaded: list[Any] = []


class TransformersPipeline:
    """transformers' pipeline as insanely-fast-whisper calls it: strided chunks of 30 s, language
    detected, greedy.
    """

    def __init__(self, models: WhisperModels, max_tokens: int | None) -> None:
        self.assistant = None
        if models.assistant is not None:
            convert = decoder_alone if models.assistant.shares_encoder else in_transformers
            self.assistant = convert(models.assistant.model)
        self.pipeline = AutomaticSpeechRecognitionPipeline(
            model=in_transformers(models.model),
            tokenizer=cast(Any, models.tokenizer),
            feature_extractor=models.feature_extractor,
            device=models.device,
        )
        self.limits: dict[str, Any] = {}
        if max_tokens is not None:
            self.limits = {"max_new_tokens": max_tokens, "force_unique_generate_call": True}

    def transcribe(self, samples: Samples, batch_size: int, assisted: bool) -> str:
        """Return the text of whole audio; with an assistant it decodes one chunk at a time."""
        generate = {"task": "transcribe", "language": None, "num_beams": 1, **self.limits}
        if assisted:
            generate["assistant_model"] = self.assistant
        answer: Any = self.pipeline(
            {"raw": samples, "sampling_rate": SAMPLE_RATE},
            chunk_length_s=CHUNK_SECONDS,
            batch_size=1 if assisted else batch_size,
            return_timestamps=True,
            generate_kwargs=generate,
        )
        return str(answer["text"])


class CTranslate2:
    """CTranslate2, on which faster-whisper runs: greedy, timestamps, the prompt given.

    In one process with this project, this project took twice as long after CTranslate2's first
    answer.
    """

    def __init__(self, models: WhisperModels, max_tokens: int | None) -> None:
        special = models.special_tokens
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.prompt = list(special.prompt(LANGUAGE, "transcribe", timestamps=True))
        latest = special.max_initial_timestamp_index
        self.settings = {
            "beam_size": 1,
            "max_length": special.max_length if max_tokens is None else 2 * max_tokens,
            "max_initial_timestamp_index": LATEST_FIRST_TIMESTAMP if latest is None else latest,
        }
        load = {
            "device": models.device.type,
            "compute_type": "float32" if models.model.dtype == torch.float32 else "float16",
            "intra_threads": torch.get_num_threads(),
            "inter_threads": 1,
        }
        with tempfile.TemporaryDirectory() as folder:
            source, converted = Path(folder) / "transformers", Path(folder) / "ctranslate2"
            model: Any = in_transformers(models.model)
            for part in (model, models.tokenizer, models.feature_extractor):
                part.save_pretrained(source)
            TransformersConverter(str(source)).convert(str(converted))
            self.apart = Apart("CTranslate2")
            self.apart.call(_load, str(converted), load)

    def decode(self, windows: Sequence[Samples], batch_size: int) -> list[Tokens]:
        """Decode windows in batches of `batch_size`; a batch lasts as long as its longest text."""
        decoded: list[Tokens] = []
        for first in range(0, len(windows), batch_size):
            batch = windows[first : first + batch_size]
            features = np.ascontiguousarray(self.log_mel(batch).cpu().numpy())
            prompts = [self.prompt] * len(batch)
            decoded += self.apart.call(_generate, features, prompts, self.settings)
        return decoded


def _load(folder: str, settings: dict[str, Any]) -> None:
    _loaded.append(ctranslate2.models.Whisper(folder, **settings))


def _generate(
    features: NDArray[np.float32], prompts: list[list[int]], settings: dict[str, Any]
) -> list[Tokens]:
    storage = ctranslate2.StorageView.from_array(features)
    results = _loaded[0].generate(storage, prompts, **settings)
    return [tuple(result.sequences_ids[0]) for result in results]


class Ours:
    """The transcriber of this project as the endpoint calls it, or its engine on given windows.

    Nothing is decoded again at a higher temperature. `assisted_stats` adds up the statistics of
    assisted calls until it is replaced.
    """

    def __init__(self, models: WhisperModels, max_tokens: int | None) -> None:
        self.transcriber = Transcriber(models, fallback=None)
        self.engine = self.transcriber.engine
        self.max_tokens = max_tokens
        self.assisted_stats = DecodeStats()

    def transcribe(self, samples: Samples, batch_size: int, assisted: bool) -> str:
        """Return the text of whole audio in the detected language; random weights decode `cut`
        audio.
        """
        if self.max_tokens is not None:
            windows = cut(samples)
            encoded = self.engine.detect_language(windows[0]).encoded
            return str(self.decode(windows, batch_size, assisted, encoded))
        options = TranscriptionOptions(
            decode=DecodeOptions(batch_size=batch_size, assisted=assisted)
        )
        transcript = self.transcriber.transcribe(samples, options)
        self._count(transcript.stats, assisted)
        return transcript.text

    def windows(self, samples: Samples) -> list[Samples]:
        """Return the windows that `transcribe` plans.

        Windows that it decodes again, because one ended inside a sentence, are not among them.
        """
        if self.max_tokens is not None:
            return cut(samples)
        schedule = Schedule(samples, SpeechDetector()(samples), CHUNK_SECONDS * SAMPLE_RATE)
        windows: list[Samples] = []
        while ready := schedule.pop_ready(1):
            windows.append(schedule.samples(ready[0]))
            schedule.complete(ready[0])
        return windows

    def decode(
        self,
        windows: Sequence[Samples],
        batch_size: int,
        assisted: bool,
        first_encoded: Tensor | None = None,
    ) -> list[Tokens]:
        """Return the tokens of given windows, in their order; see `decode`."""
        options = DecodeOptions(assisted=assisted, batch_size=batch_size)
        tokens, stats = decode(self.engine, windows, options, self.max_tokens, first_encoded)
        self._count(stats, assisted)
        return tokens

    def _count(self, stats: DecodeStats, assisted: bool) -> None:
        if assisted:
            self.assisted_stats.add(stats)


def decode(
    engine: DecodeEngine,
    windows: Sequence[Samples],
    options: DecodeOptions,
    max_tokens: int | None = None,
    first_encoded: Tensor | None = None,
) -> tuple[list[Tokens], DecodeStats]:
    """Return the tokens of given windows, in their order, and what decoding them took.

    `first_encoded` is the main encoder's output of the first window if it is known.
    """
    prompt = engine.models.special_tokens.prompt(LANGUAGE, "transcribe", options.timestamps)
    requests = []
    for number, samples in enumerate(windows):
        encoded = None if number else first_encoded
        requests.append(Request(number, samples, prompt, max_tokens, encoded))
    decoded: dict[Hashable, Tokens] = {}
    with engine.session(options) as session:
        session.add(requests)
        while not session.done:
            for request, result in session.step():
                decoded[request.key] = result.tokens
    return [decoded[request.key] for request in requests], session.stats
