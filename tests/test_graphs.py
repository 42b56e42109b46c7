"""What CUDA needs of the rounds: few shapes, reports read late; on a CUDA device, the graphs themselves."""

from __future__ import annotations

import dataclasses

import oracle
import pytest
import torch
from oracle import TINY, decode, models_of, with_assistant

from asr.batching import Passage
from asr.engine import DecodeEngine, Manner
from asr.graphs import ROWS, SPANS, GraphedRounds, round_up
from asr.rounds import EagerRounds


class PretendGraphs(EagerRounds):
    """The shapes and the lateness of CUDA's rounds, run operation by operation."""

    late = True
    rows = staticmethod(lambda live: round_up(live, ROWS))
    span = staticmethod(lambda needed: round_up(needed, SPANS))

    def __init__(self):
        self.shapes = set()

    def launch(self, batch, rules, shape):
        self.shapes.add((batch.capacity, shape))
        return super().launch(batch, rules, shape)


def windows_of(timestamps=True, most_tokens=40):
    prompts = oracle.prompts_of(models_of(TINY, 142).vocabulary, timestamps, 12)
    windows = zip(oracle.noise_windows(12), prompts, strict=True)
    return [Passage(number, samples, prompt, most_tokens) for number, (samples, prompt) in enumerate(windows)]


def test_sizes_are_rounded_up():
    assert [round_up(live, ROWS) for live in (1, 3, 5, 24, 25, 200)] == [1, 4, 8, 24, 32, 200]


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_rounded_shapes_and_late_reports_change_no_token(batch_size, drafts):
    models = with_assistant(models_of(TINY, 142), 0.1)
    engine = DecodeEngine(models)
    engine.rounds = PretendGraphs()
    engine._batch = None
    answers = decode(engine, windows_of(), Manner(True, True, batch_size, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(models, windows_of(), True)
    assert {rows for rows, _ in engine.rounds.shapes} <= set(ROWS)
    assert {shape.span for _, shape in engine.rounds.shapes} <= set(SPANS)
    assert max(shape.unread for _, shape in engine.rounds.shapes) <= 2  # longer ones are not captured


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("drafts", [0, 4, None])
def test_graphs_give_the_same_tokens(drafts):
    here = with_assistant(models_of(TINY, 142), 0.1)
    there = dataclasses.replace(here, model=here.model.to("cuda"))
    there = dataclasses.replace(
        there, assistant=dataclasses.replace(here.assistant, model=here.assistant.model.to("cuda"))
    )
    engine = DecodeEngine(there)
    assert isinstance(engine.rounds, GraphedRounds)
    answers = decode(engine, windows_of(), Manner(True, True, 5, drafts=drafts))
    expected = decode(engine, windows_of(), Manner(True, False, 1))
    assert {k: v.tokens for k, v in answers.items()} == {k: v.tokens for k, v in expected.items()}
