"""Reads finished rows: the text, cut at a loop, and attention if needed."""

import dataclasses

import pytest

from tests.helpers.oracle import (
    TINY,
    decode,
    decode_counted,
    models_of,
    tokens_of,
    truth,
    windows_of,
)
from tests.test_engine import RAGGED, engine_of
from whosaid.asr.engine import fallback, result_reader
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.result import DecodeResult

STOPPING = Fallback(None, logprob_threshold=-1e9, compression_ratio_threshold=1e9)

# Rejects a text by its start alone.
BY_START = Fallback(5, logprob_threshold=-1e9)


def steps_of(windows, **options):
    """The answers, and the steps of all batches together."""
    answers, stats = decode_counted(engine_of(), windows, DecodeOptions(**options))
    return answers, stats.steps


@pytest.fixture
def loops_are_short(monkeypatch):
    """Random models repeat a token twice at most."""
    monkeypatch.setattr(fallback, "LEAST_TOKENS", 2)
    monkeypatch.setattr(fallback, "LEAST_REPEATS", 2)
    monkeypatch.setattr(fallback, "LEAST_PROGRESS", 2)  # none of them follows any speech


def answers_of(windows, **options):
    return decode(engine_of(), windows, DecodeOptions(**options))


@pytest.mark.usefixtures("loops_are_short")
def test_a_cut_text_has_the_attention_of_what_was_kept():
    windows = windows_of(True, 3, 120)
    whole = answers_of(windows)
    cut = {key: each for key, each in answers_of(windows, fallback=STOPPING).items() if each.cut}
    assert cut
    for key, answer in cut.items():
        assert answer.repetitive
        assert answer.tokens == whole[key].tokens[: len(answer.tokens)]
        assert answer.log_probs == pytest.approx(whole[key].log_probs[: len(answer.tokens)])
        assert answer.attention.shape[0] == len(answer.tokens)


@pytest.mark.usefixtures("loops_are_short")
def test_without_fallback_nothing_is_cut():
    answers = answers_of(windows_of(True, 2, 60))
    assert tokens_of(answers) == truth(True, 2, 60)
    assert not any(each.cut or each.repetitive for each in answers.values())


def test_highly_compressible_text_is_repetitive_and_whole():
    rejecting = dataclasses.replace(STOPPING, compression_ratio_threshold=0.0)
    options = DecodeOptions(fallback=rejecting, batch_size=1)
    answers = decode(engine_of(TINY, RAGGED[TINY]), windows_of(True, 2), options)
    assert tokens_of(answers) == truth(True, 2, ending=RAGGED[TINY])
    assert all(each.repetitive and not each.cut for each in answers.values())


def test_a_text_whose_start_is_rejected_is_not_finished(monkeypatch):
    """The answer depends neither on the step at which that is noticed, nor on other rows."""
    monkeypatch.setattr(result_reader, "START_TOKENS", 8)
    windows = windows_of(True, 4, 40)
    starts = [each.start_logprob for each in answers_of(windows, batch_size=1).values()]
    assert max(starts) < 0
    fallback = dataclasses.replace(BY_START, start_margin=-1e9 - sum(sorted(starts)[1:3]) / 2)
    expected = answers_of(windows, batch_size=1, fallback=fallback)
    assert sum(not each.timestamps for each in expected.values()) == 2
    _, plain = steps_of(windows, fallback=dataclasses.replace(BY_START, start_margin=1e9))
    for batch_size, drafts in ((2, 0), (4, 3)):
        options = DecodeOptions(True, drafts > 0, batch_size, fallback, drafts)
        assert tokens_of(decode(engine_of(noise=0.0), windows, options)) == tokens_of(expected)
    again, steps = steps_of(windows, fallback=dataclasses.replace(BY_START, start_margin=-1e9))
    assert not any(each.timestamps for each in again.values())
    untimed = dataclasses.replace(BY_START, retry_beams=None)
    _, beams = steps_of(windows, fallback=untimed, num_beams=5, timestamps=False)
    # Each is looked at every 16 steps, the first time behind the eighth text token.
    assert steps <= beams + 32 < beams + plain


def test_rejected_start_never_wins_at_any_step(monkeypatch):
    """The second text is shorter; a text that ends between two checks is not stopped."""
    monkeypatch.setattr(result_reader, "START_TOKENS", 40)
    monkeypatch.setattr(result_reader, "writes_more", lambda first, *_: first.ended)
    rejecting = dataclasses.replace(BY_START, start_margin=-1e9)
    windows, engine = windows_of(True, 4, 120)[:1], engine_of(TINY, 60)  # 52 tokens
    found = []
    for passed in (0, 4, 8, 12):  # steps of other rows
        engine.batch(1)._steps = passed
        found.append(tokens_of(decode(engine, windows, DecodeOptions(fallback=rejecting))))
    assert found[1:] == found[:1] * 3


def test_bad_start_is_finished_without_an_alternative(monkeypatch):
    monkeypatch.setattr(result_reader, "START_TOKENS", 8)
    rejecting = dataclasses.replace(BY_START, retry_beams=None, start_margin=-1e9)
    answers = answers_of(windows_of(True, 2, 60), fallback=rejecting)
    assert tokens_of(answers) == truth(True, 2, 60)


def test_beams_end_when_the_likeliest_loops(monkeypatch):
    """The number of steps does not depend on neighbours. Random models do not loop: some other
    texts pass for loops here."""
    monkeypatch.setattr(result_reader, "ends_in_repetition", lambda ids: 32 <= len(ids) < ids[0])
    monkeypatch.setattr(result_reader.ResultReader, "_loops", lambda *_: True)
    windows = windows_of(False, 2, None)
    options = {"num_beams": 2, "timestamps": False, "fallback": STOPPING}
    expected, _ = steps_of(windows, **options)
    lengths = {key: len(each.tokens) for key, each in expected.items()}
    assert 32 <= min(lengths.values()) < max(lengths.values()) < 300
    assert {length % 16 for length in lengths.values()} <= {0, 1}
    answers, steps = steps_of(windows, batch_size=1, **options)
    assert tokens_of(answers) == tokens_of(expected)
    # That a row was stopped is seen one step later.
    assert steps == sum(lengths.values())


def text_of(length: int, ended: bool = True, repetitive: bool = False) -> DecodeResult:
    """A text of so many tokens between two timestamps."""
    tokens = (400, *[5] * length, 410)
    return DecodeResult(tokens, 0.0, (-0.5,) * (len(tokens) + ended), 0.0, repetitive=repetitive)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (text_of(20), text_of(9), True),
        (text_of(20), text_of(11), False),
        (text_of(20), text_of(0), True),
        (text_of(20, ended=False), text_of(9), False),  # stopped because its start is unlikely
        (text_of(20, repetitive=True), text_of(9), False),
    ],
)
def test_complete_first_text_twice_as_long_is_kept(first, second, kept):
    assert result_reader.writes_more(first, second, models_of(TINY).special_tokens) is kept


def test_the_text_that_is_kept_is_whole(monkeypatch):
    rejecting = dataclasses.replace(STOPPING, retry_beams=5, logprob_threshold=0.0)
    windows = windows_of(True, 3, 12)
    firsts = answers_of(windows)
    monkeypatch.setattr(result_reader, "writes_more", lambda *_: True)
    for key, answer in answers_of(windows, fallback=rejecting).items():
        first = firsts[key]
        assert (answer.tokens, answer.timestamps) == (first.tokens, True)
        assert answer.log_probs == pytest.approx(first.log_probs)
        assert answer.attention == pytest.approx(first.attention, abs=1e-4)
