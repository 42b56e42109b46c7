"""The demo's diarization folder under stock pyannote.audio, and the parts that made it against
their definitions.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import permutations
from multiprocessing import get_context

import numpy as np
import pyannote.audio
import pytest
import torch
from pyannote.audio.core.plda import PLDA
from pyannote.audio.models.blocks.pooling import StatsPool
from pyannote.audio.pipelines import SpeakerDiarization
from pyannote.audio.utils.powerset import Powerset

from config import DEMO_MODELS
from extras.demo_models import conversation
from extras.demo_models.diarization_error import error_rate
from extras.demo_models.embedding import weighted_statistics
from extras.demo_models.mixtures import ClipBank, compose
from extras.demo_models.pipeline import save_plda
from extras.demo_models.segmentation import permutation_invariant_loss
from tests.support import audio_files
from tests.support.dialogue import draw_dialogues
from tests.support.speech import vocabulary
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.diarization.pyannote import PyannoteDiarizer

FOLDER = DEMO_MODELS / "diarization"
NO_HINTS = SpeakerHints()


@pytest.fixture(scope="module")
def diarizer():
    return load_diarizer(str(FOLDER), None, None, torch.device("cpu"))


# ---- the folder


def test_stock_pyannote_loads_the_folder():
    pipeline = pyannote.audio.Pipeline.from_pretrained(FOLDER)
    assert type(pipeline) is SpeakerDiarization
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 13_000_000


def _draw(cast):
    return draw_dialogues([cast], seed=3, seconds=15.0 * (len(cast) - 1))


@pytest.mark.parametrize(
    "cast",
    [("m8", "belinda"), pytest.param(("f5", "Mario", "belinda"), marks=pytest.mark.reliability)],
)
def test_development_voices_are_told_apart(diarizer, cast):
    """Drawn by a new process: espeak's oscillators keep their phase, so that in this one samples
    would depend on what other tests have had it speak.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as new_process:
        scenes = new_process.submit(_draw, cast).result(timeout=120)
    rate, right_number = error_rate(diarizer, scenes)
    assert rate <= 0.15
    assert right_number == 1


@pytest.mark.parametrize("seconds", [0.1, 11.0])
def test_silence_has_no_turns(diarizer, seconds):
    assert diarizer.diarize(np.zeros(round(seconds * 16_000), np.float32), NO_HINTS).turns == ()


# ---- the conversation


def test_every_line_of_the_conversation_is_in_the_vocabulary():
    assert {word for _, _, line in conversation.LINES for word in line.split()} <= set(vocabulary())


def test_turns_of_the_conversation_are_those_of_stock_pyannote(diarizer):
    """In 12 s of it, in which all three speak: stock pyannote takes its time."""
    part = audio_files.conversation()[16 * 16_000 : 28 * 16_000]
    found = diarizer.diarize(part, NO_HINTS)
    assert len({turn.speaker for turn in found.turns}) == 3
    stock = PyannoteDiarizer(pyannote.audio.Pipeline.from_pretrained(FOLDER), 8)
    assert found == stock.diarize(part, NO_HINTS)


# ---- the parts


def test_at_most_two_voices_are_heard_at_once():
    rng = np.random.default_rng(0)
    lengths = rng.integers(8_000, 40_000, size=24)
    bank = ClipBank(
        rng.integers(-9_000, 9_000, lengths.sum()).astype(np.int16),
        np.cumsum([0, *lengths]),
        np.repeat(range(6), 4),
    )
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
        permutation_invariant_loss(scores, active[..., list(order)], powerset)
        for order in permutations(range(3))
    ]
    assert torch.stack(losses).std() < 1e-6
    certain = torch.log(
        0.97 * powerset.to_powerset(active) + 0.005 * (1 - powerset.to_powerset(active))
    )
    assert permutation_invariant_loss(certain, active[..., [2, 0, 1]], powerset) == pytest.approx(
        -np.log(0.97), abs=1e-4
    )


def test_statistics_are_those_pyannote_pools():
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand(2, 5, 30, generator=generator)
    weights = (torch.rand(2, 3, 30, generator=generator) > 0.4).float()
    torch.testing.assert_close(
        weighted_statistics(frames, weights), StatsPool()(frames, weights), rtol=1e-3, atol=1e-4
    )


def test_the_plda_whitens_what_varies_within_a_speaker(tmp_path):
    rng = np.random.default_rng(0)
    speaker = np.repeat(np.arange(200), 10)
    vectors = 2 * rng.standard_normal((200, 96))[speaker] + rng.standard_normal(
        (2000, 96)
    ) * np.linspace(0.5, 2, 96)
    save_plda(vectors, speaker, tmp_path)
    features = PLDA.from_pretrained(tmp_path)(vectors)
    means = np.stack([features[speaker == name].mean(axis=0) for name in range(200)])
    within = (features - means[speaker]).T @ (features - means[speaker]) / (2000 - 200)
    np.testing.assert_allclose(within, np.eye(len(within)), atol=0.02)
