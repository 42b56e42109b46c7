"""Steps in few shapes with late results; graphs that are captured, fail, and are given up.

Graphs are emulated on the CPU, so tokens are compared with transformers'. On a CUDA device the
graphs themselves are compared with eager steps in float16.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging

import oracle
import pytest
import torch
from cuda_emulator import ACCELERATOR_ERROR, emulated_cuda, held, on_cuda
from oracle import TINY, decode, models_of, with_assistant

from whosaid.asr.engine import cuda_graphs
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request


def windows_of(timestamps=True, max_tokens=40):
    prompts = oracle.prompts_of(models_of(TINY, 142).special_tokens, timestamps, 12)
    windows = zip(oracle.noise_windows(12), prompts, strict=True)
    return [
        Request(number, samples, prompt, max_tokens)
        for number, (samples, prompt) in enumerate(windows)
    ]


@functools.cache
def greedy():
    """transformers' tokens."""
    return oracle.greedy(models_of(TINY, 142), windows_of(), True)


def test_sizes_are_rounded_up():
    padded = CudaGraphRunner().padded
    assert [padded("rows", live) for live in (1, 3, 5, 24, 25, 200)] == [1, 4, 8, 24, 48, 200]


REFUSED = "CUDA error: operation not permitted when stream is capturing"
NO_MEMORY = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
LOST = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"


@pytest.fixture
def graphs(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        yield device


def drafting_models():
    return with_assistant(models_of(TINY, 142), 0.1)


def engine_of(models=None, **options):
    """An engine on the emulated device."""
    return DecodeEngine(on_cuda(models or models_of(TINY, 142)), **options)


def check_tokens(engine, options, count=5):
    """The engine's tokens are those of transformers."""
    answers = decode(engine, windows_of()[:count], options)
    expected = {key: tokens for key, tokens in greedy().items() if key < count}
    assert {key: answer.tokens for key, answer in answers.items()} == expected


def log_of(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_all_usual_passes_are_captured_at_load_and_none_later(graphs):
    engine = engine_of(drafting_models())
    steps = {(rows, shape.kv_len, shape.drafts) for rows, shape in held(engine.runner, "step")}
    longest = engine.memory.state.main.cache.max_len
    assert steps == {
        (rows, kv_len, drafts)
        for rows in (1, 5)
        for kv_len in (64, longest)
        for drafts in (0, 2, 4, 8)
    }
    for kind in ("prefill", "encoder"):
        assert {size for size, *_ in held(engine.runner, kind)} == {1, 2, 4}
    assert engine.runner.graph_count == engine.runner.planned == graphs.captures
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    decode(engine, windows_of()[:2], DecodeOptions(temperature=0.5))
    assert graphs.captures == engine.runner.graph_count
    assert engine.runner.eager > 0


def test_graphs_over_a_state_have_a_pool_and_a_stream_that_go_with_it(graphs):
    engine = engine_of()
    pools = {id(each.pool): each for each in engine.runner._sets.values()}
    assert len(pools) == 3  # of greedy rows, beams and encoders
    assert len({id(each.stream) for each in pools.values()}) == 3
    assert all(each.stream.priority < 0 for each in pools.values())
    captures, owners = graphs.captures, set(engine.runner._sets)
    own = engine.memory.state.rows.tokens.data_ptr()
    engine.memory.release()
    assert set(engine.runner._sets) == owners - {own}
    check_tokens(engine, DecodeOptions(batch_size=5))  # allocated anew, with graphs
    assert graphs.captures > captures
    assert len(engine.runner._sets) == len(owners)


def test_what_graphs_read_of_the_audio_is_held_once(graphs):
    """Whatever the lengths of prompts and guesses, each of which has graphs of its own."""
    engine = engine_of()
    inputs = engine.runner._sets[engine.memory.state.rows.tokens.data_ptr()].inputs
    assert sorted(len(each) for each in inputs.values() if each.dim() == 3) == [1, 2, 4]


@pytest.mark.parametrize(
    ("failing", "at_begin", "error"),
    [
        (1, False, ACCELERATOR_ERROR(REFUSED)),
        (3, False, RuntimeError("cublas: not created")),
        (3, True, ACCELERATOR_ERROR(REFUSED)),
    ],
)
def test_a_capture_that_fails_turns_graphs_off(graphs, caplog, failing, at_begin, error):
    graphs.fails = lambda number: error if number >= failing else None
    graphs.at_begin = at_begin
    engine = engine_of(drafting_models())
    assert (engine.runner.enabled, engine.runner.graph_count) == (False, 0)
    assert graphs.captures == failing
    replays = graphs.replays
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    assert (graphs.captures, graphs.replays) == (failing, replays)
    assert log_of(caplog, logging.ERROR) == [
        "CUDA graphs are off, so decoding is slower: "
        f"a capture failed: {type(error).__name__}: {error}"
    ]


@pytest.mark.parametrize("error", [ACCELERATOR_ERROR(NO_MEMORY), torch.OutOfMemoryError()])
def test_where_memory_is_short_no_more_graphs_are_captured(graphs, caplog, error):
    graphs.fails = lambda number: error if number > 2 else None
    engine = engine_of()
    assert engine.runner.enabled
    assert {rows for rows, _ in held(engine.runner, "step")} == {5}
    planned = engine.runner.planned
    assert log_of(caplog, logging.WARNING)[0].startswith("memory is short: ")
    assert engine.runner.graph_count == 2 < planned
    check_tokens(engine, DecodeOptions(batch_size=5))
    check_tokens(engine, DecodeOptions(batch_size=1))
    assert graphs.replays > 0


def test_the_last_of_a_devices_memory_is_not_taken_by_graphs(graphs, monkeypatch, caplog):
    spare = cuda_graphs.SPARE_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (spare - 1, 64 << 30))
    engine = engine_of()
    assert (engine.runner.enabled, graphs.captures) == (True, 0)
    assert "CUDA graphs are left out" in log_of(caplog, logging.WARNING)[0]


@pytest.mark.parametrize("at_load", [True, False])
def test_a_device_that_is_lost_in_a_capture_is_not_hidden(graphs, at_load):
    lost = ACCELERATOR_ERROR(LOST)
    if at_load:
        load = engine_of
    else:
        engine = engine_of()
        engine.memory.release()
        options = DecodeOptions(batch_size=5)
        load = functools.partial(decode, engine, windows_of()[:5], options)
    graphs.fails = lambda _: lost
    with pytest.raises(ACCELERATOR_ERROR) as caught:
        load()
    assert caught.value is lost


def test_rows_that_sample_enter_each_with_its_own_random_numbers(graphs):
    """More of them than a graph of a prefill has rows, and such as would enter in two passes."""
    engine = engine_of()
    for count in (3, 5):
        asked = windows_of(max_tokens=6)[:count]
        found = decode(engine, asked, DecodeOptions(temperature=0.7, batch_size=count))
        alone = {}
        for each in asked:
            alone |= decode(engine, [each], DecodeOptions(temperature=0.7, batch_size=1))
        assert [found[key].tokens for key in alone] == [each.tokens for each in alone.values()]


def test_without_graphs_nothing_is_captured(graphs, caplog):
    engine = engine_of(drafting_models(), cuda_graphs=False)
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    assert (graphs.captures, graphs.replays) == (0, 0)
    assert not caplog.records


def test_after_long_texts_short_ones_attend_to_few_positions(graphs, monkeypatch):
    engine, seen = engine_of(models_of(TINY)), []
    launch = engine.runner.launch

    def record(state, filters, shape):
        seen.append(shape.kv_len)
        return launch(state, filters, shape)

    monkeypatch.setattr(engine.runner, "launch", record)
    long = [dataclasses.replace(each, max_tokens=80) for each in windows_of()[:4]]
    decode(engine, long, DecodeOptions(batch_size=4))
    assert max(seen) > 64
    seen.clear()
    short = [dataclasses.replace(each, max_tokens=8) for each in windows_of()[:3]]
    decode(engine, short, DecodeOptions(batch_size=3))
    assert set(seen) == {64}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("drafts", [0, 4, None])
def test_on_a_device_graphs_give_the_tokens_of_eager_steps_in_float16(drafts):
    models = with_assistant(models_of(TINY, 142, torch.float16), 0.1)
    there = dataclasses.replace(
        models,
        model=copy.deepcopy(models.model).to("cuda"),
        assistant=dataclasses.replace(
            models.assistant, model=copy.deepcopy(models.assistant.model).to("cuda")
        ),
    )
    engine = DecodeEngine(there)
    assert isinstance(engine.runner, CudaGraphRunner)
    options = DecodeOptions(True, True, 5, drafts=drafts)
    with engine.runner.paused():
        eager = decode(engine, windows_of(), options)
    captured = decode(engine, windows_of(), options)
    assert {key: each.tokens for key, each in captured.items()} == {
        key: each.tokens for key, each in eager.items()
    }
    assert engine.runner.enabled
    assert engine.runner.graph_count > 0
