"""Each difference between releases, under the releases that are installed here; scripts/test runs
this file under those of both servers."""

import platform
import warnings
from importlib.metadata import version

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from config import DEMO_MODELS
from tests.helpers.programs import run_python
from whosaid.errors import StartError
from whosaid.runtime import versions

PYANNOTE_3 = version("pyannote.audio").startswith("3.")
DIARIZATION = DEMO_MODELS / "diarization"


@pytest.mark.parametrize(
    ("modules", "server"),
    [
        ({"hf_serve"}, ", hf-serve"),
        ({"huggingface_inference_toolkit"}, ", huggingface-inference-toolkit"),
        (set(), ""),
    ],
)
def test_one_line_names_python_libraries_and_server(modules, server):
    line = versions.describe_versions(modules)
    libraries = ", ".join(f"{name} {version(name)}" for name in versions.LIBRARIES)
    assert line.startswith(f"Python {platform.python_version()}, {libraries}{server}")
    assert "\n" not in line


def test_importing_it_loads_no_library():
    heavy = "{'torch', 'transformers', 'huggingface_hub', 'pyannote.audio'}"
    script = f"import sys; import whosaid.runtime.versions; assert not {heavy} & sys.modules.keys()"
    assert run_python("-c", script).returncode == 0


def test_a_tokenizer_of_transformers_5_loads(tmp_path):
    for file in ("tokenizer.json", "config.json"):
        (tmp_path / file).write_bytes((DEMO_MODELS / "asr" / file).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        '{"backend": "tokenizers", "eos_token": "<|endoftext|>", "tokenizer_class": '
        '"WhisperTokenizer", "extra_special_tokens": ["<|startoftranscript|>", "<|en|>"]}'
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, **versions.tokenizer_arguments())
    assert tokenizer.decode([600, 601, 363, 500, 599], skip_special_tokens=True) == " good morning"
    assert tokenizer.get_vocab()["<|notimestamps|>"] == 706


@pytest.fixture(scope="module")
def samples() -> torch.Tensor:
    from whosaid.audio.decode import AudioLimits, decode_audio

    data = (DEMO_MODELS.parent / "conversation.ogg").read_bytes()
    audio = decode_audio(data, 16_000, AudioLimits(7200, 2**30))
    return torch.from_numpy(audio.samples[14 * 16_000 : 35 * 16_000])[None]


@pytest.fixture(scope="module")
def pipeline():
    with warnings.catch_warnings():  # as `load_diarizer` has it
        warnings.simplefilter("ignore")
        return versions.load_pyannote_pipeline(str(DIARIZATION), None, None)


@pytest.fixture(scope="module")
def turns(pipeline, samples):
    output = pipeline({"waveform": samples, "sample_rate": 16_000})
    return output.speaker_diarization, output.exclusive_speaker_diarization


def test_both_releases_find_the_speakers_of_the_demo(turns):
    assert turns[0].labels() == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_02"]


def test_exclusive_turns_are_the_others_without_overlap(turns):
    found, exclusive = turns
    assert found.get_overlap().duration() > 0.5
    assert exclusive.get_overlap().duration() == 0
    assert set(exclusive.labels()) <= set(found.labels())
    seconds = exclusive.get_timeline().support().duration()
    assert seconds == pytest.approx(found.get_timeline().support().duration(), rel=0.02)


def test_exclusive_turns_have_the_names_of_the_others(turns):
    """If one speaker talks alone, both name the same speaker."""
    found, exclusive = turns
    alone = found.get_timeline().support().extrude(found.get_overlap())
    same = total = 0.0
    for segment in alone:
        for part, _, speaker in exclusive.crop(segment).itertracks(yield_label=True):
            total += part.duration
            same += part.duration * (found.argmax(part) == speaker)
    assert total > 12
    assert same / total > 0.98


def test_silence_has_no_turns(pipeline):
    silence = torch.from_numpy(np.zeros((1, 80_000), np.float32))
    output = pipeline({"waveform": silence, "sample_rate": 16_000})
    assert len(getattr(output, "speaker_diarization", output)) == 0


@pytest.mark.skipif(not PYANNOTE_3, reason="pyannote.audio 4 loads it")
@pytest.mark.parametrize("clustering", ["VBxClustering", "AgglomerativeClustering"])
def test_pyannote_4_pipelines_are_refused_with_advice(tmp_path, monkeypatch, clustering):
    """The pipeline is a folder, or a repository of which the Hub serves only the configuration."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "pipeline:\n  name: pyannote.audio.pipelines.SpeakerDiarization\n"
        f"  params: {{clustering: {clustering}, segmentation: $model/part, plda: $model/plda}}\n"
    )
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(config))
    advice = "for pyannote.audio 4, and here is 3.*name pyannote/speaker-diarization-3.1"
    with pytest.raises(StartError, match=advice):
        versions.load_pyannote_pipeline("pyannote/speaker-diarization-community-1", None, None)
