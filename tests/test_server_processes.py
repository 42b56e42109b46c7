"""Whole servers in processes of their own, ended by signals under load and while jobs run, and by
an engine that stops. They are children of one process that has imported everything."""

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from config import DEMO_MODELS
from tests.reliability.traffic import KEY, ForkedServer, forked_servers
from tests.support.audio_files import speech
from tests.support.servers import loopback, ours
from tests.test_server_lifecycle import fail_to_start
from whosaid.runtime.errors import EXIT_STATUS
from whosaid.server.jobs.store import JobStore

pytestmark = pytest.mark.slow

POLL_S = 0.05  # between two questions: to answer them takes the server from its work


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Iterator[Callable[..., ForkedServer]]:
    with forked_servers(tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture
def start(parent) -> Iterator[Callable[..., ForkedServer]]:
    """Starts servers with the given environment, and ends those that a test left."""
    started: list[ForkedServer] = []

    def begin(**variables: str) -> ForkedServer:
        started.append(parent(**variables))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def ask(server: ForkedServer, method: str, path: str, **more) -> httpx2.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    return loopback().request(method, server.url + path, headers=headers, **more)


def jobs_of(server: ForkedServer) -> dict[str, dict]:
    return {job["id"]: job for job in ask(server, "GET", "/v1/jobs").json()["data"]}


def wait_until(server: ForkedServer, condition) -> dict[str, dict]:
    deadline = time.monotonic() + 120
    while not condition(found := jobs_of(server)):
        assert time.monotonic() < deadline, found
        time.sleep(POLL_S)
    return found


def count(jobs: dict[str, dict], status: str) -> int:
    return sum(job["status"] == status for job in jobs.values())


def without_scores(value):
    """Return the answer without scores, whose last digit may depend on the batch."""
    if isinstance(value, list):
        return [without_scores(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if "prob" not in name}
    return {name: without_scores(each) for name, each in kept.items()}


def done_lines(*servers: ForkedServer) -> list[str]:
    log = "".join(line for server in servers for line in server.log)
    return re.findall(r"(job_[0-9a-f]{32}) OK in", log)


HELD = """
import time
from pathlib import Path
from whosaid.asr.engine.engine import DecodeEngine

held, step = Path({!r}), DecodeEngine.step

def step_later(engine):
    while held.exists():
        time.sleep(0.01)
    return step(engine)

DecodeEngine.step = step_later
"""


def test_jobs_outlive_the_process_and_are_done_once(start, tmp_path, whisper_folder, wav):
    """While the file `held` exists, running jobs go on running."""
    held = tmp_path / "held"
    recordings = [wav(speech(seconds)) for seconds in (1.0, 12.0, 12.0, 1.0)]
    (tmp_path / "jobs").mkdir()
    environment = {"ASR_MODEL": str(whisper_folder), "DTYPE": "float32", "MAX_RUNNING_JOBS": "2"}
    environment |= {"DATA_DIR": str(tmp_path / "jobs"), "FIRST": HELD.format(str(held))}
    # A random model is never sure: each window would be decoded at six temperatures.
    once = {"params": {"logprob_threshold": -1000, "compression_ratio_threshold": 1000}}
    first = start(**environment)
    sent = []
    for recording in recordings:
        sent.append(ask(first, "POST", "/v1/jobs", content=recording, **once).json()["id"])
        if not held.exists():
            wait_until(first, lambda jobs: count(jobs, "succeeded"))
            held.touch()
    before = wait_until(first, lambda jobs: count(jobs, "running") == 2)
    os.kill(first.process_id, signal.SIGKILL)
    assert first.exit_status() == -signal.SIGKILL

    # What ended is as it was; what ran is done by the next process, which ends in order.
    second = start(**environment)
    wait_until(second, lambda jobs: count(jobs, "running"))
    os.kill(second.process_id, signal.SIGTERM)
    held.unlink()
    assert second.exit_status() == 0

    third = start(**environment)
    after = wait_until(third, lambda jobs: count(jobs, "succeeded") == len(sent))
    assert set(after) == set(sent)
    kept = [job for job in before if before[job]["status"] == "succeeded"]
    assert kept
    assert [after[job] for job in kept] == [before[job] for job in kept]
    for job, recording in zip(sent[:2], recordings, strict=False):
        plain = ask(third, "POST", "/", content=recording, **once)
        answer = ask(third, "GET", f"/v1/jobs/{job}", params={"format": "json"})
        assert without_scores(answer.json()) == without_scores(plain.json())
        assert answer.json()["text"]
    assert not [*(tmp_path / "jobs" / "audio").iterdir()]
    os.kill(third.process_id, signal.SIGTERM)
    assert third.exit_status() == 0
    done = done_lines(first, second, third)
    assert len(done) == len(set(done)) > 1


def test_a_second_server_on_the_folder_fails_to_start(tmp_path, monkeypatch):
    monkeypatch.setattr("whosaid.server.serving.load_endpoint", None)
    store = JobStore(tmp_path, 1, 1, 0.0)
    told = f"START_FAILED: DATA_DIR={tmp_path}: another server uses it"
    variables = {"PORT": "0", "DATA_DIR": str(tmp_path), "ASR_MODEL": str(DEMO_MODELS / "asr")}
    fail_to_start(variables, told, monkeypatch)
    store.close()


def test_a_signal_under_load_loses_nothing(start, whisper_folder, wav, tmp_path):
    """Accepted requests are answered, later ones are refused, and bodies never touch the disk. One
    body does not end before the signal, so that there is something to wait for however fast the
    others are."""
    server = start(ASR_MODEL=str(whisper_folder), TMPDIR=str(tmp_path))
    half_bodies_are_held_in_memory(server, tmp_path)
    signal_under_load(server, wav(speech(6.0)))


def in_progress(server: ForkedServer) -> float:
    text = ask(server, "GET", "/metrics").text
    return float(re.search(r"\nasr_requests_in_progress (\S+)", text)[1])


def half_bodies_are_held_in_memory(server: ForkedServer, temporary: Path) -> None:
    """Send 30 of 60 MB as a form, bytes and JSON; then the senders leave."""
    types = ("multipart/form-data; boundary=x", "audio/wav", "application/json")
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as senders:
        for kind in types:
            sender = senders.enter_context(socket.create_connection((host, int(port)), timeout=60))
            lines = (
                f"host: {host}\r\nauthorization: Bearer {KEY}\r\n"
                f"content-type: {kind}\r\ncontent-length: 60000000\r\n\r\n"
            )
            sender.sendall(b"POST / HTTP/1.1\r\n" + lines.encode() + head + bytes(30_000_000))
        while in_progress(server) < len(types):
            time.sleep(POLL_S)
        assert [path for path in temporary.rglob("*") if path.is_file()] == []
    while in_progress(server):
        time.sleep(POLL_S)


def signal_under_load(server: ForkedServer, audio: bytes) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    go, replies = threading.Event(), []

    def held():
        yield audio[:-1]
        go.wait(120)
        yield audio[-1:]

    def ask(content) -> None:
        length = {"content-length": str(len(audio))}
        replies.append(loopback().post(server.url, content=content, headers=headers | length))

    asking = [threading.Thread(target=ask, args=(each,)) for each in (held(), audio, audio)]
    for thread in asking:
        thread.start()

    def accepted() -> float:
        return len(replies) + in_progress(server)

    while accepted() < len(asking):
        time.sleep(POLL_S)
    os.kill(server.process_id, signal.SIGTERM)
    while (ready := loopback().get(f"{server.url}/ready")).status_code == 200:
        time.sleep(POLL_S)
    assert ready.json()["detail"].startswith("DRAINING")
    refused = loopback().post(server.url, content=audio, headers=headers)
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    assert loopback().get(f"{server.url}/health").status_code == 200
    go.set()
    for thread in asking:
        thread.join()
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len({reply.content for reply in replies}) == 1
    assert server.exit_status() == 0
    log = "".join(server.log)
    assert re.search(r"POST / 200 OK in \d+\.\d\d s, by key, id \w+", log)
    assert " endpoint: " not in log.partition("listening on")[2]  # a line a request, no more
    words = {word for word in replies[0].json()["text"].split() if len(word) > 4}
    assert words
    for secret in (KEY, *words):
        assert secret not in log


def test_a_signal_ends_the_process_while_models_load():
    """The log says so just before the engine's thread begins with the demo's models."""
    command = [sys.executable, "-m", "whosaid.server", "--embedded"]
    with ours(command, DEVICE="cpu") as server:
        next(line for line in server.stderr if "computing on cpu" in line)
        server.terminate()
        assert server.wait(120) == 0
        assert "models ready" not in server.stderr.read()


ENGINE_FAILS = """
from threading import Semaphore
from whosaid.asr import Recogniser
from whosaid.asr.engine.engine import DecodeEngine

submitted, submit = Semaphore(0), Recogniser.submit

def count(*arguments):
    job = submit(*arguments)
    submitted.release()
    return job

def fail(*_, **__):
    for _ in range(3):
        submitted.acquire()
    raise SystemError("nothing works")

Recogniser.submit, DecodeEngine.step = count, fail
"""


def test_a_stopped_engine_answers_waiting_requests_and_exits(start, whisper_folder, wav):
    """The engine's thread ends once three requests wait for it."""
    server = start(ASR_MODEL=str(whisper_folder), FIRST=ENGINE_FAILS)
    audio = wav(speech(2.0))
    replies = []

    def send() -> None:
        replies.append(ask(server, "POST", "/?language=en", content=audio))

    asking = [threading.Thread(target=send) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    status = server.exit_status()
    assert [reply.status_code for reply in replies] == [500] * 3
    assert {reply.json()["detail"].partition(":")[0] for reply in replies} == {"MODEL_ERROR"}
    assert status == EXIT_STATUS != 0
    assert "CRITICAL server: the engine has stopped" in "".join(server.log)
