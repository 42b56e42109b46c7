"""Graphs that give other results than eager passes are found at load and not used."""

from __future__ import annotations

import contextlib
import logging

import oracle
import pytest
import torch
from cuda_emulator import Fault, emulated_cuda, on_cuda
from graph_faults import WRONG_VALUES
from oracle import TINY, TINY_ENGLISH, models_of, random_heads, with_assistant

from whosaid.asr.checkpoint.medusa import BLOCK
from whosaid.asr.engine import cuda_graphs, graph_check
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.graph_check import TOLERANCE, Outcome, agree
from whosaid.asr.engine.request import DecodeOptions, Request

# Passes at load sample nothing, no batch chooses their shapes, and these faults are alike in eager
# passes and graphs there. Decoding shows them (tests/test_cuda_emulator.py).
LATER = {
    "key without sampling",
    "host number baked in",
    "steps without grammar",
    "host memory read early",
}


@pytest.fixture
def graphs(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        yield device


def check_tokens(engine, models):
    prompt = models.special_tokens.prompt("en", "transcribe", True)
    windows = [Request(n, each, prompt, 40) for n, each in enumerate(oracle.noise_windows(4))]
    answers = oracle.decode(engine, windows, DecodeOptions(assisted=True, batch_size=4, drafts=2))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        models, windows, True
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_assistant(models_of(TINY, 142), 0.1),
        pytest.param(lambda: models_of(TINY_ENGLISH, 142), marks=pytest.mark.reliability),
        pytest.param(
            lambda: random_heads(models_of(TINY, 142), 5, BLOCK, scale=0.02),
            marks=pytest.mark.reliability,
        ),
    ],
    ids=["assistant", "english", "heads"],
)
def test_graphs_that_agree_are_kept_and_noise_leaves_nothing_behind(
    graphs, caplog, monkeypatch, make
):
    monkeypatch.setattr(graph_check, "TOLERANCE", 1e-9)
    models = make()
    engine = DecodeEngine(on_cuda(models))
    assert engine.runner.enabled
    assert graphs.replays > 0
    assert not caplog.records
    rows = engine.memory.state.rows
    assert rows.finished.all()
    assert set(rows.length.tolist()) == {1}
    check_tokens(engine, models)


def test_graphs_that_differ_are_turned_off(graphs, monkeypatch, caplog):
    step = cuda_graphs.decode_step

    def wrong_when_captured(state, filters, shape):
        step(state, filters, shape)
        if graphs.capturing:
            state.rows.tokens.scatter_(1, state.rows.length[:, None] - 1, 5)

    monkeypatch.setattr(cuda_graphs, "decode_step", wrong_when_captured)
    models = with_assistant(models_of(TINY, 142), 0.1)
    engine = DecodeEngine(on_cuda(models))
    assert (engine.runner.enabled, engine.runner.graph_count) == (False, 0)
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR] == [
        "CUDA graphs are off, so decoding is slower: "
        "a graph gave other results than the same pass run eagerly"
    ]
    replays = graphs.replays
    check_tokens(engine, models)
    assert graphs.replays == replays


@pytest.mark.parametrize("name", sorted(WRONG_VALUES.keys() - LATER))
def test_faults_are_found_at_load(graphs, monkeypatch, name):
    """In float64 nothing is rounded."""
    monkeypatch.setattr(graph_check, "TOLERANCE", 1e-9)
    WRONG_VALUES[name](monkeypatch)
    # What the host reads may be no number of a token.
    with contextlib.suppress(Fault, IndexError, RuntimeError):
        assert not DecodeEngine(on_cuda(models_of(TINY, 142))).runner.enabled


def outcome(first, tokens, log_probs):
    return Outcome(torch.tensor(first), torch.tensor(tokens), torch.tensor(log_probs))


def test_a_near_tie_is_no_difference_and_another_probability_is():
    expected = outcome([[-1.0], [-2.0]], [[3, 4], [5, 6]], [[-1.0, -1.0], [-2.0, -1.0]])
    assert agree(expected, expected)
    tied = outcome([[-1.0], [-2.0 + TOLERANCE / 2]], [[3, 4], [9, 9]], [[-1.0, -1.0], [-2.0, -9.0]])
    assert agree(tied, expected)
    assert not agree(expected._replace(first=torch.tensor([[-1.0], [-2.1]])), expected)
    assert not agree(expected._replace(tokens=torch.tensor([[9, 4], [9, 6]])), expected)


def test_with_graphs_turned_off_a_pass_of_each_kind_is_run(graphs):
    DecodeEngine(on_cuda(models_of(TINY, 142)), cuda_graphs=False)
    assert graphs.eager > 0
    assert (graphs.captures, graphs.replays) == (0, 0)
