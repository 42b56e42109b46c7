"""The demo's trained models against transformers' greedy decoding, token for token."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from config import DEMO_MODELS
from tests.helpers import oracle
from tests.helpers.nightly import some
from tests.support.transformers_models import in_transformers
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcribe.__main__ import CONVERSATION

CUTS = (0.0, 6.0, 14.2, 20.7, 31.5)  # seconds; some inside words


@pytest.fixture(scope="module")
def models() -> WhisperModels:
    main = load_whisper(Checkpoint(str(DEMO_MODELS / "asr")), torch.device("cpu"), torch.float32)
    return with_assistant(main, Checkpoint(str(DEMO_MODELS / "assistant")))


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return decode_audio(CONVERSATION.read_bytes(), SAMPLE_RATE, AudioLimits(300, 2**24)).samples


@pytest.fixture(scope="module")
def engine(models) -> DecodeEngine:
    return DecodeEngine(models)


@pytest.fixture(scope="module", params=some(1, [True, False]), ids=["timestamps", "no timestamps"])
def timestamps(request) -> bool:
    return request.param


@pytest.fixture(scope="module")
def windows(models, samples, timestamps) -> list[Request]:
    edges = [int(cut * SAMPLE_RATE) for cut in CUTS]
    prompt = models.special_tokens.prompt("en", "transcribe", timestamps)
    parts = [samples[start:stop] for start, stop in itertools.pairwise(edges)]
    return [Request(number, part, prompt) for number, part in enumerate(parts)]


@pytest.fixture(scope="module")
def expected(models, windows, timestamps) -> dict[object, tuple[int, ...]]:
    stock = replace(models, model=in_transformers(models.model))
    said = replace(models, model=oracle.steered_by_rules_alone(stock))
    return oracle.greedy(said, windows, timestamps)


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "assisted", "drafts"), [(3, False, None), (4, True, 10)])
def test_tokens_are_those_of_transformers(
    engine, windows, expected, timestamps, batch_size, assisted, drafts
):
    given = {"timestamps": timestamps, "assisted": assisted, "drafts": drafts}
    answers = oracle.decode(engine, windows, DecodeOptions(batch_size=batch_size, **given))
    assert {key: answer.tokens for key, answer in answers.items()} == expected
    assert sum(map(len, expected.values())) > 80
