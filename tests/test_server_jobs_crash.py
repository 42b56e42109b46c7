"""A whole server on the demo's Whisper, ended by SIGKILL and by SIGTERM while jobs run. Its
processes are children of one that has imported everything.
"""

from __future__ import annotations

import os
import re
import signal
import time

import httpx2
import pytest
from test_server_lifecycle import fail_to_start

from audio.decode import AudioLimits, decode_audio
from config import DEMO_MODELS, REPOSITORY
from server.jobs.store import JobStore
from tests.reliability.traffic import KEY, ForkedServer, forked_servers

pytestmark = pytest.mark.slow

MODELS = {
    "ASR_MODEL": str(DEMO_MODELS / "asr"),
    "DTYPE": "float32",
    "MAX_RUNNING_JOBS": "2",
}


def ask(server: ForkedServer, method: str, path: str, **more) -> httpx2.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx2.request(method, server.url + path, headers=headers, timeout=120, **more)


def jobs_of(server: ForkedServer) -> dict[str, dict]:
    return {job["id"]: job for job in ask(server, "GET", "/v1/jobs").json()["data"]}


def wait_until(server: ForkedServer, condition) -> dict[str, dict]:
    deadline = time.monotonic() + 120
    while not condition(found := jobs_of(server)):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def count(jobs: dict[str, dict], status: str) -> int:
    return sum(job["status"] == status for job in jobs.values())


def without_scores(value):
    """Which may differ in the last digit by what was in the batch."""
    if isinstance(value, list):
        return [without_scores(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if "prob" not in name}
    return {name: without_scores(each) for name, each in kept.items()}


def done_lines(*servers: ForkedServer) -> list[str]:
    log = "".join(line for server in servers for line in server.log)
    return re.findall(r"(job_[0-9a-f]{32}) OK in", log)


@pytest.fixture(scope="module")
def recordings(wav) -> list[bytes]:
    conversation = (REPOSITORY / "demo" / "conversation.ogg").read_bytes()
    samples = decode_audio(conversation, 16_000, AudioLimits(7200, 2**29)).samples
    return [wav(samples[: seconds * 16_000]) for seconds in (3, 40, 60, 5)]


def test_jobs_outlive_the_process_and_are_done_once(tmp_path, recordings):
    (tmp_path / "jobs").mkdir()
    with forked_servers(tmp_path, DATA_DIR=str(tmp_path / "jobs"), **MODELS) as start:
        first = start()
        sent = [ask(first, "POST", "/v1/jobs", content=each).json()["id"] for each in recordings]
        before = wait_until(first, lambda jobs: count(jobs, "succeeded") and count(jobs, "running"))
        os.kill(first.process_id, signal.SIGKILL)
        assert first.exit_status() == -signal.SIGKILL

        # What ended is as it was; what ran is done by the next process, which ends in order.
        second = start()
        wait_until(second, lambda jobs: count(jobs, "running"))
        os.kill(second.process_id, signal.SIGTERM)
        assert second.exit_status() == 0

        third = start()
        after = wait_until(third, lambda jobs: count(jobs, "succeeded") == len(sent))
        assert set(after) == set(sent)
        kept = [job for job in before if before[job]["status"] == "succeeded"]
        assert kept
        assert [after[job] for job in kept] == [before[job] for job in kept]
        for job, recording in zip(sent, recordings, strict=True):
            plain = ask(third, "POST", "/", content=recording)
            answer = ask(third, "GET", f"/v1/jobs/{job}", params={"format": "json"})
            assert without_scores(answer.json()) == without_scores(plain.json())
            assert answer.json()["text"]
        assert not [*(tmp_path / "jobs" / "audio").iterdir()]
        os.kill(third.process_id, signal.SIGTERM)
        assert third.exit_status() == 0
    done = done_lines(first, second, third)
    assert len(done) == len(set(done)) > 1


def test_a_second_server_on_the_folder_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr("server.serving.load_endpoint", None)
    store = JobStore(tmp_path, 1, 1, 0.0)
    told = f"START_FAILED: DATA_DIR={tmp_path}: another server uses it"
    fail_to_start({"PORT": "0", "DATA_DIR": str(tmp_path), **MODELS}, told, monkeypatch)
    store.close()
