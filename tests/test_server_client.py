"""The terminal client against a server that says what the test wants, and against the real app."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from config import REPOSITORY
from server.client import Client, Failed, events
from server.transcribe_files import find_recordings, main

ANSWER = {"text": " good\u2028morning", "speakers": [], "chunks": [], "duration": 61.0}
FILES = {"srt": "1\n", "vtt": "WEBVTT\n", "txt": "good morning\n"}


class FakeServer(ThreadingHTTPServer):
    """Answers each POST with the next of `replies`, a function of the handler; the last stays."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.replies = [answer_plainly]
        self.bodies: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class FakeHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
            replies = self.server.replies
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        reply(self, body)

    def send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def full_answer(body: dict) -> dict:
    """With the outputs that were asked for."""
    return {**ANSWER, "output": {each: FILES[each] for each in body["parameters"]["output"]}}


def answer_plainly(handler: FakeHandler, body: dict) -> None:
    content = json.dumps(full_answer(body)).encode()
    handler.send(200, content, Content_Type="application/json")


def stream(*messages: dict):
    """A reply of events; a comment between them, and line separators left as they are."""

    def reply(handler: FakeHandler, body: dict) -> None:
        sent = [*messages, {"type": "answer", "answer": full_answer(body)}]
        handler.send(200, encode(sent), Content_Type="text/event-stream; charset=utf-8")

    return reply


def encode(messages: list[dict]) -> bytes:
    lines = [json.dumps(each, ensure_ascii=False) for each in messages]
    return "".join(f": ping\n\ndata: {line}\n\n" for line in lines).encode()


def refuse(status: int, body: object = None, **headers: str):
    def reply(handler: FakeHandler, _: dict) -> None:
        handler.send(status, json.dumps(body).encode(), **headers)

    return reply


DECODED = {"type": "decoded", "duration": 61.0}
HALF = {"type": "progress", "done": 30.5, "total": 61.0, "chunks": []}


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("a.ogg", "deep/b.WAV", "deep/notes.pdf", ".hidden/c.wav"):
        path = tmp_path / "talks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        os.utime(path, (1_000_000, 1_000_000))
    return tmp_path / "talks"


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def ask(server: FakeServer, **settings) -> tuple[dict, list[tuple[float, float]], list[float]]:
    """The answer, the progress told, and the waits between attempts."""
    told: list[tuple[float, float]] = []
    waits: list[float] = []
    client = Client(server.url, sleep=waits.append, **settings)
    answer = client.transcribe(
        b"sound", {"output": ["srt"]}, lambda done, total: told.append((done, total))
    )
    return answer, told, waits


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_are_read_however_they_are_cut(size):
    messages = [DECODED, {"type": "answer", "answer": ANSWER}]
    sent = encode(messages)
    parts = [sent[start : start + size] for start in range(0, len(sent), size)]
    assert list(events(parts)) == messages


def test_progress_is_told_where_the_server_streams(fake):
    fake.replies = [stream(DECODED, HALF)]
    answer, told, _ = ask(fake)
    assert answer == {**ANSWER, "output": {"srt": "1\n"}}
    assert told == [(0.0, 61.0), (30.5, 61.0)]
    assert base64.b64decode(fake.bodies[0]["inputs"]) == b"sound"
    assert fake.headers[0]["accept"].startswith("text/event-stream")
    assert "authorization" not in fake.headers[0]


def test_a_server_without_events_answers_too(fake):
    answer, told, _ = ask(fake, api_key="secret")
    assert (answer["text"], told) == (ANSWER["text"], [])
    assert fake.headers[0]["authorization"] == "Bearer secret"


def test_a_busy_server_is_asked_again_when_it_says(fake):
    fake.replies = [
        refuse(429, {"detail": "BUSY: full"}, Retry_After="7"),
        refuse(503, {"detail": "DRAINING: stops"}, Retry_After="9999"),
        refuse(503),
        stream(),
    ]
    answer, _, waits = ask(fake)
    assert answer["text"] == ANSWER["text"]
    assert waits == [7, 120, 8]
    assert len(fake.bodies) == 4


def test_patience_ends(fake):
    fake.replies = [refuse(429, {"detail": "BUSY: full"}, Retry_After="1")]
    with pytest.raises(Failed, match=r"^BUSY: full$"):
        ask(fake)
    assert len(fake.bodies) == 30


def hang_up(handler: FakeHandler, _: dict) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def test_refusals_and_lost_connections_are_counted_apart(fake):
    fake.replies = [refuse(503), refuse(503), hang_up, refuse(429), hang_up, stream()]
    answer, _, waits = ask(fake)
    assert answer["text"] == ANSWER["text"]
    # Each kind doubles its own.
    assert waits == [2, 4, 2, 8, 4]
    fake.replies = [refuse(503), hang_up, refuse(503), hang_up, refuse(503), hang_up, stream()]
    with pytest.raises(Failed, match=fake.url):
        ask(fake)
    assert [reply.__name__ for reply in fake.replies] == ["reply"]


def test_a_server_that_is_not_there_is_named():
    with FakeServer() as closed:
        url = closed.url
    waits: list[float] = []
    with pytest.raises(Failed, match=url):
        Client(url, sleep=waits.append).transcribe(b"", {}, lambda *_: None)
    assert len(waits) == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (refuse(400, {"detail": "INVALID_AUDIO: none"}), "INVALID_AUDIO: none"),
        (refuse(400, {"error": "INVALID_AUDIO: none"}), "INVALID_AUDIO: none"),
        (refuse(413, None, X_Error_Message="BODY_TOO_LARGE: x"), "BODY_TOO_LARGE: x"),
        (refuse(422, {"detail": [{"msg": "x"}]}), "the server answers with status 422"),
        (refuse(502), "the server answers with status 502"),
        (refuse(200, {"status": "ok"}), ".* does not answer as a transcription server"),
        (
            stream({"error": {"message": "MODEL_ERROR:\n x", "code": "MODEL_ERROR"}}),
            "MODEL_ERROR: x",
        ),
        (
            lambda handler, _: handler.send(200, encode([HALF]), Content_Type="text/event-stream"),
            "the server's answer broke off",
        ),
    ],
)
def test_a_failure_is_one_line(fake, reply, reason):
    fake.replies = [reply]
    with pytest.raises(Failed, match=f"^{reason}$"):
        ask(fake)
    assert len(fake.bodies) == 1


def test_a_folder_gets_its_files_and_is_not_sent_twice(fake, folder, capsys):
    fake.replies = [stream(DECODED, HALF)]
    before = tree(folder)
    options = ["--language", "de", "--words", "--num-speakers", "3", "--hotwords", "Ada, Zuse"]
    assert main([str(folder), "--url", fake.url, *options]) == 0
    endings = ("json", "srt", "vtt", "txt")
    written = {f"{stem}.{ending}" for stem in ("a", "deep/b") for ending in endings}
    assert tree(folder) == before | written
    assert json.loads((folder / "a.json").read_text("utf-8")) == ANSWER
    assert (folder / "deep/b.srt").read_text("utf-8") == FILES["srt"]
    assert fake.bodies[0]["parameters"] == {
        "language": "de",
        "return_timestamps": "word",
        "num_speakers": 3,
        "hotwords": "Ada, Zuse",
        "output": ["srt", "vtt", "txt"],
    }
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2
    assert shown[1].startswith("[2/2] ")

    assert main([str(folder), "--url", fake.url]) == 0
    assert len(fake.bodies) == 2
    # What is missing, or older than its recording, is made again.
    (folder / "a.vtt").unlink()
    later = (folder / "deep/b.json").stat().st_mtime + 10
    os.utime(folder / "deep/b.WAV", (later, later))
    assert main([str(folder), "--url", fake.url]) == 0
    assert len(fake.bodies) == 4
    assert tree(folder) == before | written


def test_one_failure_stops_no_other_and_leaves_nothing(fake, folder, capsys):
    def by_name(handler: FakeHandler, body: dict) -> None:
        broken = base64.b64decode(body["inputs"]) == b"a.ogg"
        reply = refuse(400, {"detail": "INVALID_AUDIO: none"}) if broken else answer_plainly
        reply(handler, body)

    fake.replies = [by_name]
    output = folder.parent / "out"
    arguments = [str(folder), "--output", str(output), "--formats", "srt,json", "--url", fake.url]
    assert main([*arguments, "--parallel", "1"]) == 1
    assert tree(output) == {"deep/b.srt", "deep/b.json"}
    failed = [line for line in capsys.readouterr().err.splitlines() if "INVALID" in line]
    assert failed == [f"[1/2] {folder / 'a.ogg'}: INVALID_AUDIO: none"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError(), "MemoryError"), (RuntimeError("not\n so"), "RuntimeError: not so")],
)
def test_what_nobody_expected_fails_one_recording(fake, folder, monkeypatch, capsys, error, reason):
    read = Path.read_bytes

    def read_or_raise(path: Path) -> bytes:
        if path.name == "a.ogg":
            raise error
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_or_raise)
    before = tree(folder)
    assert main([str(folder), "--formats", "srt", "--url", fake.url, "--parallel", "1"]) == 1
    assert tree(folder) == before | {"deep/b.srt"}
    assert f"[1/2] {folder / 'a.ogg'}: {reason}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("answer", [{}, {"duration": None}, {"duration": float("nan")}])
def test_an_answer_without_a_duration_is_no_failure(fake, folder, capsys, answer):
    content = json.dumps({"text": " good morning", **answer}).encode()
    fake.replies = [lambda handler, _: handler.send(200, content)]
    recording = folder / "a.ogg"
    assert main([str(recording), "--formats", "json", "--url", fake.url]) == 0
    assert json.loads((folder / "a.json").read_text("utf-8"))["text"] == " good morning"
    said = capsys.readouterr().err
    assert re.fullmatch(rf"\[1/1\] {re.escape(str(recording))}: done in \d+\.\d s\n", said)


def test_files_of_one_name_keep_their_endings(folder):
    (folder / "a.mp3").write_bytes(b"")
    found = find_recordings([folder, folder / "a.mp3"], None)
    stems = {str(each.stem.relative_to(folder)) for each in found}
    assert (len(found), stems) == (3, {"a.mp3", "a.ogg", "deep/b"})


@pytest.mark.parametrize(
    "wrong",
    [
        ["--formats", "doc"],
        ["--num-speakers", "0"],
        ["--num-speakers", "2", "--min-speakers", "3"],
        ["--parallel", "0"],
        ["--tongue", "de"],
    ],
)
def test_a_wrong_command_line_sends_nothing(fake, folder, wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(folder), "--url", fake.url, *wrong])
    assert wrong[0].strip("-").replace("-", "_") in capsys.readouterr().err.replace("-", "_")
    assert fake.bodies == []


def test_what_does_not_exist_is_said(capsys):
    assert main(["/no/such/talk.ogg"]) == 1
    assert capsys.readouterr().err == "/no/such/talk.ogg: there is no such file or folder\n"


def test_a_folder_without_recordings_is_said(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("no sound")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}: there is no recording in it\n"


@pytest.mark.parametrize(
    ("given", "sent"),
    [("a secret", "a secret"), ("secret\n", "secret"), ("schlüssel", "schlüssel")],
)
def test_the_key_comes_from_the_environment(fake, folder, monkeypatch, given, sent):
    monkeypatch.setenv("API_KEY", given)
    assert main([str(folder / "a.ogg"), "--url", fake.url]) == 0
    on_the_wire = fake.headers[0]["authorization"].encode("latin-1")
    assert on_the_wire == f"Bearer {sent}".encode()


def test_it_starts_without_the_models_libraries():
    script = (
        "import sys, server.transcribe_files\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'av', 'numpy'}\n"
        "sys.exit(bool(heavy & sys.modules.keys()))"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False).returncode == 0
    )


@contextmanager
def real_server(handler, **settings) -> Iterator[str]:
    pytest.importorskip("fastapi")
    from config import ServerSettings
    from server.app import create_app
    from server.service import Service
    from tests.live_app import live

    service = Service(handler)
    with live(create_app(service, ServerSettings(page=False, **settings))) as url:
        yield url
    service.close()


def test_the_real_server_streams_to_it(tiny_handler, wav, tmp_path, monkeypatch, capsys):
    from testing.audio_files import speech

    (tmp_path / "talk.wav").write_bytes(wav(speech(5.0)))
    body = {"inputs": base64.b64encode((tmp_path / "talk.wav").read_bytes()).decode()}
    parameters = {"output": ["srt", "txt"], "language": "en"}
    expected = tiny_handler({**body, "parameters": parameters})
    monkeypatch.setenv("API_KEY", "a secret")
    with real_server(tiny_handler, api_key="a secret") as url:
        arguments = [str(tmp_path / "talk.wav"), "--url", url, "--formats", "json,srt,txt"]
        assert main([*arguments, "--language", "en"]) == 0
        told: list[tuple[float, float]] = []
        client = Client(url, "a secret")
        client.transcribe(
            (tmp_path / "talk.wav").read_bytes(), parameters, lambda *each: told.append(each)
        )
        monkeypatch.setenv("API_KEY", "another")
        (tmp_path / "talk.srt").unlink()
        assert main(arguments) == 1
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith(f"[1/1] {tmp_path / 'talk.wav'}: UNAUTHORIZED")
    )
    assert told[0] == (0.0, 5.0)
    assert told[-1][0] == pytest.approx(told[-1][1])
    outputs = expected.pop("output")
    assert json.loads((tmp_path / "talk.json").read_text("utf-8")) == expected
    assert (tmp_path / "talk.txt").read_text("utf-8") == outputs["txt"]
