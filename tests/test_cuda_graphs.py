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

from asr.engine.cuda_graphs import KV_LENGTHS, ROW_COUNTS, CudaGraphRunner, round_up
from asr.engine.decode_state import DecodeState
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request
from asr.engine.runner import EagerRunner


class PretendGraphRunner(EagerRunner):
    """The shapes and the delay of results that CUDA has, run operation by operation."""

    pipelined = True
    rows = staticmethod(lambda live: round_up(live, ROW_COUNTS))
    kv_len = staticmethod(lambda needed: round_up(needed, KV_LENGTHS))
    draft_lengths = CudaGraphRunner.draft_lengths
    timed_drafts = CudaGraphRunner.timed_drafts
    warmup_shapes = CudaGraphRunner.warmup_shapes

    def __init__(self):
        self.shapes = set()

    def launch(self, state, filters, shape):
        self.shapes.add((state.capacity, shape))
        return super().launch(state, filters, shape)


def windows_of(timestamps=True, max_tokens=40):
    prompts = oracle.prompts_of(models_of(TINY, 142).special_tokens, timestamps, 12)
    windows = zip(oracle.noise_windows(12), prompts, strict=True)
    return [
        Request(number, samples, prompt, max_tokens)
        for number, (samples, prompt) in enumerate(windows)
    ]


@pytest.fixture
def pretend(monkeypatch):
    """Engines made under it take their device for CUDA."""
    monkeypatch.setattr("asr.engine.engine.runner_for", lambda *_: PretendGraphRunner())


def test_what_requests_of_usual_size_replay_is_prepared_at_load(pretend):
    engine = DecodeEngine(models_of(TINY, 142))
    prepared = set(engine.runner.shapes)
    assert {(rows, shape.kv_len) for rows, shape in prepared} == {
        (rows, length) for rows in ROW_COUNTS[:7] for length in KV_LENGTHS[:3]
    }
    memory = engine.memory.state
    decode(
        engine,
        [*windows_of(), *(dataclasses.replace(each, key=(each.key,)) for each in windows_of())],
        DecodeOptions(),
    )
    assert engine.runner.shapes == prepared
    assert engine.memory.state is memory


def test_a_device_too_small_for_what_is_prepared_still_decodes(pretend, monkeypatch):
    allocate = DecodeState.allocate

    def few(main, assistant, rows, drafts):
        if rows > 4:
            raise torch.OutOfMemoryError
        return allocate(main, assistant, rows, drafts)

    monkeypatch.setattr(DecodeState, "allocate", few)
    answers = decode(DecodeEngine(models_of(TINY, 142)), windows_of(), DecodeOptions(batch_size=12))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        models_of(TINY, 142), windows_of(), True
    )


def test_long_texts_have_few_shapes(pretend):
    engine = DecodeEngine(with_assistant(models_of(TINY), 0.1))
    engine.runner.shapes.clear()
    decode(engine, windows_of(max_tokens=None)[:3], DecodeOptions(True, True, 3, drafts=4))
    assert {shape.kv_len for _, shape in engine.runner.shapes} == {
        64,
        128,
        256,
        engine.memory.state.main.cache.max_len,
    }


def test_sizes_are_rounded_up():
    assert [round_up(live, ROW_COUNTS) for live in (1, 3, 5, 24, 25, 200)] == [1, 4, 8, 24, 32, 200]


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_rounded_shapes_and_late_results_change_no_token(pretend, batch_size, drafts):
    models = with_assistant(models_of(TINY, 142), 0.1)
    engine = DecodeEngine(models)
    engine.runner.shapes.clear()
    answers = decode(engine, windows_of(), DecodeOptions(True, True, batch_size, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        models, windows_of(), True
    )
    assert {rows for rows, _ in engine.runner.shapes} <= set(ROW_COUNTS)
    assert {shape.kv_len for _, shape in engine.runner.shapes} <= set(KV_LENGTHS)
    assert (
        max(shape.assistant_lag for _, shape in engine.runner.shapes) <= 2
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
    assert isinstance(engine.runner, CudaGraphRunner)
    answers = decode(engine, windows_of(), DecodeOptions(True, True, 5, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        here, windows_of(), True
    )
