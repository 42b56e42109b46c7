"""Graphs that give other tokens than eager steps are found at load and not used."""

from __future__ import annotations

import contextlib
import logging
import re

import oracle
import pytest
import torch
from graph_emulator import ACCELERATOR_ERROR, Fault, emulate_graphs, held_steps
from graph_faults import WRONG_VALUES
from oracle import TINY, TINY_ENGLISH, models_of, with_assistant

from asr.engine import cuda_graphs, self_test
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request
from asr.engine.self_test import cases, decode_noise, equal, run_self_test


@pytest.fixture
def graphs(monkeypatch):
    return emulate_graphs(monkeypatch)


@pytest.fixture
def short_test(monkeypatch):
    """Less of everything is compared."""
    monkeypatch.setattr(self_test, "PROMPTS", (4,))
    monkeypatch.setattr(self_test, "BEAM_PROMPTS", (4,))
    monkeypatch.setattr(self_test, "MAX_TOKENS", 5)
    monkeypatch.setattr(self_test, "BEAM_TOKENS", 5)


def check_tokens(engine):
    prompt = engine.models.special_tokens.prompt("en", "transcribe", True)
    windows = [Request(n, each, prompt, 40) for n, each in enumerate(oracle.noise_windows(4))]
    answers = oracle.decode(engine, windows, DecodeOptions(assisted=True, batch_size=4, drafts=2))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        engine.models, windows, True
    )


@pytest.mark.parametrize(
    "shape",
    [TINY, pytest.param(TINY_ENGLISH, marks=pytest.mark.reliability)],
    ids=["multilingual", "english"],
)
def test_every_kind_of_step_is_run_and_graphs_that_agree_are_kept(
    graphs, caplog, shape, short_test
):
    engine = DecodeEngine(with_assistant(models_of(shape, 142), 0.1))
    replays = graphs.replays
    assert run_self_test(engine)
    assert engine.runner.enabled
    assert graphs.replays > replays
    assert not caplog.records
    steps = {key for key in held_steps(engine.runner) if not key.shape.shared_len}
    kinds = {(key.rows, k.drafts, k.sampled, k.timestamps) for key in steps for k in [key.shape]}
    assert kinds >= {
        (rows, *kind)
        for rows in (1, engine.memory.capacity)
        for kind in [
            (0, False, True),
            (0, False, False),
            (0, True, True),
            (2, False, True),
            (8, False, True),
        ]
    }
    check_tokens(engine)


def test_graphs_that_differ_are_turned_off(graphs, monkeypatch, caplog, short_test):
    step = cuda_graphs.decode_step

    def wrong_when_captured(state, filters, shape):
        step(state, filters, shape)
        if graphs.capturing:
            state.rows.tokens.scatter_(1, state.rows.length[:, None] - 1, 5)

    monkeypatch.setattr(cuda_graphs, "decode_step", wrong_when_captured)
    engine = DecodeEngine(with_assistant(models_of(TINY, 142), 0.1))
    assert not run_self_test(engine)
    assert (engine.runner.enabled, engine.runner.graph_count) == (False, 0)
    assert [
        record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
    ] == [
        "CUDA graphs are off, decoding is slower from now on: "
        "at load they gave other texts than eager steps"
    ]
    replays = graphs.replays
    check_tokens(engine)
    assert graphs.replays == replays


def test_all_lengths_are_passed_and_nothing_is_left_behind(graphs):
    """A few hundred steps, on either side of each length, though texts of noise end at once."""
    engine = DecodeEngine(models_of(TINY, 142))
    before, eager = engine.context.filters.bias.clone(), graphs.eager
    replays = graphs.replays
    assert run_self_test(engine)
    assert graphs.replays - replays > 100
    assert graphs.eager - eager < 300
    shapes = {key.shape for key in held_steps(engine.runner)}
    longest = engine.memory.state.main.cache.max_len
    assert {each.kv_len for each in shapes if not each.shared_len} == {64, 128, 256, longest}
    assert {each.shared_len for each in shapes} == {0, 64, 192}
    assert torch.equal(engine.context.filters.bias, before)
    check_tokens(engine)


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_faults_are_found_at_load(graphs, monkeypatch, name):
    """Though texts of noise end after a token or two. In float64 nothing is rounded, and random
    weights give each token next to nothing of what earlier ones were.
    """
    monkeypatch.setattr(self_test, "TOLERANCE", 1e-9)
    if name == "key without the prompt of beams":  # no other case comes near it
        monkeypatch.setattr(self_test, "cases", beams_alone)
    WRONG_VALUES[name](monkeypatch)
    # What the host reads may be no number of a token.
    with contextlib.suppress(Fault, IndexError, RuntimeError):
        assert not run_self_test(DecodeEngine(models_of(TINY, 142)))


def beams_alone(engine):
    return [case for case in cases(engine) if case.options.num_beams > 1]


def test_no_graph_is_given_up_where_memory_is_short(graphs, monkeypatch, caplog, short_test):
    engine = DecodeEngine(models_of(TINY, 142))
    beams = engine.batch(self_test.NUM_BEAMS).memory
    monkeypatch.setattr(beams, "rows_beside", lambda wanted: 0)
    held = set(engine.runner.captures.held())
    assert run_self_test(engine)
    assert held <= set(engine.runner.captures.held())
    assert engine.runner.captures.dropped == 0
    assert beams.state is None
    assert caplog.messages == ["the self-test leaves out beams: memory is short"]


def test_it_ends_in_time(graphs, monkeypatch, caplog):
    monkeypatch.setattr(self_test, "MAX_SECONDS", -1.0)
    assert run_self_test(DecodeEngine(models_of(TINY, 142)))
    (line,) = caplog.messages
    assert re.fullmatch(r"the self-test was slow: 0 of \d+ parts", line)


def test_with_graphs_turned_off_the_same_path_is_warmed(graphs, short_test):
    engine = DecodeEngine(models_of(TINY, 142), cuda_graphs=False)
    eager = graphs.eager
    assert run_self_test(engine)
    assert graphs.eager > eager
    assert (graphs.captures, graphs.replays) == (0, 0)


def test_a_device_that_is_lost_meanwhile_is_not_hidden(graphs, short_test):
    engine = DecodeEngine(models_of(TINY, 142))
    graphs.fails = lambda _: ACCELERATOR_ERROR("CUDA error: device-side assert triggered")
    with pytest.raises(ACCELERATOR_ERROR):
        run_self_test(engine)


def test_without_cuda_nothing_is_compared(monkeypatch):
    engine = DecodeEngine(models_of(TINY, 142))
    monkeypatch.setattr(engine, "session", None)
    assert run_self_test(engine)


def test_the_noise_is_the_same_at_every_call(short_test):
    engine = DecodeEngine(models_of(TINY, 142))
    for case in cases(engine):
        assert equal(decode_noise(engine, case), decode_noise(engine, case))
