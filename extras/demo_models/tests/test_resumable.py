"""Training that was interrupted ends with the weights of training that was not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from extras.demo_models.resumable import _rate_factor, train

STEPS, RATE = 12, 0.05


class Interrupted(Exception):
    pass


def loss_of(model, seen=None, ends=STEPS):
    def loss(step, generator):
        if step == ends:
            raise Interrupted
        if seen is not None:
            seen.append(step)
        inputs = torch.from_numpy(generator.standard_normal((4, 3))).float()
        return ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()

    return loss


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


@pytest.fixture(autouse=True)
def saves_often(monkeypatch):
    monkeypatch.setattr("extras.demo_models.resumable.SAVE_EVERY", 5)


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(tmp_path):
    whole, model, seen = made(), made(), []
    train(whole, loss_of(whole), STEPS, RATE, tmp_path / "whole.pt")
    with pytest.raises(Interrupted):
        train(model, loss_of(model, ends=8), STEPS, RATE, tmp_path / "folder" / "cut.pt")
    resumed = made()
    train(resumed, loss_of(resumed, seen), STEPS, RATE, tmp_path / "folder" / "cut.pt")
    assert seen == list(range(5, STEPS))
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name])
    assert not resumed.training
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["cut.pt"]


def test_a_finished_run_is_loaded_and_not_repeated(tmp_path):
    model, seen = made(), []
    train(model, loss_of(model), STEPS, RATE, tmp_path / "done.pt")
    other = nn.Linear(3, 1)
    train(other, loss_of(other, seen), STEPS, RATE, tmp_path / "done.pt")
    assert seen == []
    assert torch.equal(other.weight, model.weight)


def test_it_is_torchs_adamw_with_the_rates_that_it_names(tmp_path):
    """Beside torch's own loop with its own scheduler."""
    ours, model = made(), made()
    train(ours, loss_of(ours), STEPS, RATE, tmp_path / "ours.pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-2)
    schedule = LambdaLR(optimizer, lambda step: _rate_factor(step / STEPS))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model)(step, np.random.default_rng([7, step])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(ours.weight, model.weight)


def test_the_rate_rises_for_a_tenth_and_falls_to_nothing():
    rates = [_rate_factor(step / 1_000) for step in range(1_001)]
    assert rates[0] == 0
    assert rates[50] == pytest.approx(0.5)
    assert max(rates) == rates[100] == pytest.approx(1.0)
    assert rates[550] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert sorted(rates[100:], reverse=True) == rates[100:]
