"""hf-serve itself, on loopback, with this repository as its custom task: what clients get, what the
log holds, and how a start fails. Nothing of the server is simulated; a small stand-in answers for
the hub."""

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
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import huggingface_hub.constants
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError

from config import REPOSITORY
from testing.audio_files import speech

pytestmark = pytest.mark.slow

SECRET = "hf_this_token_must_not_show"
RESPONSE_KEYS = {
    "speakers",
    "chunks",
    "text",
    "language",
    "language_probability",
    "duration",
    "warnings",
}


def start(**variables: str) -> subprocess.Popen[str]:
    """hf-serve as Inference Endpoints starts it, on a free port, with `variables` as the deployer's
    environment.
    """
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")
    }
    repository = {"HF_MODEL_DIR": str(REPOSITORY), "HF_TASK": "custom", "HF_TRUST_REMOTE_CODE": "1"}
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("hf-serve")), "--host", "127.0.0.1", "--port", "0"],
        env=kept | repository | variables,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass
class Server:
    """A running server: its address, and its log so far."""

    url: str
    log: list[str]

    def post(self, content: bytes, content_type: str = "application/json") -> httpx2.Response:
        return httpx2.post(
            self.url, content=content, headers={"content-type": content_type}, timeout=60
        )

    def ask(self, body: object) -> httpx2.Response:
        return self.post(json.dumps(body).encode())


@contextmanager
def following(process: subprocess.Popen[str]) -> Iterator[Server]:
    """Follow both streams of a server and hand it over once it says where it listens."""
    server, listening = Server("", []), threading.Event()

    def follow(stream) -> None:
        for line in stream:
            server.log.append(line)
            if found := re.search(r"running on \S*?(http://127\.0\.0\.1:\d+)", line):
                server.url = found[1]
                listening.set()
        listening.set()

    readers = [
        threading.Thread(target=follow, args=(stream,))
        for stream in (process.stdout, process.stderr)
    ]
    for reader in readers:
        reader.start()
    try:
        listening.wait()
        assert server.url, "".join(server.log)
        yield server
    finally:
        process.terminate()
        process.wait()
        for reader in readers:
            reader.join()


@pytest.fixture(scope="module")
def server(whisper_folder, assistant_folder) -> Iterator[Server]:
    variables = {
        "ASR_MODEL": str(whisper_folder),
        "ASSISTANT_MODEL": str(assistant_folder),
        "HF_TOKEN": SECRET,
    }
    with start(**variables) as process, following(process) as running:
        yield running


@pytest.fixture
def client(server, monkeypatch) -> InferenceClient:
    """The hub's own client; offline mode, which the suite runs in, would refuse even loopback."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return InferenceClient(model=server.url, token="hf_clients_token")


# ---- clients


def test_the_hub_client_sends_and_reads_our_json(client, hum):
    answer = client.automatic_speech_recognition(
        base64.b64decode(hum),
        extra_body={"language": "en", "batch_size": 2, "assisted": True, "num_speakers": 2},
    )
    assert set(answer) >= RESPONSE_KEYS
    assert answer.text == "".join(chunk.text for chunk in answer.chunks)
    assert answer.chunks[0].timestamp[1] <= answer["duration"] == 1.0
    assert answer["warnings"] == ["speaker hints are ignored: no diarization model is loaded"]


def test_the_hub_client_keeps_the_code_of_a_refusal_in_the_response_of_its_exception(client, hum):
    with pytest.raises(BadRequestError) as caught:
        client.automatic_speech_recognition(base64.b64decode(hum), extra_body={"batch_size": 0})
    assert caught.value.response.json()["detail"].startswith("INVALID_PARAMETER: batch_size: ")


def test_the_hub_client_without_extra_body_sends_what_hf_serve_cannot_read(client, hum):
    with pytest.raises(HfHubHTTPError, match="500"):
        client.automatic_speech_recognition(base64.b64decode(hum))


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_plain_http(server, hum, path):
    answer = httpx2.post(
        server.url + path, json={"inputs": hum, "parameters": {"language": "en"}}, timeout=60
    )
    assert answer.status_code == 200
    assert set(answer.json()) == RESPONSE_KEYS


def test_a_name_that_no_utf8_can_spell_is_answered_all_the_same(server, hum):
    content = b'{"inputs": "' + hum.encode() + b'", "parameters": {"\\ud800": NaN}}'
    answer = server.post(content)
    assert answer.status_code == 200
    assert answer.json()["warnings"] == ["unknown parameters are ignored: \\ud800"]


# ---- wrong bodies


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "INVALID_REQUEST: inputs"),
        ({"inputs": None}, "INVALID_REQUEST: inputs"),
        ({"inputs": "https://example.com/a.wav"}, "INVALID_AUDIO: "),
        ({"inputs": "UklGRg=="}, "INVALID_AUDIO: "),
        ({"inputs": "UklGRg==", "parameters": []}, "INVALID_REQUEST: parameters"),
        (
            {"inputs": "UklGRg==", "parameters": {"batch_size": float("nan")}},
            "INVALID_PARAMETER: batch_size",
        ),
        (
            {"inputs": "UklGRg==", "parameters": {"return_timestamps": "letter"}},
            "INVALID_PARAMETER: return_timestamps",
        ),
    ],
)
def test_our_refusals_are_400_with_a_code(server, body, detail):
    answer = server.ask(body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"detail"}
    assert answer.json()["detail"].startswith(detail)


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"[]", "application/json", 422),
        (b"null", "application/json", 422),
        (b"{", "application/json", 422),
        (b'{"inputs": "\xff"}', "application/json", 400),
        (b"RIFF\xff\xfe\xfd\xfc", "audio/wav", 500),
    ],
)
def test_what_hf_serve_answers_itself(server, content, content_type, status):
    assert server.post(content, content_type).status_code == status


def test_the_server_lives_on_after_all_of_this(server, hum):
    first = server.ask({"inputs": hum}).json()
    server.ask({"inputs": "!"})
    assert server.ask({"inputs": hum}).json() == first
    assert httpx2.get(f"{server.url}/health").status_code == 200


# ---- the log


def test_the_log_holds_neither_audio_nor_transcript_nor_token(server, wav):
    audio = base64.b64encode(wav(speech(20.0))).decode()
    answer = server.ask({"inputs": audio, "parameters": {"language": "en"}}).json()
    server.ask({"inputs": audio, "parameters": {"batch_size": SECRET}})
    log = "".join(server.log)
    assert "Received request, body not logged" in log
    assert "20.0 s of audio answered in" in log
    words = {word for word in answer["text"].split() if len(word) > 4}
    assert words
    for secret in (audio[:30], audio[100:130], SECRET, *words):
        assert secret not in log


# ---- starts that must fail


class StandInHub(BaseHTTPRequestHandler):
    """Answers as the hub does: nobody may read a gated repository, and a wrong token opens
    nothing.
    """

    def do_GET(self) -> None:
        if self.headers["Authorization"] == f"Bearer {SECRET}":
            self.refuse(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif self.path.startswith(("/owner/gated/", "/api/models/owner/gated/")):
            self.refuse(
                403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
            )
        else:
            self.refuse(404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def refuse(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment that sends a server to the stand-in."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandInHub) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        home = tmp_path_factory.mktemp("hub")
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{listening.server_port}",
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
        }
        listening.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def misfit_folder(tmp_path_factory) -> Path:
    """A Whisper of another vocabulary."""
    from testing.tiny_whispers import Published, save

    return save(
        tmp_path_factory.mktemp("misfit"), Published(text_entries=300, languages=4, seconds=3)
    )


FAILED_STARTS = {
    "no such folder": (
        {"ASR_MODEL": "/no/such/folder"},
        "START_FAILED: ASR_MODEL: neither a hub id",
    ),
    "gated": (
        {"ASR_MODEL": "owner/gated"},
        "START_FAILED: ASR_MODEL=owner/gated: access to owner/gated is restricted",
    ),
    "wrong token": (
        {"ASR_MODEL": "owner/any", "HF_TOKEN": SECRET},
        "START_FAILED: ASR_MODEL=owner/any: "
        "the hub denied access to owner/any: HF_TOKEN is missing or wrong",
    ),
    "assistant does not fit": (
        {"ASR_MODEL": "{whisper}", "ASSISTANT_MODEL": "{misfit}"},
        "START_FAILED: ASSISTANT_MODEL: the assistant .* does not fit the model ",
    ),
    "gated diarization": (
        {"ASR_MODEL": "{whisper}", "DIARIZATION_MODEL": "owner/gated"},
        "START_FAILED: DIARIZATION_MODEL=owner/gated: access to owner/gated is restricted",
    ),
}


@pytest.fixture(scope="module")
def failed_starts(hub, whisper_folder, misfit_folder) -> dict[str, tuple[int, str, str]]:
    """Exit status, standard output and standard error of every start; they run side by side, two at
    a time.
    """
    folders = {"whisper": whisper_folder, "misfit": misfit_folder}
    ended, waiting = {}, list(FAILED_STARTS)

    def work() -> None:
        while waiting:
            name = waiting.pop()
            variables = {
                key: value.format(**folders) for key, value in FAILED_STARTS[name][0].items()
            }
            with start(**hub, **variables) as process:
                out, err = process.communicate()
            ended[name] = process.returncode, out, err

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return ended


@pytest.mark.parametrize("name", FAILED_STARTS)
def test_a_failed_start_is_one_line_and_a_status(failed_starts, name):
    status, out, err = failed_starts[name]
    assert status == 1
    assert re.search(FAILED_STARTS[name][1], err), err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert SECRET not in out + err
