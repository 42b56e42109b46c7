"""Steps in few shapes with late results; graphs that are captured, fail, and are given up.

Graphs are emulated on the CPU, so tokens are compared with transformers'. On a CUDA device the
graphs themselves are compared with eager steps in float16.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import weakref

import oracle
import pytest
import torch
from graph_emulator import ACCELERATOR_ERROR, emulate_graphs, held_steps
from oracle import TINY, decode, models_of, random_heads, with_assistant

from asr.checkpoint.medusa import BLOCK, LINEAR
from asr.engine import cuda_graphs, drafting
from asr.engine.captures import MAX_REFUSED, PAUSES
from asr.engine.cuda_graphs import (
    ENCODERS,
    KV_LENGTHS,
    ROW_COUNTS,
    CudaGraphRunner,
    EncoderKey,
    PrefillKey,
    round_up,
)
from asr.engine.decode_state import DecodeState
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request
from asr.engine.runner import StepRunner


class PretendGraphRunner(StepRunner):
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


@pytest.fixture
def few_prepared(monkeypatch):
    """Shapes at load, of which requests use others."""
    monkeypatch.setattr(cuda_graphs, "WARMUP_ROWS", 2)
    monkeypatch.setattr(cuda_graphs, "WARMUP_KV_LEN", 64)
    monkeypatch.setattr(cuda_graphs, "DRAFTED_WARMUP_ROWS", (1,))
    monkeypatch.setattr(drafting, "TIMED_ROWS", (1,))


@functools.cache
def greedy():
    """transformers' tokens."""
    return oracle.greedy(models_of(TINY, 142), windows_of(), True)


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

    def few(main, assistant, rows, drafts, num_beams):
        if rows > 4:
            raise torch.OutOfMemoryError
        return allocate(main, assistant, rows, drafts, num_beams)

    monkeypatch.setattr(DecodeState, "allocate", few)
    answers = decode(DecodeEngine(models_of(TINY, 142)), windows_of(), DecodeOptions(batch_size=12))
    assert {key: answer.tokens for key, answer in answers.items()} == greedy()


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


@pytest.mark.parametrize("batch_size", [1, 5])
def test_rounded_shapes_and_late_results_change_no_text_of_beams(pretend, few_prepared, batch_size):
    engine, options = DecodeEngine(models_of(TINY, 142)), DecodeOptions(num_beams=4)
    late = decode(engine, windows_of(), dataclasses.replace(options, batch_size=batch_size))
    prompt = DecodeEngine(models_of(TINY, 142))
    prompt.context.runner = StepRunner()
    expected = decode(prompt, windows_of(), options)
    assert {key: each.tokens for key, each in late.items()} == {
        key: each.tokens for key, each in expected.items()
    }
    for key, each in expected.items():
        assert late[key].log_probs == pytest.approx(each.log_probs)


@pytest.mark.parametrize(("batch_size", "drafts"), [(1, 4), (5, 0), (12, 4)])
def test_rounded_shapes_and_late_results_change_no_token(pretend, batch_size, drafts):
    engine = DecodeEngine(with_assistant(models_of(TINY, 142), 0.1))
    engine.runner.shapes.clear()
    answers = decode(engine, windows_of(), DecodeOptions(True, True, batch_size, drafts=drafts))
    assert {key: answer.tokens for key, answer in answers.items()} == greedy()
    assert {rows for rows, _ in engine.runner.shapes} <= set(ROW_COUNTS)
    assert {shape.kv_len for _, shape in engine.runner.shapes} <= set(KV_LENGTHS)
    assert (
        max(shape.assistant_lag for _, shape in engine.runner.shapes) <= 2
    )  # longer ones are not captured


@pytest.mark.parametrize(("kind", "drafts"), [(BLOCK, 0), (BLOCK, 4), (LINEAR, 4), (LINEAR, None)])
def test_rounded_shapes_and_late_results_leave_the_state_of_heads_right(
    pretend, few_prepared, kind, drafts
):
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


def over_states(engine, pools):
    """All but that of the encoder's graphs, which stay."""
    return [pool for pool in pools if pool is not engine.runner.captures._sets[ENCODERS].pool]


def test_graphs_over_a_state_have_a_pool_and_a_stream_that_go_with_it(graphs):
    engine = DecodeEngine(models_of(TINY, 142))
    assert len(set(graphs.pools)) == 1
    at_load = graphs.captures
    for _ in range(2):
        check_tokens(engine, DecodeOptions(batch_size=5))  # more rows than were prepared
    larger = over_states(engine, graphs.pools[at_load:])
    assert len(set(larger)) == 1
    assert larger[0] is not graphs.pools[0]
    streams = {pool.stream for pool in graphs.pools}
    assert len(streams) == 2  # one is free by then
    assert all(each.priority < 0 for each in streams)
    engine.memory.release()
    captures = engine.runner.captures
    assert all(isinstance(key, EncoderKey) for key in captures.held())
    assert captures.dropped == captures.captured - captures.graph_count
    replays = graphs.replays
    check_tokens(engine, DecodeOptions(batch_size=5))
    assert len(set(graphs.pools)) == 4
    assert graphs.replays > replays


def test_what_graphs_read_of_the_audio_is_held_once(graphs):
    """Whatever the lengths of prompts and guesses, each of which has graphs of its own."""
    engine = DecodeEngine(models_of(TINY, 142))
    for guessed in (0, 20, 40):
        asked = [dataclasses.replace(each, draft=(5,) * guessed) for each in windows_of()[:7]]
        for _ in range(2):
            decode(engine, asked, DecodeOptions(batch_size=7))
    prefills = [key for key in engine.runner.captures.held() if isinstance(key, PrefillKey)]
    assert len({key.shape for key in prefills}) == 3
    del engine.runner._inputs[ENCODERS]
    (held,) = engine.runner._inputs.values()
    sizes = [len(each) for each in held.values() if each.dim() == 3]
    assert sorted(sizes) == sorted({key.rows for key in prefills}) == [1, 2, 4]


def test_a_batch_that_grows_drops_no_graph_of_another(graphs):
    engine = DecodeEngine(models_of(TINY, 142))
    engine.memory.ensure_capacity(8)
    for _ in range(2):
        check_tokens(engine, DecodeOptions(batch_size=8))
    kept = set(engine.runner.captures.held())
    captures, streams = graphs.captures, {pool.stream for pool in graphs.pools}
    for rows in (2, 5, 9):
        for _ in range(2):
            few = windows_of(max_tokens=10)[:rows]
            decode(engine, few, DecodeOptions(num_beams=3, batch_size=rows))
        assert engine.batch(3).memory.capacity >= rows
    assert kept <= set(engine.runner.captures.held())
    assert engine.runner.captures.dropped > 0
    beams = {pool.stream for pool in over_states(engine, graphs.pools[captures:])}
    assert len(beams) == 1
    assert not beams & streams
    captures = graphs.captures
    check_tokens(engine, DecodeOptions(batch_size=8))
    assert graphs.captures == captures


@pytest.mark.parametrize(
    ("failing", "at_begin", "error"),
    [
        (1, False, ACCELERATOR_ERROR(REFUSED)),
        (3, False, RuntimeError("cublas: not created")),
        (3, True, ACCELERATOR_ERROR(REFUSED)),
    ],
)
def test_after_a_capture_that_fails_steps_run_eagerly(graphs, caplog, failing, at_begin, error):
    graphs.fails = lambda number: error if number >= failing else None
    graphs.at_begin = at_begin
    engine = DecodeEngine(drafting_models())
    assert (engine.runner.enabled, engine.runner.graph_count) == (True, 0)
    assert graphs.captures == failing
    assert graphs.ended == [graphs.pools[-1]]
    replays = graphs.replays
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    assert (graphs.captures, graphs.replays) == (failing, replays)
    reason = f"{type(error).__name__}: {error}"
    assert log_of(caplog, logging.WARNING) == [
        f"a capture failed, the next CUDA graph is tried after {PAUSES[0]} steps: {reason}"
    ]


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr("asr.engine.captures.PAUSES", (3, 5, 7))


def test_captures_are_tried_again_a_while_after_one_that_failed(graphs, short_pauses, caplog):
    graphs.fails = lambda number: ACCELERATOR_ERROR(REFUSED) if number == 1 else None
    engine = DecodeEngine(models_of(TINY, 142))
    for _ in range(2):
        check_tokens(engine, DecodeOptions(batch_size=5))
    assert graphs.captures > 1
    assert graphs.replays > 0
    assert engine.runner.graph_count > 0
    assert len(log_of(caplog, logging.WARNING)) == 1


def test_captures_that_go_on_failing_are_given_up(graphs, short_pauses, caplog):
    graphs.fails = lambda _: ACCELERATOR_ERROR(REFUSED)
    engine = DecodeEngine(models_of(TINY, 142))
    for _ in range(3):
        check_tokens(engine, DecodeOptions(batch_size=5))
    assert not engine.runner.enabled
    assert graphs.captures == 4
    assert graphs.replays == 0
    assert len(log_of(caplog, logging.WARNING)) == 3
    reason = f"{ACCELERATOR_ERROR.__name__}: {REFUSED}"
    assert log_of(caplog, logging.ERROR) == [
        "CUDA graphs are off, decoding is slower from now on: "
        f"4 captures failed, the last: {reason}"
    ]


def test_a_capture_that_fails_leaves_the_graphs_of_other_states(graphs):
    engine = DecodeEngine(models_of(TINY, 142))
    held = engine.runner.graph_count
    graphs.fails = lambda _: ACCELERATOR_ERROR(REFUSED)
    for _ in range(2):
        decode(engine, windows_of()[:2], DecodeOptions(num_beams=3, batch_size=2))
    assert engine.runner.graph_count == held
    replays = graphs.replays
    check_tokens(engine, DecodeOptions(batch_size=2), 2)
    assert graphs.replays > replays


@pytest.mark.parametrize("error", [ACCELERATOR_ERROR(NO_MEMORY), torch.OutOfMemoryError()])
def test_a_graph_for_which_memory_is_short_is_left_out(graphs, caplog, error):
    graphs.fails = lambda number: error if number == 1 else None
    engine = DecodeEngine(models_of(TINY, 142))
    assert engine.runner.enabled
    assert log_of(caplog, logging.WARNING) == [
        "no memory for the CUDA graph of 2 rows: it runs eagerly"
    ]
    assert {key.rows for key in held_steps(engine.runner)} == {1}
    check_tokens(engine, DecodeOptions(batch_size=2))
    check_tokens(engine, DecodeOptions(batch_size=1))
    assert graphs.replays > 0


def test_where_memory_is_short_for_every_graph_captures_pause(graphs, caplog):
    graphs.fails = lambda _: ACCELERATOR_ERROR(NO_MEMORY)
    engine = DecodeEngine(drafting_models())
    assert graphs.captures == MAX_REFUSED
    assert log_of(caplog, logging.WARNING)[-1] == (
        f"a capture failed, the next CUDA graph is tried after {PAUSES[0]} steps: "
        f"{ACCELERATOR_ERROR.__name__}: CUDA error: out of memory"
    )
    check_tokens(engine, DecodeOptions(True, True, 5, drafts=4))
    assert graphs.captures == MAX_REFUSED


def test_a_device_that_is_lost_in_a_capture_is_not_hidden(graphs):
    lost = ACCELERATOR_ERROR(LOST)
    graphs.fails = lambda _: lost
    with pytest.raises(ACCELERATOR_ERROR) as caught:
        DecodeEngine(models_of(TINY, 142))
    assert caught.value is lost
    graphs.fails = lambda _: None
    engine = DecodeEngine(models_of(TINY, 142))
    graphs.fails = lambda _: lost
    with pytest.raises(ACCELERATOR_ERROR) as caught:
        decode(engine, windows_of()[:5], DecodeOptions(batch_size=5))
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


def test_a_state_is_freed_before_a_larger_one_takes_its_place(graphs, monkeypatch):
    engine = DecodeEngine(models_of(TINY, 142))
    check_tokens(engine, DecodeOptions(batch_size=2), 2)
    keys, allocate = engine.memory.state.main.cache.keys[0], DecodeState.allocate
    old = weakref.ref(keys.untyped_storage())
    del keys

    def when_free(*sizes):
        assert old() is None
        return allocate(*sizes)

    monkeypatch.setattr(DecodeState, "allocate", when_free)
    check_tokens(engine, DecodeOptions(batch_size=5))


def test_after_long_texts_short_ones_attend_to_few_positions(graphs, monkeypatch):
    engine, seen = DecodeEngine(models_of(TINY)), []
    launch = engine.runner.launch

    def record(state, filters, shape):
        seen.append(shape.kv_len)
        return launch(state, filters, shape)

    monkeypatch.setattr(engine.runner, "launch", record)
    long = [dataclasses.replace(each, max_tokens=80) for each in windows_of()[:4]]
    decode(engine, long, DecodeOptions(batch_size=4))
    assert max(seen) == 128
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
    for _ in range(2):  # shapes that were not prepared are captured at their second use
        captured = decode(engine, windows_of(), options)
        assert {key: each.tokens for key, each in captured.items()} == {
            key: each.tokens for key, each in eager.items()
        }
    assert engine.runner.enabled
    assert engine.runner.graph_count > 0
