"""The endpoint of this process: what is loaded, and when."""

from __future__ import annotations

import pytest

from config import ModelSettings
from tests.support.audio_files import speech, two_seconds
from whosaid.endpoint import Endpoint
from whosaid.errors import StartError
from whosaid.transcribe.__main__ import main
from whosaid.transcribe.client import Failed, Unusable
from whosaid.transcribe.local import LocalEndpoint


@pytest.fixture
def loaded(monkeypatch, tiny_endpoint) -> list[ModelSettings]:
    """The settings of every endpoint that is made; each is the tiny one."""
    made: list[ModelSettings] = []

    def load(settings: ModelSettings) -> Endpoint:
        made.append(settings)
        return tiny_endpoint

    monkeypatch.setattr("handler.load_endpoint", load)
    return made


def test_no_model_is_chosen_or_loaded_before_a_file_is_known_to_be_audio(tmp_path, loaded, capsys):
    """Nor downloaded: no model is named, and the Hub is unreachable."""
    notes, silent = tmp_path / "notes.mp3", tmp_path / "empty.wav"
    notes.write_text("no audio")
    silent.write_bytes(b"")
    assert main(["demo", str(notes), str(silent)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{notes}: INVALID_AUDIO: ")
    assert second.startswith(f"{silent}: INVALID_AUDIO: ")
    assert loaded == []


def test_models_are_loaded_once_for_all_and_one_broken_file_stops_no_other(
    tmp_path, loaded, capsys
):
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


def test_progress_is_that_of_the_endpoints_events(loaded, wav):
    told: list[tuple[float, float]] = []
    endpoint = LocalEndpoint(ModelSettings.for_demo, {})
    file = wav(speech(5.0))
    endpoint.prepare(file)
    with endpoint.transcribed(file, {"language": "en"}, lambda *at: told.append(at)) as answer:
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
def test_a_parameter_that_is_refused_for_all_ends_the_run(loaded, parameters, ends):
    endpoint = LocalEndpoint(ModelSettings.for_demo, {})
    with (
        pytest.raises(Failed, match="INVALID_PARAMETER") as failed,
        endpoint.transcribed(two_seconds(), parameters, lambda *_: None),
    ):
        pass
    assert isinstance(failed.value, Unusable) == ends


@pytest.mark.parametrize("end", [StartError("ASR_MODEL: gated"), SystemExit("START_FAILED: x")])
def test_models_that_cannot_be_had_end_it_in_one_line(monkeypatch, end):
    def refuse() -> ModelSettings:
        raise end

    with pytest.raises(Unusable, match=r"^(ASR_MODEL: gated|x)$"):
        LocalEndpoint(refuse, {}).prepare(two_seconds())


def test_a_model_that_does_not_load_is_called_as_it_was_named(tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(two_seconds())
    (tmp_path / "model").mkdir()
    assert main(["demo", str(tmp_path / "a.wav"), "--model", str(tmp_path / "model")]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--model={tmp_path / 'model'}: ")
