"""Spectrograms and encoders against transformers', and which windows are encoded at all."""

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from tests.helpers import oracle
from tests.helpers.oracle import TINY, models_of, with_assistant
from tests.support.tiny_whispers import Published, model_of
from whosaid.asr.model import encoder as encoder_module
from whosaid.asr.model.encoder import LARGEST_HALF, AudioEncoder, AudioWindow, Encoder, LogMel
from whosaid.errors import StartError
from whosaid.runtime.device import choose_dtype

SHAPE = Published(text_entries=300, languages=4, seconds=4)

# Spectrograms


@pytest.mark.parametrize("bins", [80, 128])
def test_features_equal_the_extractors_in_any_batch(bins):
    extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=2)
    windows = [np.zeros(20_000, np.float32), np.ones(1, np.float32)]
    random = np.random.default_rng(0)
    for length, level in ((32_000, 0.5), (16_001, 0.05), (27_345, 0.2), (20_000, 1e-4)):
        windows.append(random.normal(0, level, length).astype(np.float32))
    together = LogMel(extractor, torch.device("cpu"))(windows)
    for window, features in zip(windows, together, strict=True):
        expected = extractor(window, sampling_rate=16_000, return_tensors="pt").input_features[0]
        torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


def test_samples_beyond_the_window_are_cut_off():
    log_mel = LogMel(WhisperFeatureExtractor(chunk_length=1), torch.device("cpu"))
    samples = np.random.default_rng(0).normal(0, 0.1, 20_000).astype(np.float32)
    assert torch.equal(log_mel([samples]), log_mel([samples[:16_000]]))


# Encoders


def whisper(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return model_of(SHAPE, width=64, dtype=dtype)


def features(windows: int, frames: int = 400) -> torch.Tensor:
    return torch.randn(windows, 80, frames, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("windows", [1, 3])
@torch.inference_mode()
def test_encoder_equals_transformers_to_rounding(windows):
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        model, read = whisper(dtype), features(windows).to(dtype)
        found = AudioEncoder(model).forward(read)
        expected = model.get_encoder()(read).last_hidden_state
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@torch.inference_mode()
def test_with_products_in_bfloat16_it_is_transformers_to_their_rounding():
    try:
        choose_dtype("bfloat16", torch.device("cpu"))
    except StartError as error:
        pytest.skip(str(error))
    model, read = whisper(), features(1)
    found = AudioEncoder(model, torch.bfloat16).forward(read)
    expected = model.get_encoder()(read).last_hidden_state
    assert found.dtype == torch.float32
    assert 1e-5 < (found - expected).abs().max() < 0.05


@torch.inference_mode()
def test_fewer_frames_have_the_first_positions():
    """The reference is an encoder made for so many frames."""
    model, read = whisper(torch.float64), features(2, 200).double()
    found, theirs = AudioEncoder(model).forward(read), model.get_encoder()
    theirs.config.max_source_positions = 100
    theirs.embed_positions = torch.nn.Embedding.from_pretrained(theirs.embed_positions.weight[:100])
    torch.testing.assert_close(found, theirs(read).last_hidden_state, rtol=0, atol=1e-11)


@torch.inference_mode()
def test_values_beyond_half_precision_are_clamped():
    model = whisper().half()
    model.get_encoder().layers[-1].fc2.bias[3] = torch.finfo(torch.float16).max
    found = AudioEncoder(model).layers[-1].forward(torch.full((1, 5, 64), 60).half())
    assert (found[..., 3] == LARGEST_HALF).all()
    assert (found[..., :3].abs() < 100).all()


# Windows


def windows():
    return [*map(AudioWindow, oracle.noise_windows(3))]


def test_a_known_output_takes_its_place_among_others():
    encoder, three = Encoder(models_of(TINY)), windows()
    expected = encoder.encode(three, drafted=False).main.clone()
    known = expected[1:2] + 1  # so that it can be told from what is encoded anew
    expected[1] += 1
    asked = [three[0], three[1]._replace(encoded=known), three[2]]
    found = encoder.encode(asked, drafted=False).main
    torch.testing.assert_close(found, expected)


def test_no_window_whose_output_is_known_is_encoded(monkeypatch):
    encoder, three = Encoder(models_of(TINY)), windows()
    outputs = [encoder.encode([window], drafted=False).main for window in three]
    known = [each._replace(encoded=own) for each, own in zip(three, outputs, strict=True)]
    monkeypatch.setattr(encoder, "run_pass", None)
    monkeypatch.setattr(encoder, "log_mel", None)  # nor is a spectrogram made
    torch.testing.assert_close(encoder.encode(known, drafted=False).main, torch.cat(outputs))


@pytest.mark.parametrize("own_encoder", [False, True])
def test_windows_are_encoded_alike_together_and_one_by_one(monkeypatch, own_encoder):
    encoder = Encoder(with_assistant(models_of(TINY), 0.1, own_encoder=own_encoder))
    three = windows()
    one_by_one = encoder.encode(three, drafted=True)
    monkeypatch.setattr(encoder_module, "encoder_batch_size", lambda windows, device: windows)
    together = encoder.encode(three, drafted=True)
    torch.testing.assert_close(one_by_one.main, together.main)
    torch.testing.assert_close(one_by_one.assistant, together.assistant)
    assert (together.assistant is together.main) is not own_encoder
    torch.testing.assert_close(together.assistant, together.main)  # of equal weights
    assert encoder.encode(three, drafted=False).assistant is None
