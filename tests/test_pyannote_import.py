"""pyannote imported without packages for training, against a plain import, in subprocesses."""

import json

import numpy as np
import pytest

from config import DEMO_MODELS
from tests.helpers.programs import run_python
from tests.support.audio_files import conversation

# How pyannote is imported first; then the demo's pipeline diarizes.
FIRST = {
    "short": "",
    "plain": "import pyannote.audio.pipelines",
    # A release that uses at import what a replacement lacks.
    "failing": "from whosaid.diarization.importing import REPLACED as r; r['LightningModule'] = 1",
}
DIARIZE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy, torch
import config
{first}
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import SpeakerHints
diarizer = load_diarizer(sys.argv[1], None, None, torch.device("cpu"))
found = diarizer.diarize(numpy.load(sys.argv[2]), SpeakerHints())
imported = sorted({{name.partition(".")[0] for name in sys.modules}})
from pyannote.pipeline.optimizer import BaseSampler
import optuna.samplers
print(json.dumps({{
    "turns": [[turn.speaker, turn.start, turn.end] for turn in found.turns + found.exclusive],
    "voices": {{label: voice.tobytes().hex() for label, voice in found.voices.items()}},
    "imported": imported,
    "works": isinstance(optuna.samplers.RandomSampler(), BaseSampler),
    "real": str(sys.modules["optuna"].__spec__.origin),
}}))
"""
HEAVY = {"lightning", "pytorch_lightning", "torchmetrics", "matplotlib", "pandas", "sklearn"}
HEAVY |= {"networkx", "torchvision", "onnxruntime", "torchcodec"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    samples = tmp_path_factory.mktemp("samples") / "samples.npy"
    np.save(samples, conversation()[: 12 * 16_000])

    def run(how: str) -> dict[str, object]:
        script = DIARIZE.format(first=FIRST[how])
        done = run_python("-c", script, DEMO_MODELS / "diarization", samples)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return {how: run(how) for how in FIRST}


def test_turns_and_voices_equal_those_of_a_plain_import(found):
    assert len(found["plain"]["turns"]) > 4
    for how in ("short", "failing"):
        assert found[how]["turns"] == found["plain"]["turns"]
        assert found[how]["voices"] == found["plain"]["voices"]


def test_packages_for_training_are_left_out(found):
    assert not HEAVY.intersection(found["short"]["imported"])
    assert len(HEAVY.intersection(found["plain"]["imported"])) > 6


def test_failed_short_import_is_followed_by_a_plain_one(found):
    assert found["failing"]["imported"] == found["plain"]["imported"]


def test_deferred_packages_are_real_when_they_are_used(found):
    for each in found.values():
        assert each["works"]
        assert each["real"].endswith("__init__.py")
