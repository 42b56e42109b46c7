"""The demo as a person runs it: what it prints, where, and with which exit status.

`scripts/demo` runs as a process of its own where messages of libraries could show. A stand-in for
the hub answers on loopback.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pysubs2
import pytest
from rich.console import Console
from rich.progress import Progress

from config import DEMO_MODELS, REPOSITORY
from demo.__main__ import (
    CONVERSATION,
    ProgressLog,
    clock,
    main,
    model_reference,
    show,
    summary,
)
from demo.build.speech import vocabulary
from model_sources.choice import VOCABULARY_SIZE

RESPONSE = {
    "speakers": [
        {"speaker": "SPEAKER_01", "text": " good morning", "timestamp": [0.0, 1.5]},
        {"speaker": "SPEAKER_00", "text": " [red]yes[/red]", "timestamp": [62.04, 63.0]},
        {"speaker": None, "text": " sorry", "timestamp": [70.0, 71.0]},
    ],
    "chunks": [{"text": " good morning", "timestamp": [0.0, 1.5]}],
    "text": " good morning [red]yes[/red] sorry",
    "language": "en",
    "duration": 72.0,
    "warnings": ["2 names ignored"],
}


def shown(response: dict, terminal: bool = False) -> str:
    screen = io.StringIO()
    show(
        response,
        4.0,
        Console(
            file=screen, force_terminal=terminal, color_system="standard" if terminal else None
        ),
    )
    return screen.getvalue()


def test_one_line_a_turn_with_time_speaker_and_words():
    lines = shown(RESPONSE).splitlines()
    assert lines[:3] == [
        " 0:00.0  SPEAKER_01  good morning",
        " 1:02.0  SPEAKER_00  [red]yes[/red]",
        " 1:10.0              sorry",
    ]
    assert lines[3] == "warning: 2 names ignored"
    assert "1:12.0 of audio" in lines[4]
    assert "18.0 times faster" in lines[4]


def test_each_speaker_has_a_colour_of_its_own_on_a_terminal():
    lines = shown(RESPONSE, terminal=True).splitlines()
    colours = [line.split("SPEAKER")[0].rsplit("\x1b[", 1)[1] for line in lines[:2]]
    assert colours[0] != colours[1]


def test_chunks_are_shown_where_nobody_was_told_apart():
    assert shown({**RESPONSE, "speakers": []}).splitlines()[0].split() == [
        "0:00.0",
        "good",
        "morning",
    ]


def test_one_line_a_word_with_its_times_probability_and_speaker():
    words = [
        {
            "word": " yes",
            "timestamp": [0.5, 0.75],
            "probability": 0.987,
            "speaker": "SPEAKER_01",
            "overlap": False,
        },
        {
            "word": " no",
            "timestamp": [100.0, 100.2],
            "probability": 0.5,
            "speaker": None,
            "overlap": True,
        },
    ]
    lines = shown({**RESPONSE, "words": words}).splitlines()
    assert lines[0] == "    0.50     0.75  0.99  SPEAKER_01  yes"
    assert lines[1] == "  100.00   100.20  0.50              no  (over another voice)"
    assert lines[2] == "warning: 2 names ignored"


def test_silence_is_said_to_hold_no_speech():
    assert "(no speech)" in shown({**RESPONSE, "speakers": [], "chunks": [], "text": ""})


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0:00.0"), (59.96, "1:00.0"), (75.5, "1:15.5"), (3600.0, "60:00.0")]
)
def test_clock(seconds: float, text: str):
    assert clock(seconds) == text


def test_summary_counts_named_speakers_only():
    assert "speakers 2;" in summary(RESPONSE, 1.0)


def test_summary_without_diarization_names_no_speakers():
    assert "speakers" not in summary({**RESPONSE, "speakers": []}, 1.0)


def test_progress_follows_the_endpoints_log():
    progress = Progress(console=Console(file=io.StringIO()))
    log = ProgressLog(progress)
    record = logging.LogRecord("endpoint", logging.INFO, "", 0, "window %d of %d", (3, 12), None)
    record.done, record.total = 3, 12
    log.emit(record)
    (task,) = progress.tasks
    assert (task.description, task.completed, task.total) == ("window 3 of 12", 3, 12)


def run_script(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script from a folder that is not the repository's."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS")}
    return subprocess.run(
        [REPOSITORY / "scripts" / name, *map(str, arguments)],
        env=kept | variables,
        cwd="/",
        capture_output=True,
        text=True,
    )


def test_a_file_that_is_not_there_is_one_line_and_status_1(tmp_path):
    done = run_script("demo", tmp_path / "nothing.wav")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{tmp_path / 'nothing.wav'}: No such file or directory\n"


def test_a_folder_is_one_line_and_status_1(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}: Is a directory\n"


def test_a_wrong_environment_is_one_line_and_status_1(monkeypatch, capsys):
    monkeypatch.setenv("ASSISTANT_MODEL", "owner/assistant")
    assert main([__file__]) == 1
    assert capsys.readouterr().err == "ASR_MODEL: is required\n"


def test_a_model_that_is_no_folder_and_no_hub_id_is_one_line_and_status_1(tmp_path, capsys):
    assert main([__file__, "--model", str(tmp_path / "nothing")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--model: ")


def test_an_assistant_alone_is_a_wrong_command_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--assistant", "owner/assistant"])
    assert stopped.value.code == 2
    assert "--model" in capsys.readouterr().err


def test_a_folder_of_a_model_is_relative_to_where_the_demo_was_started(tmp_path, monkeypatch):
    (tmp_path / "whisper").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_reference("whisper") == str(tmp_path / "whisper")
    assert model_reference("owner/whisper") == "owner/whisper"
    (tmp_path / "demo").mkdir()
    assert model_reference("demo") == "demo"


def test_the_vocabulary_that_is_warned_of_is_the_grammars():
    assert len(vocabulary()) == VOCABULARY_SIZE


@pytest.mark.parametrize(
    ("variable", "value"), [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")]
)
def test_offline_one_line_says_which_model_is_missing(variable, value, tmp_path):
    where = {variable: value, "HF_HOME": str(tmp_path)}
    done = run_script("demo", CONVERSATION, "--model", "owner/whisper", **where)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("--model=owner/whisper: the hub cannot be reached")


def test_of_speech_the_embedded_models_do_not_know_it_is_said_first(tmp_path, capsys):
    own = tmp_path / "own.mp3"
    own.write_text("no audio")
    assert main([str(own), "--model", "demo"]) == 1
    small, failed = capsys.readouterr().err.splitlines()
    assert f"know {VOCABULARY_SIZE} English words" in small
    assert "Without --model demo" in small
    assert failed.startswith(f"{own}: INVALID_AUDIO: ")


def test_models_beside_the_embedded_ones_are_a_wrong_command_line(capsys):
    for arguments in (["--diarization", "a/b"], [__file__, "--model", "demo", "--assistant", "a"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
        assert "go with --model or a recording of your own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "argument", "said"),
    [
        (
            "bench",
            "nope",
            "speed, accuracy, diarization, speakers, real, load, medusa, archive, throughput, "
            "kernels, cpu",
        ),
        ("check", "nope", "no arguments"),
        ("setup", "nope", "--toolkit or nothing"),
    ],
)
def test_a_script_refuses_what_it_does_not_know_in_one_line(script, argument, said):
    done = run_script(script, argument)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"scripts/{script}")
    assert said in line


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(files: dict[str, bytes], asked: list[str]) -> Iterator[str]:
    """The hub's answers about one model, owner/whisper; `asked` collects the files downloaded."""

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path, headers, body = self.path.split("?")[0], {}, None
            digest = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            if path == f"/api/models/owner/whisper/tree/{COMMIT}":
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": digest[name]}
                    for name, data in files.items()
                ]
                body = json.dumps(entries).encode()
            elif path.startswith("/api/models/owner/whisper"):
                body = json.dumps({"id": "owner/whisper", "sha": COMMIT}).encode()
            elif (name := path.removeprefix(f"/owner/whisper/resolve/{COMMIT}/")) in files:
                body = files[name]
                headers = {"ETag": f'"{digest[name]}"', "X-Repo-Commit": COMMIT}
                if self.command == "GET":
                    asked.append(name)
            self.send_response(404 if body is None else 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def published() -> dict[str, bytes]:
    """The embedded model as a repository of the hub: other formats too, and clean-up asked for."""
    names = [path for path in (DEMO_MODELS / "asr").iterdir() if path.suffix != ".md"]
    files = {path.name: path.read_bytes() for path in names}
    settings = json.loads(files["tokenizer_config.json"])
    settings["clean_up_tokenization_spaces"] = True
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files | {"pytorch_model.bin": b"other", "flax_model.msgpack": b"other"}


@pytest.mark.slow
def test_a_model_of_the_hub_is_downloaded_and_run_without_a_message(published, tmp_path):
    asked: list[str] = []
    with hub(published, asked) as url:
        where = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path)}
        done = run_script("demo", CONVERSATION, "--json", "--model", "owner/whisper", **where)
    assert (done.returncode, done.stderr) == (0, "")
    read = (".json", ".safetensors", "merges.txt")
    assert set(asked) == {name for name in published if name.endswith(read)}
    response = json.loads(done.stdout)
    assert response["text"].startswith(" good morning how can i help you")
    assert response["speakers"] == []


@pytest.mark.slow
def test_a_download_shows_its_progress_on_a_terminal(published, tmp_path):
    code = (
        "from config import ModelSettings\n"
        "from model_sources.download import with_local_models\n"
        "settings = ModelSettings.for_models('owner/whisper')\n"
        "print(with_local_models(settings, {'asr_model': '--model'}).asr_model.name)\n"
    )
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with hub(published, []) as url:
        where = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | where,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
        )
    shown = os.read(screen, 1 << 16).decode()
    os.close(screen)
    os.close(terminal)
    assert Path(done.stdout.strip()).parts[-2:] == ("snapshots", COMMIT)
    assert "100%" in shown
    assert "Fetching" in shown


@pytest.mark.slow
def test_srt_is_subtitles_of_the_whole_conversation(capsys):
    assert main(["--srt"]) == 0
    events = pysubs2.SSAFile.from_string(capsys.readouterr().out, format_="srt").events
    assert len(events) > 30
    assert 115_000 < events[-1].end < 121_000
    assert all(event.text.startswith("SPEAKER_0") for event in events)


@pytest.mark.slow
def test_json_is_the_endpoints_answer_and_nothing_else_is_printed():
    done = run_script("demo", "--json", HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stderr) == (0, "")
    response = json.loads(done.stdout)
    assert response["language"] == "en"
    assert len({entry["speaker"] for entry in response["speakers"]}) == 3
    assert "".join(chunk["text"] for chunk in response["chunks"]) == response["text"]
