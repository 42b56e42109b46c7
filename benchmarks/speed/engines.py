"""The compared engines besides transformers' pipeline: CTranslate2 and this project.

All have the same weights and are called as their users call them. An engine's work besides decoding
(overlapping chunks, a second pass, language detection) is part of its time. With random weights
texts never end, so `max_tokens` makes every engine write that many tokens for each window.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.apart import Apart
from benchmarks.pipeline import CHUNK_SECONDS
from benchmarks.real.converted import convert
from benchmarks.speed.recordings import cut
from tests.support.decoding import decode
from tests.support.speech import Samples
from tests.support.transformers_models import in_transformers
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.asr.model.encoder import LogMel
from whosaid.asr.transcriber import Transcriber
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import DecodeStats

LANGUAGE = "en"
LATEST_FIRST_TIMESTAMP = 1_500  # if a checkpoint sets none
Tokens = tuple[int, ...]


class CTranslate2:
    """CTranslate2, faster-whisper's engine: greedy, with timestamps and a given prompt.

    It has its own process, because in a shared one this project took twice as long after
    CTranslate2's first answer.
    """

    def __init__(self, models: WhisperModels, max_tokens: int | None) -> None:
        special = models.special_tokens
        self.log_mel = LogMel(models.feature_extractor, models.device)
        self.prompt = list(special.prompt(LANGUAGE, "transcribe", timestamps=True))
        latest = special.max_initial_timestamp_index
        settings = {
            "beam_size": 1,
            "max_length": special.max_length if max_tokens is None else 2 * max_tokens,
            "max_initial_timestamp_index": LATEST_FIRST_TIMESTAMP if latest is None else latest,
        }
        precision = "float32" if models.model.dtype == torch.float32 else "float16"
        load: dict[str, Any] = {"device": models.device.type, "compute_type": precision}
        load |= {"intra_threads": torch.get_num_threads(), "inter_threads": 1}
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "transformers"
            model: Any = in_transformers(models.model)
            for part in (model, models.tokenizer, models.feature_extractor):
                part.save_pretrained(source)
            converted = convert(source, Path(folder))
            self.apart = Apart("CTranslate2", _Converted, str(converted), load, settings)

    def decode(self, windows: Sequence[Samples], batch_size: int) -> list[Tokens]:
        """Decode windows in batches of `batch_size`; a batch lasts as long as its longest text."""
        decoded: list[Tokens] = []
        for first in range(0, len(windows), batch_size):
            batch = windows[first : first + batch_size]
            features = np.ascontiguousarray(self.log_mel(batch).cpu().numpy())
            decoded += self.apart.call("generate", features, [self.prompt] * len(batch))
        return decoded


class _Converted:
    """CTranslate2's model, in its own process."""

    def __init__(self, folder: str, load: dict[str, Any], settings: dict[str, Any]) -> None:
        self.model, self.settings = ctranslate2.models.Whisper(folder, **load), settings

    def generate(self, features: NDArray[np.float32], prompts: list[list[int]]) -> list[Tokens]:
        storage = ctranslate2.StorageView.from_array(features)
        results = self.model.generate(storage, prompts, **self.settings)
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
        options = DecodeOptions(batch_size=batch_size, assisted=assisted)
        if self.max_tokens is not None:
            first, *others = self._requests(cut(samples))
            encoded = self.engine.detect_language(first.samples).encoded
            return str(self._decode([replace(first, encoded=encoded), *others], options))
        transcript = self.transcriber.transcribe(samples, TranscriptionOptions(decode=options))
        self._count(transcript.stats, assisted)
        return transcript.text

    def windows(self, samples: Samples) -> list[Samples]:
        """Return the windows that `transcribe` plans.

        Windows that it decodes again, because one ended inside a sentence, are not among them.
        """
        if self.max_tokens is not None:
            return cut(samples)
        schedule = Schedule(samples, SpeechDetector()(samples), CHUNK_SECONDS * SAMPLE_RATE)
        return [schedule.samples(window) for window in schedule.planned()]

    def decode(self, windows: Sequence[Samples], batch_size: int, assisted: bool) -> list[Tokens]:
        """Return the tokens of given windows, in their order."""
        options = DecodeOptions(batch_size=batch_size, assisted=assisted)
        return self._decode(self._requests(windows), options)

    def _requests(self, windows: Sequence[Samples]) -> list[Request]:
        prompt = self.engine.models.special_tokens.prompt(LANGUAGE, "transcribe", timestamps=True)
        return [Request(key, each, prompt, self.max_tokens) for key, each in enumerate(windows)]

    def _decode(self, requests: Sequence[Request], options: DecodeOptions) -> list[Tokens]:
        results, stats = decode(self.engine, requests, options)
        self._count(stats, options.assisted)
        return [results[request.key].tokens for request in requests]

    def _count(self, stats: DecodeStats, assisted: bool | None) -> None:
        if assisted:
            self.assisted_stats.add(stats)
