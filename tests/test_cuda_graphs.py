"""Graphs captured at load, compared with eager passes, left out or given up; steps in few shapes.

Graphs are emulated on the CPU, so tokens are compared with transformers'. On a CUDA device the
graphs themselves are compared with eager steps in float16."""

import contextlib
import copy
import dataclasses
import functools
import gc
import itertools
import logging
import weakref
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from tests.helpers import oracle
from tests.helpers.calls import calls_of
from tests.helpers.cuda_emulator import ACCELERATOR_ERROR, Fault, emulated_cuda, held, on_cuda
from tests.helpers.graph_faults import WRONG_VALUES
from whosaid.asr.checkpoint.medusa import BLOCK
from whosaid.asr.engine import batch, cuda_graphs, drafting, graph_check, memory
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.graph_check import TOLERANCE, Outcome, agree
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.result_reader import ResultReader
from whosaid.asr.engine.rows import padded
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.engine.scheduler import Limits
from whosaid.asr.model import cuda_attention
from whosaid.errors import ModelError

REFUSED = "CUDA error: operation not permitted when stream is capturing"
NO_MEMORY = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
LOST = "CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA"
OFF = "CUDA graphs are off, so decoding is slower: "
PLAIN, DRAFTED = DecodeOptions(batch_size=5), DecodeOptions(True, True, 5, drafts=4)
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
    """Graphs of one prompt's length alone, and none for guesses."""
    with emulated_cuda(monkeypatch, prompt=(8,), guess=(0,)) as device:
        yield device


@pytest.fixture
def all_graphs(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        yield device


def plain_models():
    return oracle.models_of(oracle.TINY, 142)


@functools.cache
def drafting_models():
    return oracle.with_assistant(plain_models(), 0.1)


def engine_of(models=None, **options):
    """An engine on the emulated device."""
    return DecodeEngine(on_cuda(models or plain_models()), **options)


def check_tokens(engine, options, models=None):
    """The engine's tokens are those of transformers. Returns the statistics."""
    windows = oracle.windows_of(count=3)
    answers, stats = oracle.decode_counted(engine, windows, options)
    expected = oracle.greedy(models, windows, True) if models else oracle.truth(count=3, ending=142)
    assert oracle.tokens_of(answers) == expected
    return stats


def log_of(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def raise_in_steps(monkeypatch, error):
    """Steps over five rows raise `error`."""
    step = cuda_graphs.decode_step

    def failing(state, filters, shape):
        if state.capacity == 5:
            raise error
        step(state, filters, shape)

    monkeypatch.setattr(cuda_graphs, "decode_step", failing)


def test_sizes_are_rounded_up():
    rows = CudaGraphRunner.sizes.rows
    found = [padded(live, rows, 150) for live in (1, 3, 5, 24, 25, 129, 200)]
    assert found == [1, 4, 8, 24, 32, 129, 150]


# What a load captures


def test_all_usual_passes_are_captured_at_load_and_none_later(all_graphs, caplog, monkeypatch):
    """Graphs are exact to the last digit. Replays are timed; eager steps and captures are not."""
    monkeypatch.setattr(graph_check, "TOLERANCE", 1e-9)
    monkeypatch.setattr(drafting.time, "perf_counter", lambda: all_graphs.clock)
    engine = engine_of(drafting_models())
    runner, state = engine.runner, engine.memory.state
    steps = {(rows, shape.kv_len, shape.drafts) for rows, shape in held(runner, "step")}
    lengths, drafts = (64, state.cache.max_len), (0, *runner.draft_lengths)
    assert steps == set(itertools.product((1, 5), lengths, drafts))
    for kind in ("prefill", "encoder"):
        assert {size for size, *_ in held(runner, kind)} == set(cuda_graphs.PASS_SIZES)
    assert runner.graph_count == runner.planned == all_graphs.captures
    assert not warnings_of(caplog)
    costs = engine.context.drafting.costs.seconds
    assert costs == {(1, drafts): all_graphs.replay_seconds for drafts in runner.timed_drafts}
    # Noise leaves nothing behind.
    assert state.rows.finished.all()
    assert set(state.rows.length.tolist()) == {1}
    check_tokens(engine, DRAFTED)
    oracle.decode(engine, oracle.windows_of(count=2), DecodeOptions(temperature=0.5))
    assert all_graphs.captures == runner.graph_count
    assert runner.eager > 0


@pytest.mark.reliability
@pytest.mark.parametrize(
    "make",
    [
        lambda: oracle.models_of(oracle.TINY_ENGLISH, 142),
        lambda: oracle.random_heads(plain_models(), 5, BLOCK, scale=0.02),
    ],
    ids=["english", "heads"],
)
def test_graphs_of_other_models_agree(all_graphs, caplog, monkeypatch, make):
    monkeypatch.setattr(graph_check, "TOLERANCE", 1e-9)
    engine = engine_of(models := make())
    assert not warnings_of(caplog)
    check_tokens(engine, dataclasses.replace(DRAFTED, drafts=2), models)


def test_each_graph_set_owns_a_pool_and_stream(all_graphs):
    engine = engine_of()
    pools = {id(each.pool): each for each in engine.runner._sets.values()}
    assert len(pools) == 3  # of greedy rows, beams and encoders
    assert len({id(each.stream) for each in pools.values()}) == 3
    assert all(each.stream.priority < 0 for each in pools.values())
    captures, owners = all_graphs.captures, set(engine.runner._sets)
    own = engine.memory.state.rows.tokens.data_ptr()
    # What graphs read of the audio is held once, whatever the lengths of prompts and guesses.
    inputs = engine.runner._sets[own].inputs.values()
    sizes = sorted(len(each) for each in inputs if each.dim() == 3)
    assert sizes == sorted(cuda_graphs.PASS_SIZES)
    engine.memory.release()
    assert set(engine.runner._sets) == owners - {own}
    check_tokens(engine, PLAIN)  # allocated anew, with graphs
    assert all_graphs.captures > captures
    assert len(engine.runner._sets) == len(owners)


def warnings_of(caplog) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_disabled_graphs_warm_up_eagerly_and_capture_nothing(graphs, caplog):
    engine = engine_of(drafting_models(), cuda_graphs=False)
    assert graphs.eager > 0
    check_tokens(engine, DRAFTED)
    assert (graphs.captures, graphs.replays) == (0, 0)
    assert not warnings_of(caplog)


# As many rows as the device has


def test_beams_step_by_graphs_in_all_their_rows(monkeypatch):
    monkeypatch.setattr(memory, "BEAM_LANES_SHARE", 9.0)
    options = DecodeOptions(num_beams=5, batch_size=8, timestamps=False)
    with emulated_cuda(monkeypatch, rows=(1, 8, 64), prompt=(8,), guess=(0,)) as device:
        engine = engine_of()
        assert engine.batch(5).memory.capacity >= 8
        device.eager = 0
        oracle.decode(engine, oracle.windows_of(False, 8), options)
        assert (device.eager, engine.runner.enabled) == (0, True)


@pytest.mark.parametrize("drafts", [4, None])
def test_more_rows_than_drafted_steps_are_captured_for_draft_nothing(graphs, monkeypatch, drafts):
    monkeypatch.setattr(CudaGraphRunner, "drafted_rows", 1)
    monkeypatch.setattr(drafting.time, "perf_counter", lambda: graphs.clock)
    engine = engine_of(drafting_models())
    graphs.eager = 0
    for rows in (1, 5):
        options = dataclasses.replace(DRAFTED, drafts=drafts, batch_size=rows)
        _, stats = oracle.decode_counted(engine, oracle.windows_of(count=rows), options)
        assert (stats.drafted > 0) == (rows == 1)
    assert graphs.eager == 0


def test_sessions_have_the_devices_rows_and_long_ones_leave_a_quarter(graphs, monkeypatch):
    monkeypatch.setattr(CudaGraphRunner, "drafted_rows", 2)
    engine = engine_of(drafting_models(), limits=Limits(shared=True))
    kinds = DecodeOptions(), DecodeOptions(assisted=True), DecodeOptions(batch_size=3)
    assert [engine.session(each).most_rows for each in kinds] == [5, 2, 3]
    asked = [dataclasses.replace(each, windows_left=9) for each in oracle.windows_of(count=6)]
    with engine.session(DecodeOptions(batch_size=6)) as session:
        session.add(asked)
        engine.step()
        assert engine.scheduler.running == 4


# Kernels


def refuse(*_):
    raise RuntimeError("cuDNN Frontend error: No valid execution plans built.")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (F.scaled_dot_product_attention, None),
        (refuse, "RuntimeError: cuDNN Frontend error: No valid execution plans built."),
        (lambda *parts: F.scaled_dot_product_attention(*parts) * 0.5, "its result is off by 50%"),
        # The heads of a row in another order.
        (lambda *parts: F.scaled_dot_product_attention(*parts).flip(1), "its result is off by "),
    ],
)
def test_cudnn_computes_only_what_it_does_like_torch(graphs, monkeypatch, caplog, kernel, reason):
    calls = []
    monkeypatch.setattr(cuda_attention, "was_measured", lambda *_: True)
    monkeypatch.setattr(cuda_attention, "LEAST_ROWS", 3)
    monkeypatch.setattr(
        cuda_attention, "attend_by_cudnn", lambda *parts: calls.append(parts) or kernel(*parts)
    )
    engine = engine_of(drafting_models())
    check_tokens(engine, DRAFTED)
    assert engine.runner.enabled
    if reason is None:
        assert len(calls) > 1
        assert not warnings_of(caplog)
    else:
        assert len(calls) == 1
        assert f"cuDNN's attention is not used: {reason}" in log_of(caplog, logging.WARNING)[0]
    calls.clear()
    check_tokens(engine_of(drafting_models(), cuda_graphs=False), DRAFTED)
    assert not calls


# Engines one after another


def test_engines_one_after_another_take_the_same_streams(graphs, monkeypatch):
    made, pools, stream = [], [], torch.cuda.Stream
    monkeypatch.setattr(
        torch.cuda, "Stream", lambda *args, **named: made.append(stream(*args, **named)) or made[-1]
    )
    for _ in range(3):
        engine = engine_of()
        check_tokens(engine, PLAIN)
        engine.memory.release()  # and allocated again
        check_tokens(engine, PLAIN)
        pools += [weakref.ref(each.pool) for each in engine.runner._sets.values()]
        del engine
        gc.collect()
        # Steps, encoding, results, and captures of greedy rows, beams and encoders.
        assert len(made) == 6
        assert not any(each() for each in pools)


def test_waiting_windows_are_encoded_beside_steps_and_once(graphs, monkeypatch):
    engine, passes = engine_of(), []
    encoder = engine.context.encoder
    encode = encoder.run_pass

    def record(chosen, features):
        passes.append((torch.cuda.current_stream(), len(features)))
        return encode(chosen, features)

    monkeypatch.setattr(encoder, "run_pass", record)
    answers = oracle.decode(engine, oracle.windows_of(count=9), DecodeOptions(batch_size=2))
    assert oracle.tokens_of(answers) == oracle.truth(count=9, ending=142)
    streams, windows = zip(*passes, strict=True)
    assert windows == (2, 4, 3)  # those that enter, and two lots ahead
    assert set(streams) == {engine.runner._encoding}


# Failed steps


@pytest.mark.parametrize("where", ["read", "stop_rejected"])
def test_a_failed_step_costs_no_graph(graphs, monkeypatch, where):
    engine, real, left = engine_of(), getattr(ResultReader, where), [1]
    before, state = graphs.captures, engine.memory.state

    def fail_once(*args):
        if left:
            left.pop()
            raise ModelError("the model's scores are not numbers")
        return real(*args)

    monkeypatch.setattr(ResultReader, where, fail_once)
    monkeypatch.setattr(batch, "STEPS_BETWEEN_LOOKS", 4)
    with pytest.raises(ModelError):
        oracle.decode(engine, oracle.windows_of(count=5), PLAIN)
    assert state.rows.finished.all()
    check_tokens(engine, PLAIN)
    assert (graphs.captures, engine.memory.state) == (before, state)


def test_an_error_while_rows_are_freed_costs_no_graph(graphs):
    """The step in flight fails while its session leaves."""
    engine = engine_of()
    lane, before, state = engine.batch(1), graphs.captures, engine.memory.state
    with engine.session(PLAIN) as session:
        session.add(oracle.windows_of(count=2))
        while not lane._pending:
            engine.step()
        failing = mock.Mock(side_effect=RuntimeError("the result is lost"))
        lane._pending[0] = lane._pending[0]._replace(result=failing)
    assert state.rows.finished.all()
    check_tokens(engine, PLAIN)
    assert (graphs.captures, engine.memory.state) == (before, state)


# Graphs that are turned off


def check_turned_off(graphs, caplog, engine, reason):
    assert (engine.runner.enabled, engine.runner.graph_count) == (False, 0)
    assert log_of(caplog, logging.ERROR) == [OFF + reason]
    before = graphs.captures, graphs.replays
    check_tokens(engine, DRAFTED)
    assert (graphs.captures, graphs.replays) == before


@pytest.mark.parametrize(
    ("failing", "at_begin", "error"),
    [(1, False, ACCELERATOR_ERROR(REFUSED)), (3, True, RuntimeError("cublas: not created"))],
)
def test_a_capture_that_fails_turns_graphs_off(graphs, caplog, failing, at_begin, error):
    graphs.fails = lambda number: error if number >= failing else None
    graphs.at_begin = at_begin
    engine = engine_of(drafting_models())
    assert graphs.captures == failing
    reason = f"a capture failed: {type(error).__name__}: {error}"
    check_turned_off(graphs, caplog, engine, reason)


def test_graphs_that_differ_are_turned_off(graphs, monkeypatch, caplog):
    step = cuda_graphs.decode_step

    def wrong_when_captured(state, filters, shape):
        step(state, filters, shape)
        if graphs.capturing:
            state.rows.tokens.scatter_(1, state.rows.length[:, None] - 1, 5)

    monkeypatch.setattr(cuda_graphs, "decode_step", wrong_when_captured)
    engine = engine_of(drafting_models())
    reason = "a graph gave other results than the same pass run eagerly"
    check_turned_off(graphs, caplog, engine, reason)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.reliability if name == "key without length" else ())
        for name in sorted(WRONG_VALUES.keys() - LATER)
    ],
)
def test_faults_are_found_at_load(graphs, monkeypatch, name):
    """The precision is float64, so that rounding hides no fault."""
    monkeypatch.setattr(graph_check, "TOLERANCE", 1e-9)
    WRONG_VALUES[name](monkeypatch)
    # What the host reads may be no number of a token.
    with contextlib.suppress(Fault, IndexError, RuntimeError):
        assert not engine_of().runner.enabled


def outcome(first, tokens, log_probs):
    return Outcome(torch.tensor(first), torch.tensor(tokens), torch.tensor(log_probs))


def test_a_near_tie_is_no_difference_and_another_probability_is():
    expected = outcome([[-1.0], [-2.0]], [[3, 4], [5, 6]], [[-1.0, -1.0], [-2.0, -1.0]])
    assert agree(expected, expected)
    tied = outcome([[-1.0], [-2.0 + TOLERANCE / 2]], [[3, 4], [9, 9]], [[-1.0, -1.0], [-2.0, -9.0]])
    assert agree(tied, expected)
    assert not agree(expected._replace(first=torch.tensor([[-1.0], [-2.1]])), expected)
    assert not agree(expected._replace(tokens=torch.tensor([[9, 4], [9, 6]])), expected)


@pytest.mark.parametrize("at_load", [True, pytest.param(False, marks=pytest.mark.reliability)])
def test_device_lost_in_a_capture_is_not_hidden(graphs, at_load):
    lost = ACCELERATOR_ERROR(LOST)
    if at_load:
        load = engine_of
    else:
        engine = engine_of()
        engine.memory.release()
        load = functools.partial(oracle.decode, engine, oracle.windows_of(count=3), PLAIN)
    graphs.fails = lambda _: lost
    with pytest.raises(ACCELERATOR_ERROR) as caught:
        load()
    assert caught.value is lost


def test_other_errors_end_the_load(graphs, monkeypatch):
    error = RuntimeError("shapes do not match")
    raise_in_steps(monkeypatch, error)
    with pytest.raises(RuntimeError) as caught:
        engine_of()
    assert caught.value is error


def test_a_capture_that_fails_later_costs_its_own_rows_their_graphs(graphs, caplog):
    engine = engine_of()
    keys = engine.batch(5).memory.state.rows.tokens.data_ptr(), cuda_graphs.ENCODERS
    beams, encoders = (len(engine.runner._sets[key].graphs) for key in keys)
    engine.memory.release()
    graphs.fails = lambda _: ACCELERATOR_ERROR(REFUSED)
    check_tokens(engine, PLAIN)
    assert engine.runner.enabled
    assert engine.runner.graph_count == beams + encoders
    (line,) = log_of(caplog, logging.ERROR)
    assert line.startswith("CUDA graphs of one kind of rows are off")
    assert "operation not permitted when stream is capturing" in line


def test_live_windows_have_graphs_from_the_start(graphs):
    engine = engine_of(limits=Limits(shared=True))
    captures, graphs.eager = graphs.captures, 0
    check_tokens(engine, dataclasses.replace(PLAIN, live=True))
    assert (graphs.captures, graphs.eager) == (captures, 0)


# Too little memory at load


def test_short_memory_stops_captures(graphs, caplog):
    error = ACCELERATOR_ERROR(NO_MEMORY)
    graphs.fails = lambda number: error if number > 2 else None
    engine = engine_of()
    assert engine.runner.enabled
    assert {rows for rows, _ in held(engine.runner, "step")} == {5}
    assert log_of(caplog, logging.WARNING)[0].startswith("memory is short: ")
    assert engine.runner.graph_count == 2 < engine.runner.planned
    check_tokens(engine, PLAIN)
    check_tokens(engine, DecodeOptions(batch_size=1))
    assert graphs.replays > 0


def test_batch_too_large_at_load_is_halved_later(graphs, monkeypatch, caplog):
    raise_in_steps(monkeypatch, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate."))
    engine = engine_of()
    assert "CUDA graphs are left out" in log_of(caplog, logging.WARNING)[0]
    check_tokens(engine, PLAIN)


def test_graphs_leave_the_last_of_the_memory(graphs, monkeypatch, caplog):
    spare = cuda_graphs.SPARE_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (spare - 1, 64 << 30))
    assert (engine_of().runner.enabled, graphs.captures) == (True, 0)
    assert "CUDA graphs are left out" in log_of(caplog, logging.WARNING)[0]


def test_memory_shortage_while_timing_steps_disables_drafts(graphs, monkeypatch, caplog):
    said = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    error = RuntimeError(said)
    monkeypatch.setattr(CudaGraphRunner, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(drafting, "_time_step", mock.Mock(side_effect=error))
    engine = engine_of(drafting_models())
    assert engine.context.drafting is None
    assert engine.memory.state is None
    said = "memory ran out while timing steps: nothing will be drafted"
    assert log_of(caplog, logging.WARNING) == [said]
    assert check_tokens(engine, dataclasses.replace(DRAFTED, drafts=None)).drafted == 0
    # A client that fixes the number of drafts still has them.
    assert check_tokens(engine, DRAFTED).drafted > 0


def test_cpu_measures_costs_and_returns_the_memory():
    engine = DecodeEngine(drafting_models())
    timed = {(rows, drafts) for rows in (1, 4, 12) for drafts in StepRunner.timed_drafts}
    assert set(engine.context.drafting.costs.seconds) == timed
    assert engine.memory.state is None


# Steps


def test_rows_that_sample_enter_each_with_its_own_random_numbers(graphs):
    """More rows enter than a graph of a prefill has."""
    engine, asked = engine_of(cuda_graphs=False), oracle.windows_of(count=5, max_tokens=6)
    found = oracle.decode(engine, asked, DecodeOptions(temperature=0.7, batch_size=5))
    alone = {}
    for each in asked:
        alone |= oracle.decode(engine, [each], DecodeOptions(temperature=0.7, batch_size=1))
    assert oracle.tokens_of(found) == oracle.tokens_of(alone)


def test_after_long_texts_short_ones_attend_to_few_positions(graphs, monkeypatch):
    engine = engine_of(oracle.models_of(oracle.TINY), cuda_graphs=False)
    launched = calls_of(monkeypatch, engine.runner, "launch")
    oracle.decode(engine, oracle.windows_of(count=2, max_tokens=70), DecodeOptions(batch_size=2))
    assert max(shape.kv_len for _, shape in launched) > 64
    launched.clear()
    oracle.decode(engine, oracle.windows_of(count=2, max_tokens=8), DecodeOptions(batch_size=2))
    assert {shape.kv_len for _, shape in launched} == {64}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("drafts", [0, 4, None])
def test_graphs_on_a_device_match_eager_steps_in_float16(drafts):
    models = oracle.with_assistant(oracle.models_of(oracle.TINY, 142, torch.float16), 0.1)
    main, other = (copy.deepcopy(each.model).to("cuda") for each in (models, models.assistant))
    assistant = dataclasses.replace(models.assistant, model=other)
    engine = DecodeEngine(dataclasses.replace(models, model=main, assistant=assistant))
    assert isinstance(engine.runner, CudaGraphRunner)
    options, windows = dataclasses.replace(DRAFTED, drafts=drafts), oracle.windows_of(count=12)
    with engine.runner.paused():
        eager = oracle.decode(engine, windows, options)
    assert oracle.tokens_of(oracle.decode(engine, windows, options)) == oracle.tokens_of(eager)
    assert engine.runner.enabled
    assert engine.runner.graph_count > 0
