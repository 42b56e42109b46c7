"""The worker without Ray: the record of each recording."""

import json
import os
import re
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from config import ModelSettings
from extras.archive import storage, worker
from extras.archive.manifest import Recording, identify, in_folder
from extras.archive.names import name_results
from extras.archive.records import Record
from extras.archive.results import Results
from extras.archive.tests.stand_ins import TEXT, no_model, stand_in, write_recordings
from extras.archive.worker import Task, Worker, load_handler, without_token

SETTINGS = without_token(ModelSettings(asr_model="openai/whisper-tiny", hf_token="hf_secret"))
MODELS = {"asr_model": "openai/whisper-tiny", "diarization_model": None}


def task(folder: Path, parameters=None, make_handler=stand_in) -> Task:
    return Task(str(folder / "out"), SETTINGS, parameters or {}, make_handler, models=MODELS)


def loaded(of: Task) -> Worker:
    made = Worker(of)
    made.load()
    return made


def recordings(folder: Path, commands: dict[str, str]) -> list[Recording]:
    write_recordings(folder / "in", commands)
    found = in_folder(str(folder / "in"), str(folder / "out"))
    identified = [identify(each, MODELS, {}) for each in found]
    return sorted(name_results(identified, [str(folder / "in")]), key=lambda each: each.path)


def run_one(folder: Path, command: str) -> tuple[Record, dict]:
    """Return the record and the written JSON."""
    (recording,) = recordings(folder, {"a.wav": command})
    record = loaded(task(folder)).run(recording)
    (written,) = [*folder.glob("out/results/*.json"), *folder.glob("out/errors/*.json")]
    assert Results(str(folder / "out")).find(recording.id) == record
    return record, json.loads(written.read_text())


def test_a_result(tmp_path):
    spans = [{"start": 1.4, "end": 19.7}]
    record, written = run_one(tmp_path, f"leave_out {json.dumps(spans)}")
    assert (record.code, record.attempt, record.duration) == ("", 1, 1.0)
    assert record.unwritten == written["unwritten"] == spans
    content = f"leave_out {json.dumps(spans)}".encode()
    assert (written["recording"]["name"], written["recording"]["size"]) == ("a.wav", len(content))
    assert written["recording"]["sha256"] == sha256(content).hexdigest()
    assert written["made_with"] == {"models": MODELS, "parameters": {}}


@pytest.mark.parametrize(
    ("command", "code", "detail"),
    [
        ("refuse", "INVALID_AUDIO", "no audio stream found"),
        ("fail", "MODEL_ERROR", "returned nonsense"),
        ("crash", "UNEXPECTED", "KeyError in stand_ins.py, line LINE"),
    ],
)
def test_an_exception_becomes_a_record(tmp_path, command, code, detail):
    record, written = run_one(tmp_path, command)
    assert (written["status"], record.code) == ("error", code)
    assert re.sub(r"line \d+", "line LINE", record.detail) == detail
    assert written == record.to_json()
    assert TEXT not in json.dumps(record.to_json())


def test_missing_changed_large_and_unreadable_files_are_records(tmp_path, monkeypatch):
    names = ["changed.wav", "denied.wav", "gone.wav", "large.wav", "touched.wav"]
    found = recordings(tmp_path, dict.fromkeys(names, "say a"))
    (tmp_path / "in" / "changed.wav").write_text("say other")
    (tmp_path / "in" / "gone.wav").unlink()
    os.utime(tmp_path / "in" / "touched.wav", (1, 1))
    (tmp_path / "in" / "large.wav").write_bytes(bytes(100))
    look = storage.look

    def refuse(address: str) -> storage.Entry | None:
        if address.endswith("denied.wav"):
            raise PermissionError(13, "Permission denied")
        return look(address)

    monkeypatch.setattr(storage, "look", refuse)
    small = replace(task(tmp_path), settings=SETTINGS | {"max_audio_bytes": 99})
    records = [loaded(small).run(each) for each in found]
    codes = [record.code for record in records]
    assert codes == ["CHANGED", "UNREADABLE", "NOT_FOUND", "AUDIO_TOO_LONG", "CHANGED"]
    assert records[1].detail == "Permission denied"


def test_a_finished_recording_is_not_computed_again(tmp_path):
    (found,) = recordings(tmp_path, {"a.wav": "say a"})
    first = loaded(task(tmp_path)).run(found)
    again = loaded(task(tmp_path))
    assert again.run(found) == first
    assert again.handler.configs == []


def test_parameters_of_a_recording_override_those_of_the_run(tmp_path):
    (found,) = recordings(tmp_path, {"a.wav": "say a"})
    made = loaded(task(tmp_path, {"batch_size": 1, "output": ["srt"]}))
    made.run(replace(found, parameters={"batch_size": 2}))
    assert [config.batch_size for config in made.handler.configs] == [2]
    assert (tmp_path / "out" / "results" / "a.srt").read_text() == "srt of a\n"


def test_the_end_of_a_process_fails_no_recording(tmp_path, monkeypatch):
    """If the device is lost or the engine has stopped, another process takes the recording."""
    (found,) = recordings(tmp_path, {"a.wav": "fail"})
    monkeypatch.setattr(worker, "process_ends", lambda: True)
    monkeypatch.setattr(worker.os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match=str(worker.EXIT_STATUS)):
        loaded(task(tmp_path)).run(found)
    assert Results(str(tmp_path / "out")).finished() == set()


def test_a_worker_that_cannot_load_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="START_FAILED: ASR_MODEL: there is no such model"):
        loaded(task(tmp_path, make_handler=no_model))
    with pytest.raises(RuntimeError, match="INVALID_PARAMETER: language: is not one of"):
        loaded(task(tmp_path, {"language": "cy"}))


def test_the_handler_has_the_settings_of_the_run(whisper_folder, monkeypatch):
    settings = ModelSettings(asr_model=str(whisper_folder), max_audio_seconds=5.0)
    monkeypatch.setenv("ASR_MODEL", "owner/another")
    assert load_handler(without_token(settings)).endpoint.limits.max_seconds == 5.0
    assert "hf_secret" not in repr(SETTINGS)


def test_the_deadline_grows_with_size_up_to_a_week(tmp_path):
    sizes = (0, 8000, 2**40)
    patience = [task(tmp_path).deadline_of(Recording("", "", size, 0)) for size in sizes]
    assert patience == [600, 620, 604_800]
