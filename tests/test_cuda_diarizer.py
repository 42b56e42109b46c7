"""Nemotron-3-Diarization in float16 on an emulated device: nothing is computed in another place."""

import pytest
import torch
import transformers

from tests.helpers.cuda_emulator import emulated_cuda, module_on_cuda
from tests.test_nemotron_diarizer import CHUNK_SAMPLES, processor, small_config
from whosaid.diarization.nemotron import MelFeatures, NemotronDiarizer, NemotronStream
from whosaid.runtime.versions import nemotron_speaker_cache


@pytest.fixture
def diarizer(monkeypatch):
    features = MelFeatures.read("name", processor().feature_extractor.to_dict())
    model = transformers.Nemotron3DiarizationForAudioFrameClassification(small_config())
    model.eval().half()
    with emulated_cuda(monkeypatch):
        module_on_cuda(model)
        yield NemotronDiarizer(model, features, nemotron_speaker_cache("name"))


@pytest.mark.parametrize("size", [1_280, CHUNK_SAMPLES + 1, 12 * 16_000])
def test_chunks_are_computed_on_the_device_in_half_precision(diarizer, size):
    stream = NemotronStream(diarizer, diarizer._whole)
    stream._audio = torch.zeros(size)
    parts = list(stream._probabilities(last=True))
    assert {(each.device.type, each.dtype) for each in parts} == {("cuda", torch.float16)}
    lengths = [each.shape[0] for each in parts]
    assert sum(lengths) == size // 160
    assert set(lengths[:-1]) <= {CHUNK_SAMPLES // 160}
