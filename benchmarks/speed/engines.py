"""The engines that are compared, each behind the same two questions: whole audio to text, fixed
windows to tokens.

The one decision: all of them hold the same weights, in memory or converted, and are asked as their
users ask them; what one engine does beyond another (overlapping chunks, a second pass, language
detection) is its own affair and counts. Where weights are random, `most_tokens` makes everyone say
that many tokens a window.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from unittest import mock

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from transformers import AutomaticSpeechRecognitionPipeline

from asr.checkpoint.loading import WhisperModels
from asr.engine.draft_length import MOST_DRAFTS
from asr.engine.engine import DecodeEngine, DecodeOptions
from asr.engine.logit_filters import LogitFilter
from asr.engine.runner import Reading, Report, Rounds
from asr.engine.scheduler import Request, Scheduler
from asr.engine.speculative import Batch, Round, advance, draft
from asr.frontend.features import LogMel
from asr.transcriber import Transcriber, TranscriptionOptions
from benchmarks.speed.recordings import cut
from benchmarks.timing import seconds_of
from demo.build.clip import Samples
from timebase import SAMPLE_RATE

LANGUAGE = "en"
TIMESTAMPS = 1_500  # the latest first timestamp where a checkpoint sets none
SPAN, STEPS_TIMED = 64, 20
Tokens = tuple[int, ...]


class ChunkedPipeline:
    """transformers' pipeline as insanely-fast-whisper calls it: strided chunks of 30 s, language
    detected, one beam.
    """

    def __init__(self, models: WhisperModels, most_tokens: int | None) -> None:
        self.assistant = models.assistant.model if models.assistant else None
        self.pipeline = AutomaticSpeechRecognitionPipeline(
            model=models.model,
            tokenizer=cast(Any, models.tokenizer),
            feature_extractor=models.feature_extractor,
            device=models.device,
        )
        self.limits: dict[str, Any] = {}
        if most_tokens is not None:
            self.limits = {"max_new_tokens": most_tokens, "force_unique_generate_call": True}

    def transcribe(self, samples: Samples, batch_size: int, assisted: bool) -> str:
        """The text of whole audio; assisted it takes one chunk at a time."""
        steering = {"task": "transcribe", "language": None, "num_beams": 1, **self.limits}
        if assisted:
            steering["assistant_model"] = self.assistant
        answer: Any = self.pipeline(
            {"raw": samples, "sampling_rate": SAMPLE_RATE},
            chunk_length_s=30,
            batch_size=1 if assisted else batch_size,
            return_timestamps=True,
            generate_kwargs=steering,
        )
        return str(answer["text"])


class CTranslate:
    """CTranslate2, which faster-whisper runs on: float32, one beam, timestamps, prompts said in
    full.

    It has a process of its own. In ours its OpenMP threads and torch's would be more than there are
    cores, and libgomp then lets all of them sleep between any two products: after CTranslate2's
    first answer ours took twice as long.
    """

    def __init__(self, models: WhisperModels, most_tokens: int | None) -> None:
        self.log_mel = LogMel(models.feature_extractor, models.device)
        initial = models.special_tokens.max_initial_timestamp_index
        asked = {
            "beam_size": 1,
            "max_length": models.special_tokens.max_length
            if most_tokens is None
            else 2 * most_tokens,
            "max_initial_timestamp_index": TIMESTAMPS if initial is None else initial,
        }
        self.prompt = list(models.special_tokens.prompt(LANGUAGE, "transcribe", timestamps=True))
        held = {
            "device": models.device.type,
            "compute_type": "float32" if models.model.dtype == torch.float32 else "float16",
            "intra_threads": torch.get_num_threads(),
            "inter_threads": 1,
        }
        with tempfile.TemporaryDirectory() as folder:
            source, converted = Path(folder) / "transformers", Path(folder) / "ctranslate2"
            for part in (models.model, models.tokenizer, models.feature_extractor):
                part.save_pretrained(source)
            TransformersConverter(str(source)).convert(str(converted))
            self.ends, there = (context := get_context("spawn")).Pipe()
            context.Process(
                target=_answer, args=(there, str(converted), held, asked), daemon=True
            ).start()
            self.ends.recv()  # the model is loaded, its files may go

    def decode(self, windows: Sequence[Samples], batch_size: int) -> list[Tokens]:
        """Windows in batches of `batch_size`, each of which lasts as long as its slowest row."""
        batches = [
            windows[first : first + batch_size] for first in range(0, len(windows), batch_size)
        ]
        return [tokens for batch in batches for tokens in self._decode(batch)]

    def _decode(self, windows: Sequence[Samples]) -> list[Tokens]:
        self.ends.send(
            (
                np.ascontiguousarray(self.log_mel(windows).cpu().numpy()),
                [self.prompt] * len(windows),
            )
        )
        return [tuple(tokens) for tokens in self.ends.recv()]


def _answer(ends: Connection, folder: str, held: dict[str, Any], asked: dict[str, Any]) -> None:
    """CTranslate2's process: tokens for features and prompts, until the other end is closed."""
    model = ctranslate2.models.Whisper(folder, **held)
    ends.send(True)
    with suppress(EOFError):
        while True:
            features, prompts = ends.recv()
            answers = model.generate(ctranslate2.StorageView.from_array(features), prompts, **asked)
            ends.send([answer.sequences_ids[0] for answer in answers])


class Ours:
    """The transcriber of this repository as the handler calls it, or its engine on fixed windows.
    No fallback.
    """

    def __init__(self, models: WhisperModels, most_tokens: int | None) -> None:
        self.transcriber = Transcriber(models, fallback=None)
        self.engine = self.transcriber.decoder
        self.most_tokens = most_tokens
        self.tallies = {True: Tally(), False: Tally()}
        self.rounds = Tallied(self.engine.rounds)
        self.engine.rounds = self.rounds

    def transcribe(self, samples: Samples, batch_size: int, assisted: bool) -> str:
        """The text of whole audio, the language detected; with random weights nothing is heard
        twice.
        """
        if self.most_tokens is not None:
            windows = cut(samples)
            self.engine.detect_language(windows[0])
            return str(self.decode(windows, batch_size, assisted))
        self.rounds.tally = self.tallies[assisted]
        options = TranscriptionOptions(batch_size=batch_size, assisted=assisted)
        return self.transcriber.transcribe(samples, options).text

    def windows(self, samples: Samples) -> list[Samples]:
        """Those that `transcribe` decodes."""
        if self.most_tokens is not None:
            return cut(samples)
        with mock.patch.object(
            Scheduler, "admit", autospec=True, side_effect=Scheduler.admit
        ) as admit:
            self.transcribe(samples, 1, assisted=False)
        return [passage.samples for call in admit.call_args_list for passage in call.args[1]]

    def count_drafts_anew(self) -> Tally:
        """What rounds of assisted calls come to from now on."""
        self.tallies = {True: Tally(), False: Tally()}
        return self.tallies[True]

    @torch.inference_mode()
    def step_seconds(self) -> tuple[float, float]:
        """What a step of the main model and one of the assistant take at batch 1, the least of
        several.
        """
        engine, drafts = self.engine, MOST_DRAFTS
        batch = Batch.allocate(engine.main, engine.assistant, 1, drafts)
        if batch.assistant is None:
            raise ValueError("there is no assistant")
        steps, draughts = Round(0, 1, SPAN), Round(drafts, 1, SPAN)
        rules, rows, helper = engine.rules[True], batch.rows, batch.assistant
        times = range(STEPS_TIMED)
        main = min(
            seconds_of(lambda: advance(batch, rules, steps), engine.models.device) for _ in times
        )
        drafted = min(
            seconds_of(lambda: draft(helper, rows, rules, draughts), engine.models.device)
            for _ in times
        )
        return main, drafted / drafts

    def decode(self, windows: Sequence[Samples], batch_size: int, assisted: bool) -> list[Tokens]:
        """Fixed windows, in their order."""
        self.rounds.tally = self.tallies[assisted]
        return decode(
            self.engine,
            windows,
            DecodeOptions(assisted=assisted, batch_size=batch_size),
            self.most_tokens,
        )


def decode(
    engine: DecodeEngine,
    windows: Sequence[Samples],
    options: DecodeOptions,
    most_tokens: int | None = None,
) -> list[Tokens]:
    """What the engine makes of fixed windows, in their order."""
    prompt = engine.models.special_tokens.prompt(LANGUAGE, "transcribe", options.timestamps)
    waiting = iter(
        [Request(number, window, prompt, most_tokens) for number, window in enumerate(windows)]
    )
    answers = engine.decode(
        lambda count: [passage for _, passage in zip(range(count), waiting, strict=False)], options
    )
    return [
        tokens for _, tokens in sorted((passage.key, answer.tokens) for passage, answer in answers)
    ]


@dataclass
class Tally:
    """What the rounds of an engine came to. `lengths` counts rounds by how many tokens they
    drafted.
    """

    rows: int = 0  # of rounds that drafted
    accepted: int = 0
    judged: int = 0
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def acceptance(self) -> float | None:
        """The share of drafts up to the first wrong one that were right; None where nothing was
        drafted.
        """
        return self.accepted / self.judged if self.judged else None

    @property
    def tokens_a_round(self) -> float:
        """Tokens that a row gained in a round with drafts, on average; 1 where there was none."""
        return 1 + self.accepted / max(1, self.rows)

    def count(self, drafts: int, report: Report) -> None:
        """Adds a round; a row that drafts has at least one of its drafts judged."""
        self.lengths[drafts] += 1
        self.rows += sum(judged > 0 for judged in report.judged)
        self.accepted += sum(report.accepted)
        self.judged += sum(report.judged)


class Tallied:
    """An engine's rounds, counted into `tally`, which may be exchanged."""

    def __init__(self, rounds: Rounds) -> None:
        self.tally = Tally()
        self.late = rounds.late
        self.rows, self.span, self.usual, self.forget = (
            rounds.rows,
            rounds.span,
            rounds.usual,
            rounds.forget,
        )
        self._launch = rounds.launch

    def launch(self, batch: Batch, rules: LogitFilter, shape: Round) -> Reading:
        """The same round, counted when its report is read."""
        reading = self._launch(batch, rules, shape)

        def read() -> Report:
            report = reading()
            self.tally.count(shape.drafts, report)
            return report

        return read
