"""Tokens of emulated CUDA graphs, which execute what was recorded, are those of eager steps.

A part runs with all tests; the rest, marked reliability, by `scripts/test --all`.
"""

from __future__ import annotations

import dataclasses
import functools

import oracle
import pytest
from graph_emulator import COPY_WHAT_DIFFERS, Fault, emulate_graphs
from graph_faults import FAULTS, FOUND_AT_LOAD
from oracle import TINY, decode, interleaved, models_of, random_heads, with_assistant

from whosaid.asr.checkpoint.medusa import BLOCK, HEADS_ONLY, LINEAR
from whosaid.asr.engine import beam_search, cuda_graphs
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.runner import StepRunner
from whosaid.errors import ModelError

REJECTING = Fallback(logprob_threshold=0.0, no_speech_threshold=1.0)
PLAIN = DecodeOptions(batch_size=5)
DRAFTED = DecodeOptions(True, True, 5, drafts=4)


def rarely(*values):
    """Parameters that only `scripts/test --all` tries."""
    return pytest.param(*values, marks=pytest.mark.reliability)


@pytest.fixture
def graphs(monkeypatch):
    return emulate_graphs(monkeypatch)


def windows_of(models, count=6, timestamps=True, max_tokens=16, first=0):
    prompts = oracle.prompts_of(models.special_tokens, timestamps, count)
    pairs = enumerate(zip(oracle.noise_windows(count), prompts, strict=True), first)
    return [Request(n, samples, prompt, max_tokens) for n, (samples, prompt) in pairs]


@functools.cache
def drafting_models(ending=142):
    return with_assistant(models_of(TINY, ending), 0.1)


def check(found, expected):
    """Texts, log-probabilities and attention are those expected."""
    assert {key: each.tokens for key, each in found.items()} == {
        key: each.tokens for key, each in expected.items()
    }
    for key, each in expected.items():
        assert found[key].log_probs == pytest.approx(each.log_probs, rel=1e-9, abs=1e-9)
        assert (found[key].attention is None) == (each.attention is None)
        if each.attention is not None:
            assert found[key].attention == pytest.approx(each.attention, abs=1e-5)


def decode_counted(engine, windows, options):
    """The answers, and how many drafts were accepted and made."""
    answers = {}
    with engine.session(options) as session:
        session.add(windows)
        while not session.done:
            answers |= {request.key: result for request, result in session.step()}
    return answers, (session.stats.accepted, session.stats.drafted)


def check_kind(graphs, models, options, rounds=1, asked=None, **windows):
    """Eager steps in the same shapes, then graphs."""
    engine = DecodeEngine(models)
    asked = asked or windows_of(models, timestamps=options.timestamps, **windows)
    with engine.runner.paused():
        expected, drafts = decode_counted(engine, asked, options)
    replays = graphs.replays
    for _ in range(rounds):
        found, counted = decode_counted(engine, asked, options)
        check(found, expected)
        assert options.drafts is None or counted == drafts
    assert graphs.replays > replays
    assert engine.runner.enabled
    return expected


@pytest.mark.parametrize("drafts", [4, rarely(0), rarely(8), rarely(None)])
def test_tokens_are_those_of_transformers(graphs, drafts):
    models = drafting_models()
    found = check_kind(graphs, models, dataclasses.replace(DRAFTED, drafts=drafts))
    asked = windows_of(models)
    assert {key: each.tokens for key, each in found.items()} == oracle.greedy(models, asked, True)


@pytest.mark.parametrize(
    "options",
    [
        dataclasses.replace(DRAFTED, fallback=REJECTING, timestamps=False),
        rarely(dataclasses.replace(PLAIN, timestamps=False)),
        rarely(dataclasses.replace(PLAIN, fallback=REJECTING)),
        rarely(dataclasses.replace(PLAIN, temperature=0.7)),
        rarely(dataclasses.replace(DRAFTED, fallback=REJECTING)),
    ],
    ids=["all", "no timestamps", "to beams", "temperature", "drafted, to beams"],
)
def test_every_kind_of_step(graphs, options):
    check_kind(graphs, drafting_models(), options)


@pytest.mark.parametrize(
    ("options", "heads"), [(DRAFTED, False), rarely(PLAIN, False), rarely(DRAFTED, True)]
)
def test_texts_that_are_guessed(graphs, options, heads):
    """Right guesses and wrong ones, beside rows without any, of each length that has graphs."""
    models = drafting_models()
    if heads:
        models = random_heads(models_of(TINY, 142), 5, BLOCK, scale=0.02)
    windows = windows_of(models, count=8)
    said = oracle.greedy(models, windows, True)
    asked = [
        dataclasses.replace(
            window,
            prefix=said[window.key][: 2 * (window.key % 3)],
            draft=(*said[window.key], *range(3 ** (window.key % 5)))[2 * (window.key % 3) :],
        )
        for window in windows[:6]
    ]
    found = check_kind(graphs, models, options, asked=[*asked, *windows[6:]])
    assert {key: each.tokens for key, each in found.items()} == said


@pytest.mark.parametrize(
    ("kind", "drafts"),
    [(BLOCK, 4), rarely(HEADS_ONLY, None), rarely(BLOCK, 0), rarely(LINEAR, None)],
)
def test_medusa(graphs, kind, drafts):
    models = random_heads(models_of(TINY, 142), 5, kind, scale=0.02)
    check_kind(graphs, models, DecodeOptions(True, True, 5, drafts=drafts))


@pytest.mark.parametrize(("num_beams", "timestamps"), [(5, True), rarely(2, False)])
def test_beams_copied_as_on_cuda_find_what_the_cpu_finds(
    graphs, monkeypatch, num_beams, timestamps
):
    """All places are copied there, on a CPU what differs."""
    models = models_of(TINY, 142)
    options = dataclasses.replace(PLAIN, num_beams=num_beams, timestamps=timestamps)
    found = check_kind(graphs, models, options)
    monkeypatch.setattr("whosaid.asr.engine.engine.runner_for", lambda *_: StepRunner())
    monkeypatch.setattr(beam_search, "_copy_what_differs", COPY_WHAT_DIFFERS)
    asked = windows_of(models, timestamps=timestamps)
    check(found, decode(DecodeEngine(models), asked, options))


@pytest.mark.reliability
@pytest.mark.parametrize("drafts", [0, 8])
def test_long_texts(graphs, drafts):
    """All cache lengths: no step attends to too few positions."""
    options = DecodeOptions(True, True, 3, drafts=drafts)
    check_kind(graphs, drafting_models(None), options, count=3, max_tokens=None)


def test_sessions_of_all_kinds_beside_each_other(graphs):
    """Rows that enter beside others, beams, eviction, sampling, retries, mixed grammars."""
    models = drafting_models()
    asked = [
        (DecodeOptions(True, True, 2, drafts=2), windows_of(models, 3)),
        (
            DecodeOptions(False, batch_size=3, temperature=0.4),
            windows_of(models, 4, False, first=20),
        ),
        (DecodeOptions(num_beams=3, batch_size=4), windows_of(models, 4, first=40)),
        (DecodeOptions(batch_size=5, fallback=REJECTING), windows_of(models, 4, first=60)),
    ]
    engine = DecodeEngine(models)
    with engine.runner.paused():
        alone = [decode(engine, windows, options) for options, windows in asked]
    for found, expected in zip(interleaved(engine, asked), alone, strict=True):
        check(found, expected)
    assert engine.runner.enabled


# Work in which each fault shows; plain steps where none is named.
SHOWN_BY = {"key without sampling": dataclasses.replace(PLAIN, temperature=0.4)}


@functools.cache
def decoded_eagerly(options):
    """Models, windows, and what eager steps make of them."""
    models = models_of(TINY, 142)
    asked = windows_of(models, 5, options.timestamps, max_tokens=24)
    return models, asked, *decode_counted(DecodeEngine(models, cuda_graphs=False), asked, options)


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - FOUND_AT_LOAD))
def test_faults_are_found(graphs, monkeypatch, name):
    """test_graph_check.py has the faults that are found at load."""
    options = SHOWN_BY.get(name, PLAIN)
    models, asked, expected, drafts = decoded_eagerly(options)
    FAULTS[name](monkeypatch)
    monkeypatch.setattr(cuda_graphs, "agree", lambda *_: True)
    with pytest.raises((Fault, AssertionError, IndexError, RuntimeError, ModelError)):
        decode_with_graphs(models, asked, options, expected, drafts)


def decode_with_graphs(models, asked, options, expected, drafts):
    """All windows and few of them, several times, over rows that are freed meanwhile; as expected.

    Graphs are used however they compare at load.
    """
    engine = DecodeEngine(models)
    for rows in range(1, 4):
        decode(engine, asked[:rows], DecodeOptions(num_beams=5, batch_size=rows))
        engine.batch(5 if rows == 1 else 1).clear()
        found, counted = decode_counted(engine, asked, options)
        check(found, expected)
        assert counted == drafts, "drafts are counted wrongly"
        check(decode(engine, asked[:3], options), {key: expected[key] for key in range(3)})
