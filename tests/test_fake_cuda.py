"""The whole engine in float16 on a fake CUDA device: nothing waits, nothing mixes, nothing is huge.

`fake_cuda.FakeCuda` raises what a GPU would refuse; the tests here drive every shape through it and
bound the sizes of what a step creates. That each fault is caught is tested at the end.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from fake_cuda import FAKE_LARGE, GIB, CudaFault, fake_cuda, fake_models

from benchmarks.gpu_check.speed import MODELS_BYTES
from tests.support.tiny_whispers import noise
from whosaid.asr.checkpoint.medusa import BLOCK, LINEAR
from whosaid.asr.engine import cuda_graphs, drafting, speculative
from whosaid.asr.engine import state as state_module
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner, EncoderKey, PrefillKey, StepKey
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Lane, Request
from whosaid.asr.engine.state import StepShape

VOCABULARY, TIMES = 51_866, 1_501
# Logits in half precision and one copy in float32, over which the probabilities are summed; the
# rest, masks and hidden states of the small model, is far smaller.
STEP_BYTES = (2 + 4) * VOCABULARY + 4096
# A sampled row's one position beside them: softmax and its running sum in float64, and a mask.
SAMPLING_BYTES = (8 + 8 + 1) * VOCABULARY
# A beam's likeliest blocks of ids, with their numbers, and a few copies of the timestamps.
BEAM_BYTES = 10 * 256 * (4 + 8) + 16 * TIMES
# What cuBLAS keeps for a stream on Hopper, in bytes; a quarter of it elsewhere.
CUBLAS_WORKSPACE = 32 << 20
REJECTING = Fallback(compression_ratio_threshold=0.0)  # each text is decoded again, by five beams


@pytest.fixture
def device(monkeypatch):
    with fake_cuda(monkeypatch) as made:
        yield made


def usual(patch, rows, most=24):
    """Graphs are captured for so many rows, few lengths of caches and prompts."""
    patch.setattr(state_module, "CUDA_ROWS", ((0, most),))
    sizes = {"rows": rows, "positions": (64, 512), "prompt": (8, 64), "guess": (0, 64)}
    for name, each in sizes.items():
        patch.setitem(cuda_graphs.SIZES, name, each)
    patch.setattr(drafting, "TIMED_ROWS", (1,))


@pytest.fixture
def brief_warmup(monkeypatch):
    """Graphs of one row are captured at load."""
    usual(monkeypatch, (1,))


@pytest.fixture
def few_drafts(monkeypatch):
    """Assistants draft two tokens a step, unless a test asks for more."""
    monkeypatch.setattr(CudaGraphRunner, "draft_lengths", (2,))
    monkeypatch.setattr(CudaGraphRunner, "timed_drafts", (0, 2))


def requests_of(engine, count, timestamps=True, first=0):
    prompt = engine.models.special_tokens.prompt("en", "transcribe", timestamps)
    return [Request(first + each, noise(1, seed=each), prompt) for each in range(count)]


def decode(engine, *batches):
    """Sessions at once, each (options, requests); their results by key."""
    sessions = [engine.session(options) for options, _ in batches]
    results = {}
    for session, (_, requests) in zip(sessions, batches, strict=True):
        session.add(requests)
        results |= {request.key: result for request, result in session.step()}
    while not all(session.done for session in sessions):
        for session in sessions:
            results |= {request.key: result for request, result in session.step()}
    return results


def check_sizes(device):
    """What a step creates, per row and position; see the constants."""
    for step in device.steps:
        positions = step.shape.drafts + 1
        wide = max(step.largest.get(dtype, 0) for dtype in (torch.float32, torch.float64))
        assert wide <= VOCABULARY, step
        sampling = SAMPLING_BYTES / positions if step.shape.sampled else 0
        beams = BEAM_BYTES if step.num_beams > 1 else 0
        assert step.peak_bytes <= STEP_BYTES + sampling + beams, step
        # While drafting nothing is summed but the timestamps.
        assert step.drafting_wide <= TIMES, step


@pytest.mark.reliability
@pytest.mark.slow
def test_all_usual_passes_are_captured_at_load_in_a_pool_a_batch(device, few_drafts, monkeypatch):
    usual(monkeypatch, (1, 2, 4), 4)
    engine = DecodeEngine(fake_models(assistant="shared"))
    assert device.synchronisations == 0
    keys = engine.runner.held()
    steps = {(key.rows, key.shape.drafts) for key in keys if isinstance(key, StepKey)}
    assert steps == set(itertools.product((1, 2, 4), (0, 2)))
    # Windows enter four, two or one at a time.
    assert {key.windows for key in keys if isinstance(key, EncoderKey)} == {1, 2, 4}
    assert {key.rows for key in keys if isinstance(key, PrefillKey)} == {1, 2, 4}
    assert len(device.pools) == engine.runner.graph_count == engine.runner.planned
    assert sorted(engine.batches) == [Lane(1), Lane(5)]
    assert len(device.handles) == 3  # theirs, and the encoder's
    # Each is captured on a stream of its own, beside the engine's.
    assert (len(device.handles) + 1) * CUBLAS_WORKSPACE <= MODELS_BYTES
    detected = engine.detect_language(noise(1))
    assert detected.encoded.dtype == torch.float16
    options = DecodeOptions(batch_size=4)
    assert len(decode(engine, (options, requests_of(engine, 5)))) == 5
    assert len(device.pools) == engine.runner.graph_count
    check_sizes(device)


@pytest.mark.reliability
def test_decoding_has_a_stream_ahead_of_others(device, brief_warmup, few_drafts, monkeypatch):
    """All that the engine queues, load included, goes there."""
    launched, step = [], device.decode_step

    def watched(*arguments):
        launched.append(device.stream)
        step(*arguments)

    monkeypatch.setattr(cuda_graphs, "decode_step", watched)
    engine = DecodeEngine(fake_models(assistant="shared"))
    at_load = len(launched)
    # A sampled step is no graph.
    decode(engine, (DecodeOptions(timestamps=False, temperature=0.5), requests_of(engine, 1)))
    assert len(launched) > at_load > 0
    (stream,) = set(launched)
    assert stream.priority < 0


def test_every_shape_that_requests_may_have(device, brief_warmup, few_drafts):
    engine = DecodeEngine(fake_models(assistant="shared"))
    state = engine.memory.ensure_capacity(24)
    longest = state.main.cache.max_len
    kinds = [(0, False, True), (0, True, False), (2, False, False), (2, True, True)]
    kinds += [(8, False, False), (8, True, True)]
    shapes = [
        (24, StepShape(drafts, min(drafts, 1) + 1, 64, sampled, timestamps))
        for drafts, sampled, timestamps in kinds
    ]
    shapes += [(3, StepShape(4, 1, longest)), (24, StepShape(8, 2, longest, True))]
    shapes.append((2, StepShape(2, 7, 256)))  # drafting after a pause
    check_captures(device, engine, state, shapes)
    check_sizes(device)


@pytest.mark.parametrize("kind", [BLOCK, pytest.param(LINEAR, marks=pytest.mark.reliability)])
def test_every_shape_that_heads_may_have(device, brief_warmup, kind):
    """Captured whole: nothing is read, nothing as wide as the vocabulary is summed."""
    engine = DecodeEngine(fake_models(heads=kind))
    warmed = {shape for _, shape in device.launched if shape.drafts}
    assert {shape.drafts for shape in warmed} == {2, 4}
    assert all(shape.followed and shape.assistant_lag == 1 for shape in warmed)
    state = engine.memory.ensure_capacity(24)
    longest = state.main.cache.max_len
    kinds = [(0, False, True), (0, True, False), (4, False, False), (4, True, True)]
    shapes = [(24, StepShape(k, 1, 64, sampled, times, True)) for k, sampled, times in kinds]
    shapes += [(3, StepShape(4, 1, longest, followed=True)), (2, StepShape(0, 1, 256))]
    check_captures(device, engine, state, shapes)
    drafted = DecodeOptions(assisted=True, drafts=8, batch_size=2)
    asked = [(drafted, requests_of(engine, 3)), (DecodeOptions(), requests_of(engine, 2, first=10))]
    assert sorted(decode(engine, *asked)) == [0, 1, 2, 10, 11]
    assert max(shape.drafts for _, shape in device.launched) == 5  # of eight asked for
    check_sizes(device)


def check_captures(device, engine, state, shapes):
    """Every shape runs once as it is, and then can be captured."""
    with torch.inference_mode():
        for rows, shape in shapes:
            engine.runner.launch(state.view(0, rows), engine.context.filters, shape)
            capture(engine.runner, state.view(0, rows), engine.context.filters, shape)


def capture(runner, *step):
    """Launch a step as at load."""
    runner._capturing = True
    try:
        runner.launch(*step)
    finally:
        runner._capturing = False


def test_guesses_of_every_length_are_verified_in_few_shapes(device, brief_warmup, few_drafts):
    """Those that are longer than a buffer's text run as they are."""
    engine = DecodeEngine(fake_models(assistant="shared"))
    options = DecodeOptions(assisted=True, drafts=2)
    for guessed in (0, 40, 300):
        few = guessed // 3
        asked = [
            dataclasses.replace(each, prefix=(5,) * few, draft=(6,) * (guessed - few))
            for each in requests_of(engine, 2)
        ]
        assert sorted(decode(engine, (options, asked))) == [0, 1]
    keys = [key for key in engine.runner.held() if isinstance(key, PrefillKey)]
    assert {key.verified for key in keys} == {*cuda_graphs.SIZES["guess"]}
    check_sizes(device)


@pytest.mark.parametrize("num_beams", [2, pytest.param(8, marks=pytest.mark.reliability)])
def test_every_shape_that_beams_may_have(device, brief_warmup, num_beams):
    engine = DecodeEngine(fake_models())
    state = engine.batch(num_beams).memory.ensure_capacity(24)
    longest = state.main.cache.max_len
    shapes = [
        (rows, StepShape(0, 1, length, False, timestamps))
        for rows, length, timestamps in (
            (state.capacity, 64, True),
            (state.capacity, 64, False),
            (3, longest, True),
            (1, 256, False),
        )
    ]
    check_captures(device, engine, state, shapes)
    assert {step.num_beams for step in device.steps} >= {num_beams}
    check_sizes(device)


@pytest.mark.reliability
def test_beams_beside_plain_rows(device, brief_warmup, few_drafts):
    """Batches grow on their own; rejected texts move from plain rows to those with beams."""
    engine = DecodeEngine(fake_models(assistant="shared"))
    results = decode(
        engine,
        (DecodeOptions(num_beams=5, batch_size=1), requests_of(engine, 2)),
        (
            DecodeOptions(fallback=REJECTING),
            requests_of(engine, 2, first=10),
        ),
        (DecodeOptions(assisted=True, drafts=2), requests_of(engine, 1, first=30)),
    )
    assert sorted(results) == [0, 1, 10, 11, 30]
    assert results[0].attention.shape[0] == len(results[0].log_probs)
    assert [results[key].timestamps for key in (0, 10, 11, 30)] == [True, False, False, True]
    assert {step.num_beams for step in device.steps} == {1, 5}
    check_sizes(device)


def test_sessions_of_all_kinds_beside_each_other(device, brief_warmup, few_drafts):
    """Rows that enter beside others, eviction, sampling, words, drafts, mixed grammars."""
    engine = DecodeEngine(fake_models(assistant="own"))
    first = engine.memory.state
    drafted = DecodeOptions(assisted=True, drafts=2, batch_size=2)
    results = decode(
        engine,
        (drafted, requests_of(engine, 3)),
        (
            DecodeOptions(timestamps=False, temperature=0.4, batch_size=2),
            requests_of(engine, 2, False, 10),
        ),
        (DecodeOptions(batch_size=2, assisted=True), requests_of(engine, 2, first=20)),
    )
    assert sorted(results) == [0, 1, 2, 10, 11, 20, 21]
    assert results[0].attention.shape[0] == len(results[0].log_probs)
    assert {results[key].temperature for key in (10, 11)} == {0.4}
    assert engine.memory.state is first
    assert {shape.timestamps for _, shape in device.launched} == {True}
    assert {shape.sampled for _, shape in device.launched} == {True, False}
    check_sizes(device)


def test_a_batch_is_as_large_as_the_memory_allows(monkeypatch, brief_warmup):
    with fake_cuda(monkeypatch) as device:
        engine = DecodeEngine(fake_models(dataclasses.replace(FAKE_LARGE, decoder_layers=2)))
        per_row = engine.memory.state.bytes_per_row(engine.main, None, 10)
        free = GIB + int(5.5 * per_row)  # beside the headroom, 5 rows
        engine.memory.release()
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 8 * GIB))
        results = decode(engine, (DecodeOptions(batch_size=9), requests_of(engine, 9)))
        assert len(results) == 9
        assert engine.memory.capacity == 5
        assert max(rows for rows, _ in device.launched) == 5


def test_admitting_windows_copies_little(device, brief_warmup):
    engine = DecodeEngine(fake_models())
    engine.memory.ensure_capacity(8)
    device.uploads = 0
    with engine.session(DecodeOptions(batch_size=8)) as session:
        session.add(requests_of(engine, 8))
        engine.step()
        assert engine.scheduler.running == 8
    assert device.uploads == 1  # their samples, in one tensor


def half(*shape):
    return torch.zeros(shape, dtype=torch.float16, device="cuda")


def product_of(size, dtype=torch.float16):
    return torch.mm(half(size, size).to(dtype), half(size, size).to(dtype))


def broadcast_product(rows):
    """What `hidden[:, -1:]` of several positions makes of a linear layer."""
    count = rows.length.shape[0]
    torch.nn.functional.linear(half(count, 2, 16)[:, -1:], half(VOCABULARY, 16), half(VOCABULARY))


FAULTS = [
    ("a value is read", lambda rows, _: rows.length.max().item()),
    ("a value is read", lambda rows, _: bool(rows.finished.all())),
    ("a value is read", lambda rows, _: rows.length.tolist()),
    ("nonzero makes the host wait", lambda rows, _: rows.finished.nonzero()),
    ("a boolean index", lambda rows, _: rows.tokens[rows.finished]),
    ("indexed by a tensor of the CPU", lambda rows, _: rows.tokens[torch.arange(1)]),
    ("copy from cuda to cpu", lambda rows, _: rows.length.cpu()),
    ("copy from cpu to cuda", lambda *_: torch.tensor([1, 2], device="cuda")),
    ("different devices", lambda rows, _: rows.length + torch.ones(rows.length.shape[0])),
    ("different types", lambda *_: torch.mm(half(2, 2), half(2, 2).float())),
    ("in torch.float32 inside", lambda *_: product_of(2, torch.float32)),
    ("reads the same weights once a row", lambda rows, _: broadcast_product(rows)),
    ("first inside a capture", lambda _, device: device.capturing and product_of(7)),
    ("begin at multiples of 16 bytes", lambda *_: product_of(7)),
]


def test_each_fault_in_a_step_is_caught(device, brief_warmup, monkeypatch):
    engine = DecodeEngine(fake_models())
    state, shape = engine.memory.ensure_capacity(2).view(0, 2), StepShape(2, 1, 128)
    count_accepted = speculative.count_accepted

    def launch_with(fault):
        def faulty(rows, *choice):
            fault(rows, device)
            return count_accepted(rows, *choice)

        engine.runner.release(engine.memory.state)
        with monkeypatch.context() as patch, torch.inference_mode():
            patch.setattr(speculative, "count_accepted", faulty)
            engine.runner.launch(state, engine.context.filters, shape)
            capture(engine.runner, state, engine.context.filters, shape)

    for expected, fault in FAULTS:
        with pytest.raises(CudaFault, match=expected):
            launch_with(fault)
    device.steps.clear()
    launch_with(lambda *_: None)
    check_sizes(device)
    launch_with(lambda *_: torch.zeros(2, VOCABULARY, 4, device="cuda"))
    with pytest.raises(AssertionError):
        check_sizes(device)
