"""Batches of a real engine beside each other give the texts that each gives alone."""

import dataclasses
import functools
import weakref

import pytest
import torch

from tests.helpers import oracle
from tests.helpers.calls import calls_of
from tests.helpers.oracle import TINY, decode, interleaved, models_of, tokens_of
from tests.helpers.refusals import refused
from tests.support.decoding import drained
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.memory import StateMemory
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.state import DecodeState

# Rejects every text.
BEAMED = Fallback(3, True, logprob_threshold=0.0, no_speech_threshold=1.0)
GREEDY, BEAMS = DecodeOptions(batch_size=4), DecodeOptions(batch_size=4, num_beams=3)
RETRIED = dataclasses.replace(GREEDY, fallback=BEAMED)
LIVE, LIVE_RETRIED = (dataclasses.replace(each, live=True) for each in (GREEDY, RETRIED))


def windows_of(count=6):
    return oracle.windows_of(True, count, 16)


@functools.cache
def alone(options):
    return tokens_of(decode(DecodeEngine(models_of(TINY, 142)), windows_of(), options))


def beside(engine, *asked):
    answers = interleaved(engine, [(options, windows_of()) for options in asked])
    return [tokens_of(each) for each in answers]


def test_windows_joining_at_any_time_get_their_own_answers():
    models, answers, most = models_of(TINY, 142), {}, 0
    engine, expected = DecodeEngine(models), {}
    waiting = [dataclasses.replace(one, max_tokens=4 + 7 * (one.key % 4)) for one in windows_of(9)]
    for window in waiting:
        expected |= oracle.greedy(models, [window], timestamps=True)
    with engine.session(GREEDY) as session:
        while waiting or not session.done:
            session.add([waiting.pop(0)] if waiting else [])
            answers |= {request.key: result.tokens for request, result in session.step()}
            most = max(most, engine.scheduler.running)
    assert answers == expected
    assert 2 <= most <= 4
    assert engine.memory.state.rows.finished.all()


@pytest.fixture
def moves(monkeypatch):
    """The rows that were moved, and where to, by turn."""
    seen, move = [], DecodeState.move

    def watched(state, sources, targets):
        seen.append(([*sources], [*targets]))
        move(state, sources, targets)

    monkeypatch.setattr(DecodeState, "move", watched)
    return seen


def lasting(models, *lengths):
    """Windows whose texts are cut at so many tokens each, and transformers' texts of them."""
    windows, expected = [], {}
    for each, length in zip(windows_of(len(lengths)), lengths, strict=True):
        windows.append(dataclasses.replace(each, max_tokens=length))
        expected |= oracle.greedy(models, windows[-1:], timestamps=True)
    return windows, expected


def test_new_windows_take_rows_of_finished_ones(moves):
    """Nothing moves while windows wait, whichever rows end, one by one or together."""
    engine, answers = DecodeEngine(models_of(TINY)), {}
    windows, expected = lasting(engine.models, 9, 3, 5, 3, 4, 6, 2, 8, 8, 8)
    with engine.session(GREEDY) as session:
        session.add(windows)
        while not session.done:
            answers |= {request.key: result.tokens for request, result in session.step()}
            assert not (moves and engine.scheduler.waiting)
    assert answers == expected


def test_rows_that_end_together_are_replaced_at_once(moves):
    models, options = models_of(TINY), dataclasses.replace(GREEDY, batch_size=6)
    windows, expected = lasting(models, 3, 12, 3, 3, 12, 12)
    assert tokens_of(decode(DecodeEngine(models), windows, options)) == expected
    assert moves == [([4, 5], [0, 2])]


def test_between_two_steps_others_leave_and_many_come():
    """New windows fill gaps that are closed, or a larger state takes all rows over."""
    engine = DecodeEngine(models_of(TINY))
    windows, expected = lasting(engine.models, *[40] * 10)
    options = dataclasses.replace(GREEDY, batch_size=10)
    with engine.session(options) as session:
        with engine.session(options) as first, engine.session(options) as second:
            for each, asked in ((first, 1), (session, 0), (second, 1), (session, 1)):
                each.add(windows[asked : asked + 1])
                while engine.scheduler.waiting:
                    each.step()
        assert engine.scheduler.running == 2  # the second and the fourth, of four
        session.add(windows[2:])
        answers = tokens_of(drained(session))
    assert answers == expected
    assert engine.memory.state.rows.finished.all()


def test_live_and_file_sessions_do_not_change_each_other():
    engine = DecodeEngine(models_of(TINY, 142))
    expected = [alone(each) for each in (RETRIED, GREEDY, RETRIED, BEAMS)]
    assert beside(engine, RETRIED, LIVE, LIVE_RETRIED, BEAMS) == expected
    lanes = {(lane.num_beams, lane.live) for lane in engine.batches}
    assert lanes == {(1, False), (1, True), (3, False), (3, True)}
    assert not engine.scheduler.busy


def test_closing_a_session_leaves_the_others_their_rows():
    engine = DecodeEngine(models_of(TINY, 142))
    with engine.session(GREEDY) as session:
        session.add(windows_of())
        with engine.session(GREEDY) as other, engine.session(BEAMS) as beams:
            other.add(windows_of())
            beams.add(windows_of())
            answers = {request.key: result for request, result in session.step()}
        answers |= drained(session)
    assert tokens_of(answers) == alone(GREEDY)
    assert not engine.scheduler.busy


@pytest.mark.parametrize("step", [1, 8])
def test_restarted_windows_get_the_same_answers(step):
    """Language detection may run out of memory, for example."""
    engine, answers = DecodeEngine(models_of(TINY, 142)), {}
    with engine.session(RETRIED) as session:
        session.add(windows_of())
        for _ in range(step):
            answers |= {request.key: result for request, result in session.step()}
        for lane in engine.batches:
            engine.scheduler.requeue(lane)
            engine.batches[lane].clear()
        answers |= drained(session)
    assert tokens_of(answers) == alone(RETRIED)


def test_an_idle_batchs_memory_is_freed():
    engine = DecodeEngine(models_of(TINY, 142))
    decode(engine, windows_of(), GREEDY)
    held = weakref.ref(engine.memory.state.cache.text.untyped_storage())
    assert held() is not None
    engine.batch(1).clear()
    assert held() is None


def test_a_retry_is_not_encoded_again_and_hears_the_same(monkeypatch):
    engine = DecodeEngine(models_of(TINY, 142))
    encoded = calls_of(monkeypatch, engine.context.encoder, "run_pass")
    answers = tokens_of(decode(engine, windows_of(), RETRIED))
    assert sum(len(each) for _, each in encoded) == len(windows_of())
    assert answers == alone(BEAMS)


def allocate_at_most(monkeypatch, engine, most):
    """Batches together hold at most `most` rows, each beam of a row counted."""
    use = StateMemory._use

    def limited(memory, wanted):
        others = [each.memory for each in engine.batches.values()]
        held = sum(each.capacity * each.num_beams for each in others if each is not memory)
        if held + max(wanted, memory.capacity) * memory.num_beams > most:
            raise torch.OutOfMemoryError
        use(memory, wanted)

    monkeypatch.setattr(StateMemory, "_use", limited)


@pytest.mark.parametrize("most", [4, 13])
def test_batches_that_do_not_fit_beside_each_other_take_turns(monkeypatch, most):
    engine, expected = DecodeEngine(models_of(TINY, 142)), [alone(GREEDY), alone(BEAMS)]
    allocate_at_most(monkeypatch, engine, most)
    assert beside(engine, GREEDY, BEAMS) == expected


def test_beams_that_never_fit_are_refused(monkeypatch):
    engine, expected = DecodeEngine(models_of(TINY, 142)), alone(GREEDY)
    allocate_at_most(monkeypatch, engine, 4)
    with refused("OUT_OF_MEMORY"):
        decode(engine, windows_of(), DecodeOptions(num_beams=5))
    assert tokens_of(decode(engine, windows_of(), GREEDY)) == expected
