"""Which sequence has which row: rows move up when others leave, every window keeps its answer."""

from __future__ import annotations

import math

import oracle
import torch
from oracle import TINY, models_of

from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, Request
from asr.engine.sequence import Sequence
from transcript import DecodeStats


def sequences_of(models, session, options, count=9):
    prompts = oracle.prompts_of(models.special_tokens, True, count)
    windows = zip(oracle.noise_windows(count), prompts, strict=True)
    stats = DecodeStats()
    return [
        Sequence(Request(key, *window, 4 + 7 * (key % 4)), options, session, stats)
        for key, window in enumerate(windows)
    ]


def unhurried(models):
    """A scheduler that admits whatever fits before its next step."""
    scheduler = DecodeEngine(models).scheduler
    scheduler.admission.hold_seconds = math.inf
    return scheduler


def test_windows_that_join_and_leave_in_any_order_get_their_own_answers():
    models = models_of(TINY, 142)
    scheduler, answers, most = DecodeEngine(models).scheduler, {}, 0
    waiting = sequences_of(models, "one", DecodeOptions(batch_size=4))
    expected = {}
    for sequence in waiting:
        expected |= oracle.greedy(models, [sequence.request], timestamps=True)
    while waiting or scheduler.running:
        if waiting:
            scheduler.add([waiting.pop(0)])
        for sequence, result in scheduler.step():
            answers[sequence.request.key] = result.tokens
        most = max(most, len(scheduler.running))
    assert answers == expected
    assert 2 <= most <= 4
    finished = scheduler.memory.state.rows.finished
    assert torch.equal(finished, torch.ones_like(finished))


def test_a_batch_size_counts_for_its_session_alone():
    models = models_of(TINY)
    scheduler = unhurried(models)
    for session, batch_size in (("one", 2), ("other", 3)):
        scheduler.add(sequences_of(models, session, DecodeOptions(batch_size=batch_size)))
    scheduler.step()
    assert [each.session for each in scheduler.running] == ["one", "other"] * 2 + ["other"]


def test_preempted_sequences_begin_again_in_their_order():
    models = models_of(TINY, 142)
    scheduler = DecodeEngine(models).scheduler
    sequences = sequences_of(models, "one", DecodeOptions(batch_size=4))
    scheduler.add(sequences)
    answers = dict(scheduler.step())
    running = list(scheduler.running)
    scheduler.preempt()
    assert scheduler.memory.state is None
    assert list(scheduler.waiting)[: len(running)] == running
    while scheduler.waiting or scheduler.running:
        answers |= dict(scheduler.step())
    for sequence in sequences:
        expected = oracle.greedy(models, [sequence.request], timestamps=True)
        assert answers[sequence].tokens == expected[sequence.request.key]


def test_cancelling_a_session_leaves_the_others_their_rows():
    models = models_of(TINY, 142)
    scheduler, answers = DecodeEngine(models).scheduler, {}
    sequences = {name: sequences_of(models, name, DecodeOptions(batch_size=3)) for name in "ab"}
    for each in sequences.values():
        scheduler.add(each)
    answers |= dict(scheduler.step())
    scheduler.cancel("a")
    assert {each.session for each in [*scheduler.running, *scheduler.waiting]} == {"b"}
    while scheduler.waiting or scheduler.running:
        answers |= dict(scheduler.step())
    for sequence in sequences["b"]:
        expected = oracle.greedy(models, [sequence.request], timestamps=True)
        assert answers[sequence].tokens == expected[sequence.request.key]
