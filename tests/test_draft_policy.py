"""Which windows are prepared for drafts and how many a step makes, for each kind of drafter."""

from __future__ import annotations

import pytest
from oracle import TINY, models_of, random_heads

from whosaid.asr.checkpoint.medusa import BLOCK, HEADS_ONLY
from whosaid.asr.engine.drafting import AcceptanceRate, DraftLength, DraftPolicy, StepCosts
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.draft_heads import MedusaModel

ASSISTED, FIXED, NONE = (DecodeOptions(assisted=True, drafts=each) for each in (None, 7, 0))


def drafting(cost_of_a_draft):
    seconds = {(rows, k): 1.0 + k * cost_of_a_draft for rows in (1, 12) for k in (0, 1, 3)}
    return DraftLength(StepCosts(seconds), [1, 2, 3], AcceptanceRate.by_depth(3))


def models():
    main = Decoder(models_of(TINY).model)
    heads = {kind: random_heads(models_of(TINY), 3, kind).medusa for kind in (HEADS_ONLY, BLOCK)}
    return main, *(MedusaModel(main, each) for each in heads.values())


ASSISTANT, HEADS, WITH_LAYER = models()


@pytest.mark.parametrize("model", [ASSISTANT, HEADS, WITH_LAYER])
def test_windows_are_prepared_where_drafts_pay_or_a_client_fixes_them(model):
    policy, cheap = DraftPolicy(model), drafting(0.01)
    assert policy.prepares(ASSISTED, cheap, 4, 2)
    assert policy.prepares(FIXED, None, 4, 2)
    assert not policy.prepares(NONE, cheap, 4, 2)
    assert not policy.prepares(DecodeOptions(), cheap, 4, 2)
    assert not policy.prepares(ASSISTED, None, 4, 2)
    assert not DraftPolicy(None).prepares(ASSISTED, cheap, 4, 2)


@pytest.mark.parametrize("model", [ASSISTANT, HEADS, WITH_LAYER])
def test_no_window_is_prepared_where_drafts_do_not_pay(model):
    dear = drafting(3.0)
    dear.rates[0].observe(10, 100)
    known = dear.rates[0].drafted
    assert not DraftPolicy(model).prepares(ASSISTED, dear, 4, 2)
    assert dear.rates[0].drafted < known


def test_no_more_drafts_than_heads_and_none_without_a_drafter():
    options = [FIXED, ASSISTED]
    assert DraftPolicy(HEADS).choose(options, drafting(0.01), 4) == 3
    assert DraftPolicy(ASSISTANT).choose(options, drafting(0.01), 4) == 7
    assert DraftPolicy(None).choose(options, drafting(0.01), 4) == 0
    assert DraftPolicy(HEADS).choose([], drafting(0.01), 4) == 0


def test_only_an_assistant_falls_behind():
    policy = DraftPolicy(ASSISTANT)
    assert [policy.lag(drafts, 20) for drafts in (2, 0, 0, 2, 2)] == [2, 1, 1, 4, 2]
    assert policy.lag(2, 1) == 1
    assert [DraftPolicy(HEADS).lag(drafts, 20) for drafts in (2, 0, 0, 2)] == [1, 1, 1, 1]
