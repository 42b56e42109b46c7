"""Drafting with Medusa heads against transformers' greedy decoding, token for token, in float64.

How assistants draft is tested in test_engine.py; what is here holds for heads, or for both."""

import dataclasses
import functools
import itertools

import pytest
import torch

from tests.helpers import oracle
from tests.helpers.calls import calls_of
from tests.helpers.nightly import some
from tests.helpers.oracle import TINY, decode, interleaved, models_of, random_heads, tokens_of
from whosaid.asr.checkpoint.medusa import BLOCK, HEADS_ONLY, LINEAR
from whosaid.asr.engine.drafting import DraftLength, DraftPolicy, StepCosts
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.state import DecodeState

RAGGED = 142  # the token whose place the end of text takes: rows end far apart
KINDS = (HEADS_ONLY, BLOCK)


@functools.cache
def models_with(kind, count=10, scale=0.3):
    return random_heads(models_of(TINY, RAGGED), count, kind, scale=scale)


@functools.cache
def engine_of(kind, count=10, scale=0.3):
    return DecodeEngine(models_with(kind, count, scale))


def windows_of(timestamps):
    return oracle.windows_of(timestamps, 8)


def truth(timestamps):
    return oracle.truth(timestamps, 8, ending=RAGGED)


# Every pair of kind, number of drafts and timestamps, of which the last two alternate.
@pytest.mark.parametrize(
    ("kind", "drafts", "batch_size", "timestamps"),
    [
        (kind, drafts, batch_size, bool((number + place) % 2))
        for number, kind in enumerate(KINDS)
        for place, (drafts, batch_size) in enumerate([(1, 8), (3, 1), (4, 5), (10, 8)])
    ],
)
def test_heads_change_no_token(kind, drafts, batch_size, timestamps):
    options = DecodeOptions(timestamps, True, batch_size, drafts=drafts)
    windows = windows_of(timestamps)[: 3 * batch_size]
    answers = decode(engine_of(kind), windows, options)
    assert tokens_of(answers) == {each.key: truth(timestamps)[each.key] for each in windows}


@pytest.mark.parametrize(
    ("timestamps", "drafts", "batch_size"), [(False, 0, 8), (True, 2, 5), (False, 6, 1)]
)
def test_medusa_linear_writes_what_its_own_main_path_does(timestamps, drafts, batch_size):
    options = DecodeOptions(timestamps, True, batch_size, drafts=drafts)
    answers = decode(engine_of(LINEAR), windows_of(timestamps), options)
    models = oracle.through_base_head(models_with(LINEAR))
    expected = oracle.greedy(models, windows_of(timestamps), timestamps)
    assert tokens_of(answers) == expected
    assert expected != truth(timestamps)


def test_language_and_silence_are_asked_of_whisper_alone():
    """Head 0 was trained on what follows a prompt."""
    plain, headed = (DecodeEngine(each) for each in (models_of(TINY, RAGGED), models_with(LINEAR)))
    (window,) = oracle.windows_of(True, 1, 3)
    assert headed.detect_language(window.samples)[:2] == plain.detect_language(window.samples)[:2]
    ours, expected = (decode(each, [window], DecodeOptions())[0] for each in (headed, plain))
    assert ours.no_speech_prob == pytest.approx(expected.no_speech_prob)
    assert ours.language_probability == pytest.approx(expected.language_probability)


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_a_pass_over_the_whole_text(kind, monkeypatch):
    """Numbers of drafts differ, rows are moved, and the state grows."""
    engine = DecodeEngine(models_with(kind, scale=0.02))  # near copies: some drafts are right
    lengths = itertools.cycle([0, 2, 5, 0, 1, 10])
    monkeypatch.setattr(DraftPolicy, "choose", lambda *_: next(lengths))
    windows, checked = windows_of(True), 0
    moved = calls_of(monkeypatch, DecodeState, "move")
    with engine.session(DecodeOptions(assisted=True, drafts=1, batch_size=4)) as session:
        session.add(windows[:2])
        session.step()
        session.add(windows[2:])
        for step in range(13):
            session.step()
            if step % 3 == 0:
                checked += oracle.count_checked_states(engine)
    assert moved
    assert checked > 10


@pytest.mark.parametrize("drafts", some(1, [4, 1]))
def test_copying_heads_are_accepted_at_every_repeated_token(drafts):
    """With zero weights every head repeats the newest token; no text ends by itself."""
    models, windows, limit = models_of(TINY), windows_of(False), 24
    longer = [dataclasses.replace(each, max_tokens=limit + drafts) for each in windows]
    accepted, drafted = 0, 0
    for tokens in oracle.greedy(models, longer, False).values():
        place = 1
        while place < limit:
            ahead = tokens[place : place + drafts]
            right = len(list(itertools.takewhile(lambda each: each == tokens[place - 1], ahead)))  # noqa: B023
            accepted, drafted = accepted + right, drafted + min(right + 1, drafts)
            place += right + 1
    engine = DecodeEngine(random_heads(models, 10, scale=0.0))
    _, stats = oracle.decode_counted(engine, windows, DecodeOptions(False, True, 5, drafts=drafts))
    assert (stats.accepted, stats.drafted) == (accepted, drafted)
    assert accepted > 0


@pytest.mark.parametrize("kind", some(1, [BLOCK, LINEAR]))
def test_sessions_beside_each_other_give_the_answers_they_give_alone(kind, monkeypatch):
    """Sampled rows, rows with and without timestamps, drafted ones and others, retries by beams."""
    monkeypatch.setattr("whosaid.asr.engine.result_reader.writes_more", lambda *_: False)
    fallback = Fallback(2, logprob_threshold=-4.0, no_speech_threshold=1.0)
    engine = engine_of(kind)
    options = [
        DecodeOptions(True, True, 4, drafts=40),
        DecodeOptions(False, False, 2),
        DecodeOptions(True, True, 5, fallback, drafts=2),
        DecodeOptions(False, temperature=0.4),
    ]
    asked = [(each, windows_of(each.timestamps)[n:6]) for n, each in enumerate(options)]
    plain = [(windows, dataclasses.replace(each, assisted=False)) for each, windows in asked]
    alone = [decode(engine, *each) for each in plain]
    kinds = set()
    for ours, expected in zip(interleaved(engine, asked), alone, strict=True):
        assert tokens_of(ours) == tokens_of(expected)
        kinds |= {(answer.temperature, answer.timestamps) for answer in ours.values()}
    assert kinds == {(0.0, True), (0.0, False), (0.4, False)}
    assert {each.timestamps for each in alone[2].values()} == {True, False}


def test_a_shortlist_leaves_the_tokens_and_drafts_nothing_else():
    models, listed = models_with(HEADS_ONLY), torch.arange(5, 300, 3)
    heads = dataclasses.replace(models.medusa, shortlist=listed)
    engine = DecodeEngine(dataclasses.replace(models, medusa=heads))
    filters, drafted = engine.runner.filters, []
    choose = type(filters).choose

    def watched(self, logits, history, grammar=True, scored=True):
        choice = choose(self, logits, history, grammar, scored)
        drafted.extend([] if scored else choice.tokens.flatten().tolist())
        return choice

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(filters), "choose", watched)
        answers = decode(engine, windows_of(False), DecodeOptions(False, True, drafts=3))
    assert tokens_of(answers) == truth(False)
    assert set(drafted) <= set(listed.tolist())
    assert len(set(drafted)) > 10


@pytest.mark.parametrize("own_encoder", [None, False, True], ids=["heads", "decoder", "whisper"])
def test_unprofitable_drafts_cost_no_memory_and_no_pass(own_encoder, monkeypatch):
    """The assistant's encoder does not run, no states are updated, and the tokens stay."""
    models = models_with(HEADS_ONLY)
    if own_encoder is not None:
        models = oracle.with_assistant(models_of(TINY, RAGGED), 0.1, own_encoder)
    engine = DecodeEngine(models)
    runner, encoder = engine.runner, engine.context.encoder
    launched = calls_of(monkeypatch, runner, "launch")
    passes = calls_of(monkeypatch, encoder, "run_pass")

    def kinds():
        return {(it.drafter is not None, by.drafts > 0, by.followed) for it, by in launched}

    def decode_where_a_draft_costs(steps_of_none):
        costs = {(rows, k): 1.0 + k * steps_of_none for rows in (1, 8) for k in (0, 1, 6)}
        engine.context.drafting = DraftLength(StepCosts(costs), [1, 2, 3])
        answers = decode(engine, windows_of(True), DecodeOptions(assisted=True, batch_size=4))
        assert tokens_of(answers) == truth(True)
        return engine.memory._bytes_per_row

    plain = DecodeState.bytes_per_row(engine.main, None)
    assert decode_where_a_draft_costs(9.0) == plain
    assert kinds() == {(False, False, False)}
    assert {own for own, _ in passes} == {encoder.main}
    assert decode_where_a_draft_costs(0.01) > plain
    assert (True, True, own_encoder is None) in kinds()
    assert (encoder.assistant not in (None, encoder.main)) == (len({own for own, _ in passes}) == 2)
