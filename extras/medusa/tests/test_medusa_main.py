"""Both commands as they are called, on a random Whisper and recordings of noise."""

import json
import subprocess
import sys

import pytest

from config import REPOSITORY
from extras.medusa.__main__ import main
from extras.medusa.tests.stand_ins import ENDING, write_recordings
from tests.oracle import TINY, models_of
from tests.support.tiny_whispers import hears_sound


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder, models = tmp_path_factory.mktemp("model"), models_of(TINY, ENDING)
    for part in (models.model, models.tokenizer, models.feature_extractor):
        part.save_pretrained(folder)
    return folder


class HearsSound:
    """Made like a detector, and another function than one."""

    def __new__(cls):
        return hears_sound


@pytest.fixture
def all_sound_is_speech(monkeypatch):
    for module in ("extras.medusa.hidden_states", "whosaid.asr.transcriber"):
        monkeypatch.setattr(f"{module}.SpeechDetector", HearsSound)


@pytest.mark.slow
def test_heads_are_trained_and_evaluated(
    model_folder, tmp_path, capsys, monkeypatch, all_sound_is_speech
):
    recordings, heads = tmp_path / "recordings", tmp_path / "heads"
    write_recordings(recordings, 12, windows=1)
    common = ["--model", str(model_folder), "--recordings", str(recordings), "--device", "cpu"]
    training = ["train", *common, "--output", str(heads), "--work", str(tmp_path / "work")]
    training += ["--heads", "2", "--epochs", "2"]
    main(training)
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.safetensors")}
    assert len(shards) == 2
    assert "epoch 2" in capsys.readouterr().out
    card = (heads / "README.md").read_text()
    assert "2 heads of one residual block each" in card
    assert json.loads((heads / "config.json").read_text())["base_digest"] in card
    assert "right tokens before its first" in " ".join(card.split())
    trained = (heads / "model.safetensors").read_bytes()
    main(training)
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    assert "epoch" not in capsys.readouterr().out
    assert (heads / "model.safetensors").read_bytes() == trained
    few = tmp_path / "few"
    write_recordings(few, 1, windows=1)
    common[3] = str(few)
    main(["evaluate", *common, "--heads", str(heads), "--repeats", "2"])
    assert "All texts are equal." in capsys.readouterr().out


def test_what_is_wrong_is_said_in_a_line(model_folder, tmp_path):
    options = ["--model", str(model_folder), "--recordings", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"train: .*it holds no recordings"):
        main(["train", *options, "--output", str(tmp_path / "out")])
    write_recordings(tmp_path, 1, windows=1)
    with pytest.raises(SystemExit, match="evaluate: there are no heads"):
        main(["evaluate", *options])


def test_too_few_windows_are_said_before_anything_is_decoded(
    model_folder, tmp_path, monkeypatch, all_sound_is_speech
):
    def decode(*_):
        raise AssertionError("something is decoded")

    monkeypatch.setattr("extras.medusa.commands.cached_hidden_states", decode)
    write_recordings(tmp_path, 9, windows=1)
    options = ["--model", str(model_folder), "--recordings", str(tmp_path)]
    training = ["train", *options, "--output-dir", str(tmp_path / "heads")]
    with pytest.raises(SystemExit, match=r"train: .*at least 10 windows .* --recordings has 9$"):
        main(training)
    write_recordings(tmp_path, 10, windows=1)
    with pytest.raises(AssertionError, match="decoded"):
        main(training)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_the_help_loads_no_torch(command):
    script = (
        "import sys; from extras.medusa.options import read\n"
        "try: read([sys.argv[1], '--help'])\n"
        "finally: assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m extras.medusa {command} ")
