"""The command line without Ray: errors before a cluster starts, runs that need no cluster, and the
driver after a run that ends well or badly."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from config import REPOSITORY, ModelSettings
from extras.archive import run
from extras.archive.__main__ import main
from extras.archive.cluster import ClusterError, LoadError
from extras.archive.options import read as parse_arguments
from extras.archive.records import Record
from extras.archive.run import Archive, prepare
from extras.archive.tests.stand_ins import stand_in, write_recordings
from extras.archive.worker import Task, Worker
from tests.helpers.programs import run_python
from whosaid.errors import StartError
from whosaid.models.choice import named


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two recordings in `in`, for a model that is never loaded."""
    monkeypatch.setenv("ASR_MODEL", "openai/whisper-tiny")
    monkeypatch.setattr(
        run, "choose", lambda options, *_, **__: ModelSettings.for_models(**named(options))
    )
    monkeypatch.setattr(run, "load_handler", stand_in)
    write_recordings(tmp_path / "in", {"a.wav": "say a", "b.wav": "say b"})
    return tmp_path


class InProcess:
    """Replaces the cluster by one worker in this process, which ends with its `fault`, if any."""

    fault = None
    recordings = 0  # that were transcribed
    pool = "1 worker"

    def __init__(self, task: Task, *_: object) -> None:
        self.task = task

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, recordings) -> Iterator[Record]:
        if self.fault is not None:
            raise self.fault
        made = Worker(self.task)
        made.load()
        for recording in recordings:
            type(self).recordings += 1
            yield made.run(recording)


@pytest.fixture
def cluster(monkeypatch) -> type[InProcess]:
    class Fresh(InProcess):
        pass

    monkeypatch.setattr(run, "Cluster", Fresh)
    return Fresh


def arguments(folder: Path, *more: str, source: str = "in") -> list[str]:
    return [str(folder / source), "--out", str(folder / "out"), *more]


def prepared(folder: Path, *more: str, source: str = "in") -> Archive:
    return prepare(parse_arguments(arguments(folder, *more, source=source)))


def call(folder: Path, *more: str) -> int:
    return main(arguments(folder, *more))


def write_list(folder: Path, *lines: dict) -> None:
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))


def names(folder: Path, kind: str) -> list[str]:
    top = folder / "out" / kind
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


# ---- before a cluster starts


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
        (["--out", "hf://datasets/owner/name"], "hf:// is read-only here"),
    ],
)
def test_a_wrong_command_line_is_one_line(folder, capsys, more, reason):
    before = signal.getsignal(signal.SIGTERM)
    assert call(folder, *more) == 2
    assert signal.getsignal(signal.SIGTERM) is before
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m extras.archive: ")
    assert reason in line


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("none", "none: there is no such file or folder"),
        ("empty", "empty: has no recordings"),
        ("list.jsonl", "list.jsonl: has no recordings"),
    ],
)
def test_a_source_without_recordings_is_refused(folder, capsys, source, reason):
    """An unmounted folder looks like this."""
    (folder / "empty").mkdir()
    (folder / "list.jsonl").write_text("\n")
    assert main(arguments(folder, source=source)) == 2
    assert capsys.readouterr().err.endswith(f"{reason}\n")


@pytest.mark.parametrize("seconds", ["0", "nan", "604801"])
def test_no_recording_may_take_longer_than_a_week(folder, capsys, seconds):
    with pytest.raises(SystemExit):
        prepared(folder, "--deadline", seconds)
    assert "--deadline: should be more than 0 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        ([], 2, "scripts/setup --archive, then .venv/bin/python -m"),
        (["--modle", "x"], 2, "did you mean --model?"),
        (["--help"], 0, ""),
    ],
)
def test_python_without_the_packages_says_how_to_start(folder, more, status, told):
    """The command line can be read with only the standard library."""
    script = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from extras.archive.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = run_python("-I", "-S", "-c", script, *arguments(folder, *more))
    assert (done.returncode, done.stderr.count("\n")) == (status, int(status > 0))
    assert told in done.stderr


def test_a_recording_may_ask_for_speakers_alone(folder, monkeypatch):
    monkeypatch.delenv("ASR_MODEL")
    write_list(folder, {"path": "in/a.wav", "parameters": {"diarize": True}})
    for source, more, model in (
        ("in", (), "models/diarization"),
        ("in", ("--no-speakers",), None),
        ("list.jsonl", ("--no-speakers",), "models/diarization"),
    ):
        assert prepared(folder, *more, source=source).task.models["diarization_model"] == model


def test_models_are_looked_for_before_the_cluster_starts(folder, cluster, capsys, monkeypatch):
    def none(*_: object, **__: object) -> ModelSettings:
        raise StartError("--model=a/whisper: the hub cannot be reached")

    monkeypatch.setattr(run, "choose", none)
    cluster.fault = AssertionError("it was started")
    assert call(folder, "--model", "a/whisper", "--no-speakers") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "python -m extras.archive: --model=a/whisper: the hub cannot be reached"


def test_a_manifest_reads_its_own_and_allowed_folders(folder, capsys):
    (folder / "lists").mkdir()
    write_list(folder / "lists", {"path": "../in/a.wav"})
    assert main(arguments(folder, source="lists/list.jsonl")) == 2
    assert (
        "list.jsonl, line 1: its path is not under a folder of --allow" in capsys.readouterr().err
    )
    allowed = prepared(folder, "--allow", str(folder / "in"), source="lists/list.jsonl")
    assert len(allowed.recordings) == 1


@pytest.mark.parametrize(("language", "count"), [("en", 1), ("de", 2)])
def test_equal_lines_are_one_recording(folder, language, count):
    write_list(folder, {"path": "in/a.wav"}, {"path": "in/a.wav", "language": "en"})
    archive = prepared(folder, "--language", language, source="list.jsonl")
    assert len(archive.recordings) == count


def test_names_that_are_not_utf8_are_left_out_and_named(folder, capsys):
    for name in ("café.wav", "cafés.txt"):
        path = os.fsencode(folder / "in") + b"/" + name.encode("latin-1")
        Path(os.fsdecode(path)).write_text("say c")
    assert {Path(each.path).name for each in prepared(folder).recordings} == {"a.wav", "b.wav"}
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("left out 1 recording whose names are not UTF-8: ")
    assert told[0].endswith(r"/in/caf\udce9.wav")


# ---- after it


def test_a_finished_run_needs_neither_cluster_nor_torch_nor_ray(folder, cluster, capsys):
    write_recordings(folder / "in", {"b.wav": "refuse"})
    assert call(folder) == 1
    script = (
        "import sys; from extras.archive.__main__ import main; status = main(sys.argv[1:])\n"
        "assert not {'torch', 'ray', 'handler'} & sys.modules.keys(); sys.exit(status)"
    )
    done = run_python("-c", script, *arguments(folder, "--address", "127.0.0.1:1"))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(
        "2 recordings done before; nothing is left.\n1 of 2 recordings failed:\n"
    )
    assert "/in/b.wav: no audio stream found" in done.stdout


def test_results_are_called_as_their_recordings(folder, cluster):
    write_recordings(folder / "in" / "talks", {"monday.wav": "say m", "monday.mp3": "say n"})
    assert call(folder, "--formats", "srt") == 0
    stems = ["a", "b", "talks/monday.mp3", "talks/monday.wav"]
    files = [f"{stem}.{ending}" for stem in stems for ending in ("json", "srt")]
    assert names(folder, "results") == files
    top = folder / "out" / "results"
    for entry in folder.glob("out/index/*.json"):
        record = json.loads(entry.read_text())
        result = json.loads((top / f"{record['result']}.json").read_text())
        assert (result["recording"], record["id"]) == (record, entry.stem)
    # One that comes later, and would share the name of one that is done, takes no file of it.
    before = {path: path.read_bytes() for path in top.rglob("*.*")}
    write_recordings(folder / "in", {"a.mp3": "say another"})
    assert call(folder, "--formats", "srt") == 0
    assert {path: path.read_bytes() for path in before} == before
    assert (top / "a.mp3.srt").read_text() == "srt of another\n"


def test_one_recording_may_be_the_source(folder, cluster):
    assert main(arguments(folder, source="in/a.wav")) == 0
    assert names(folder, "results") == ["a.json"]


def transcribed(cluster: type[InProcess], folder: Path, *more: str) -> int:
    """Return the number of recordings that a run transcribes."""
    before = cluster.recordings
    assert call(folder, *more) == 0
    return cluster.recordings - before


def test_formats_and_layouts_are_made_from_kept_answers(folder, cluster, capfd):
    assert transcribed(cluster, folder) == 2
    assert transcribed(cluster, folder, "--formats", "srt") == 0
    stderr = capfd.readouterr().err
    assert stderr.splitlines()[-1] == "2 recordings made from existing answers"
    subtitles = folder / "out" / "results" / "a.srt"
    assert subtitles.read_text() == "1\n00:00:00,000 --> 00:00:01,000\na\n"
    for _ in range(2):
        assert transcribed(cluster, folder, "--formats", "srt,txt", "--highlight-words") == 0
        assert subtitles.read_text() == "1\n00:00:00,000 --> 00:00:01,000\n<u>a</u>\n"
    assert names(folder, "results") == [f"{n}.{f}" for n in "ab" for f in ("json", "srt", "txt")]
    assert transcribed(cluster, folder, "--formats", "vtt", "--batch-size", "4", "--words") == 0
    assert len(names(folder, "index")) == 2
    assert transcribed(cluster, folder, "--language", "de") == 2
    why = "because the answer was made with other parameters (language)"
    assert f"2 recordings transcribed again, {why}" in capfd.readouterr().err.splitlines()
    assert transcribed(cluster, folder, "--language", "de") == 0
    assert len(names(folder, "index")) == 2


def test_failures_set_the_status_and_are_retried_on_request(folder, cluster, capfd):
    write_recordings(folder / "in", {"x.wav": "refuse"})
    assert call(folder) == 1
    assert "2 recordings done and 1 failed" in capfd.readouterr().out
    assert call(folder, "--ignore-errors") == 0
    assert cluster.recordings == 3
    assert call(folder, "--retry-errors") == 1
    assert cluster.recordings == 4


@pytest.mark.parametrize(
    ("more", "named"), [((), "ASR_MODEL"), (("--model", "a/whisper", "--no-speakers"), "--model")]
)
def test_failed_models_are_one_line_and_status_2(folder, cluster, capsys, more, named):
    cluster.fault = LoadError("START_FAILED: ASR_MODEL: there is no such model")
    assert call(folder, *more) == 2
    stdout, stderr = capsys.readouterr()
    assert (stdout, "no record" in stderr) == ("", False)
    line = stderr.splitlines()[-1]
    assert line == f"python -m extras.archive: {named}: there is no such model"


@pytest.mark.parametrize(
    ("fault", "status", "told"),
    [
        (ClusterError("node lost"), 1, "2 recordings without a record; run again"),
        (OSError(28, "full"), 1, "2 recordings without a record; run again"),
        (KeyboardInterrupt(), 130, "stopped; run again to continue"),
    ],
)
def test_a_run_that_ends_early_goes_on(folder, cluster, capsys, fault, status, told):
    cluster.fault = fault
    assert call(folder) == status
    assert capsys.readouterr().err.splitlines()[-1] == told
    cluster.fault = None
    assert call(folder) == 0
    assert len(names(folder, "results")) == 2


def test_files_that_the_user_has_edited_stay(folder, cluster, capfd):
    """A result whose texts would change is written beside the edited file, under another name."""
    results = folder / "out" / "results"
    assert transcribed(cluster, folder, "--formats", "srt,txt") == 2
    write = (results / "a.srt").write_text
    write("my subtitles")
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    assert transcribed(cluster, folder, "--formats", "srt,txt,vtt") == 0
    found = {path.name: path.read_bytes() for path in results.iterdir()}
    assert found.items() >= {**before, "a.json": found["a.json"], "b.json": found["b.json"]}.items()
    assert sorted(found) == [f"{n}.{f}" for n in "ab" for f in ("json", "srt", "txt", "vtt")]
    assert "a: " not in capfd.readouterr().err
    for more, again in ((["--highlight-words"], 0), (["--language", "de"], 2)):
        assert transcribed(cluster, folder, "--formats", "srt", *more) == again
        assert (results / "a.srt").read_text() == "my subtitles"
        assert len([*results.glob("a-*.srt")]) == 1 + bool(again)
        assert len([*results.glob("b*.srt")]) == 1
        assert "1 recording, a-" in capfd.readouterr().err
