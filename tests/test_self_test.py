"""Graphs that give other tokens than eager steps are found at load and not used."""

from __future__ import annotations

import logging

import oracle
import pytest
from graph_emulator import ACCELERATOR_ERROR, emulate_graphs
from oracle import TINY, TINY_ENGLISH, models_of, with_assistant

from asr.engine import cuda_graphs
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request
from asr.engine.self_test import decode_noise, run_self_test, step_kinds


@pytest.fixture
def graphs(monkeypatch):
    return emulate_graphs(monkeypatch)


def check_tokens(engine):
    prompt = engine.models.special_tokens.prompt("en", "transcribe", True)
    windows = [Request(n, each, prompt, 40) for n, each in enumerate(oracle.noise_windows(4))]
    answers = oracle.decode(engine, windows, DecodeOptions(assisted=True, batch_size=4, drafts=2))
    assert {key: answer.tokens for key, answer in answers.items()} == oracle.greedy(
        engine.models, windows, True
    )


@pytest.mark.parametrize("shape", [TINY, TINY_ENGLISH], ids=["multilingual", "english"])
def test_graphs_that_agree_are_kept(graphs, caplog, shape):
    engine = DecodeEngine(with_assistant(models_of(shape, 142), 0.1))
    replays = graphs.replays
    assert run_self_test(engine)
    assert engine.runner.enabled
    assert graphs.replays > replays
    assert not caplog.records
    check_tokens(engine)


def test_graphs_that_differ_are_turned_off(graphs, monkeypatch, caplog):
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
        "at load they gave other tokens than eager steps"
    ]
    replays = graphs.replays
    check_tokens(engine)
    assert graphs.replays == replays


def test_every_kind_of_step_is_run(graphs):
    engine = DecodeEngine(with_assistant(models_of(TINY, 142), 0.1))
    run_self_test(engine)
    shapes = {key.shape for key in engine.runner.captures.held()}
    assert {(each.drafts > 0, each.sampled, each.timestamps) for each in shapes} == {
        (False, False, True),
        (False, False, False),
        (False, True, True),
        (True, False, True),
    }


def test_with_graphs_turned_off_the_same_path_is_warmed(graphs):
    engine = DecodeEngine(models_of(TINY, 142), cuda_graphs=False)
    eager = graphs.eager
    assert run_self_test(engine)
    assert graphs.eager > eager
    assert (graphs.captures, graphs.replays) == (0, 0)


def test_a_device_that_is_lost_meanwhile_is_not_hidden(graphs):
    engine = DecodeEngine(models_of(TINY, 142))
    graphs.fails = lambda _: ACCELERATOR_ERROR("CUDA error: device-side assert triggered")
    with pytest.raises(ACCELERATOR_ERROR):
        run_self_test(engine)


def test_without_cuda_nothing_is_compared(monkeypatch):
    engine = DecodeEngine(models_of(TINY, 142))
    monkeypatch.setattr(engine, "session", None)
    assert run_self_test(engine)


def test_the_noise_is_the_same_at_every_call():
    engine = DecodeEngine(models_of(TINY, 142))
    for options in step_kinds(engine):
        first = decode_noise(engine, options)
        assert first == decode_noise(engine, options)
        assert all(tokens for tokens in first.values())
