"""Load with too little memory: what fits is prepared, and the endpoint serves all the same."""

from __future__ import annotations

import dataclasses
import logging

import oracle
import pytest
import torch
from cuda_emulator import ACCELERATOR_ERROR, emulated_cuda, on_cuda
from oracle import TINY, models_of, with_assistant

from whosaid.asr.engine import cuda_graphs, drafting
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.runner import StepRunner

NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ACCELERATOR_ERROR("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


TIMED_ROWS = (1, 4)


@pytest.fixture
def graphs(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        monkeypatch.setattr(drafting, "TIMED_ROWS", TIMED_ROWS)
        yield device


def check_tokens(engine, models, options):
    """The engine's tokens are those of transformers. Returns the statistics."""
    prompt = models.special_tokens.prompt("en", "transcribe", True)
    windows = [Request(n, each, prompt, 40) for n, each in enumerate(oracle.noise_windows(5))]
    answers = {}
    with engine.session(options) as session:
        session.add(windows)
        while not session.done:
            answers |= {request.key: result.tokens for request, result in session.step()}
    assert answers == oracle.greedy(models, windows, True)
    return session.stats


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def raise_in_steps(monkeypatch, error, chosen):
    """Steps over as many rows as `chosen` says raise `error`."""
    step = cuda_graphs.decode_step

    def failing(state, filters, shape):
        if chosen(state.capacity, shape):
            raise error
        step(state, filters, shape)

    monkeypatch.setattr(cuda_graphs, "decode_step", failing)


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: type(error).__name__)
def test_too_little_memory_while_graphs_are_captured(graphs, monkeypatch, caplog, error):
    """The rest runs eagerly; a batch that does not fit is halved."""
    raise_in_steps(monkeypatch, error, lambda rows, _: rows == 5)
    engine = DecodeEngine(on_cuda(models_of(TINY, 142)))
    assert "CUDA graphs are left out" in warnings_of(caplog)[0]
    check_tokens(engine, models_of(TINY, 142), DecodeOptions(batch_size=5))


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: type(error).__name__)
def test_too_little_memory_while_costs_are_measured(graphs, monkeypatch, caplog, error):
    monkeypatch.setattr(
        "whosaid.asr.engine.cuda_graphs.CudaGraphRunner.prepare", lambda *_, **__: None
    )
    monkeypatch.setattr(drafting, "_time_step", fail_with(error))
    models = with_assistant(models_of(TINY, 142), 0.1)
    engine = DecodeEngine(on_cuda(models))
    assert engine.context.drafting is None
    assert engine.memory.state is None
    assert warnings_of(caplog) == ["memory ran out while timing steps: nothing will be drafted"]
    options = DecodeOptions(assisted=True, batch_size=5)
    assert check_tokens(engine, models, options).drafted == 0
    # A client that fixes the number of drafts still has them.
    assert check_tokens(engine, models, dataclasses.replace(options, drafts=2)).drafted > 0


def fail_with(error):
    def fail(*_):
        raise error

    return fail


def test_other_errors_end_the_load(graphs, monkeypatch):
    error = RuntimeError("shapes do not match")
    raise_in_steps(monkeypatch, error, lambda rows, _: rows == 5)
    with pytest.raises(RuntimeError) as caught:
        DecodeEngine(on_cuda(models_of(TINY, 142)))
    assert caught.value is error


def test_costs_are_those_of_replays(graphs, monkeypatch):
    """No step that runs eagerly is timed, nor is a capture."""
    monkeypatch.setattr(drafting.time, "perf_counter", lambda: graphs.clock)
    engine = DecodeEngine(on_cuda(with_assistant(models_of(TINY, 142), 0.1)))
    seconds = engine.context.drafting.costs.seconds
    assert set(seconds) == {(rows, drafts) for rows in TIMED_ROWS for drafts in (0, 2, 8)}
    assert set(seconds.values()) == {graphs.replay_seconds}


def test_on_a_cpu_costs_are_measured_and_the_memory_given_back():
    engine = DecodeEngine(with_assistant(models_of(TINY, 142), 0.1))
    assert set(engine.context.drafting.costs.seconds) == {
        (rows, drafts) for rows in (1, 4, 12) for drafts in StepRunner.timed_drafts
    }
    assert engine.memory.state is None
