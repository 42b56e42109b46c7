"""What CUDA needs of the rounds: few shapes, reports read late; on a CUDA device, the graphs
themselves.
"""

from __future__ import annotations

import copy
import dataclasses

import oracle
import pytest
import torch
from oracle import TINY, decode, models_of, with_assistant

from asr.engine.cuda_graphs import ROWS, SPANS, GraphedRounds, round_up
from asr.engine.engine import DecodeEngine, DecodeOptions
from asr.engine.runner import EagerRounds
from asr.engine.scheduler import Request
from asr.engine.speculative import Batch


class PretendGraphs(EagerRounds):
    """The shapes and the lateness of CUDA's rounds, run operation by operation."""

    late = True
    rows = staticmethod(lambda live: round_up(live, ROWS))
    span = staticmethod(lambda needed: round_up(needed, SPANS))
    usual = GraphedRounds.usual

    def __init__(self):
        self.shapes = set()

    def launch(self, batch, rules, shape):
        self.shapes.add((batch.capacity, shape))
        return super().launch(batch, rules, shape)


def windows_of(timestamps=True, most_tokens=40):
    prompts = oracle.prompts_of(models_of(TINY, 142).vocabulary, timestamps, 12)
    windows = zip(oracle.noise_windows(12), prompts, strict=True)
    return [
        Request(number, samples, prompt, most_tokens)
        for number, (samples, prompt) in enumerate(windows)
    ]


@pytest.fixture
def pretend(monkeypatch):
    """Engines made under it take their device for CUDA."""
    monkeypatch.setattr("asr.engine.engine.EagerRounds", PretendGraphs)


def test_what_requests_of_usual_size_replay_is_prepared_at_load(pretend):
    engine = DecodeEngine(models_of(TINY, 142))
    prepared = set(engine.rounds.shapes)
    assert {(rows, shape.span) for rows, shape in prepared} == {
        (rows, span) for rows in ROWS[:7] for span in SPANS[:3]
    }
    memory = engine._batch
    decode(
        engine,
        [*windows_of(), *(dataclasses.replace(each, key=(each.key,)) for each in windows_of())],
        DecodeOptions(),
    )
    assert engine.rounds.shapes == prepared
    assert engine._batch is memory


def test_a_device_too_small_for_what_is_prepared_still_decodes(pretend, monkeypatch):
    allocate = Batch.allocate

    def few(main, assistant, rows, drafts):
        if rows > 4:
            raise torch.OutOfMemoryError
        return allocate(main, assistant, rows, drafts)

    monkeypatch.setattr(Batch, "allocate", few)
    answers = decode(DecodeEngine(models_of(TINY, 142)), windows_of(), DecodeOptions(batch_size=12))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        models_of(TINY, 142), windows_of(), True
    )


def test_long_texts_have_few_shapes(pretend):
    engine = DecodeEngine(with_assistant(models_of(TINY), 0.1))
    engine.rounds.shapes.clear()
    decode(engine, windows_of(most_tokens=None)[:3], DecodeOptions(True, True, 3, drafts=4))
    assert {shape.span for _, shape in engine.rounds.shapes} == {
        64,
        128,
        256,
        engine._batch.main.cache.width,
    }


def test_sizes_are_rounded_up():
    assert [round_up(live, ROWS) for live in (1, 3, 5, 24, 25, 200)] == [1, 4, 8, 24, 32, 200]


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_rounded_shapes_and_late_reports_change_no_token(batch_size, drafts):
    models = with_assistant(models_of(TINY, 142), 0.1)
    engine = DecodeEngine(models)
    engine.rounds = PretendGraphs()
    engine._batch = None
    answers = decode(engine, windows_of(), DecodeOptions(True, True, batch_size, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        models, windows_of(), True
    )
    assert {rows for rows, _ in engine.rounds.shapes} <= set(ROWS)
    assert {shape.span for _, shape in engine.rounds.shapes} <= set(SPANS)
    assert (
        max(shape.unread for _, shape in engine.rounds.shapes) <= 2
    )  # longer ones are not captured


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("drafts", [0, 4, None])
def test_graphs_give_the_same_tokens(drafts):
    here = with_assistant(models_of(TINY, 142), 0.1)
    assistant = dataclasses.replace(
        here.assistant, model=copy.deepcopy(here.assistant.model).to("cuda")
    )
    there = dataclasses.replace(
        here, model=copy.deepcopy(here.model).to("cuda"), assistant=assistant
    )
    engine = DecodeEngine(there)
    assert isinstance(engine.rounds, GraphedRounds)
    answers = decode(engine, windows_of(), DecodeOptions(True, True, 5, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        here, windows_of(), True
    )
