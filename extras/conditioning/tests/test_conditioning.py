"""Mixtures, the encoder, and both commands on a random Whisper and voices of noise."""

import dataclasses
import wave

import numpy as np
import pytest
import torch

from extras.conditioning.__main__ import main
from extras.conditioning.encoder import CLASSES, ConditionedEncoder, classes_of
from extras.conditioning.evaluation import overlapped, pairs
from extras.conditioning.mixtures import (
    FRAME,
    KINDS,
    LOUDNESS,
    WINDOW,
    cut,
    filled,
    mix,
    part_of,
    speaker_of,
)
from extras.conditioning.training import rate_factor
from tests.oracle import TINY, models_of
from tests.support.tiny_whispers import hears_sound
from whosaid.asr.model.encoder import AudioEncoder
from whosaid.timebase import SAMPLE_RATE


def noise(seconds, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * SAMPLE_RATE)).astype("f4")


def pieces_of(speakers, seconds=9.0):
    return [
        piece
        for number in range(speakers)
        for piece in cut(f"{number}-1.wav", noise(seconds, number), hears_sound)
    ]


@pytest.fixture(scope="module")
def models():
    return models_of(TINY, 40)


def test_speakers_are_split_by_their_names():
    assert speaker_of("103-1240-0000.opus") == "103"
    parts = [part_of(str(number)) for number in range(2000)]
    assert 0.17 < parts.count("test") / 2000 < 0.23
    assert 0.08 < parts.count("development") / 2000 < 0.12


def test_a_recording_is_cut_in_its_pauses():
    samples = noise(9)
    samples[3 * SAMPLE_RATE : 3 * SAMPLE_RATE + 2000] = 0
    first, *others = cut("7-1.wav", samples, hears_sound)
    assert first.speaker == "7"
    assert sum(len(each.active) for each in (first, *others)) == 450
    for each in (first, *others):
        assert len(each.samples) == len(each.active) * FRAME <= WINDOW
        assert LOUDNESS[0] <= each.level <= LOUDNESS[1]
        window = each.placed(each.samples, FRAME)
        assert np.array_equal(window[each.start * FRAME :][: len(each.samples)], each.samples)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_holds_what_its_mask_says(kind):
    pieces = pieces_of(3)
    for seed in range(20):
        found = mix(pieces, pieces, np.random.default_rng(seed), kind)
        assert found.samples.shape == (WINDOW,)
        assert np.isfinite(found.samples).all()
        assert (found.mask.sum(axis=1) == 1).all()
        _, target, other, overlap = found.mask.sum(axis=0)
        assert target + overlap > 0
        assert kind != "alone" or other + overlap == 0
        assert kind not in ("two", "three") or overlap > 0


def test_pauses_are_filled_up_to_a_length():
    active = np.array([0, 1, 0, 0, 1, 0, 0, 0, 1, 0], bool)
    assert filled(active, 2).tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("degree", [0.0, 0.25, 0.5, 1.0])
def test_pairs_overlap_by_a_part_of_the_shorter(degree):
    for voices in pairs(pieces_of(4), 3):
        assert voices[0].speaker != voices[1].speaker
        samples, masks = overlapped(voices, degree, np.random.default_rng(0))
        assert len(samples) == len(masks[0]) * FRAME
        shorter = min(len(each.active) for each in voices)
        assert masks[0][:, 3].sum() == pytest.approx(degree * shorter, abs=4)
        assert torch.equal(masks[0][:, [0, 2, 1, 3]], masks[1])


def test_without_training_only_the_frames_of_others_change(models):
    encoder = ConditionedEncoder(models, 2).double()
    features = torch.randn(1, 80, 100, dtype=torch.float64)
    plain = AudioEncoder(models.model).forward(features)
    mask = torch.eye(len(CLASSES), dtype=torch.float64)[torch.arange(50) % 4][None]
    assert torch.allclose(encoder(features, mask), plain)
    encoder.suppress_others(torch.zeros(plain.shape[2]))
    assert not torch.allclose(encoder(features, mask), plain)
    without_others = mask.clone()
    without_others[..., 1] += without_others[..., 2]
    without_others[..., 2] = 0
    assert torch.allclose(encoder(features, without_others), plain)


def test_an_encoder_is_read_as_it_was_written(models, tmp_path):
    encoder = ConditionedEncoder(models, 2)
    torch.nn.init.normal_(encoder.layers[1]["self_attn"]["out_proj"].lora_b)
    encoder.save(tmp_path / "conditioning.safetensors")
    again = ConditionedEncoder.load(models, tmp_path / "conditioning.safetensors").state_dict()
    for name, each in encoder.state_dict().items():
        assert torch.equal(again[name], each.half().float())
    assert {"fddt.2.bias", "layers.0.self_attn.q_proj.lora_a", "layers.1.fc2.lora_b"} <= {*again}
    assert again["fddt.0.weight"].shape == (4, models.model.config.d_model)
    other = models_of(TINY, 41)
    with pytest.raises(ValueError, match="trained for another model"):
        ConditionedEncoder.load(other, tmp_path / "conditioning.safetensors")


def test_rates_rise_stay_and_fall():
    assert [rate_factor(each) for each in (0.01, 0.5, 0.875, 1.0)] == [0.5, 1.0, 0.5, 0.03]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    models = models_of(dataclasses.replace(TINY, seconds=30), 40, torch.float32)
    for part in (models.model, models.tokenizer, models.feature_extractor):
        part.save_pretrained(folder)
    return folder


def write_voices(folder, each_part=2):
    """Write recordings of noise by as many speakers of each part of the split."""
    folder.mkdir()
    numbers = {part: [] for part in ("train", "development", "test")}
    for number in range(100):
        numbers[part_of(str(number))].append(number)
    for number in (n for part in numbers.values() for n in part[:each_part]):
        with wave.open(str(folder / f"{number}-1.wav"), "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(SAMPLE_RATE)
            writer.writeframes((noise(3, number) * 32_767).astype("<i2").tobytes())


@pytest.mark.slow
def test_an_encoder_is_trained_continued_and_evaluated(model_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("extras.conditioning.commands.SpeechDetector", lambda: hears_sound)
    monkeypatch.setattr("extras.conditioning.training.LEAST_LOGPROB", -100)
    voices, out = tmp_path / "voices", tmp_path / "out"
    write_voices(voices)
    common = ["--model", str(model_folder), "--recordings", str(voices), "--out", str(out)]
    common += ["--device", "cpu", "--pairs", "1", "--rank", "2"]
    main(["train", *common, "--minutes", "0.01"])
    assert "mixtures: cross entropy" in capsys.readouterr().out
    card = (out / "README.md").read_text()
    assert "| conditioned |" in card
    assert "of 2 voices" in card
    before = torch.load(out / "training.state")["step"]
    main(["train", *common, "--minutes", "0.02"])
    assert torch.load(out / "training.state")["step"] > before
    main(["evaluate", *common])
    assert "1 pairs of voices" in capsys.readouterr().out


def test_too_few_voices_are_said_in_a_line(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("extras.conditioning.commands.SpeechDetector", lambda: hears_sound)
    write_voices(tmp_path / "voices", 1)
    given = ["train", "--model", str(model_folder), "--recordings", str(tmp_path / "voices")]
    with pytest.raises(SystemExit, match="it needs more voices"):
        main([*given, "--out", str(tmp_path)])


def test_classes_are_those_of_one_speaker():
    target, others = np.array([[0, 1, 0, 1], [0, 0, 1, 1]], bool)
    assert classes_of(target, others).argmax(axis=1).tolist() == [0, 1, 2, 3]
