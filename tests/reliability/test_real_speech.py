"""Whisper base on real recordings, which are no part of this repository: `REAL_SPEECH` names a
folder with a manifest as `scripts/bench real` reads it, by default `../shared/real`.
"""

from __future__ import annotations

import dataclasses
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request
from asr.frontend.schedule import Schedule
from asr.frontend.vad import SpeechDetector
from audio import AudioLimits, decode_audio
from benchmarks.real.manifest import Recording, load_manifests
from config import DEMO_MODELS, REPOSITORY, ModelSettings
from handler import EndpointHandler
from testing.tiny_whispers import without_layers
from tests.invariance import (
    LEVELS,
    PLACES,
    Answer,
    Options,
    Samples,
    body,
    check_files,
    differences,
    moved_words,
    other_words,
    table_of_options,
)
from tests.oracle import decode, greedy, steered_by_rules_alone, with_assistant
from timebase import SAMPLE_RATE

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]

FOLDER = Path(os.environ.get("REAL_SPEECH", REPOSITORY.parent / "shared" / "real"))
WINDOWS, MOST_TOKENS = 25, 100
DISTURBED = 0.05  # the assistant's decoder, by so much noise: some drafts are kept, some are not


@pytest.fixture(scope="session")
def recordings() -> list[Recording]:
    """Those of the manifest in which somebody speaks."""
    manifest = FOLDER / "manifest.json"
    if not manifest.is_file():
        pytest.skip(f"no recordings: REAL_SPEECH names no folder with a manifest, nor is {FOLDER}")
    return load_manifests([manifest])


@pytest.fixture(scope="session")
def heard(recordings) -> dict[Recording, NDArray[np.float32]]:
    """Their samples, mono at 16 kHz."""
    limits = AudioLimits(max_seconds=600, max_bytes=2**28)
    return {
        each: decode_audio(each.audio.read_bytes(), SAMPLE_RATE, limits).samples
        for each in recordings
    }


@pytest.fixture(scope="module")
def models(whisper_base_folder) -> WhisperModels:
    """In float64, in which no batch changes a choice, with an assistant."""
    models = load_whisper(Checkpoint(str(whisper_base_folder)), torch.device("cpu"), torch.float64)
    return with_assistant(models, DISTURBED)


@pytest.fixture(scope="module")
def windows(models, heard) -> list[Request]:
    """As the endpoint cuts them: the first of every recording, then the second ones, and so on."""
    engine, detect = DecodeEngine(models), SpeechDetector()
    cut = []
    for recording, samples in heard.items():
        schedule = Schedule(samples, detect(samples), 30 * SAMPLE_RATE)
        prompt = models.special_tokens.prompt(recording.language, "transcribe", True)
        for number, window in enumerate(schedule.planned()):
            part = schedule.samples(window)
            cut.append((number, recording.name, part, prompt))
    cut.sort(key=lambda each: each[:2])
    assert len(cut) >= WINDOWS
    return [
        Request((name, number), part, prompt, MOST_TOKENS, engine.detect_language(part).encoded)
        for number, name, part, prompt in cut[:WINDOWS]
    ]


@pytest.fixture(scope="module")
def expected(models, windows) -> dict[object, tuple[int, ...]]:
    alone = dataclasses.replace(models, model=steered_by_rules_alone(models))
    return greedy(alone, windows, timestamps=True)


@pytest.mark.parametrize(("batch_size", "drafts"), [*product((1, 3, 24), (0, 1, 3, 7))])
def test_windows_are_transformers_token_for_token(models, windows, expected, batch_size, drafts):
    options = DecodeOptions(assisted=drafts > 0, batch_size=batch_size, drafts=drafts)
    engine = DecodeEngine(models)
    answers = decode(engine, windows, options)
    assert {key: answer.tokens for key, answer in answers.items()} == expected


# Recordings of one speaker near a microphone, and of each so many seconds.
EXCERPTS, SECONDS = ("jfk", "libri2412_0", "libri2412_1", "sonnet_de", "wt_bonjour"), 12.0


@pytest.fixture(scope="module")
def excerpts(heard) -> dict[Recording, Samples]:
    """The beginnings of five recordings, in three languages, up to a pause."""
    detect, most, found = SpeechDetector(), round(SECONDS * SAMPLE_RATE), {}
    for recording, samples in heard.items():
        if recording.name.startswith(EXCERPTS):
            ends = [span.stop for span in detect(samples) if span.stop <= most]
            found[recording] = samples[: max(ends, default=most)].astype(np.float64)
    return found


@pytest.fixture(scope="module")
def handler(whisper_base_folder, tmp_path_factory) -> EndpointHandler:
    """The endpoint in float32 with Whisper base, an assistant of its first and last decoder layer,
    and the embedded diarizer.
    """
    folder = tmp_path_factory.mktemp("assistant")
    models = load_whisper(Checkpoint(str(whisper_base_folder)), torch.device("cpu"), torch.float32)
    for part in (without_layers(models.model, (0, 5)), models.tokenizer, models.feature_extractor):
        part.save_pretrained(folder)
    settings = ModelSettings(
        asr_model=str(whisper_base_folder),
        assistant_model=str(folder),
        diarization_model=str(DEMO_MODELS / "diarization"),
        dtype="float32",
    )
    return EndpointHandler(settings=settings)


@pytest.fixture(scope="module")
def answers(handler, excerpts) -> dict[str, list[tuple[Options, Answer]]]:
    """What is said of each excerpt under 40 combinations of options."""
    return {
        recording.name: [
            (options, handler(body(samples, {"language": recording.language, **options})))
            for options in table_of_options(40)
        ]
        for recording, samples in excerpts.items()
    }


def test_answers_of_one_class_of_options_are_equal(answers):
    assert len(answers) == len(EXCERPTS)
    assert [name for name, asked in answers.items() if differences(asked)] == []


def test_every_file_is_what_the_answer_says(answers):
    for asked in answers.values():
        for _, answer in asked:
            check_files(answer)


@pytest.mark.parametrize("name", PLACES)
def test_silence_and_channels_move_at_most_one_word(handler, excerpts, plain, name):
    for recording, samples in excerpts.items():
        altered, later = PLACES[name](samples)
        answer = handler(body(altered, words_of(recording)))
        assert len(moved_words(plain[recording.name], answer, later)) <= 1, recording.name


@pytest.mark.parametrize("name", LEVELS)
def test_levels_change_at_most_one_word(handler, excerpts, plain, name):
    for recording, samples in excerpts.items():
        answer = handler(body(LEVELS[name](samples).samples, words_of(recording)))
        assert other_words(plain[recording.name], answer) <= 1, recording.name


def words_of(recording: Recording) -> Options:
    return {"language": recording.language, "return_timestamps": "word", "diarize": False}


@pytest.fixture(scope="module")
def plain(handler, excerpts) -> dict[str, Answer]:
    return {
        recording.name: handler(body(samples, words_of(recording)))
        for recording, samples in excerpts.items()
    }
