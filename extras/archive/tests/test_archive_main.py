"""The command line without Ray: what is refused before a cluster starts, what needs none, and what
the driver does after one that ends well or badly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from config import REPOSITORY, ModelSettings
from extras.archive import run, storage
from extras.archive.__main__ import main
from extras.archive.cluster import ClusterError, LoadError
from extras.archive.options import read as parse_arguments
from extras.archive.records import Record
from extras.archive.results import Results
from extras.archive.run import prepare
from extras.archive.tests.stand_ins import stand_in, write_recordings
from extras.archive.worker import Worker
from whosaid.errors import StartError
from whosaid.models.choice import named


def chosen(options) -> ModelSettings:
    """In place of the models that are downloaded."""
    return ModelSettings.for_models(**named(options))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two recordings in `in`, for a model that is never loaded."""
    monkeypatch.setenv("ASR_MODEL", "openai/whisper-tiny")
    monkeypatch.setattr(run, "choose", lambda options, *_, **__: chosen(options))
    write_recordings(tmp_path / "in", {"a.wav": "say a", "b.wav": "say b"})
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    return [str(folder / "in"), "--out", str(folder / "out"), *more]


def ids(folder: Path, *more: str) -> dict[str, str]:
    """The ids of a run by file name."""
    archive = prepare(parse_arguments(arguments(folder, *more)), stand_in)
    return {Path(each.path).name: each.id for each in archive.recordings}


def finish(folder: Path, *more: str, failed: tuple[str, ...] = ()) -> None:
    """Write the results of a run by hand."""
    results = Results(str(folder / "out"), "run")
    for name, id in ids(folder, *more).items():
        if name in failed:
            results.write_error(Record(id, f"/in/{name}", "INVALID_AUDIO", "empty"))
        else:
            results.write(Record(id, f"/in/{name}"), {"text": ""}, Path(name).stem)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--parameters", '{"batch_size": 0}'], "--parameters: batch_size: should be greater"),
        (
            ["--parameters", '{"langage": "en"}'],
            "--parameters: 'langage' is not a parameter; did you mean language?",
        ),
        (["--num-speakers", "2", "--min-speakers", "3"], "--num-speakers: contradicts"),
        (["--out", "s3://key:secret@bucket/out"], "credentials"),
        (["--out", "hf://datasets/owner/name"], "hf:// is only read"),
    ],
)
def test_what_is_wrong_is_one_line(folder, capsys, more, reason):
    before = signal.getsignal(signal.SIGTERM)
    assert main(arguments(folder, *more)) == 2
    assert signal.getsignal(signal.SIGTERM) is before
    _, stderr = capsys.readouterr()
    assert reason in stderr
    assert stderr.startswith("python -m extras.archive: ")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("none", "none: there is no such file or folder"),
        ("empty", "empty: there is no recording in it"),
        ("list.jsonl", "list.jsonl: there is no recording in it"),
    ],
)
def test_a_source_without_recordings_is_refused(folder, capsys, source, reason):
    """As a folder looks that is not mounted."""
    (folder / "empty").mkdir()
    (folder / "list.jsonl").write_text("\n")
    assert main([str(folder / source), "--out", str(folder / "out")]) == 2
    assert capsys.readouterr().err.endswith(f"{reason}\n")


def test_no_recording_may_take_longer_than_a_week(folder, capsys):
    for seconds in ("0", "nan", "604801"):
        with pytest.raises(SystemExit):
            parse_arguments(arguments(folder, "--deadline", seconds))
        assert "--deadline: should be more than 0 seconds" in capsys.readouterr().err


def test_a_python_without_the_packages_says_how_to_start_it(folder):
    """One that has nothing but its standard library reads the command line all the same."""
    command = [sys.executable, "-I", "-S", "-c"]
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from extras.archive.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for more, status, told in (
        (arguments(folder), 2, "scripts/setup --archive, then start it by .venv/bin/python -m"),
        (arguments(folder, "--modle", "x"), 2, "did you mean --model?"),
        (["--help"], 0, ""),
    ):
        done = subprocess.run(
            [*command, script, *more], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr.count("\n")) == (status, int(status > 0))
        assert told in done.stderr


def models_of(folder: Path, *more: str) -> dict:
    return prepare(parse_arguments(arguments(folder, *more)), stand_in).task.models


def test_a_recording_may_ask_for_speakers_that_the_run_does_not(folder, monkeypatch):
    monkeypatch.delenv("ASR_MODEL")
    assert models_of(folder)["diarization_model"] == "models/diarization"
    assert models_of(folder, "--no-speakers")["diarization_model"] is None
    (folder / "in" / "list.jsonl").write_text('{"path": "a.wav", "parameters": {"diarize": true}}')
    command = [str(folder / "in" / "list.jsonl"), "--out", str(folder / "out"), "--no-speakers"]
    models = prepare(parse_arguments(command), stand_in).task.models
    assert models["diarization_model"] == "models/diarization"


def test_models_are_looked_for_before_the_cluster_starts(folder, cluster, capsys, monkeypatch):
    def none(*_: object, **__: object) -> ModelSettings:
        raise StartError("--model=a/whisper: the hub cannot be reached")

    monkeypatch.setattr(run, "choose", none)
    cluster.fault = AssertionError("it was started")
    assert main(arguments(folder, "--model", "a/whisper", "--no-speakers"), stand_in) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "python -m extras.archive: --model=a/whisper: the hub cannot be reached"


def test_a_manifest_reads_where_it_lies_and_where_it_is_allowed(folder, capsys):
    (folder / "lists").mkdir()
    path = folder / "lists" / "list.jsonl"
    path.write_text(json.dumps({"path": "../in/a.wav"}))
    command = [str(path), "--out", str(folder / "out")]
    assert main(command) == 2
    assert "list.jsonl, line 1: its path lies where --allow" in capsys.readouterr().err
    allowed = parse_arguments([*command, "--allow", str(folder / "in")])
    assert len(prepare(allowed, stand_in).recordings) == 1


def test_lines_that_ask_for_the_same_are_one_recording(folder):
    path = folder / "list.jsonl"
    lines = [{"path": "in/a.wav"}, {"path": "in/a.wav", "parameters": {"language": "en"}}]
    path.write_text("\n".join(map(json.dumps, lines)))
    for parameters, count in (('{"language": "en"}', 1), ('{"language": "de"}', 2)):
        command = [str(path), "--out", str(folder / "out"), "--parameters", parameters]
        assert len(prepare(parse_arguments(command), stand_in).recordings) == count


def test_names_that_are_not_utf8_are_told_and_left_out(folder, capsys):
    for name in ("café.wav", "cafés.txt"):
        path = os.fsencode(folder / "in") + b"/" + name.encode("latin-1")
        Path(os.fsdecode(path)).write_text("say c")
    assert ids(folder).keys() == {"a.wav", "b.wav"}
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("left out 1 recording whose names are not UTF-8: ")
    assert told[0].endswith(r"/in/caf\udce9.wav")


def test_what_is_done_needs_no_cluster(folder, capsys):
    finish(folder, failed=("b.wav",))
    nowhere = ("--address", "127.0.0.1:1")
    assert main(arguments(folder, *nowhere)) == 1
    assert main(arguments(folder, *nowhere, "--ignore-errors")) == 0
    stdout, _ = capsys.readouterr()
    assert stdout.startswith(
        "2 recordings were done before, and nothing is left.\n1 of 2 recordings failed:\n"
    )
    assert "/in/b.wav: empty" in stdout


def test_neither_torch_nor_ray_is_loaded_before_there_is_work(folder):
    finish(folder)
    script = (
        "import sys; from extras.archive.__main__ import main\n"
        "status = main(sys.argv[1:])\n"
        "assert not {'torch', 'ray', 'handler'} & sys.modules.keys()\n"
        "sys.exit(status)\n"
    )
    command = [sys.executable, "-c", script, *arguments(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class InProcess:
    """In place of the cluster: one worker, here. `after` records it ends by `fault`, if there is
    one, with the next recording begun.
    """

    after, fault = 0, None
    recordings = 0  # that were transcribed

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def pool(self) -> str:
        return "1 worker"

    def run(self, task, blocks) -> Iterator[Record]:
        made = Worker(task, "worker")
        for number, recording in enumerate(each for block in blocks for each in block):
            if self.fault is not None and number == self.after:
                made.results.begin(recording.id)
                raise self.fault
            type(self).recordings += 1
            try:
                yield made.run(recording)
            except (OSError, RuntimeError) as error:
                raise ClusterError(f"the run has ended: {error}") from error


@pytest.fixture
def cluster(monkeypatch) -> type[InProcess]:
    class Fresh(InProcess):
        pass

    monkeypatch.setattr(run, "Cluster", Fresh)
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    return Fresh


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"out/{kind}/**/*") if path.is_file())


def test_results_are_called_as_their_recordings(folder, cluster):
    write_recordings(folder / "in" / "talks", {"monday.wav": "say m", "tuesday.mp3": "say t"})
    write_recordings(folder / "in" / "talks", {"monday.mp3": "say n"})
    assert main(arguments(folder, "--formats", "srt"), stand_in) == 0
    top = folder / "out" / "results"
    stems = ["a", "b", "talks/monday.mp3", "talks/monday.wav", "talks/tuesday"]
    files = sorted(str(path.relative_to(top)) for path in top.rglob("*.*"))
    assert files == [f"{stem}.{ending}" for stem in stems for ending in ("json", "srt")]
    for entry in folder.glob("out/index/*.json"):
        record = json.loads(entry.read_text())
        result = json.loads((top / f"{record['result']}.json").read_text())
        assert (result["recording"], record["id"]) == (record, entry.stem)
    # One that comes later, and would share the name of one that is done, takes no file of it.
    before = {path: path.read_bytes() for path in top.rglob("*.*")}
    write_recordings(folder / "in", {"a.mp3": "say another"})
    assert main(arguments(folder, "--formats", "srt"), stand_in) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert (top / "a.mp3.srt").read_text() == "srt of another\n"


def heard(cluster: type[InProcess], folder: Path, *more: str) -> int:
    """How many recordings a run transcribes."""
    before = cluster.recordings
    assert main(arguments(folder, *more), stand_in) == 0
    return cluster.recordings - before


def test_formats_and_layouts_come_from_answers_that_are_there(folder, cluster, capfd):
    assert heard(cluster, folder) == 2
    assert heard(cluster, folder, "--formats", "srt") == 0
    stderr = capfd.readouterr().err
    assert stderr.splitlines()[-1] == "2 recordings done from the answers that are there"
    subtitles = folder / "out" / "results" / "a.srt"
    assert subtitles.read_text() == "1\n00:00:00,000 --> 00:00:01,000\na\n"
    assert heard(cluster, folder, "--formats", "srt,txt", "--highlight-words") == 0
    assert subtitles.read_text() == "1\n00:00:00,000 --> 00:00:01,000\n<u>a</u>\n"
    assert names(folder, "results") == [f"{n}.{f}" for n in "ab" for f in ("json", "srt", "txt")]
    assert heard(cluster, folder, "--formats", "srt,txt", "--highlight-words") == 0
    assert heard(cluster, folder, "--formats", "vtt", "--batch-size", "4", "--words") == 0
    assert len(names(folder, "index")) == 2


def test_what_answers_do_not_give_is_transcribed_again_and_said(folder, cluster, capfd):
    assert heard(cluster, folder) == 2
    assert heard(cluster, folder, "--language", "de") == 2
    why = "the answer there was made with other parameters (language)"
    assert f"2 recordings transcribed again; {why}" in capfd.readouterr().err.splitlines()
    assert heard(cluster, folder, "--language", "de") == 0
    assert len(names(folder, "index")) == 2


def test_one_recording_may_be_the_source(folder, cluster):
    command = [str(folder / "in" / "a.wav"), "--out", str(folder / "out")]
    assert main(command, stand_in) == 0
    assert names(folder, "results") == ["a.json"]


def test_failures_count_in_the_exit_status_and_are_tried_again_if_asked_for(folder, cluster, capfd):
    write_recordings(folder / "in", {"x.wav": "refuse"})
    assert main(arguments(folder), stand_in) == 1
    assert "2 recordings done and 1 failed" in capfd.readouterr().out
    assert main(arguments(folder, "--ignore-errors"), stand_in) == 0
    assert cluster.recordings == 3
    assert main(arguments(folder, "--retry-errors"), stand_in) == 1
    assert cluster.recordings == 4


def test_models_that_do_not_load_are_one_line_and_status_2(folder, cluster, capsys):
    cluster.fault = LoadError("START_FAILED: ASR_MODEL: there is no such model")
    assert main(arguments(folder), stand_in) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    line = stderr.splitlines()[-1]
    assert line == "python -m extras.archive: ASR_MODEL: there is no such model"
    assert main(arguments(folder, "--model", "a/whisper", "--no-speakers"), stand_in) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "python -m extras.archive: --model: there is no such model"
    assert "no record" not in stderr
    assert names(folder, "attempts") == []


@pytest.mark.parametrize(
    ("fault", "status"),
    [(ClusterError("node lost"), 1), (OSError(28, "full"), 1), (KeyboardInterrupt(), 130)],
)
def test_however_often_a_run_ends_what_was_in_flight_is_not_to_blame(
    folder, cluster, fault, status
):
    cluster.fault = fault
    for _ in range(10):
        assert main(arguments(folder), stand_in) == status
        assert names(folder, "attempts") == []
    cluster.fault = None
    assert main(arguments(folder), stand_in) == 0
    assert len(names(folder, "results")) == 2
