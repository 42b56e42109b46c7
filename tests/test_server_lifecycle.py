"""The server in this process: clients, connections, and an end without loss."""

import asyncio
import base64
import logging
import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Iterator

import httpx2
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from config import REPOSITORY
from tests.helpers.asgi import served
from tests.helpers.live_app import listening, serving
from tests.helpers.programs import run_python
from tests.helpers.servers import free_port, hub_client
from tests.support.servers import loopback
from whosaid.errors import StartError
from whosaid.runtime.errors import EXIT_STATUS
from whosaid.server.__main__ import main
from whosaid.server.lifecycle import (
    DrainingServer,
    address,
    answering_probes,
    bind,
    most_connections,
    raise_file_limit,
)
from whosaid.server.settings import ServerSettings

KEY = "the-key-of-this-test"


@pytest.fixture(scope="module")
def url(tiny_endpoint) -> Iterator[str]:
    """Yield the URL of the app alone, in this process."""
    with serving(tiny_endpoint, page=False, api_key=KEY) as where:
        yield where


@pytest.fixture
def client(url, monkeypatch) -> InferenceClient:
    return hub_client(url, KEY, monkeypatch)


def test_the_hub_client_sends_bytes_a_path_and_parameters(client, hum, tmp_path):
    audio = base64.b64decode(hum)
    path = tmp_path / "hum.mp3"
    path.write_bytes(audio)
    plain = client.automatic_speech_recognition(audio)
    assert client.automatic_speech_recognition(str(path)) == plain
    wanted = client.automatic_speech_recognition(audio, extra_body={"return_timestamps": "word"})
    assert wanted.text == plain.text == "".join(word["word"] for word in wanted["words"])


def test_the_hub_client_shows_why_it_was_refused(client, hum):
    with pytest.raises(HfHubHTTPError, match="INVALID_PARAMETER: batch_size"):
        client.automatic_speech_recognition(base64.b64decode(hum), extra_body={"batch_size": 0})
    client.token = "wrong"
    with pytest.raises(HfHubHTTPError, match="UNAUTHORIZED"):
        client.automatic_speech_recognition(base64.b64decode(hum))


def test_head_is_answered_without_a_body(url):
    for path in ("/", "/health", "/ready"):
        reply = loopback().head(url + path)
        assert (reply.status_code, reply.content) == (200, b"")


@pytest.fixture
def draining() -> DrainingServer:
    endpoint, gate = served()
    return DrainingServer(gate, endpoint, 600)


POST = (
    b"POST / HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 18\r\n\r\n"
)
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_there_are_fewer_connections_than_open_files(monkeypatch):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < most_connections() < soft
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, -1))
    assert most_connections() == 10_000


@pytest.mark.parametrize(
    ("soft", "hard", "files"),
    [(256, -1, 10_240), (256, 2**20, 10_240), (1024, 4096, 4096), (2**20, 2**20, None)],
)
def test_the_limit_of_open_files_is_raised(monkeypatch, soft, hard, files):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    raise_file_limit()
    assert limits == ([] if files is None else [(files, hard)])


@pytest.mark.parametrize("files", [256, 300])
def test_too_few_open_files_fail_the_start(monkeypatch, files):
    monkeypatch.setattr("whosaid.server.serving.choose", None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    fail_to_start({"PORT": "0"}, f"START_FAILED: ulimit -n: {files} open files ", monkeypatch)


def test_condas_host_is_refused_with_a_hint(monkeypatch):
    def resolve(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(StartError, match=r"HOST=x86_64-conda-linux-gnu .*conda.* with --host$"):
        bind(ServerSettings(host="x86_64-conda-linux-gnu"))


def test_the_keep_alive_setting_reaches_the_server():
    endpoint, gate = served()
    assert DrainingServer(gate, endpoint, 600).config.timeout_keep_alive == 75
    _, gate = served(keep_alive_seconds=620)
    assert DrainingServer(gate, endpoint, 600).config.timeout_keep_alive == 620


@pytest.mark.parametrize("ends", [True, False])
def test_drained_is_the_last_that_is_said(draining, monkeypatch, caplog, ends):
    """After the threads have ended, or just before the process ends without waiting for one."""
    caplog.set_level("INFO", "server")
    ended = threading.Event()
    closes = ended.set if ends else threading.Event().wait
    monkeypatch.setattr(draining.endpoint, "close", closes, raising=False)
    monkeypatch.setattr("whosaid.server.lifecycle.SECONDS_TO_LEAVE", 60 if ends else 0)
    exits = []
    monkeypatch.setattr("whosaid.server.lifecycle.os._exit", exits.append)
    monkeypatch.setattr("whosaid.server.lifecycle.logging.shutdown", lambda: None)
    with listening(draining):
        draining.handle_exit(signal.SIGTERM, None)
    assert "drained" not in caplog.messages
    draining.close()
    assert caplog.messages[-1] == "drained"
    assert (ended.is_set(), exits) == ((True, []) if ends else (False, [0]))


def test_a_second_signal_ends_the_process_as_signals_do(draining, monkeypatch):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    monkeypatch.setattr(signal, "signal", lambda sig, action: raised.append(action))
    draining.handle_exit(signal.SIGTERM, None)
    assert (raised, draining.gate.admission.draining) == ([], True)
    draining.handle_exit(signal.SIGTERM, None)
    assert raised == [signal.SIG_DFL, signal.SIGTERM]


def test_a_signal_within_a_log_line_is_not_lost(draining, caplog):
    """Python runs its handler there, where writing another line would raise."""

    class Interrupted(logging.Handler):
        writes = False

        def emit(self, record):
            if self.writes:
                raise RuntimeError("reentrant call")
            if record.getMessage() == "a request":
                self.writes = True
                draining.handle_exit(signal.SIGTERM, None)
                self.writes = False

    caplog.set_level(logging.INFO)
    handler = Interrupted()
    logging.getLogger("server").addHandler(handler)
    try:
        with listening(draining):
            logging.getLogger("server").info("a request")
    finally:
        logging.getLogger("server").removeHandler(handler)
    (told,) = (each for each in caplog.messages if each.startswith("draining"))
    assert told == "draining: 0 requests are unanswered"


@pytest.mark.parametrize("drains", [False, True])
def test_waiting_requests_get_500_when_the_engine_stops(draining, monkeypatch, drains):
    """A server that is already draining would have waited for ten minutes."""
    monkeypatch.setattr("whosaid.server.lifecycle.SECONDS_TO_LEAVE", 0.0)
    with listening(draining) as where, socket.create_connection(where, timeout=60) as asking:
        asking.sendall(POST + b'{"inputs": "AAAA"}')
        began = draining.endpoint.began.wait()
        asyncio.run_coroutine_threadsafe(began, draining.loops[0]).result(60)
        if drains:
            draining.handle_exit(signal.SIGTERM, None)
        draining.endpoint.recogniser.alive = False
        answer = b""
        while part := asking.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"MODEL_ERROR" in answer
    assert draining.exit_status == EXIT_STATUS


def test_a_wrong_setting_is_one_line_without_torch():
    program = (
        "import sys\n"
        "from whosaid.server.__main__ import main\n"
        "try: main([])\n"
        "except SystemExit as error: print(error, 'torch' in sys.modules)\n"
    )
    done = run_python("-c", program, env=os.environ | {"PORT": "http"})
    assert done.stdout.startswith("START_FAILED: PORT: ")
    assert done.stdout.endswith(" False\n")
    assert done.stdout.count("\n") == 1


def fail_to_start(variables, says, monkeypatch) -> None:
    monkeypatch.setattr("whosaid.server.__main__.signal.signal", lambda *_: None)
    monkeypatch.setattr("whosaid.server.__main__.logging.basicConfig", lambda **_: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        main([])
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_a_taken_port_is_an_error_before_models_load(monkeypatch):
    monkeypatch.setattr("whosaid.server.serving.choose", None)
    with bind(ServerSettings(port=0)) as taken:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address(taken))
        port = str(taken.getsockname()[1])
        fail_to_start({"PORT": port}, f"START_FAILED: HOST=127.0.0.1 PORT={port}: ", monkeypatch)


def test_only_probes_are_answered_while_models_load():
    settings = ServerSettings(port=0, api_key="secret")
    with bind(settings) as bound:
        url = address(bound)
        with answering_probes(bound, settings), httpx2.Client(base_url=url, timeout=60) as asking:
            for method in ("GET", "HEAD"):
                assert asking.request(method, "/health").status_code == 200
            assert asking.get("/health/").json() == {"status": "ok"}
            assert asking.get("/ping").status_code == 204
            assert asking.get("/metrics").status_code == 401
            metrics = asking.get("/metrics", headers={"authorization": "Bearer secret"}).text
            assert "asr_ready 0.0\n" in metrics
            assert "process_resident_memory_bytes" in metrics
            assert 'asr_build_info{pyannote_audio="' in metrics
            large = asking.post("/v1/audio/transcriptions", content=bytes(10_000_000))
            refused = [large, *map(asking.get, ("/", "/ready", "/app/", "/v1/realtime"))]
            for reply in (*refused, asking.post("/health")):
                assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
                assert reply.headers["x-error-message"].startswith("NOT_READY: the models are")
                assert reply.headers["x-content-type-options"] == "nosniff"
            assert large.json()["error"]["code"] == "NOT_READY"
            with pytest.raises(InvalidStatus) as caught:
                connect(f"ws{url.removeprefix('http')}/v1/realtime")
            assert caught.value.response.status_code == 503
            idle = socket.create_connection(bound.getsockname()[:2], timeout=60)
            # Connections are accepted in order: with this answer `idle` is accepted, too.
            assert asking.get("/health").status_code == 200
        with idle:
            assert idle.recv(1) == b""  # the loading server does not wait for it
        # The port is still taken: who comes now is answered by the server itself.
        socket.create_connection(bound.getsockname()[:2], timeout=60).close()


def test_a_start_that_fails_late_frees_the_port(monkeypatch):
    told = []

    def load(*_):
        told.append(loopback().get(f"http://127.0.0.1:{port}/health").status_code)
        raise StartError("ASR_MODEL: no such model")

    monkeypatch.setattr("whosaid.server.serving.load_server", load)
    port = free_port()
    environment = {"PORT": str(port), "ASR_MODEL": str(REPOSITORY)}
    fail_to_start(environment, "START_FAILED: ASR_MODEL: ", monkeypatch)
    assert told == [200]
    with bind(ServerSettings(port=port)):
        pass
