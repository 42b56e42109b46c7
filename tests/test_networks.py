"""The demo's pipeline with networks in safetensors, against stock pyannote's."""

import inspect
import json
import pickle
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from pyannote.audio import Model
from safetensors.torch import load_file, save_file

from config import DEMO_MODELS
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.diarization.pyannote import load_network
from whosaid.errors import StartError
from whosaid.runtime.errors import loading
from whosaid.runtime.versions import build_pyannote_pipeline

DEMO = DEMO_MODELS / "diarization"
CPU = torch.device("cpu")


def stock_network(part: str) -> Model:
    """The demo's, as pyannote itself loads it; torch 2.5 warns of what pyannote 3 asks it for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Model.from_pretrained(str(DEMO / part / "pytorch_model.bin"), strict=False).eval()


def described(model: Model) -> dict[str, object]:
    known, taken = model.specifications, inspect.signature(type(model)).parameters
    return {
        "architecture": type(model).__name__,
        "hyperparameters": {name: model.hparams[name] for name in taken if name != "task"},
        "specifications": {
            "problem": known.problem.name,
            "resolution": known.resolution.name,
            "duration": known.duration,
            "classes": known.classes,
            "powerset_max_classes": known.powerset_max_classes,
            "permutation_invariant": known.permutation_invariant,
        },
    }


class Attack:
    """An object that runs code when it is unpickled: it creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The demo's pipeline with safetensors, each beside a pickle that leaves a file `attacked`."""
    made = tmp_path_factory.mktemp("diarization")
    for part in ("segmentation", "embedding"):
        model = stock_network(part)
        (made / part).mkdir()
        (made / part / "config.json").write_text(json.dumps(described(model)))
        save_file(model.state_dict(), made / part / "model.safetensors")
        (made / part / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(made / "attacked")))
    shutil.copytree(DEMO / "plda", made / "plda")
    for file in DEMO.glob("*.yaml"):
        shutil.copy(file, made)
    return made


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    data = (DEMO_MODELS.parent / "conversation.ogg").read_bytes()
    return decode_audio(data, 16_000, AudioLimits(7200, 2**30)).samples[: 12 * 16_000]


@pytest.mark.parametrize("part", ["segmentation", "embedding"])
def test_a_network_computes_what_stock_pyannotes_does(folder, samples, part):
    stock = stock_network(part)
    made = load_network(folder / part)
    assert type(made) is type(stock)
    assert not made.training
    assert made.specifications == stock.specifications
    waveforms = torch.from_numpy(samples[:96_000].reshape(2, 1, -1))
    with torch.inference_mode():
        assert torch.equal(made(waveforms), stock(waveforms))


def test_turns_and_voices_are_those_of_the_stock_folder(folder, samples):
    stock = load_diarizer(str(DEMO), None, None, CPU).diarize(samples, SpeakerHints())
    made = load_diarizer(str(folder), None, None, CPU).diarize(samples, SpeakerHints())
    assert len(stock.turns) > 2
    assert made == stock
    for label, voice in stock.voices.items():
        np.testing.assert_array_equal(made.voices[label], voice)


def test_a_pickle_beside_is_never_opened(folder, tmp_path):
    load_diarizer(str(folder), None, None, CPU)
    assert not (folder / "attacked").exists()
    without = shutil.copytree(folder, tmp_path / "without")
    (without / "embedding" / "model.safetensors").unlink()
    with pytest.raises(StartError), loading("DIARIZATION_MODEL", str(without)):
        load_diarizer(str(without), None, None, CPU)
    assert not (folder / "attacked").exists()


def test_the_attack_would_work(tmp_path):
    pickle.loads(pickle.dumps(Attack(tmp_path / "attacked")))
    assert (tmp_path / "attacked").exists()


def test_an_unknown_architecture_is_refused(folder, tmp_path):
    config = json.loads((folder / "segmentation" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architecture": "os.system"}))
    with pytest.raises(ValueError, match="architecture is none of"):
        load_network(tmp_path)


@pytest.mark.parametrize("change", [lambda each: each.to(torch.int8), lambda each: each / 0])
def test_quantised_and_damaged_weights_are_refused(folder, tmp_path, change):
    made = shutil.copytree(folder / "segmentation", tmp_path / "segmentation")
    weights = load_file(made / "model.safetensors")
    key = next(key for key in weights if key.endswith("weight"))
    save_file(weights | {key: change(weights[key])}, made / "model.safetensors")
    with pytest.raises(ValueError, match=re.escape(key)):
        load_network(made)


@pytest.mark.parametrize("text", [None, "{}", "pipeline: {name: some.other.Pipeline}"])
def test_a_folder_of_another_kind_of_pipeline_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(StartError, match=r"no config\.yaml of a SpeakerDiarization"):
        build_pyannote_pipeline(tmp_path, load_network)
