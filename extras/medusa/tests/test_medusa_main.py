"""Runs both commands on a random Whisper and recordings of noise."""

import json

import pytest

from extras.medusa.__main__ import main
from extras.medusa.recordings import find_recordings
from extras.medusa.tests.stand_ins import tiny_models, write_recordings
from tests.helpers.programs import run_python
from tests.support.tiny_whispers import hears_sound


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder, models = tmp_path_factory.mktemp("model"), tiny_models()
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
    write_recordings(recordings, 12)
    common = ["--model", str(model_folder), "--recordings", str(recordings), "--device", "cpu"]
    training = ["train", *common, "--output", str(heads), "--work", str(tmp_path / "work")]
    training += ["--heads", "2", "--epochs", "2"]
    main(training)
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.pt")}
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
    before = (model_folder / "config.json").read_bytes()
    with pytest.raises(SystemExit, match="has files that are not heads"):
        main([*training, "--output", str(model_folder)])
    assert (model_folder / "config.json").read_bytes() == before
    few = tmp_path / "few"
    write_recordings(few, 1)
    common[3] = str(few)
    main(["evaluate", *common, "--heads", str(heads), "--repeats", "2"])
    table = capsys.readouterr().out
    assert "All texts are equal." in table
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith(("| pl", "| with"))]
    assert [(row[0], len(row)) for row in rows] == [("| plain", 5), ("| with heads", 5)]
    assert rows[0][3] == "1.00 (1.00-1.00)"


def test_recordings_come_from_a_manifest_or_a_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no such folder"):
        find_recordings(tmp_path / "missing")
    write_recordings(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("no recording")
    found = find_recordings(tmp_path)
    assert [(each.name, each.language) for each in found] == [("00.wav", None), ("01.wav", None)]
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps([{"audio": "01.wav", "language": "de", "text": "hallo"}]))
    for source in (manifest, tmp_path):
        (one,) = find_recordings(source)
        assert (one.name, one.language, one.text) == ("01.wav", "de", "hallo")


def test_missing_recordings_and_heads_are_one_line(model_folder, tmp_path):
    options = ["--model", str(model_folder), "--recordings", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"train: .*it holds no recordings"):
        main(["train", *options, "--output", str(tmp_path / "out")])
    write_recordings(tmp_path, 1)
    with pytest.raises(SystemExit, match="evaluate: there are no heads"):
        main(["evaluate", *options])


def test_too_few_windows_are_an_error_before_decoding(
    model_folder, tmp_path, monkeypatch, all_sound_is_speech
):
    def decode(*_):
        raise AssertionError("something is decoded")

    monkeypatch.setattr("extras.medusa.commands.cached_texts", decode)
    write_recordings(tmp_path, 9)
    options = ["--model", str(model_folder), "--recordings", str(tmp_path)]
    training = ["train", *options, "--output-dir", str(tmp_path / "heads")]
    with pytest.raises(SystemExit, match=r"train: .*at least 10 windows .* --recordings has 9$"):
        main(training)
    write_recordings(tmp_path, 10)
    with pytest.raises(AssertionError, match="decoded"):
        main(training)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_the_help_loads_no_torch(command):
    script = (
        "import sys; from extras.medusa.options import read\n"
        "try: read([sys.argv[1], '--help'])\n"
        "finally: assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    )
    done = run_python("-c", script, command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m extras.medusa {command} ")
