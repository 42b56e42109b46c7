"""Given prefixes and drafts, against transformers' greedy decoding behind the same tokens."""

import copy
import dataclasses
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.helpers import nightly, oracle
from tests.helpers.calls import calls_of
from tests.helpers.oracle import TINY, decode, models_of, random_heads, with_assistant
from whosaid.asr.checkpoint.medusa import BLOCK, HEADS_ONLY
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.model.decoder import Decoder

RAGGED = 142  # the token whose place the end of text takes: rows end far apart
WINDOWS, MOST = 6, 40
END = models_of(TINY).special_tokens.end_of_text
DRAFTERS = ("none", "assistant", BLOCK, HEADS_ONLY)


@functools.cache
def engine_of(drafter: str = "none", ending: int | None = RAGGED) -> DecodeEngine:
    models = models_of(TINY, ending)
    if drafter == "assistant":
        models = with_assistant(models, 0.1)
    elif drafter != "none":
        models = random_heads(models, 5, drafter, scale=0.02)
    return DecodeEngine(models)


@functools.cache
def windows_of(timestamps: bool) -> list[Request]:
    windows = oracle.windows_of(timestamps, WINDOWS, MOST)
    return [dataclasses.replace(each, once=True) for each in windows]


@functools.cache
def truth(
    number: int, timestamps: bool, prefix: tuple[int, ...] = (), ending: int | None = RAGGED
) -> tuple[int, ...]:
    """The whole text of a window that begins with a prefix."""
    window = dataclasses.replace(windows_of(timestamps)[number], prefix=prefix)
    return oracle.greedy(models_of(TINY, ending), [window], timestamps)[number]


def options_of(drafter: str, timestamps: bool, batch_size: int) -> DecodeOptions:
    drafted = drafter != "none"
    drafts = 3 if drafted else None
    return DecodeOptions(timestamps, drafted, batch_size, None, drafts)


def altered(tokens: tuple[int, ...], at: int, to: int) -> tuple[int, ...]:
    """Return the text with another text token at a position, if it has one there."""
    if at >= len(tokens) or tokens[at] >= END:
        return tokens
    return (*tokens[:at], to, *tokens[at + 1 :])


@some.composite
def guesses(draw, number: int, timestamps: bool, ending: int | None = None):
    """A prefix, which the model would write or would not, and a draft of any kind behind it."""
    whole = truth(number, timestamps, (), ending)
    words = some.integers(0, END - 1)
    prefix = altered(whole[: draw(some.integers(0, 20))], draw(some.integers(0, 20)), draw(words))
    text = truth(number, timestamps, prefix, ending)[len(prefix) :]
    draft = altered(text[: draw(some.integers(0, MOST))], draw(some.integers(0, 60)), draw(words))
    rest = draw(some.sampled_from([(), (END,), (5,) * 9, tuple(range(450))]))
    return prefix, draft + rest


@pytest.mark.parametrize("drafter", nightly.some(3, DRAFTERS))
@settings(max_examples=2)
@given(data=some.data())
def test_texts_are_those_of_transformers_behind_the_prefix(drafter, data):
    """Rows with guesses of all kinds, and without, run beside each other."""
    timestamps, batch_size = data.draw(some.booleans()), data.draw(some.sampled_from([1, 2, 4]))
    ending = data.draw(some.sampled_from([RAGGED, None]))
    asked = []
    for window in windows_of(timestamps)[:3]:
        if data.draw(some.integers(0, 2)):
            prefix, draft = data.draw(guesses(window.key, timestamps, ending))
            window = dataclasses.replace(window, prefix=prefix, draft=draft)
        asked.append(window)
    undrafted_ones = [dataclasses.replace(each, draft=()) for each in asked]
    options = options_of("none", timestamps, batch_size)
    plain = decode(engine_of("none", ending), undrafted_ones, options)
    engine, options = engine_of(drafter, ending), options_of(drafter, timestamps, batch_size)
    found = decode(engine, asked, options)
    oracle.check_alike(found, plain)
    for window in asked:
        assert found[window.key].tokens == truth(window.key, timestamps, window.prefix, ending)


@pytest.mark.parametrize("timestamps", [True, False])
def test_a_prefix_that_the_model_would_have_written_changes_nothing(timestamps):
    """Attention and probabilities of the given tokens stay too, as does the end of the text."""
    engine, options = engine_of(), options_of("none", timestamps, WINDOWS)
    windows = windows_of(timestamps)
    expected = decode(engine, windows, options)
    for count in (1, 5, MOST):
        asked = [dataclasses.replace(it, prefix=expected[it.key].tokens[:count]) for it in windows]
        found = decode(engine, asked, options)
        oracle.check_alike(found, expected)
        for key, each in expected.items():
            assert found[key].language_probability == pytest.approx(each.language_probability)


def test_nothing_more_need_be_said_behind_a_prefix():
    """End-of-text is suppressed as the first token of a text, but not after given tokens."""
    engine = engine_of()
    assert END in models_of(TINY).special_tokens.begin_suppress
    window = windows_of(False)[0]
    whole = truth(0, False)
    assert len(whole) < MOST
    given = dataclasses.replace(window, prefix=whole)
    (found,) = decode(engine, [given], DecodeOptions(False)).values()
    assert found.tokens == whole
    assert len(found.log_probs) == len(whole) + 1


def test_prefix_may_break_rules_with_finite_probability():
    """Examples are the end of a segment before its text, and a suppressed token."""
    special = models_of(TINY).special_tokens
    later, earlier = special.timestamp_begin + 30, special.timestamp_begin + 3
    suppressed = next(each for each in special.begin_suppress if each < END)
    prefix = (suppressed, 5, later, earlier, 6)
    window = dataclasses.replace(windows_of(True)[0], prefix=prefix)
    found = decode(engine_of(), [window], DecodeOptions())[0]
    assert found.tokens[: len(prefix)] == prefix
    assert torch.tensor(found.log_probs).isfinite().all()


def test_max_tokens_bounds_given_prefixes_and_drafts():
    window = dataclasses.replace(windows_of(True)[0], max_tokens=4, prefix=truth(0, True)[:6])
    assert decode(engine_of(), [window], DecodeOptions())[0].tokens == truth(0, True)[:4]
    endless = dataclasses.replace(windows_of(True)[0], draft=(*truth(0, True), *[5] * 1000))
    assert decode(engine_of(), [endless], DecodeOptions())[0].tokens == truth(0, True)


def passes(monkeypatch, engine: DecodeEngine, window: Request, options: DecodeOptions) -> int:
    with monkeypatch.context() as patch:
        read = calls_of(patch, Decoder, "forward")
        decode(engine, [window], options)
    return sum(each is engine.main for each, *_ in read)


def test_a_right_guess_costs_no_steps(monkeypatch):
    """Wherever the guess ends: each missing token costs a step."""
    engine, options = engine_of(ending=None), DecodeOptions()
    window, text = windows_of(True)[0], truth(0, True, (), None)
    assert len(text) == MOST
    assert passes(monkeypatch, engine, window, options) == MOST
    for known, drafted in ((0, MOST), (10, MOST - 10), (MOST, 0), (3, 20), (0, 1)):
        draft = text[known : known + drafted]
        guessed = dataclasses.replace(window, prefix=text[:known], draft=draft)
        # Prefill chooses one token more; its row is looked at behind a step.
        steps = max(1, MOST - (known + drafted) - 1)
        assert passes(monkeypatch, engine, guessed, options) == 1 + steps


def test_behind_a_wrong_token_a_draft_is_followed_again(monkeypatch):
    """Two tokens that it has, too, tell where; a step then verifies as many as any step does."""
    engine, options = engine_of(ending=None), DecodeOptions()
    window, text = windows_of(True)[0], truth(0, True, (), None)
    wrong = next(place for place in range(3, MOST - 20) if text[place] < END and text[place] != 7)
    for draft in (altered(text, wrong, 7), text[:wrong] + text[wrong + 1 :]):
        assert draft != text
        guessed = dataclasses.replace(window, draft=draft)
        assert decode(engine, [guessed], options)[window.key].tokens == text
        rest = MOST - wrong
        assert passes(monkeypatch, engine, guessed, options) <= 1 + 6 + rest // 4


@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_drafts_of_requests_do_not_change_drafter_rates(drafter):
    engine = engine_of(drafter, None)
    before = copy.deepcopy(engine.context.drafting.rates)
    text = truth(0, True, (), None)
    wrong = next(place for place in range(3, MOST - 20) if text[place] < END and text[place] != 7)
    window = dataclasses.replace(windows_of(True)[0], draft=altered(text, wrong, 7))
    _, stats = oracle.decode_counted(engine, [window], DecodeOptions(batch_size=1))
    assert stats.drafted > 0
    assert engine.context.drafting.rates == before


def test_draft_right_to_its_end_ends_the_text(monkeypatch):
    engine, text = engine_of(), truth(0, True)
    for draft in (text, (*text, END), (*text, END, 5, 6)):
        window = dataclasses.replace(windows_of(True)[0], draft=draft)
        assert passes(monkeypatch, engine, window, DecodeOptions()) == 2


def partly_guessed(window: Request, right: int, wrong: int) -> Request:
    """Give `window` as many tokens as its key, then a draft: to `right`, and so many wrong ones."""
    text = truth(window.key, True, (), None)
    draft = (*text[window.key : right], *(5,) * wrong)
    return dataclasses.replace(window, prefix=text[: window.key], draft=draft)


def test_an_assistant_has_read_what_was_guessed():
    """A perfect assistant is right throughout, unless it has misread a token."""
    engine = DecodeEngine(with_assistant(models_of(TINY, None), 0.0))
    for right, wrong in ((0, 0), (7, 0), (7, 5), (0, 12)):
        asked = [partly_guessed(each, right, wrong) for each in windows_of(True)]
        _, stats = oracle.decode_counted(engine, asked, DecodeOptions(assisted=True, drafts=3))
        assert stats.accepted == stats.drafted > 50


@pytest.mark.parametrize("kind", [HEADS_ONLY, BLOCK])
def test_heads_read_the_state_that_chose_the_newest_token(kind):
    """Rows of one prefill, which accept different numbers of tokens, and those after steps."""
    engine = engine_of(kind, None)
    asked = [partly_guessed(each, 4 * each.key, each.key) for each in windows_of(True)]
    with engine.session(DecodeOptions(assisted=True, drafts=2)) as session:
        session.add(asked)
        for _ in range(4):
            session.step()
            assert oracle.count_checked_states(engine) > 3


def test_a_draft_is_no_part_of_a_second_attempt(monkeypatch):
    """The second attempt uses beams, without timestamps."""
    monkeypatch.setattr("whosaid.asr.engine.result_reader.writes_more", lambda *_: False)
    engine = engine_of()
    retrying = Fallback(3, logprob_threshold=0.0, no_speech_threshold=1.0)
    options = DecodeOptions(fallback=retrying)
    windows = [dataclasses.replace(each, once=False) for each in windows_of(True)]
    expected = decode(engine, windows, options)
    assert not any(each.timestamps for each in expected.values())
    asked = [dataclasses.replace(each, draft=truth(each.key, True)[:9]) for each in windows]
    oracle.check_alike(decode(engine, asked, options), expected)


def test_refused_prefix_leaves_nothing_behind():
    engine, windows = engine_of(), windows_of(True)
    with engine.session(DecodeOptions(num_beams=2)) as session:
        with pytest.raises(ValueError, match="a prefix is for"):
            session.add([windows[0], dataclasses.replace(windows[1], prefix=(5,))])
        assert session.done
    assert not engine.scheduler.busy
