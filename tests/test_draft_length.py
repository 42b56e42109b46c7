"""The choice of k against costs and acceptances whose best k is known."""

from __future__ import annotations

import pytest

from asr.engine.draft_length import (
    DRAFTS,
    ENOUGH,
    LEAST_TURNS,
    MEASURED_DRAFTS,
    MOST_TURNS,
    Costs,
    DraftLength,
    expected_tokens,
)


def costs(step: float, verify: float, draft: float) -> Costs:
    """A round costs a step, and for each draft `verify` more of the main model and `draft` of the
    assistant.
    """
    return Costs(
        {
            (rows, k): rows**0.5 * (step + k * (verify + draft))
            for rows in (1, 4, 12)
            for k in MEASURED_DRAFTS
        }
    )


def settled(acceptance: float, table: Costs) -> DraftLength:
    drafting = DraftLength(table)
    for _ in range(100):
        drafting.observe(round(100 * acceptance), 100)
    return drafting


def test_expected_tokens_is_the_geometric_sum():
    assert expected_tokens(0.8, 5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert expected_tokens(1.0, 5) == 6


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("rows", [1, 4, 9, 24])
def test_the_choice_is_the_fastest_one(acceptance, rows):
    drafting = settled(acceptance, costs(step=10, verify=0.6, draft=1))

    def speed(k):
        return expected_tokens(round(drafting.acceptance, 2), k) / (10 + 1.6 * k)

    chosen = drafting.choose(rows, rows)
    assert speed(chosen) == max(speed(k) for k in (0, *DRAFTS))


def test_an_assistant_half_as_dear_as_the_model_does_not_draft():
    assert settled(0.6, costs(step=10, verify=3, draft=5)).choose(1, 1) == 0


def test_an_assistant_that_is_never_right_does_not_draft():
    assert settled(0.0, costs(step=10, verify=0.1, draft=0.3)).choose(1, 1) == 0


def test_it_drafts_before_it_knows_and_learns_fast():
    drafting = DraftLength(costs(step=10, verify=0.6, draft=1))
    assert drafting.choose(4, 4) > 0
    rounds = 0
    while drafting.choose(4, 4):
        drafting.observe(0, 4)
        rounds += 1
    assert rounds < 12


def test_failures_fade_while_nothing_is_drafted():
    drafting = settled(0.05, costs(step=10, verify=0.6, draft=1))
    assert drafting.choose(4, 4) == 0
    windows = 0
    while not drafting.choose(4, 4):
        drafting.fade(1)
        windows += 1
    assert 20 < windows < 500


def test_rows_that_cannot_be_drafted_weigh_against_it():
    drafting = settled(0.9, costs(step=10, verify=1.5, draft=2))
    assert drafting.choose(12, 12) > 0
    assert drafting.choose(12, 1) == 0
    assert drafting.choose(12, 0) == 0


def test_the_least_of_several_measurements_counts():
    shapes = [(rows, drafts) for rows in (1, 4) for drafts in MEASURED_DRAFTS]
    calls = dict.fromkeys(shapes, 0)

    def busy_in_some_turns(rows, drafts):
        """Each shape is measured on a quiet machine in one turn only, not all in the same one."""
        calls[rows, drafts] += 1
        quiet = 1 + shapes.index((rows, drafts)) % LEAST_TURNS
        return 0.01 * (rows + drafts + (0.0 if calls[rows, drafts] == quiet else 5.0))

    table = Costs.measure((1, 4), busy_in_some_turns)
    assert table.seconds == {shape: pytest.approx(0.01 * sum(shape)) for shape in shapes}
    assert table.round(8, 0) == pytest.approx(2 * table.round(4, 0))
    assert table.round(1, 2) == pytest.approx((4 * table.seconds[1, 1] + table.seconds[1, 6]) / 5)
    assert table.round(1, 10) == pytest.approx(
        table.seconds[1, 6] + 4 * (table.seconds[1, 6] - table.seconds[1, 1]) / 5
    )


@pytest.mark.parametrize(("seconds", "turns"), [(0.0, MOST_TURNS), (ENOUGH, LEAST_TURNS)])
def test_large_models_are_measured_fewer_times(seconds, turns):
    calls = []
    Costs.measure((1, 4), lambda rows, drafts: calls.append((rows, drafts)) or seconds)
    assert len(calls) == turns * 2 * len(MEASURED_DRAFTS)
