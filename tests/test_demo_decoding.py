"""The engine on the demo's trained models against transformers' greedy decoding, token for token,
in float32.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import oracle
import pytest
import torch

from config import DEMO_MODELS
from tests.support.audio_files import conversation
from tests.support.transformers_models import in_transformers
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.timebase import SAMPLE_RATE

CUTS = (0.0, 6.0, 14.2, 20.7)  # seconds; some inside words


@pytest.fixture(scope="module")
def engine() -> DecodeEngine:
    main = load_whisper(Checkpoint(str(DEMO_MODELS / "asr")), torch.device("cpu"), torch.float32)
    return DecodeEngine(with_assistant(main, Checkpoint(str(DEMO_MODELS / "assistant"))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timestamps", "other"), [(True, {"assisted": True, "drafts": 10}), (False, {"live": True})]
)
def test_tokens_are_those_of_transformers(engine, timestamps, other):
    """Also of a session beside it, whose windows are drafted or live."""
    models, samples = engine.models, conversation()
    edges = [int(cut * SAMPLE_RATE) for cut in CUTS]
    prompt = models.special_tokens.prompt("en", "transcribe", timestamps)
    windows = [
        Request(number, samples[start:stop], prompt)
        for number, (start, stop) in enumerate(itertools.pairwise(edges))
    ]
    stock = replace(models, model=in_transformers(models.model))
    said = replace(models, model=oracle.steered_by_rules_alone(stock))
    expected = oracle.greedy(said, windows, timestamps)
    plain = DecodeOptions(timestamps=timestamps, batch_size=2)
    asked = [(each, windows) for each in (plain, replace(plain, **other))]
    for answers in oracle.interleaved(engine, asked):
        assert oracle.tokens_of(answers) == expected
    assert sum(map(len, expected.values())) > 50
