"""The endpoint of this process: when it loads which models."""

import json
from hashlib import sha256
from math import inf

import pytest

from config import ModelSettings
from tests.helpers.readers import read_docx
from tests.support.audio_files import speech, two_seconds
from whosaid.answer.kept import is_corrected
from whosaid.endpoint import Endpoint
from whosaid.errors import StartError
from whosaid.transcribe.__main__ import main
from whosaid.transcribe.client import Failed, Unusable
from whosaid.transcribe.local import LocalEndpoint


@pytest.fixture
def loaded(monkeypatch, tiny_endpoint) -> list[ModelSettings]:
    """Return the settings of every endpoint that is made; each is the tiny one."""
    made: list[ModelSettings] = []

    def load(settings: ModelSettings) -> Endpoint:
        made.append(settings)
        return tiny_endpoint

    monkeypatch.setattr("handler.load_endpoint", load)
    return made


def test_models_load_only_for_a_file_with_audio(tmp_path, loaded, capsys):
    """Nothing is downloaded either: no model is named, and the Hub is unreachable."""
    notes, silent = tmp_path / "notes.mp3", tmp_path / "empty.wav"
    notes.write_text("no audio")
    silent.write_bytes(b"")
    assert main(["demo", str(notes), str(silent)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{notes}: INVALID_AUDIO: ")
    assert second.startswith(f"{silent}: INVALID_AUDIO: ")
    assert loaded == []


def test_models_load_once_and_a_broken_file_stops_nothing(tmp_path, loaded, capsys):
    for name in ("a.wav", "c.wav"):
        (tmp_path / name).write_bytes(two_seconds())
    (tmp_path / "b.wav").write_text("no audio")
    options = ["--embedded", "--language", "en", "--output-format", "srt,json"]
    assert main(["transcribe", str(tmp_path), *options]) == 1
    assert len(loaded) == 1
    written = {path.name for path in tmp_path.iterdir()} - {"a.wav", "b.wav", "c.wav"}
    assert written == {"a.srt", "a.json", "c.srt", "c.json"}
    said = capsys.readouterr().err
    assert "3 recordings: 2 done, 1 failed; 0:04 of audio" in said
    assert said.count("Loading the demo models ...\n") == 1


def test_corrected_texts_beside_recordings_are_aligned_and_stay(tmp_path, loaded, capsys):
    """A file that is no text stops nothing else. Later runs with other options lose nothing."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.wav").write_bytes(two_seconds())
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe notes")
    options = [str(tmp_path), "--embedded", "--output-format", "txt,srt,docx"]
    assert main(["transcribe", *options, "--language", "en"]) == 1
    untouched = (tmp_path / "b.json").read_bytes()
    assert read_docx((tmp_path / "b.docx").read_bytes())[0] == "b.wav"
    corrected = "Katie: hello\nand good\nSteve: morning\nKatie: bye\n"
    (tmp_path / "a.txt").write_text(corrected)
    capsys.readouterr()
    assert main(["transcribe", *options, "--language", "en", "--text"]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'c.txt'}: is not UTF-8 text" in said
    assert "3 recordings: 1 done, 1 done before" in said
    assert (tmp_path / "b.json").read_bytes() == untouched
    aligned = (tmp_path / "a.json").read_bytes()
    assert {each["speaker"] for each in json.loads(aligned)["speakers"]} <= {"Katie", "Steve"}
    assert main(["transcribe", *options, "--language", "en", "--text"]) == 1
    assert main(["transcribe", *options, "--language", "de"]) == 1
    assert f"{tmp_path / 'a.json'}: holds your text, and was made" in capsys.readouterr().err
    assert (tmp_path / "a.json").read_bytes() == aligned
    assert main(["transcribe", *options, "--language", "de", "--text", "--force"]) == 1
    assert (tmp_path / "a.json").read_bytes() != aligned
    assert is_corrected(json.loads((tmp_path / "a.json").read_text()))
    assert (tmp_path / "a.txt").read_text() == corrected
    out = tmp_path / "out"
    for text, force in ((corrected, []), (corrected, []), ("Anna: oh\n", ["--force"])):
        (tmp_path / "a.txt").write_text(text)
        assert main(["transcribe", *options, "--text", "--output-dir", str(out), *force]) == 1
        made = json.loads((out / "a.json").read_text())["made_with"]["parameters"]
        assert made["text"] == f"sha256 {sha256(text.encode()).hexdigest()}"


def test_a_text_before_the_recordings_names_a_file(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["transcribe", "--text", str(tmp_path)])
    assert "--text stands behind these" in capsys.readouterr().err


@pytest.mark.parametrize("variable", [None, "MAX_AUDIO_SECONDS"])
def test_only_the_environment_limits_local_audio(monkeypatch, loaded, variable):
    if variable:
        monkeypatch.setenv(variable, "60")
    LocalEndpoint(ModelSettings.for_demo, {}).prepare([two_seconds()])
    assert loaded[0].max_audio_seconds == (60 if variable else inf)
    assert loaded[0].max_audio_bytes >= 2**62


def test_progress_is_that_of_the_endpoints_events(loaded, wav):
    told: list[tuple[float, float]] = []
    endpoint = LocalEndpoint(ModelSettings.for_demo, {})
    file = wav(speech(5.0))
    endpoint.prepare([file])
    with endpoint.transcribed([file], {"language": "en"}, lambda *at: told.append(at)) as answer:
        assert answer["duration"] == pytest.approx(5.0)
    assert told[0] == (0.0, pytest.approx(5.0))
    assert len(told) > 1
    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize(
    ("parameters", "ends"),
    [
        ({"language": "klingon"}, True),
        ({"channels": "separate", "channel_names": ["Anna", "Bob"]}, False),
    ],
)
def test_a_parameter_wrong_for_all_recordings_ends_the_run(loaded, parameters, ends):
    endpoint = LocalEndpoint(ModelSettings.for_demo, {})
    with (
        pytest.raises(Failed, match="INVALID_PARAMETER") as failed,
        endpoint.transcribed([two_seconds()], parameters, lambda *_: None),
    ):
        pass
    assert isinstance(failed.value, Unusable) == ends


@pytest.mark.parametrize("end", [StartError("ASR_MODEL: gated"), SystemExit("START_FAILED: x")])
def test_unavailable_models_end_the_run(end):
    def refuse() -> ModelSettings:
        raise end

    with pytest.raises(Unusable, match=r"^(ASR_MODEL: gated|x)$"):
        LocalEndpoint(refuse, {}).prepare([two_seconds()])


def test_a_failed_model_is_reported_by_its_option(tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(two_seconds())
    (tmp_path / "model").mkdir()
    assert main(["demo", str(tmp_path / "a.wav"), "--model", str(tmp_path / "model")]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line == f"--model: {tmp_path / 'model'} has no config.json of a model"
