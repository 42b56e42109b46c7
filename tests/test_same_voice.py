"""From which similarity on voices are the same belongs to the embedding model, and to no other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34, WeSpeakerResNet152

from config import DEMO_MODELS
from whosaid.diarization import load_diarizer
from whosaid.diarization.pyannote import SAME_VOICE, PyannoteDiarizer, same_voice


def test_a_model_is_known_by_its_class_and_mel_bands():
    published, demo = (SAME_VOICE["WeSpeakerResNet34", bands] for bands in (80, 32))
    assert published < demo
    assert same_voice(WeSpeakerResNet34()) == published
    assert same_voice(WeSpeakerResNet34(num_mel_bins=32)) == demo


@pytest.mark.parametrize(
    "model", [WeSpeakerResNet34(num_mel_bins=40), WeSpeakerResNet152(), torch.nn.Linear(1, 1), None]
)
def test_any_other_has_no_threshold(model):
    assert same_voice(model) is None


def test_the_demo_s_diarizer_knows_its_own():
    folder = str(DEMO_MODELS / "diarization")
    capabilities = load_diarizer(folder, None, None, torch.device("cpu")).capabilities
    assert capabilities.same_voice == SAME_VOICE["WeSpeakerResNet34", 32]


def test_a_pipeline_without_a_model_of_its_own_has_none():
    for pipeline in (SimpleNamespace(), SimpleNamespace(_embedding=lambda *_: None)):
        assert PyannoteDiarizer(pipeline, 1).capabilities.same_voice is None
