"""How many tokens are drafted, against costs and acceptances whose best number is known."""

import itertools
import math
from types import SimpleNamespace

import pytest

from tests.helpers.oracle import TINY, models_of, random_heads, with_assistant
from whosaid.asr.engine import drafting
from whosaid.asr.engine.drafters import draft_model
from whosaid.asr.engine.drafting import (
    HEADS_PRIOR_MEAN,
    NEWEST,
    TIMED_ROWS,
    AcceptanceRate,
    DraftLength,
    DraftPolicy,
    StepCosts,
    expected_tokens,
)
from whosaid.asr.engine.memory import StateMemory
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.draft_heads import MedusaModel
from whosaid.asr.model.encoder import Encoder
from whosaid.asr.model.logit_filters import LogitFilter

DRAFTS, TIMED_DRAFTS = StepRunner.draft_lengths, StepRunner.timed_drafts


def costs(step: float, verify: float, draft: float) -> StepCosts:
    """`step` seconds; for each draft `verify` more of the main model, `draft` of the assistant."""
    shapes = itertools.product((1, 4, 12), TIMED_DRAFTS)
    return StepCosts({(rows, k): rows**0.5 * (step + k * (verify + draft)) for rows, k in shapes})


CHEAP = costs(step=10, verify=0.6, draft=1)


def rates_of_heads(count: int) -> list[AcceptanceRate]:
    return [AcceptanceRate(prior=HEADS_PRIOR_MEAN) for _ in range(count)]


def observed(acceptance: float, table: StepCosts) -> DraftLength:
    drafting = DraftLength(table, DRAFTS)
    for _ in range(100):
        drafting.observe([round(100 * acceptance)], [100])
    return drafting


def test_expected_tokens_is_the_geometric_sum():
    assert expected_tokens([0.8], 5)[-1] == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert expected_tokens([1.0], 5) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.9, 0.97])
def test_the_choice_is_the_fastest_one(acceptance):
    drafting = observed(acceptance, CHEAP)

    def speed(k):
        return expected_tokens([round(drafting.rates[0].mean, 2)], k)[-1] / (10 + 1.6 * k)

    for rows in (1, 4, 9, 24):
        chosen = drafting.choose(rows, rows)
        assert speed(chosen) == max(speed(k) for k in (0, *DRAFTS))


def test_costly_or_wrong_assistant_does_not_draft():
    assert observed(0.6, costs(step=10, verify=3, draft=5)).choose(1, 1) == 0
    assert observed(0.0, costs(step=10, verify=0.1, draft=0.3)).choose(1, 1) == 0


def test_drafting_starts_optimistic_and_stops_quickly():
    drafting = DraftLength(CHEAP, DRAFTS)
    assert drafting.choose(4, 4) > 0
    rounds = 0
    while drafting.choose(4, 4):
        drafting.observe([0] * 4, [1] * 4)
        rounds += 1
    assert rounds < 12


def test_failures_decay_while_nothing_is_drafted():
    drafting = observed(0.05, CHEAP)
    windows = 0
    while not drafting.choose(4, 4):
        drafting.decay(1)
        windows += 1
    assert 20 < windows < 500


def test_rows_that_cannot_be_drafted_weigh_against_it():
    drafting = observed(0.9, costs(step=10, verify=1.5, draft=2))
    assert drafting.choose(12, 12) > 0
    assert drafting.choose(12, 1) == 0
    assert drafting.choose(12, 0) == 0


def test_costs_between_and_beyond_the_measured_are_linear():
    shapes = [(rows, drafts) for rows in (1, 4) for drafts in TIMED_DRAFTS]
    table = StepCosts({shape: 0.01 * sum(shape) for shape in shapes})
    assert table.step(8, 0) == pytest.approx(2 * table.step(4, 0))
    assert table.step(1, 2) == pytest.approx((4 * table.seconds[1, 1] + table.seconds[1, 6]) / 5)
    slope = (table.seconds[1, 6] - table.seconds[1, 1]) / 5
    assert table.step(1, 10) == pytest.approx(table.seconds[1, 6] + 4 * slope)


@pytest.mark.parametrize("heads", [0, 3])
def test_costs_are_the_seconds_of_the_steps_that_are_timed(heads, monkeypatch):
    """Measured with a clock that only steps advance."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(drafting, "time", clock)

    class Runner(StepRunner):
        def launch(self, state, shape):
            assert shape.followed is (heads > 0 and shape.drafts > 0)
            assert shape.assistant_lag == (NEWEST if shape.drafts and not heads else 1)
            clock.now += state.capacity * (1 + shape.drafts)
            return lambda: None

    plain = models_of(TINY)
    models = random_heads(plain, heads) if heads else with_assistant(plain, noise=0.0)
    main = Decoder(models.model)
    runner = Runner(LogitFilter.of(models.special_tokens, main.token_embeddings))
    memory = StateMemory(main, draft_model(models, main), runner)
    found = drafting.measured_drafting(memory, Encoder(models))
    drafts = (0, 1, heads or 6)
    assert found.costs.seconds == {(n, k): n * (1 + k) for n in TIMED_ROWS for k in drafts}
    assert found.costs.preparing == 0


@pytest.mark.parametrize("rows", [1, 24])
def test_drafts_pay_if_they_save_more_than_preparing(rows):
    """Half of all seconds are saved: a window of 50 tokens costs 50 steps, shared by the rows."""
    seconds = {(count, k): count * (1.0 + 0.2 * k) for count in (1, 12) for k in (0, 1, 3)}
    drafts, gain = 3, 1 + 0.8 + 0.8**2 + 0.8**3
    saved = 50 * (1 - (1 + 0.2 * drafts) / gain)
    for preparing, pays in ((0.0, True), (0.99 * saved, True), (1.01 * saved, False)):
        drafting = DraftLength(StepCosts(seconds, preparing), [1, 2, 3])
        assert drafting.pays(rows) == pays
        assert drafting.choose(rows, rows) == drafts


def test_each_depth_has_its_own_rate():
    """Accepted are none of one draft, one of two and three of three; one row has no drafts."""
    drafting = DraftLength(costs(10, 0.6, 0.1), DRAFTS, rates_of_heads(4))
    drafting.observe([0, 1, 3, 0], [1, 2, 3, 0])
    counts = [(rate.accepted, rate.drafted) for rate in drafting.rates]
    assert counts == [(2, 3), (1, 2), (1, 1), (0, 0)]


@pytest.mark.parametrize(
    "rates", [(0.75, 0.6, 0.45, 0.35), (0.9, 0.1, 0.9, 0.9), (0.4, 0.9, 0.9, 0.9)]
)
def test_the_choice_follows_the_rate_of_each_depth(rates):
    table = costs(step=10, verify=2.0, draft=0.1)
    drafting = DraftLength(table, (1, 2, 3, 4), rates_of_heads(4))
    for _ in range(50):
        standing, ended = 1000, []
        for depth, rate in enumerate(rates):
            right = round(standing * rate)
            ended += [(depth, depth + 1)] * (standing - right)
            standing = right
        ended += [(4, 4)] * standing
        drafting.observe(*zip(*ended, strict=True))

    def speed(k, rows):
        return sum(math.prod(rates[:depth]) for depth in range(k + 1)) / table.step(rows, k)

    for rows in (1, 24):
        best = max(range(5), key=lambda k: speed(k, rows))
        pays = speed(best, rows) >= 1.1 * speed(0, rows)
        assert drafting.choose(rows, rows) == (best if pays else 0)


def test_one_head_has_one_measured_length():
    drafting = DraftLength(StepCosts({(1, 0): 1.0, (1, 1): 1.2}), [1], rates_of_heads(1))
    assert drafting.costs.step(1, 1) == 1.2
    assert drafting.choose(1, 1) == 1


# For each kind of drafter

ASSISTED, FIXED, NONE = (DecodeOptions(assisted=True, drafts=each) for each in (None, 7, 0))


@pytest.fixture(scope="module")
def policies():
    main = Decoder(models_of(TINY).model)
    heads = MedusaModel(main, random_heads(models_of(TINY), 3).medusa)
    return [DraftPolicy(each) for each in (main, heads, None)]


def test_windows_are_prepared_if_drafts_pay_or_are_fixed(policies):
    cheap, dear = DraftLength(CHEAP, [1, 2, 3]), DraftLength(costs(1, 1, 3), [1, 2, 3])
    dear.rates[0].observe(10, 100)
    known = dear.rates[0].drafted
    asked = [(ASSISTED, cheap), (FIXED, None), (NONE, cheap), (DecodeOptions(), cheap)]
    asked += [(ASSISTED, None), (ASSISTED, dear)]
    for policy, prepared in zip(policies, (2, 2, 0), strict=True):
        found = [policy.prepares(options, drafting, 4, 2) for options, drafting in asked]
        assert found == [True] * prepared + [False] * (6 - prepared)
    assert dear.rates[0].drafted < known


def test_no_more_drafts_than_heads_and_none_without_a_drafter(policies):
    drafting = DraftLength(CHEAP, [1, 2, 3])
    assert [each.choose([FIXED, ASSISTED], drafting, 4) for each in policies] == [7, 3, 0]
    assert policies[1].choose([], drafting, 4) == 0


def test_only_an_assistant_falls_behind(policies):
    assistant, heads, _ = policies
    assert [assistant.lag(drafts, 20) for drafts in (2, 0, 0, 2, 2)] == [2, 1, 1, 4, 2]
    assert assistant.lag(2, 1) == 1
    assert [heads.lag(drafts, 20) for drafts in (2, 0, 0, 2)] == [1, 1, 1, 1]
