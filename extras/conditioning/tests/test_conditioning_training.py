"""Mixtures, gradients, and the command on a random Whisper and voices of noise."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from config import REPOSITORY, SPEAKERS_MODEL
from extras.conditioning.__main__ import main
from extras.conditioning.masks import DiarizerMasks
from extras.conditioning.mixtures import (
    KINDS,
    SPARE,
    WHOLE,
    WINDOWS,
    Mixture,
    cut,
    cut_at_speeds,
    mix,
)
from extras.conditioning.training import new_parameters, rate_factor
from tests.helpers.oracle import TINY, models_of
from tests.support.audio_files import wav_file
from tests.support.tiny_whispers import hears_sound, noise
from whosaid.asr import Checkpoint, load_whisper
from whosaid.asr.checkpoint.assistants import main_digest
from whosaid.asr.checkpoint.conditioning import Conditioning, read_conditioning
from whosaid.asr.model.encoder import AudioEncoder
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

DEMO = REPOSITORY / "demo"


def pieces_of(speakers, seconds=9.0):
    return [
        piece
        for number in range(speakers)
        for piece in cut("1.wav", str(number), noise(seconds, number), hears_sound, 300)
    ]


@pytest.mark.parametrize("frames", WINDOWS)
def test_a_recording_is_cut_in_its_pauses(frames):
    samples = noise(18)
    samples[3 * SAMPLE_RATE : 3 * SAMPLE_RATE + 2000] = 0
    pieces = list(cut("1.wav", "7", samples, hears_sound, frames))
    spoken = np.concatenate([each.samples.reshape(-1, SAMPLES_PER_TOKEN) for each in pieces])
    active = np.concatenate([each.active for each in pieces])
    assert (len(active) > 900) == (frames == WHOLE)  # with pauses in which others speak
    assert active.sum() == 900
    assert not spoken[~active].any()
    for each in pieces:
        assert len(each.samples) == len(each.active) * SAMPLES_PER_TOKEN
        assert each.active.sum() <= WINDOWS[frames] == WINDOWS[each.frames]
        assert each.start + len(each.active) + SPARE <= frames
        alone = each.window[each.start * SAMPLES_PER_TOKEN :][: len(each.samples)]
        assert np.array_equal(alone, each.samples)


def test_a_voice_is_heard_at_all_speeds():
    pieces = [*cut_at_speeds("1.wav", "7", noise(4), hears_sound)]
    seconds = {len(each.active) / 50 for each in pieces if each.frames == 300}
    assert seconds == {4.0, 4.5, 3.54}
    assert len({each.name for each in pieces}) == len(pieces) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_holds_its_voices(kind, monkeypatch):
    monkeypatch.setattr("extras.conditioning.mixtures.ROOM", 0)
    monkeypatch.setattr("extras.conditioning.mixtures.NOISE", 0)
    target, *others = pieces_of(3)
    for seed in range(20):
        found = mix(target, others, np.random.default_rng(seed), kind)
        own, rest = found.active[0], found.active[1:].any(axis=0)
        heard = (found.samples - target.window).reshape(target.frames, -1).any(axis=1)
        assert np.array_equal(own, target.window.reshape(target.frames, -1).any(axis=1))
        assert np.array_equal(rest, heard)
        assert (own & rest).any() == (kind in ("two", "three"))


@pytest.mark.parametrize("seconds", [6, 15])
def test_masks_follow_each_voice(seconds):
    recording = (DEMO / "conversation.ogg").read_bytes()
    samples = decode_audio(recording, SAMPLE_RATE, AudioLimits(600, 2**24)).samples
    words = json.loads((DEMO / "conversation.json").read_text())["words"]
    voices = sorted({word["speaker"] for word in words if word["start"] < seconds})
    active = np.zeros((len(voices), seconds * 50), bool)
    for word in words:
        if word["start"] < seconds:
            start, stop = (round(50 * word[each]) for each in ("start", "end"))
            active[voices.index(word["speaker"]), start:stop] = True
    masks = DiarizerMasks(str(REPOSITORY / SPEAKERS_MODEL))
    for own in range(len(voices)):
        spoken = np.roll(active, -own, axis=0)
        mask = masks.of(Mixture(samples[: seconds * SAMPLE_RATE], spoken))
        assert np.allclose(mask.sum(axis=1), 1, atol=1e-3)
        assert np.mean((mask[:, 1] + mask[:, 3] > 0.5) == spoken[0]) > 0.8


def test_new_parameters_change_nothing_and_have_gradients(monkeypatch):
    monkeypatch.setattr("whosaid.asr.model.cpu_kernels.AVAILABLE", False)
    models = models_of(TINY, 40, torch.float32)
    parameters = new_parameters(models, 2)
    encoder = AudioEncoder(models.model, None, Conditioning(parameters))
    features = torch.randn(1, 80, 100)
    plain = AudioEncoder(models.model).forward(features)
    mask = torch.eye(4)[torch.arange(50) % 4][None]
    followed = encoder.forward(features, mask)
    assert torch.allclose(followed, plain, atol=1e-5)
    for name, each in parameters.items():
        if name.endswith("lora_b"):  # as zero, it would hide the gradient of the other factor
            torch.nn.init.normal_(each)
    torch.autograd.backward(encoder.forward(features, mask).square().sum())
    for name, each in parameters.items():
        assert each.grad.abs().sum() > 0, name


def test_rates_rise_stay_and_fall():
    rates = [rate_factor(each) for each in (0.01, 0.5, 0.8, 1.0)]
    assert rates == pytest.approx([0.5, 1, 0.5, 0.03])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    models = models_of(dataclasses.replace(TINY, seconds=30), 21, torch.float32)
    for part in (models.model, models.tokenizer, models.feature_extractor):
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def run(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("whosaid.asr.frontend.vad.SpeechDetector", lambda: hears_sound)
    monkeypatch.setattr("extras.conditioning.training.LEAST_LOGPROB", -100)
    monkeypatch.setattr("whosaid.asr.model.cpu_kernels.AVAILABLE", True)  # set back afterwards

    def run(voices, minutes, *more):
        (tmp_path / "voices").mkdir(exist_ok=True)
        for number in range(voices):
            path = tmp_path / "voices" / f"{number}-1.wav"
            path.write_bytes(wav_file(noise(3, number).astype(float), SAMPLE_RATE))
        given = ["--model", str(model_folder), "--recordings", str(tmp_path / "voices")]
        given += ["--out", str(tmp_path / "out"), "--device", "cpu", "--rank", "2"]
        main([*given, "--minutes", str(minutes), *more])
        return tmp_path / "out"

    return run


@pytest.mark.slow
def test_the_endpoint_reads_a_trained_and_continued_encoder(run, model_folder):
    out = run(2, 0.01)
    before = torch.load(out / "training.state")
    run(2, before["seconds"] / 60 + 0.005)
    after = torch.load(out / "training.state")
    assert after["step"] > before["step"]
    models = load_whisper(Checkpoint(str(model_folder)), torch.device("cpu"), torch.float32)
    path = str(out / "conditioning.safetensors")
    found = read_conditioning(path, models.model, main_digest(models)).weights
    assert found.keys() == after["parameters"].keys()
    for name, each in after["parameters"].items():
        assert torch.equal(found[name], each.half().float())
    assert "of 2 voices" in (out / "README.md").read_text()
    with pytest.raises(SystemExit, match="is of another --rank"):
        run(2, 0.01, "--rank", "3")
    initial = out.rename(out.with_name("initial")) / "conditioning.safetensors"
    with pytest.raises(SystemExit, match=r"lora_a of --rank 1 or less"):
        run(2, 0.01, "--initial", str(initial), "--rank", "1")
    with pytest.raises(SystemExit, match="deserializing header"):
        run(2, 0.01, "--initial", __file__)
    run(2, 1e-6, "--initial", str(initial), "--rank", "3")
    (out / "texts.json").unlink()
    with pytest.raises(SystemExit, match="has files of others"):
        run(2, 0.01)


def test_one_voice_no_time_and_unknown_languages_are_refused(run):
    wrong = [(1, 0.01, "en", "two voices"), (2, 0, "en", "--minutes"), (2, 1, "xx", "language: ")]
    for voices, minutes, language, told in wrong:
        with pytest.raises(SystemExit, match=told):
            run(voices, minutes, "--language", language)
