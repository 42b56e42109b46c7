"""On an emulated CUDA device graphs give the tokens of eager steps, and hold nothing that waits.

A part runs with all tests; the rest, marked reliability, by `scripts/test --all`."""

import dataclasses
import functools
import itertools

import pytest
import torch

from tests.helpers import oracle
from tests.helpers.cuda_emulator import CUDA, Fault, emulated_cuda, on_cuda
from tests.helpers.graph_faults import FAULTS, REFUSED
from tests.support.tiny_whispers import Published
from tests.test_rescoring import Proposing
from whosaid.asr.checkpoint.medusa import BLOCK, HEADS_ONLY, LINEAR
from whosaid.asr.engine import cuda_graphs
from whosaid.asr.engine.batch import STEPS_BETWEEN_LOOKS
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.result_reader import ResultReader
from whosaid.asr.engine.rows import StepShape
from whosaid.asr.engine.state import DecodeState
from whosaid.errors import ModelError

REJECTING = Fallback(logprob_threshold=0.0, no_speech_threshold=1.0)
PLAIN = DecodeOptions(batch_size=5)
DRAFTED = DecodeOptions(True, True, 5, drafts=4)


def rarely(*values):
    """Parameters that only `scripts/test --all` tries."""
    return pytest.param(*values, marks=pytest.mark.reliability)


@pytest.fixture
def graphs(monkeypatch):
    with emulated_cuda(monkeypatch) as device:
        yield device


@pytest.fixture
def full_graphs(monkeypatch):
    """Emulated CUDA with graphs of five rows alone, however few of them run."""
    with emulated_cuda(monkeypatch, rows=(5,)) as device:
        yield device


@pytest.fixture
def few_graphs(monkeypatch):
    """Graphs of one prompt's length alone, and none for guesses."""
    with emulated_cuda(monkeypatch, prompt=(8,), guess=(0,)) as device:
        yield device


@functools.cache
def drafting_models(ending=142):
    return oracle.with_assistant(oracle.models_of(oracle.TINY, ending), 0.1)


def drafts_of(stats):
    return stats.accepted, stats.drafted


def check_kind(graphs, engine, options, windows):
    """Eager steps in the same shapes, then graphs. Returns the answers."""
    with engine.runner.paused():
        expected, drafts = oracle.decode_counted(engine, windows, options)
    replays = graphs.replays
    found, counted = oracle.decode_counted(engine, windows, options)
    oracle.check_alike(found, expected)
    assert options.drafts is None or drafts_of(counted) == drafts_of(drafts)
    assert graphs.replays > replays
    assert engine.runner.enabled
    return found


def guessed(windows, said):
    """Right guesses and wrong ones of each length that has graphs, but none for the last."""
    asked = [
        dataclasses.replace(
            window,
            prefix=said[window.key][: 2 * (window.key % 3)],
            draft=(*said[window.key], *range(3 ** (window.key % 5)))[2 * (window.key % 3) :],
        )
        for window in windows[:-2]
    ]
    return [*asked, *windows[-2:]]


def test_texts_are_those_of_eager_steps_and_of_transformers(full_graphs):
    """Drafts, guesses, retries by beams and sessions of all kinds run beside each other: rows enter
    beside others and leave, are sampled, and follow timestamps or do not."""
    models, windows = drafting_models(), oracle.windows_of()
    engine, said = DecodeEngine(on_cuda(models)), oracle.truth(ending=142)
    asked = guessed(windows, said)
    assert oracle.tokens_of(check_kind(full_graphs, engine, DRAFTED, asked)) == said
    retried = dataclasses.replace(DRAFTED, fallback=REJECTING, timestamps=False)
    kinds = [
        (dataclasses.replace(DRAFTED, batch_size=2), windows[:3]),
        (DecodeOptions(False, batch_size=3, temperature=0.4), oracle.windows_of(False)[:3]),
        (DecodeOptions(num_beams=3, batch_size=2), windows[4:6]),
        (retried, oracle.windows_of(False)[:4]),
    ]
    with engine.runner.paused():
        alone = [oracle.decode(engine, windows, options) for options, windows in kinds]
    for found, expected in zip(oracle.interleaved(engine, kinds), alone, strict=True):
        oracle.check_alike(found, expected)
    assert engine.runner.enabled


@pytest.mark.reliability
@pytest.mark.parametrize(
    "options",
    [
        dataclasses.replace(PLAIN, timestamps=False),
        dataclasses.replace(PLAIN, fallback=REJECTING),
        dataclasses.replace(PLAIN, temperature=0.7),
        dataclasses.replace(DRAFTED, fallback=REJECTING),
        dataclasses.replace(DRAFTED, drafts=0),
        dataclasses.replace(DRAFTED, drafts=2),
        dataclasses.replace(DRAFTED, drafts=None),
        dataclasses.replace(DRAFTED, fallback=REJECTING, proposer=Proposing()),
    ],
    ids=[
        *("no timestamps", "to beams", "temperature", "drafted, to beams", "0", "2", "measured"),
        "hot words",
    ],
)
def test_every_kind_of_step(graphs, options):
    windows = oracle.windows_of(options.timestamps)
    check_kind(graphs, DecodeEngine(on_cuda(drafting_models())), options, windows)


@pytest.mark.parametrize(
    ("kind", "drafts"),
    [(BLOCK, 4), rarely(HEADS_ONLY, None), rarely(BLOCK, 0), rarely(LINEAR, None)],
)
def test_medusa(full_graphs, kind, drafts):
    models = oracle.random_heads(oracle.models_of(oracle.TINY, 142), 5, kind, scale=0.02)
    windows = oracle.windows_of()
    if kind == BLOCK:
        windows = guessed(windows, oracle.truth(ending=142))
    options = dataclasses.replace(DRAFTED, drafts=drafts)
    check_kind(full_graphs, DecodeEngine(on_cuda(models)), options, windows)


@pytest.mark.parametrize(("num_beams", "timestamps"), [(5, True), rarely(2, False)])
def test_beams_copied_as_on_cuda_find_what_the_cpu_finds(few_graphs, num_beams, timestamps):
    """CUDA copies all places, a CPU those that differ."""
    models, windows = oracle.models_of(oracle.TINY, 142), oracle.windows_of(timestamps, 4)
    options = dataclasses.replace(PLAIN, num_beams=num_beams, timestamps=timestamps)
    found = check_kind(few_graphs, DecodeEngine(on_cuda(models)), options, windows)
    oracle.check_alike(found, oracle.decode(DecodeEngine(models), windows, options))


@pytest.mark.reliability
@pytest.mark.parametrize("drafts", [0, 4])
def test_long_texts(graphs, drafts):
    """All cache lengths: no step attends to too few positions."""
    options = DecodeOptions(True, True, 3, drafts=drafts)
    engine = DecodeEngine(on_cuda(drafting_models(None)))
    check_kind(graphs, engine, options, oracle.windows_of(count=3, max_tokens=None))


# Work in which each fault shows; plain steps where none is named.
SHOWN_BY = {"key without sampling": dataclasses.replace(PLAIN, temperature=0.4)}
SHOWN_BY["result read late"] = DRAFTED

# All that captures refuse, and one of each other kind.
AT_EACH_PUSH = {"cached tensor of a capture", "a graph dropped alone", "inputs of the capture"}
AT_EACH_PUSH |= {*REFUSED}


@functools.cache
def decoded_eagerly(options, endless):
    """Models, windows, and what eager steps make of them."""
    ending = None if endless else 142
    models = drafting_models(ending) if options.assisted else oracle.models_of(oracle.TINY, ending)
    asked = oracle.windows_of(options.timestamps, 5, 90 if endless else 24)
    return models, asked, *oracle.decode_counted(DecodeEngine(models), asked, options)


@pytest.mark.parametrize(
    "name", [name if name in AT_EACH_PUSH else rarely(name) for name in sorted(FAULTS)]
)
def test_faults_are_found(few_graphs, monkeypatch, name):
    options = SHOWN_BY.get(name, PLAIN)
    models, asked, expected, drafts = decoded_eagerly(options, name == "key without length")
    FAULTS[name](monkeypatch)
    monkeypatch.setattr(cuda_graphs, "agree", lambda *_: True)
    shown = Fault if name in REFUSED else (AssertionError, IndexError, RuntimeError, ModelError)
    with pytest.raises(shown):
        decode_with_graphs(models, asked, options, expected, drafts)


def decode_with_graphs(models, asked, options, expected, drafts):
    """All windows and few of them, several times, over rows that are freed meanwhile; as expected.

    Graphs are used however they compare at load."""
    engine = DecodeEngine(on_cuda(models))
    for rows in range(1, 4):
        oracle.decode(engine, asked[:rows], DecodeOptions(num_beams=5, batch_size=rows))
        engine.batch(5 if rows == 1 else 1).clear()
        found, counted = oracle.decode_counted(engine, asked, options)
        oracle.check_alike(found, expected)
        assert drafts_of(counted) == drafts_of(drafts), "drafts are counted wrongly"
        first = {key: expected[key] for key in range(3)}
        oracle.check_alike(oracle.decode(engine, asked[:3], options), first)


HALF = Published(text_entries=12_000, languages=100, seconds=1, encoder_layers=1, decoder_layers=1)
VOCABULARY, TIMES = 13_609, 1_501
# Logits in half precision and two copies in float32, the softmax and what it reads (CUDA's reads
# half precision); the rest, masks and hidden states of the small model, is far smaller.
STEP_BYTES = (2 + 4 + 4) * VOCABULARY + 4096
# A sampled row's one position beside them: softmax and its running sum in float64, and a mask.
SAMPLING_BYTES = (8 + 8 + 1) * VOCABULARY
# A beam's likeliest blocks of ids, with their numbers, and a few copies of the timestamps.
BEAM_BYTES = 10 * 256 * (4 + 8) + 16 * TIMES


@pytest.fixture
def fewest_graphs(few_graphs, monkeypatch):
    """Graphs of one prompt's length and five rows alone, and none for guesses."""
    monkeypatch.setattr(cuda_graphs, "PASS_SIZES", (1,))
    monkeypatch.setattr(CudaGraphRunner, "sizes", CudaGraphRunner.sizes._replace(rows=(5,)))
    return few_graphs


def half_engine(**helpers):
    models = oracle.models_of(HALF, None, torch.float16)
    if "assistant" in helpers:
        models = oracle.with_assistant(models, 0.1, own_encoder=helpers["assistant"] == "own")
    if "heads" in helpers:
        models = oracle.random_heads(models, 5, helpers["heads"])
    assert models.special_tokens.size == VOCABULARY
    return DecodeEngine(on_cuda(models))


def check_captures(device, engine, state, shapes):
    """Every shape runs once as it is, and then can be captured without anything huge in it."""
    runner = engine.runner
    with torch.inference_mode():
        for rows, shape in shapes:
            runner.launch(state.view(0, rows), shape)
            runner._capturing = True
            runner.launch(state.view(0, rows), shape)
            runner._capturing = False
    for rows, shape, num_beams, sizes in device.steps:
        places = rows * num_beams * (shape.drafts + 1)
        wide = max(sizes.largest[torch.float32], sizes.largest[torch.float64])
        assert wide <= VOCABULARY * places, shape
        most = STEP_BYTES + (BEAM_BYTES if num_beams > 1 else 0)
        assert sizes.peak_bytes <= most * places + SAMPLING_BYTES * rows * shape.sampled, shape
        # While drafting nothing is summed but the timestamps.
        assert sizes.drafting_wide <= TIMES * rows, shape


def test_every_shape_that_requests_may_have(fewest_graphs):
    engine = half_engine(assistant="shared")
    state = engine.memory.state
    longest = state.cache.max_len
    kinds = [*itertools.product((0, 2), (False, True)), (8, False), (8, True)]
    shapes = [(5, StepShape(drafts, min(drafts, 1) + 1, 64, each)) for drafts, each in kinds]
    shapes += [(3, StepShape(4, 1, longest)), (2, StepShape(2, 7, 256))]  # after a pause
    check_captures(fewest_graphs, engine, state, shapes)


@pytest.mark.parametrize("kind", [BLOCK, rarely(LINEAR)])
def test_every_shape_that_heads_may_have(fewest_graphs, kind):
    """Nothing is read, nothing as wide as the vocabulary is summed."""
    engine = half_engine(heads=kind)
    state = engine.memory.state
    longest = state.cache.max_len
    shapes = [(5, StepShape(k, 1, 64, drawn, followed=True)) for k in (0, 4) for drawn in (0, 1)]
    shapes += [(3, StepShape(4, 1, longest, followed=True)), (2, StepShape(0, 1, 256))]
    check_captures(fewest_graphs, engine, state, shapes)


@pytest.mark.parametrize("num_beams", [2, rarely(8)])
def test_every_shape_that_beams_may_have(fewest_graphs, num_beams):
    engine = half_engine()
    state = engine.batch(num_beams).memory.ensure_capacity(5)
    shapes = [(state.capacity, StepShape(0, 1, 64)), (1, StepShape(0, 1, state.cache.max_len))]
    check_captures(fewest_graphs, engine, state, shapes)
    assert {each.num_beams for each in fewest_graphs.steps} >= {num_beams}


def test_sizes_of_a_step_are_seen(fewest_graphs, monkeypatch):
    engine = half_engine()
    step = cuda_graphs.decode_step

    def wasteful(state, *rest):
        step(state, *rest)
        torch.zeros(state.capacity, VOCABULARY, 4, device=CUDA)

    engine.runner.release(engine.memory.state)
    monkeypatch.setattr(cuda_graphs, "decode_step", fewest_graphs.watched(wasteful))
    with pytest.raises(AssertionError):
        check_captures(fewest_graphs, engine, engine.memory.state, [(2, StepShape(0, 1, 64))])


def test_decoding_has_a_stream_ahead_of_others(fewest_graphs):
    """All work of the engine uses such streams, load included; a sampled step is no graph."""
    models = on_cuda(drafting_models())
    windows = oracle.windows_of(False, 1)
    fewest_graphs.used_streams.clear()
    engine = DecodeEngine(models)
    oracle.decode(engine, windows, DecodeOptions(timestamps=False, temperature=0.5))
    engine.detect_language(windows[0].samples)
    used = fewest_graphs.used_streams - {None}  # on which weights are packed
    assert len(used) == 3  # steps, encoders, and the reading of results
    assert all(each.priority < 0 for each in used)


@pytest.mark.parametrize("late", [True, rarely(False)])
def test_a_step_runs_while_results_are_read(fewest_graphs, monkeypatch, late):
    """The step changes nothing that is read: results are the same whether it runs before them, as
    emulated passes do, or `late`, after them."""
    models, windows = drafting_models(), oracle.windows_of()
    expected = oracle.decode(DecodeEngine(models), windows, DRAFTED)
    engine = DecodeEngine(on_cuda(models))
    waiting, running = [], []
    batch, read = engine.batch(1), ResultReader.read

    def in_time(method):
        """`method` after all steps that were launched before it."""

        def wrapper(*args, **options):
            while waiting:
                waiting.pop(0)()
            return method(*args, **options)

        return wrapper

    def launch_late(runner, *args):
        result = []
        waiting.append(lambda: result.append(launch(runner, *args)))
        return in_time(lambda: result[0]())

    def watched_read(*args):
        running.append(len(batch._pending))
        return read(*args)

    if late:
        launch = in_time(CudaGraphRunner.launch)
        monkeypatch.setattr(CudaGraphRunner, "launch", launch_late)
        for owner, name in (
            (CudaGraphRunner, "prefill"),
            (ResultReader, "stop_rejected"),
            (DecodeState, "move"),
        ):
            monkeypatch.setattr(owner, name, in_time(getattr(owner, name)))
    monkeypatch.setattr(ResultReader, "read", watched_read)
    oracle.check_alike(oracle.decode(engine, windows, DRAFTED), expected)
    assert running == [1] * len(windows)


def test_admitting_windows_copies_little(fewest_graphs):
    engine = DecodeEngine(on_cuda(oracle.models_of(oracle.TINY, 142)))
    with engine.session(PLAIN) as session:
        session.add(oracle.windows_of(count=4))
        fewest_graphs.uploads = 0
        engine.step()
        assert engine.scheduler.running == 4
    assert fewest_graphs.uploads == 0  # that the host waits for


def test_a_step_waits_once_for_the_one_before_it(fewest_graphs):
    """Every 16 steps the host also reads the texts, to reject them early."""
    engine, steps = DecodeEngine(on_cuda(oracle.models_of(oracle.TINY))), STEPS_BETWEEN_LOOKS
    with engine.session(PLAIN) as session:
        session.add(oracle.windows_of(count=4, max_tokens=None))
        for _ in range(3):
            engine.step()
        fewest_graphs.waits = 0
        for _ in range(steps):
            engine.step()
        assert (engine.scheduler.running, fewest_graphs.waits) == (4, steps + 3)
