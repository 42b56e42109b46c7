"""The worker without Ray: what each recording ends as, and what is left when its process dies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from config import REPOSITORY, ModelSettings
from extras.archive import storage, worker
from extras.archive.manifest import Recording, identify, in_folder
from extras.archive.names import name_results
from extras.archive.records import Record
from extras.archive.results import Results
from extras.archive.tests import stand_ins
from extras.archive.tests.stand_ins import TEXT, stand_in, write_recordings
from extras.archive.worker import Task, Worker, load_handler, without_token

SETTINGS = without_token(ModelSettings(asr_model="openai/whisper-tiny", hf_token="hf_secret"))
MODELS = {"asr_model": "openai/whisper-tiny", "diarization_model": None}


def task(folder: Path, make_handler=stand_in, **options) -> Task:
    return Task(str(folder / "out"), SETTINGS, {}, "run", make_handler, models=MODELS, **options)


def results_of(folder: Path) -> Results:
    return Results(str(folder / "out"), "run")


def marks(folder: Path) -> list[Path]:
    return [*folder.glob("out/attempts/*/*")]


def recordings(folder: Path, commands: dict[str, str]) -> list[Recording]:
    write_recordings(folder / "in", commands)
    found = in_folder(str(folder / "in"), str(folder / "out"))
    identified = [identify(each, MODELS, {}) for each in found]
    return sorted(name_results(identified, [str(folder / "in")]), key=lambda each: each.path)


def run_one(folder: Path, command: str, **options) -> tuple[Record, dict]:
    """The record, and what was written."""
    (recording,) = recordings(folder, {"a.wav": command})
    record = Worker(task(folder, **options), "worker").run(recording)
    (written,) = [*folder.glob("out/results/*.json"), *folder.glob("out/errors/*.json")]
    assert marks(folder) == []
    assert results_of(folder).find(recording.id) == record
    return record, json.loads(written.read_text())


def test_a_result(tmp_path):
    spans = [{"start": 1.4, "end": 19.7}]
    record, written = run_one(tmp_path, f"leave_out {json.dumps(spans)}")
    assert (record.status, record.attempt, record.duration) == ("done", 1, 1.0)
    assert [*record.unwritten] == written["unwritten"] == spans
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
def test_what_is_raised_becomes_a_record(tmp_path, command, code, detail):
    record, written = run_one(tmp_path, command)
    assert (record.status, record.code) == ("error", code)
    assert re.sub(r"line \d+", "line LINE", record.detail) == detail
    assert written == record.to_json()
    assert TEXT not in json.dumps(record.to_json())


def test_files_that_are_gone_changed_or_too_large(tmp_path):
    commands = {
        "changed.wav": "say a",
        "gone.wav": "say b",
        "large.wav": "say c",
        "touched.wav": "say d",
    }
    found = recordings(tmp_path, commands)
    (tmp_path / "in" / "changed.wav").write_text("say other")
    (tmp_path / "in" / "gone.wav").unlink()
    os.utime(tmp_path / "in" / "touched.wav", (1, 1))
    (tmp_path / "in" / "large.wav").write_bytes(bytes(100))
    small = replace(task(tmp_path), settings=SETTINGS | {"max_audio_bytes": 99})
    codes = [Worker(small, "worker").run(each).code for each in found]
    assert codes == ["CHANGED", "NOT_FOUND", "AUDIO_TOO_LONG", "CHANGED"]


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    (found,) = recordings(tmp_path, {"a.wav": "say a"})
    look = storage.look

    def refuse(address: str) -> storage.Entry | None:
        if address == found.path:
            raise PermissionError(13, "Permission denied")
        return look(address)

    monkeypatch.setattr(storage, "look", refuse)
    record = Worker(task(tmp_path), "worker").run(found)
    assert (record.code, record.detail) == ("UNREADABLE", "Permission denied")


def test_what_is_done_is_not_computed_again(tmp_path):
    (found,) = recordings(tmp_path, {"a.wav": "say a"})
    first = Worker(task(tmp_path), "worker").run(found)
    again = Worker(task(tmp_path), "worker")
    assert again.run(found) == first
    assert again.handler.batch_sizes == []


def test_own_parameters_are_laid_over_those_of_the_run(tmp_path):
    (found,) = recordings(tmp_path, {"a.wav": "say a"})
    own = replace(found, parameters={"batch_size": 2})
    made = Worker(
        replace(task(tmp_path), parameters={"batch_size": 1, "output": ["srt"]}), "worker"
    )
    made.run(own)
    assert made.handler.batch_sizes == [2]
    assert (tmp_path / "out" / "results" / "a.srt").read_text() == "srt of a\n"


def run_in_process(folder: Path, deadline: float) -> int:
    """Run the recordings of the folder in a worker of its own process; its exit status."""
    script = (
        "import sys; from pathlib import Path\n"
        "from extras.archive.tests.test_archive_worker import *\n"
        "folder = Path(sys.argv[1])\n"
        "made = Worker(task(folder, deadline=float(sys.argv[2])), 'worker')\n"
        "for each in recordings(folder, {}): made.run(each)\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(deadline)]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


def test_a_recording_that_kills_its_process_is_named(tmp_path):
    found = recordings(tmp_path, {"a.wav": "kill"})
    results = results_of(tmp_path)
    assert run_in_process(tmp_path, 60) == -9
    for _ in range(2):
        assert results.begin(found[0].id)  # two more that died
    record = Worker(task(tmp_path), "worker").run(found[0])
    assert (record.code, record.attempt) == ("WORKER_DIED", 3)
    assert results.errors({found[0].id}) == [record]
    assert marks(tmp_path) == []


def test_a_recording_that_hangs_ends_its_process_and_has_a_record(tmp_path):
    ids = {each.id for each in recordings(tmp_path, {"a.wav": "hang", "b.wav": "say b"})}
    assert run_in_process(tmp_path, 0.3) == worker.EXIT_STATUS
    assert run_in_process(tmp_path, 0.3) == 0
    (late,) = results_of(tmp_path).errors(ids)
    assert (late.code, late.detail, late.attempt) == ("DEADLINE_EXCEEDED", "it took over 0 s", 1)
    assert len(list(tmp_path.glob("out/results/*.json"))) == 1


@pytest.mark.parametrize("command", ["end", "lose_device"])
def test_what_ends_the_process_is_no_fault_of_the_recordings(tmp_path, command):
    """Neither of the one that it happened to nor of those behind it: another process takes them."""
    found = recordings(tmp_path, {"a.wav": command, "b.wav": "fail"})
    assert run_in_process(tmp_path, 60) == worker.EXIT_STATUS
    results = results_of(tmp_path)
    assert results.finished() == set()
    assert [results.begin(each.id) for each in found] == [2, 1]


def test_a_worker_that_cannot_load_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="START_FAILED: ASR_MODEL: there is no such model"):
        Worker(task(tmp_path, stand_ins.no_model), "worker")
    wrong = replace(task(tmp_path), parameters={"language": "cy"})
    with pytest.raises(RuntimeError, match="INVALID_PARAMETER: language: is not one of"):
        Worker(wrong, "other")


def test_a_worker_that_dies_while_it_loads_is_started_three_times(tmp_path):
    results = results_of(tmp_path)
    for _ in range(3):
        results.begin("loading-worker")
    assert Worker(task(tmp_path), "another")
    with pytest.raises(RuntimeError, match="died 3 times while loading"):
        Worker(task(tmp_path), "worker")


def test_the_handler_has_the_settings_of_the_run(whisper_folder, monkeypatch):
    settings = ModelSettings(asr_model=str(whisper_folder), max_audio_seconds=5.0)
    monkeypatch.setenv("ASR_MODEL", "owner/another")
    assert load_handler(without_token(settings)).endpoint.limits.max_seconds == 5.0
    assert "hf_secret" not in repr(SETTINGS)


def test_an_output_place_that_is_full_ends_the_run(tmp_path, monkeypatch):
    (found,) = recordings(tmp_path, {"a.wav": "say a"})
    made = Worker(task(tmp_path), "worker")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(made.results, "write", full)
    with pytest.raises(OSError, match="No space left"):
        made.run(found)
    assert marks(tmp_path) == []
