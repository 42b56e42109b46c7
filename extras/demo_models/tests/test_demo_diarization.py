"""The demo's diarization folder under stock pyannote.audio, the parts that made it against their
definitions, and a build of one step.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import permutations

import numpy as np
import pyannote.audio
import pytest
import torch
from pyannote.audio.core.plda import PLDA
from pyannote.audio.models.blocks.pooling import StatsPool
from pyannote.audio.pipelines import SpeakerDiarization
from pyannote.audio.utils.powerset import Powerset

from config import DEMO_MODELS
from extras.demo_models import conversation, embedding, pipeline, segmentation
from extras.demo_models.evaluate import error_rate
from extras.demo_models.mixtures import compose
from tests.support import audio_files
from tests.support.dialogue import draw_dialogues
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.diarization.pyannote import PyannoteDiarizer
from whosaid.runtime.errors import verify_checksums

FOLDER = DEMO_MODELS / "diarization"


@pytest.fixture(scope="module")
def diarizer():
    return load_diarizer(str(FOLDER), None, None, torch.device("cpu"))


@pytest.fixture(scope="module")
def bank():
    """Clips of noise of eight speakers, who are one voice."""
    rng = np.random.default_rng(0)
    return [
        [rng.uniform(-0.3, 0.3, rng.integers(8_000, 40_000)).astype(np.float32) for _ in range(4)]
        for _ in range(8)
    ]


def test_turns_of_the_conversation_are_those_of_stock_pyannote(diarizer):
    """Only 12 s with all three speakers, because stock pyannote is slow."""
    pipeline = pyannote.audio.Pipeline.from_pretrained(FOLDER)
    assert type(pipeline) is SpeakerDiarization
    part = audio_files.conversation()[16 * 16_000 : 28 * 16_000]
    found = diarizer.diarize(part, SpeakerHints())
    assert len({turn.speaker for turn in found.turns}) == 3
    assert found == PyannoteDiarizer(pipeline, 8).diarize(part, SpeakerHints())


@pytest.mark.reliability
@pytest.mark.parametrize("cast", [("m8", "belinda"), ("f5", "Mario", "belinda")])
def test_development_voices_are_told_apart(diarizer, cast):
    rate, right = error_rate(diarizer, draw_dialogues([cast], 3, 15.0 * (len(cast) - 1)))
    assert rate <= 0.15
    assert right == 1


def test_the_conversation_has_the_words_of_its_lines():
    lines = conversation.LINES.read_text(encoding="utf-8").splitlines()
    told = json.loads((DEMO_MODELS.parent / "conversation.json").read_text())
    words = (word for line in lines for word in line.split()[2:])
    assert Counter(words) == Counter(word["text"] for word in told["words"])


def test_at_most_two_voices_are_heard_at_once(bank):
    for seed in range(50):
        scene = compose(bank, np.random.default_rng(seed), 10.0, (0.1, 0.2, 0.3, 0.4))
        active = scene.activity(np.arange(0, 10, 0.01))
        assert active.sum(axis=1).max() <= 2
        assert active[:, len(scene.cast) :].sum() == 0
        assert scene.samples.shape == (160_000,)
        assert np.isfinite(scene.samples).all()


def test_the_loss_does_not_depend_on_the_order_of_the_voices():
    powerset, generator = Powerset(3, 2), torch.Generator().manual_seed(0)
    scores = torch.randn(4, 50, 7, generator=generator).log_softmax(-1)
    active = powerset.mapping[torch.randint(7, (4, 50), generator=generator)]
    losses = [
        segmentation.permutation_invariant_loss(scores, active[..., list(order)], powerset)
        for order in permutations(range(3))
    ]
    assert torch.stack(losses).std() < 1e-6
    true = powerset.to_powerset(active)
    certain = torch.log(0.97 * true + 0.005 * (1 - true))
    other = active[..., [2, 0, 1]]
    loss = segmentation.permutation_invariant_loss(certain, other, powerset)
    assert loss == pytest.approx(-np.log(0.97), abs=1e-4)


def test_statistics_are_those_pyannote_pools():
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand(2, 5, 30, generator=generator)
    weights = (torch.rand(2, 3, 30, generator=generator) > 0.4).float()
    found = embedding.weighted_statistics(frames, weights)
    torch.testing.assert_close(found, StatsPool()(frames, weights), rtol=1e-3, atol=1e-4)


def test_the_plda_whitens_what_varies_within_a_speaker(tmp_path):
    rng = np.random.default_rng(0)
    speaker = np.repeat(np.arange(200), 10)
    spread = rng.standard_normal((2000, 96)) * np.linspace(0.5, 2, 96)
    vectors = 2 * rng.standard_normal((200, 96))[speaker] + spread
    pipeline.save_plda(vectors, speaker, tmp_path)
    features = PLDA.from_pretrained(tmp_path)(vectors)
    means = np.stack([features[speaker == name].mean(axis=0) for name in range(200)])
    within = (features - means[speaker]).T @ (features - means[speaker]) / (2000 - 200)
    np.testing.assert_allclose(within, np.eye(len(within)), atol=0.02)


@pytest.mark.slow
def test_stock_pyannote_loads_what_a_step_builds(bank, tmp_path, monkeypatch):
    for module in (segmentation, embedding):
        monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(pipeline, "PLDA_DIMENSION", 4)
    monkeypatch.setattr(pipeline, "speak_bank", lambda: bank)
    shutil.copy(FOLDER / "config.yaml", tmp_path)
    pipeline.build(tmp_path, steps=1)
    verify_checksums(tmp_path)
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == 5
    built = pyannote.audio.Pipeline.from_pretrained(tmp_path)
    assert type(built) is SpeakerDiarization
