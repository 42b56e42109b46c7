"""Which encoder runs how often, and that known outputs are used."""

from __future__ import annotations

import oracle
import pytest
import torch
from oracle import TINY, models_of, with_assistant

import whosaid.asr.model.encoder
from whosaid.asr.model.encoder import AudioWindow, Encoder


def windows():
    return [*map(AudioWindow, oracle.noise_windows(3))]


def test_a_shared_encoder_runs_once_for_both():
    encoder = Encoder(with_assistant(models_of(TINY), 0.1))
    encoded = encoder.encode(windows(), drafted=True)
    assert encoded.assistant is encoded.main
    assert encoder.encode(windows(), drafted=False).assistant is None


def test_an_encoder_of_its_own_reads_the_same_windows():
    models = with_assistant(models_of(TINY), 0.1, own_encoder=True)
    encoded = Encoder(models).encode(windows(), drafted=True)
    torch.testing.assert_close(
        encoded.assistant, encoded.main
    )  # its encoder's weights are the main model's


def test_a_known_output_takes_its_place_among_others():
    encoder, three = Encoder(models_of(TINY)), windows()
    expected = encoder.encode(three, drafted=False).main.clone()
    known = expected[1:2] + 1  # so that it can be told from what is encoded anew
    expected[1] += 1
    found = encoder.encode(
        [three[0], three[1]._replace(encoded=known), three[2]], drafted=False
    ).main
    torch.testing.assert_close(found, expected)


def test_no_window_whose_output_is_known_is_encoded(monkeypatch):
    models = models_of(TINY)
    encoder, three = Encoder(models), windows()
    outputs = [encoder.encode([window], drafted=False).main for window in three]
    known = [each._replace(encoded=own) for each, own in zip(three, outputs, strict=True)]
    monkeypatch.setattr(encoder, "run_pass", None)
    monkeypatch.setattr(encoder, "log_mel", None)  # nor is a spectrogram made
    found = encoder.encode(known, drafted=False).main
    torch.testing.assert_close(found, torch.cat(outputs))


@pytest.mark.parametrize("own_encoder", [False, True])
def test_windows_are_encoded_alike_together_and_one_by_one(monkeypatch, own_encoder):
    encoder, three = (
        Encoder(with_assistant(models_of(TINY), 0.1, own_encoder=own_encoder)),
        windows(),
    )
    one_by_one = encoder.encode(three, drafted=True)
    monkeypatch.setattr(
        whosaid.asr.model.encoder, "encoder_batch_size", lambda windows, device: windows
    )
    together = encoder.encode(three, drafted=True)
    torch.testing.assert_close(one_by_one.main, together.main)
    torch.testing.assert_close(one_by_one.assistant, together.assistant)
