"""The choice of k against costs and acceptances whose best k is known."""

from __future__ import annotations

import pytest

from asr.engine.draft_length import (
    ENOUGH_SECONDS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    DraftLength,
    StepCosts,
    expected_tokens,
)
from asr.engine.runner import EagerRunner

DRAFTS, TIMED_DRAFTS = EagerRunner.draft_lengths, EagerRunner.timed_drafts


def costs(step: float, verify: float, draft: float) -> StepCosts:
    """`step` seconds; for each draft `verify` more of the main model, `draft` of the assistant."""
    return StepCosts(
        {
            (rows, k): rows**0.5 * (step + k * (verify + draft))
            for rows in (1, 4, 12)
            for k in TIMED_DRAFTS
        }
    )


def observed(acceptance: float, table: StepCosts) -> DraftLength:
    drafting = DraftLength(table, DRAFTS)
    for _ in range(100):
        drafting.observe([round(100 * acceptance)], [100])
    return drafting


def test_expected_tokens_is_the_geometric_sum():
    assert expected_tokens([0.8], 5)[-1] == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert expected_tokens([1.0], 5) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("rows", [1, 4, 9, 24])
def test_the_choice_is_the_fastest_one(acceptance, rows):
    drafting = observed(acceptance, costs(step=10, verify=0.6, draft=1))

    def speed(k):
        return expected_tokens([round(drafting.rates[0].mean, 2)], k)[-1] / (10 + 1.6 * k)

    chosen = drafting.choose(rows, rows)
    assert speed(chosen) == max(speed(k) for k in (0, *DRAFTS))


def test_an_assistant_half_as_dear_as_the_model_does_not_draft():
    assert observed(0.6, costs(step=10, verify=3, draft=5)).choose(1, 1) == 0


def test_an_assistant_that_is_never_right_does_not_draft():
    assert observed(0.0, costs(step=10, verify=0.1, draft=0.3)).choose(1, 1) == 0


def test_it_drafts_before_it_knows_and_learns_fast():
    drafting = DraftLength(costs(step=10, verify=0.6, draft=1), DRAFTS)
    assert drafting.choose(4, 4) > 0
    rounds = 0
    while drafting.choose(4, 4):
        drafting.observe([0] * 4, [1] * 4)
        rounds += 1
    assert rounds < 12


def test_failures_decay_while_nothing_is_drafted():
    drafting = observed(0.05, costs(step=10, verify=0.6, draft=1))
    assert drafting.choose(4, 4) == 0
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


def test_the_least_of_several_measurements_counts():
    shapes = [(rows, drafts) for rows in (1, 4) for drafts in TIMED_DRAFTS]
    calls = dict.fromkeys(shapes, 0)

    def busy_in_some_rounds(rows, drafts):
        """Each shape is measured on a quiet machine in one turn only, not all in the same one."""
        calls[rows, drafts] += 1
        quiet = 1 + shapes.index((rows, drafts)) % MIN_ROUNDS
        return 0.01 * (rows + drafts + (0.0 if calls[rows, drafts] == quiet else 5.0))

    table = StepCosts.measure((1, 4), TIMED_DRAFTS, busy_in_some_rounds)
    assert table.seconds == {shape: pytest.approx(0.01 * sum(shape)) for shape in shapes}
    assert table.step(8, 0) == pytest.approx(2 * table.step(4, 0))
    assert table.step(1, 2) == pytest.approx((4 * table.seconds[1, 1] + table.seconds[1, 6]) / 5)
    assert table.step(1, 10) == pytest.approx(
        table.seconds[1, 6] + 4 * (table.seconds[1, 6] - table.seconds[1, 1]) / 5
    )


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, MAX_ROUNDS), (ENOUGH_SECONDS, MIN_ROUNDS)])
def test_large_models_are_measured_fewer_times(seconds, rounds):
    calls = []
    StepCosts.measure(
        (1, 4), TIMED_DRAFTS, lambda rows, drafts: calls.append((rows, drafts)) or seconds
    )
    assert len(calls) == rounds * 2 * len(TIMED_DRAFTS)
