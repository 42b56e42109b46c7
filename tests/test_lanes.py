"""Lanes beside each other: who moves where, who gives memory back, who waits for whom."""

from __future__ import annotations

import dataclasses
import functools
import weakref

import oracle
import pytest
import torch
from oracle import TINY, decode, models_of

from asr.engine.decode_state import DecodeState
from asr.engine.engine import DecodeEngine
from asr.engine.fallback import Attempt, Fallback
from asr.engine.request import DecodeOptions, Request
from asr.engine.results import ResultReader
from errors import OutOfMemory

# Rejects every text at temperature 0.
SAMPLED = Fallback((Attempt(0.4),), logprob_threshold=0.0, no_speech_threshold=1.0)
# The same, by beams.
BEAMED = Fallback((Attempt(num_beams=3),), logprob_threshold=0.0, no_speech_threshold=1.0)
GREEDY, BEAMS = DecodeOptions(batch_size=4), DecodeOptions(batch_size=4, num_beams=3)


@functools.cache
def windows_of(count=6):
    prompts = oracle.prompts_of(models_of(TINY).special_tokens, True, count)
    windows = zip(oracle.noise_windows(count), prompts, strict=True)
    return [Request(key, *window, 16) for key, window in enumerate(windows)]


@functools.cache
def alone(options):
    return tokens_of(decode(DecodeEngine(models_of(TINY, 142)), windows_of(), options))


def tokens_of(answers):
    return {key: answer.tokens for key, answer in answers.items()}


def beside(engine, *asked):
    """The tokens of sessions at once, each with all windows."""
    sessions, answers = [engine.session(each) for each in asked], [{} for _ in asked]
    for session in sessions:
        session.add(windows_of())
    while not all(session.done for session in sessions):
        for session, answered in zip(sessions, answers, strict=True):
            answered |= tokens_of(dict(by_key(session.step())))
    return answers


def by_key(results):
    return [(request.key, result) for request, result in results]


def test_a_lane_is_made_when_it_is_used():
    engine = DecodeEngine(models_of(TINY))
    assert [lane.num_beams for lane in engine.lanes] == [1]
    for num_beams in (5, 2, 5):
        decode(engine, windows_of()[:1], DecodeOptions(num_beams=num_beams))
    assert [lane.num_beams for lane in engine.lanes] == [1, 5, 2]
    assert engine.scheduler.memory.state is None


def test_an_idle_lanes_memory_is_freed():
    engine = DecodeEngine(models_of(TINY, 142))
    decode(engine, windows_of(), GREEDY)
    held = weakref.ref(engine.memory.state.main.cache.keys[0].untyped_storage())
    assert held() is not None
    assert engine.lanes.release_idle()
    assert held() is None


def test_a_sampled_attempt_leaves_the_beams_and_hears_the_same_encoding():
    engine = DecodeEngine(models_of(TINY, 142))
    encoded = []
    hook = engine.models.model.get_encoder().register_forward_hook(
        lambda _m, inputs, _o: encoded.append(len(inputs[0]))
    )
    options = dataclasses.replace(BEAMS, fallback=SAMPLED, batch_size=2)
    answers = decode(engine, windows_of(), options)
    hook.remove()
    plain = decode(engine, windows_of(), dataclasses.replace(GREEDY, fallback=SAMPLED))
    assert {answer.temperature for answer in answers.values()} == {0.4}
    assert tokens_of(answers) == tokens_of(plain)
    assert sum(encoded) == len(windows_of())


def test_the_rows_of_a_session_are_counted_in_all_lanes():
    engine, most = DecodeEngine(models_of(TINY, 142)), 0
    with engine.session(dataclasses.replace(BEAMS, fallback=SAMPLED, batch_size=2)) as session:
        session.add(windows_of())
        while not session.done:
            session.step()
            running = [len(lane.running) for lane in engine.lanes]
            most = max(most, sum(running))
    assert most == 2


def test_a_policy_may_send_a_greedy_row_to_the_beams(monkeypatch):
    engine = DecodeEngine(models_of(TINY, 142))
    options = dataclasses.replace(GREEDY, fallback=SAMPLED)
    monkeypatch.setattr(
        "asr.engine.sequence.Sequence.retry",
        lambda each, *_: vars(each).update(attempts=each.attempts + 1, num_beams=3),
    )
    assert tokens_of(decode(engine, windows_of(), options)) == alone(BEAMS)


def test_closing_a_session_empties_every_lane():
    engine = DecodeEngine(models_of(TINY))
    with engine.session(BEAMS) as session:
        session.add(windows_of())
        session.step()
    assert not engine.lanes.busy
    assert tokens_of(decode(DecodeEngine(models_of(TINY, 142)), windows_of(), BEAMS)) == alone(
        BEAMS
    )


def test_what_is_preempted_begins_in_the_lane_of_its_first_attempt():
    engine = DecodeEngine(models_of(TINY, 142))
    options = dataclasses.replace(BEAMS, fallback=SAMPLED)
    with engine.session(options) as session:
        session.add(windows_of())
        while not engine.scheduler.running:
            session.step()
        engine.scheduler.preempt()
        engine.lanes.move()
        assert not engine.scheduler.waiting
        answers = {}
        while not session.done:
            answers |= dict(by_key(session.step()))
    assert {answer.temperature for answer in answers.values()} == {0.4}


def allocate_at_most(monkeypatch, engine, most):
    """Lanes together hold at most `most` rows, each beam of a row counted."""
    allocate = DecodeState.allocate

    def limited(main, assistant, rows, drafts, num_beams=None):
        held = [lane.memory.capacity * lane.num_beams for lane in engine.lanes]
        if sum(held) + rows * (num_beams or 1) > most:
            raise torch.OutOfMemoryError
        return allocate(main, assistant, rows, drafts, num_beams)

    monkeypatch.setattr(DecodeState, "allocate", limited)


@pytest.mark.parametrize("most", [3, 4, 7, 13])
def test_lanes_that_do_not_fit_beside_each_other_take_turns(monkeypatch, most):
    engine, expected = DecodeEngine(models_of(TINY, 142)), [alone(GREEDY), alone(BEAMS)]
    allocate_at_most(monkeypatch, engine, most)
    assert beside(engine, GREEDY, BEAMS) == expected


def test_an_idle_lane_gives_its_memory_back_before_another_halves_its_batch(monkeypatch):
    engine, expected = (
        DecodeEngine(models_of(TINY, 142)),
        {each: alone(each) for each in (GREEDY, BEAMS)},
    )
    allocate_at_most(monkeypatch, engine, 12)
    for options in (GREEDY, BEAMS, GREEDY):
        assert tokens_of(decode(engine, windows_of(), options)) == expected[options]
    assert {lane.memory.limit for lane in engine.lanes} == {128}


def test_beams_that_never_fit_are_refused_and_the_next_request_is_answered(monkeypatch):
    engine, expected = DecodeEngine(models_of(TINY, 142)), alone(GREEDY)
    allocate_at_most(monkeypatch, engine, 4)
    with pytest.raises(OutOfMemory, match="one window"):
        decode(engine, windows_of(), DecodeOptions(num_beams=5))
    assert tokens_of(decode(engine, windows_of(), GREEDY)) == expected


def refuse_beams(monkeypatch, engine, most):
    """Steps of more than `most` rows with beams run out of memory, whatever others hold."""
    launch = engine.runner.launch

    def refuse(state, filters, shape):
        if state.beams is not None and state.capacity > most:
            raise torch.OutOfMemoryError
        return launch(state, filters, shape)

    monkeypatch.setattr(engine.runner, "launch", refuse)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("most", "batch_size"), [(1, 2), (1, 4), (2, 4)])
def test_rows_that_come_again_through_an_idle_lane_are_halved(monkeypatch, most, batch_size):
    """Each time they are preempted they begin in the other lane, which takes its memory again."""
    options = dataclasses.replace(GREEDY, fallback=BEAMED, batch_size=batch_size)
    expected = tokens_of(decode(DecodeEngine(models_of(TINY, 142)), windows_of(), options))
    engine = DecodeEngine(models_of(TINY, 142))
    refuse_beams(monkeypatch, engine, most)
    assert tokens_of(decode(engine, windows_of(), options)) == expected


@pytest.mark.timeout(60)
def test_an_attempt_that_never_fits_is_refused_to_its_request(monkeypatch):
    engine, expected = DecodeEngine(models_of(TINY, 142)), alone(GREEDY)
    refuse_beams(monkeypatch, engine, 0)
    with pytest.raises(OutOfMemory, match="one window"):
        decode(engine, windows_of(), dataclasses.replace(GREEDY, fallback=BEAMED))
    assert not engine.lanes.busy
    assert tokens_of(decode(engine, windows_of(), GREEDY)) == expected


def test_rejected_texts_of_a_session_are_decoded_again_together():
    """Those that are rejected later join those that wait, or that run again already."""
    attempt = Attempt(without_timestamps=True, num_beams=3)
    fallback = Fallback((attempt,), logprob_threshold=0.0, no_speech_threshold=1.0)
    engine, windows = DecodeEngine(models_of(TINY, 142)), []
    for number, window in enumerate(windows_of(4)):
        windows.append(dataclasses.replace(window, max_tokens=10 + 6 * number))
    options = dataclasses.replace(GREEDY, fallback=fallback)
    answers = decode(engine, windows, options)
    beams = list(engine.lanes)[1]
    longest = max(len(each.log_probs) for each in answers.values())
    assert not any(each.timestamps for each in answers.values())
    assert beams.steps <= longest  # of one batch, not of four


def test_a_rejected_text_waits_for_nobody_elses():
    """A session whose rows have all ended goes on beside others that still run."""
    attempt = Attempt(without_timestamps=True, num_beams=3)
    fallback = Fallback((attempt,), logprob_threshold=0.0, no_speech_threshold=1.0)
    engine = DecodeEngine(models_of(TINY))
    short = dataclasses.replace(windows_of(1)[0], max_tokens=6)
    long = dataclasses.replace(windows_of(2)[1], max_tokens=200)
    with (
        engine.session(GREEDY) as other,
        engine.session(dataclasses.replace(GREEDY, fallback=fallback)) as session,
    ):
        other.add([long])
        session.add([short])
        while not session.done:
            session.step()
        assert not other.done
    assert engine.lanes.greedy.steps <= 20


def test_a_text_about_to_leave_when_the_step_fails_is_decoded_once(monkeypatch):
    """Rejected in the step in which a neighbour cannot be read, it is begun again, in one lane."""
    engine = DecodeEngine(models_of(TINY, 142))
    options = dataclasses.replace(GREEDY, fallback=BEAMED)
    good, bad = engine.session(options), engine.session(options)
    read = ResultReader.read

    def fail(reader, state, row, length, sequence):
        if sequence.session is bad:
            raise RuntimeError("poison")
        return read(reader, state, row, length, sequence)

    monkeypatch.setattr(ResultReader, "read", fail)
    good.add(windows_of()[:1])
    bad.add(windows_of()[:1])  # the same, so that both end in the same step
    results = []
    for _ in range(200):  # more than all attempts need
        engine.step_all()
        results += good.take()
    assert len(results) == 1
    assert good.done
    assert not engine.lanes.busy
    with pytest.raises(RuntimeError, match="poison"):
        bad.take()
