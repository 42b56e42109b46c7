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
from graph_emulator import ACCELERATOR_ERROR, emulate_graphs, held_steps
from oracle import TINY, decode, models_of, random_heads, with_assistant

from whosaid.asr.checkpoint.medusa import BLOCK, LINEAR
from whosaid.asr.engine import cuda_graphs, drafting
from whosaid.asr.engine.cuda_graphs import SIZES, CudaGraphRunner, EncoderKey, PrefillKey
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.engine.state import DecodeState


class PretendGraphRunner(StepRunner):
    """The shapes and the delay of results that CUDA has, run operation by operation."""

    pipelined = True
    padded = CudaGraphRunner.padded
    draft_lengths = CudaGraphRunner.draft_lengths
    timed_drafts = CudaGraphRunner.timed_drafts

    def __init__(self):
        self.shapes = set()

    def launch(self, state, filters, shape):
        self.shapes.add((state.capacity, shape))
        return super().launch(state, filters, shape)


WINDOWS = 6


def windows_of(timestamps=True, max_tokens=32):
    prompts = oracle.prompts_of(models_of(TINY, 142).special_tokens, timestamps, WINDOWS)
    windows = zip(oracle.noise_windows(WINDOWS), prompts, strict=True)
    return [
        Request(number, samples, prompt, max_tokens)
        for number, (samples, prompt) in enumerate(windows)
    ]


@pytest.fixture
def pretend(monkeypatch):
    """Engines made under it take their device for CUDA."""
    monkeypatch.setattr("whosaid.asr.engine.engine.runner_for", lambda *_: PretendGraphRunner())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (24 << 30, 24 << 30))
    monkeypatch.setattr(drafting, "TIMED_ROWS", (1,))


@functools.cache
def greedy():
    """transformers' tokens."""
    return oracle.greedy(models_of(TINY, 142), windows_of(), True)


def test_a_device_too_small_for_all_rows_still_decodes(pretend, monkeypatch):
    allocate = DecodeState.allocate

    def few(main, assistant, rows, drafts, num_beams):
        if rows > 4:
            raise torch.OutOfMemoryError
        return allocate(main, assistant, rows, drafts, num_beams)

    monkeypatch.setattr(DecodeState, "allocate", few)
    answers = decode(DecodeEngine(models_of(TINY, 142)), windows_of(), DecodeOptions(batch_size=6))
    assert {key: answer.tokens for key, answer in answers.items()} == greedy()


def test_long_texts_have_few_shapes(pretend):
    engine = DecodeEngine(with_assistant(models_of(TINY), 0.1))
    engine.runner.shapes.clear()
    decode(engine, windows_of(max_tokens=None)[:3], DecodeOptions(True, True, 3, drafts=4))
    assert {shape.kv_len for _, shape in engine.runner.shapes} == {
        128,
        256,
        engine.memory.state.main.cache.max_len,
    }


def test_sizes_are_rounded_up():
    padded = CudaGraphRunner().padded
    assert [padded("rows", live) for live in (1, 3, 5, 24, 25, 200)] == [1, 4, 8, 24, 48, 200]


def test_rounded_shapes_and_late_results_change_no_text_of_beams(pretend):
    engine, options = DecodeEngine(models_of(TINY, 142)), DecodeOptions(num_beams=4)
    prompt = DecodeEngine(models_of(TINY, 142))
    prompt.context.runner = StepRunner()
    expected = decode(prompt, windows_of(), options)
    for batch_size, windows in ((1, windows_of()[:2]), (5, windows_of())):
        late = decode(engine, windows, dataclasses.replace(options, batch_size=batch_size))
        assert {key: each.tokens for key, each in late.items()} == {
            each.key: expected[each.key].tokens for each in windows
        }
        for key, each in late.items():
            assert each.log_probs == pytest.approx(expected[key].log_probs)


@pytest.mark.parametrize(("batch_size", "drafts"), [(1, 4), (4, 0), (6, 4)])
def test_rounded_shapes_and_late_results_change_no_token(pretend, batch_size, drafts):
    engine = DecodeEngine(with_assistant(models_of(TINY, 142), 0.1))
    engine.runner.shapes.clear()
    answers = decode(engine, windows_of(), DecodeOptions(True, True, batch_size, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == greedy()
    assert {rows for rows, _ in engine.runner.shapes} <= set(SIZES["rows"])
    assert {shape.kv_len for _, shape in engine.runner.shapes} <= set(SIZES["positions"])
    assert (
        max(shape.assistant_lag for _, shape in engine.runner.shapes) <= 2
    )  # longer ones are not captured


@pytest.mark.parametrize(("kind", "drafts"), [(BLOCK, 0), (BLOCK, 4), (LINEAR, 4), (LINEAR, None)])
def test_rounded_shapes_and_late_results_leave_the_state_of_heads_right(pretend, kind, drafts):
    models = random_heads(models_of(TINY, 142), 5, kind, scale=0.02)
    engine = DecodeEngine(models)
    assert all(shape.followed == bool(shape.drafts) for _, shape in engine.runner.shapes)
    answers = decode(engine, windows_of(), DecodeOptions(True, True, 5, drafts=drafts))
    expected = (
        oracle.greedy(oracle.through_base_head(models), windows_of(), True)
        if kind == LINEAR
        else greedy()
    )
    assert {key: answer.tokens for key, answer in answers.items()} == expected
    assert {shape.assistant_lag for _, shape in engine.runner.shapes} == {1}


REFUSED = "CUDA error: operation not permitted when stream is capturing"
NO_MEMORY = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
LOST = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"


@pytest.fixture
def graphs(monkeypatch):
    return emulate_graphs(monkeypatch)


def drafting_models():
    return with_assistant(models_of(TINY, 142), 0.1)


def check_tokens(engine, options, count=5):
    """The engine's tokens are those of transformers."""
    answers = decode(engine, windows_of()[:count], options)
    expected = {key: tokens for key, tokens in greedy().items() if key < count}
    assert {key: answer.tokens for key, answer in answers.items()} == expected


def log_of(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_all_usual_passes_are_captured_at_load_and_none_later(graphs):
    engine = DecodeEngine(drafting_models())
    steps = {(key.rows, key.shape.kv_len, key.shape.drafts) for key in held_steps(engine.runner)}
    longest = engine.memory.state.main.cache.max_len
    assert steps == {
        (rows, kv_len, drafts)
        for rows in (1, 5)
        for kv_len in (64, longest)
        for drafts in (0, 2, 4, 8)
    }
    held = engine.runner.held()
    assert {key.rows for key in held if isinstance(key, PrefillKey)} == {1, 2, 4}
    assert {key.windows for key in held if isinstance(key, EncoderKey)} == {1, 2, 4}
    assert engine.runner.graph_count == len(held) == engine.runner.planned == graphs.captures
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    decode(engine, windows_of()[:2], DecodeOptions(temperature=0.5))
    assert graphs.captures == engine.runner.graph_count
    assert engine.runner.eager > 0


def test_graphs_over_a_state_have_a_pool_and_a_stream_that_go_with_it(graphs):
    engine = DecodeEngine(models_of(TINY, 142))
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
    engine = DecodeEngine(models_of(TINY, 142))
    held = engine.runner._sets[engine.memory.state.rows.tokens.data_ptr()].inputs
    assert sorted(len(each) for each in held.values() if each.dim() == 3) == [1, 2, 4]


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
    engine = DecodeEngine(drafting_models())
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
    engine = DecodeEngine(models_of(TINY, 142))
    assert engine.runner.enabled
    assert {key.rows for key in held_steps(engine.runner)} == {5}
    planned = engine.runner.planned
    assert log_of(caplog, logging.WARNING)[0].startswith("memory is short: ")
    assert engine.runner.graph_count == 2 < planned
    check_tokens(engine, DecodeOptions(batch_size=5))
    check_tokens(engine, DecodeOptions(batch_size=1))
    assert graphs.replays > 0


def test_the_last_of_a_devices_memory_is_not_taken_by_graphs(graphs, monkeypatch, caplog):
    spare = cuda_graphs.SPARE_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (spare - 1, 64 << 30))
    engine = DecodeEngine(models_of(TINY, 142))
    assert (engine.runner.enabled, graphs.captures) == (True, 0)
    assert "CUDA graphs are left out" in log_of(caplog, logging.WARNING)[0]


@pytest.mark.parametrize("at_load", [True, False])
def test_a_device_that_is_lost_in_a_capture_is_not_hidden(graphs, at_load):
    lost = ACCELERATOR_ERROR(LOST)
    if at_load:
        load = functools.partial(DecodeEngine, models_of(TINY, 142))
    else:
        engine = DecodeEngine(models_of(TINY, 142))
        engine.memory.release()
        options = DecodeOptions(batch_size=5)
        load = functools.partial(decode, engine, windows_of()[:5], options)
    graphs.fails = lambda _: lost
    with pytest.raises(ACCELERATOR_ERROR) as caught:
        load()
    assert caught.value is lost


def test_rows_that_sample_enter_each_with_its_own_random_numbers(graphs):
    """More of them than a graph of a prefill has rows, and such as would enter in two passes."""
    engine = DecodeEngine(models_of(TINY, 142))
    for count in (3, 5):
        asked = windows_of(max_tokens=6)[:count]
        found = decode(engine, asked, DecodeOptions(temperature=0.7, batch_size=count))
        alone = {}
        for each in asked:
            alone |= decode(engine, [each], DecodeOptions(temperature=0.7, batch_size=1))
        assert [found[key].tokens for key in alone] == [each.tokens for each in alone.values()]


def test_without_graphs_nothing_is_captured(graphs, caplog):
    engine = DecodeEngine(drafting_models(), cuda_graphs=False)
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    assert (graphs.captures, graphs.replays) == (0, 0)
    assert not caplog.records


def test_after_long_texts_short_ones_attend_to_few_positions(graphs, monkeypatch):
    engine, seen = DecodeEngine(models_of(TINY)), []
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
