"""What the encoders are asked, and what is remembered of it."""

from __future__ import annotations

import oracle
import pytest
import torch
from oracle import TINY, models_of, with_assistant

import asr.model.encoder
from asr.model.encoder import Encoder


def windows():
    return oracle.noise_windows(3)


def test_a_shared_encoder_runs_once_for_both():
    hearing = Encoder(with_assistant(models_of(TINY), 0.1))
    encoded = hearing.hear(windows(), drafted=True)
    assert encoded.assistant is encoded.main
    assert hearing.hear(windows(), drafted=False).assistant is None


def test_an_own_encoder_hears_the_same_windows():
    models = with_assistant(models_of(TINY), 0.1, own_encoder=True)
    encoded = Encoder(models).hear(windows(), drafted=True)
    torch.testing.assert_close(
        encoded.assistant, encoded.main
    )  # its encoder's weights are the main model's


def test_a_remembered_window_takes_its_place_among_others_once():
    hearing, three = Encoder(models_of(TINY)), windows()
    expected = hearing.hear(three, drafted=False).main
    hearing.remember(three[1], hearing.hear(three[1:2], drafted=False))
    with torch.inference_mode():
        hearing._remembered[0][1].add_(1)  # so that it can be told from what is heard anew
    expected = expected.clone()
    expected[1] += 1
    torch.testing.assert_close(hearing.hear(three, drafted=False).main, expected)
    torch.testing.assert_close(hearing.hear(three[1:2], drafted=False).main, expected[1:2] - 1)


def test_no_window_in_which_a_language_was_looked_for_is_encoded_twice(monkeypatch):
    models = models_of(TINY)
    hearing, three, encoded = Encoder(models), windows(), []
    encode = models.model.get_encoder().forward

    def count(features, **named):
        encoded.append(len(features))
        return encode(features, **named)

    monkeypatch.setattr(models.model.get_encoder(), "forward", count)
    for window in three:
        hearing.remember(window, hearing.hear([window], drafted=False))
    monkeypatch.setattr(hearing, "log_mel", None)  # nor is its spectrogram made again
    hearing.hear(three, drafted=False)
    assert encoded == [1, 1, 1]


@pytest.mark.parametrize("own_encoder", [False, True])
def test_windows_are_encoded_alike_together_and_one_by_one(monkeypatch, own_encoder):
    hearing, three = (
        Encoder(with_assistant(models_of(TINY), 0.1, own_encoder=own_encoder)),
        windows(),
    )
    one_by_one = hearing.hear(three, drafted=True)
    monkeypatch.setattr(asr.model.encoder, "at_once", lambda windows, device: windows)
    together = hearing.hear(three, drafted=True)
    torch.testing.assert_close(one_by_one.main, together.main)
    torch.testing.assert_close(one_by_one.assistant, together.assistant)
