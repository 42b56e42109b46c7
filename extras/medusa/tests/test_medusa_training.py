import dataclasses

import pytest
import torch

from extras.medusa.heads import Projection
from extras.medusa.hidden_states import HiddenStates
from extras.medusa.options import Plan
from extras.medusa.tests.stand_ins import teacher_of, tiny_models, write_recordings
from extras.medusa.training import Training, check_shortlist, choose_shortlist, split, targets

PLAN = Plan(heads=2, epochs=4, batch=32, rate=2e-2)
LONG = dataclasses.replace(PLAN, layers=2, epochs=6, batch=8, rate=2e-2)


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> HiddenStates:
    recordings = write_recordings(tmp_path_factory.mktemp("recordings"), 12, windows=1)
    return teacher_of(tiny_models()).read(recordings)


@pytest.fixture(scope="module")
def projection() -> Projection:
    return Projection.of(tiny_models().model)


def test_targets_are_the_tokens_after_each_within_its_text():
    tokens = torch.tensor([5, 6, 7, 8, 9], dtype=torch.int32)
    texts = HiddenStates(torch.zeros(5, 4), tokens, torch.tensor([3, 2]), torch.arange(2))
    assert targets(texts, 2).tolist() == [[6, 7], [7, -1], [-1, -1], [9, -1], [-1, -1]]


def test_trained_heads_say_more_of_the_models_own_tokens(states, projection, tmp_path):
    training = Training(states, projection, LONG, tmp_path / "state")
    before, chain = training.held_out.right(training.heads, projection)
    training.run(lambda _: None)
    assert training.chain > chain + 0.1
    assert training.best_right[0] > before[0] + 0.1


def test_a_broken_run_ends_in_the_same_weights(states, projection, tmp_path):
    epochs = []
    whole = Training(states, projection, PLAN, tmp_path / "whole").run(epochs.append)

    class Broken(Exception):
        pass

    def stop(epoch):
        if epoch.number == 2:
            raise Broken

    with pytest.raises(Broken):
        Training(states, projection, PLAN, tmp_path / "broken").run(stop)
    again = []
    resumed = Training(states, projection, PLAN, tmp_path / "broken").run(again.append)
    assert again == epochs[2:]
    assert torch.equal(whole.weight, resumed.weight)
    assert torch.equal(whole.bias, resumed.bias)


def test_training_ends_where_nothing_is_gained(states, projection, tmp_path):
    plan = dataclasses.replace(PLAN, rate=0.0, epochs=9, patience=2)
    epochs = []
    Training(states, projection, plan, tmp_path / "state").run(epochs.append)
    assert [epoch.number for epoch in epochs] == [1, 2, 3]


def test_held_out_windows_are_in_no_style_trained_on(states):
    training, held_out = split(states)
    assert not set(training.windows.tolist()) & set(held_out.windows.tolist())
    assert len(training.lengths) + len(held_out.lengths) == len(states.lengths)
    with pytest.raises(ValueError, match="at least 10 windows"):
        split(states.where(states.windows < 3))


def test_the_shortlist_holds_the_commonest_tokens_every_timestamp_and_the_end(states):
    special = tiny_models().special_tokens
    assert choose_shortlist(states, special, special.size) is None
    times = special.size - special.timestamp_begin
    with pytest.raises(ValueError, match=f"--shortlist {times + 1}: .* {times + 1} tokens"):
        check_shortlist(special, times + 1)
    check_shortlist(special, times + 2)
    listed = choose_shortlist(states, special, times + 4)
    counts = states.tokens.long().bincount(minlength=special.size)[: special.end_of_text]
    common = counts.topk(3).values.sum()
    assert listed.tolist() == sorted(set(listed.tolist()))
    assert set(range(special.timestamp_begin, special.size)) < set(listed.tolist())
    assert special.end_of_text in listed
    words = listed[listed < special.end_of_text]
    assert len(words) == 3
    assert counts[words].sum() == common


def test_heads_learn_from_a_shortlist_alone(states, tmp_path):
    special = tiny_models().special_tokens
    listed = choose_shortlist(states, special, special.size - special.timestamp_begin + 30)
    projection = Projection.of(tiny_models().model, listed)
    training = Training(states, projection, LONG, tmp_path / "state")
    training.run(lambda _: None)
    assert training.best_right[0] > 0.1
