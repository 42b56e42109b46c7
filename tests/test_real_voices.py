"""The pipeline in models/diarization on real conversations, which are no part of this repository:
`REAL_VOICES` names a folder of them as `scripts/bench voices` reads it; without one nothing is
tested."""

import base64
import os
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from config import REPOSITORY, SPEAKERS_MODEL, ModelSettings
from handler import EndpointHandler
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.diarization import embeddings, load_diarizer, pyannote
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.diarization.embeddings import share_frames
from whosaid.timebase import SAMPLE_RATE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CPU = torch.device("cpu")
FOLDER = REPOSITORY / SPEAKERS_MODEL
RECORDINGS = ("phone_sample", "ami_trn02", "ami_meeting60")
PEOPLE, STRANGERS = ("katie", "steve"), "phone_sample"
LEAST = pyannote.SAME_VOICE["WeSpeakerResNet34", 80]


@pytest.fixture(scope="module")
def recordings() -> Path:
    folder = os.environ.get("REAL_VOICES")
    if not folder:
        pytest.skip("no real conversations: REAL_VOICES names no folder of them")
    return Path(folder)


@pytest.fixture(scope="module")
def diarizer(recordings):
    return load_diarizer(str(FOLDER), None, None, CPU)


def loaded():
    """pyannote's own pipeline."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = pyannote.load_stock_pipeline(str(FOLDER), None, None)
    return pipeline.to(CPU)


@pytest.fixture(scope="module")
def stock(recordings):
    return pyannote.PyannoteDiarizer(loaded(), pyannote.CPU_BATCH)


@pytest.fixture(scope="module")
def replaced(recordings):
    """pyannote's clustering and the stages of it that are computed here in another way."""
    pipeline = loaded()
    share_frames(pipeline)
    pyannote.spare_memory(pipeline)
    return pyannote.PyannoteDiarizer(pipeline, pyannote.CPU_BATCH)


def in_base64(recordings, name):
    return base64.b64encode((recordings / f"{name}.flac").read_bytes()).decode()


def samples_of(recordings, name):
    limits = AudioLimits(max_seconds=600, max_bytes=2**28)
    return decode_audio((recordings / f"{name}.flac").read_bytes(), SAMPLE_RATE, limits).samples


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_turns_are_pyannote_s_with_our_stages_and_without(recordings, stock, replaced, name):
    samples = samples_of(recordings, name)
    expected = stock.diarize(samples, SpeakerHints())
    assert expected.turns
    found = replaced.diarize(samples, SpeakerHints())
    assert found.turns == expected.turns
    assert found.exclusive == expected.exclusive


def round_to_float16(monkeypatch):
    """Let embeddings' convolutions round as in float16 on CUDA, which adds up in float32."""

    def fused(*args):
        return tuple(nn.Parameter(each.half().float()) for each in fuse(*args))

    def rounding(method):
        def wrapper(convolution, *tensors, **options):
            found = method(convolution, *(each.half().float() for each in tensors), **options)
            return found.half().float()

        return wrapper

    fuse = embeddings.fuse_conv_bn_weights
    monkeypatch.setattr(embeddings, "fuse_conv_bn_weights", fused)
    for name in ("__call__", "onto"):
        method = getattr(embeddings.Convolution, name)
        monkeypatch.setattr(embeddings.Convolution, name, rounding(method))


@pytest.mark.parametrize("name", RECORDINGS)
def test_turns_with_embeddings_in_float16_are_the_same(recordings, diarizer, monkeypatch, name):
    samples = samples_of(recordings, name)
    expected = diarizer.diarize(samples, SpeakerHints())
    round_to_float16(monkeypatch)
    found = load_diarizer(str(FOLDER), None, None, CPU).diarize(samples, SpeakerHints())
    assert found.turns == expected.turns
    assert found.exclusive == expected.exclusive


def test_the_voices_of_real_weights_have_a_threshold(diarizer):
    assert diarizer.capabilities.same_voice == LEAST


def voice_in(handler, inputs):
    """The voice of the person who speaks most."""
    answer = handler({"inputs": inputs, "parameters": {"voices": True}})
    return max(answer["voices"].values(), key=lambda voice: voice["seconds"])


def test_people_are_named_by_their_clips(recordings, whisper_base_folder):
    models = {"asr_model": str(whisper_base_folder), "diarization_model": SPEAKERS_MODEL}
    handler = EndpointHandler(settings=ModelSettings(**models, dtype="float32"))
    files = [(name.title(), f"azure_enrollment_{name}") for name in PEOPLE]
    clips = [{"name": name, "reference": in_base64(recordings, file)} for name, file in files]
    inputs, parameters = in_base64(recordings, "azure_katiesteve"), {"known_speakers": clips}
    answer = handler({"inputs": inputs, "parameters": parameters})
    assert [each["matched"] for each in answer["known_speakers"]] == [True, True]
    assert {each["speaker"] for each in answer["speakers"]} == {"Katie", "Steve"}
    kept = [{"name": each["name"], "voice": voice_in(handler, each["reference"])} for each in clips]
    named = handler({"inputs": inputs, "parameters": {"known_speakers": kept}})
    assert named["known_speakers"] == answer["known_speakers"]
    inputs = in_base64(recordings, STRANGERS)
    strangers = handler({"inputs": inputs, "parameters": parameters})
    assert [each["matched"] for each in strangers["known_speakers"]] == [False, False]
    assert all(each["similarity"] < LEAST for each in strangers["known_speakers"])
