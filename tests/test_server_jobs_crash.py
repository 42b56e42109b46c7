"""A whole server on the demo models, ended by SIGKILL and by SIGTERM while jobs run."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import httpx2
import pytest
from servers import OURS_LISTENS, Server, following, ours

from audio.decode import AudioLimits, decode_audio
from config import DEMO_MODELS, REPOSITORY

pytestmark = pytest.mark.slow

MODELS = {
    "ASR_MODEL": str(DEMO_MODELS / "asr"),
    "DIARIZATION_MODEL": str(DEMO_MODELS / "diarization"),
    "MAX_RUNNING_JOBS": "2",
}


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Popen[str], Server]]:
    with (
        ours(DATA_DIR=str(folder), **MODELS) as process,
        following(process, OURS_LISTENS) as server,
    ):
        yield process, server


def jobs_of(server: Server) -> dict[str, dict]:
    listed = httpx2.get(f"{server.url}/v1/jobs", timeout=60).json()["data"]
    return {job["id"]: job for job in listed}


def wait_until(server: Server, condition) -> dict[str, dict]:
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


def done_lines(*servers: Server) -> list[str]:
    log = "".join(line for server in servers for line in server.log)
    return re.findall(r"(job_[0-9a-f]{32}) OK in", log)


@pytest.fixture(scope="module")
def recordings(wav) -> list[bytes]:
    conversation = (REPOSITORY / "demo" / "conversation.ogg").read_bytes()
    samples = decode_audio(conversation, 16_000, AudioLimits(7200, 2**29)).samples
    return [wav(samples[: seconds * 16_000]) for seconds in (3, 12, 20, 5)]


def test_jobs_outlive_the_process_and_are_done_once(tmp_path, recordings):
    with serving(tmp_path) as (process, first):
        sent = [
            httpx2.post(f"{first.url}/v1/jobs", content=each, timeout=60).json()["id"]
            for each in recordings
        ]
        before = wait_until(first, lambda jobs: count(jobs, "succeeded") and count(jobs, "running"))
        process.send_signal(signal.SIGKILL)
        process.wait()

    # What ended is as it was; what ran is done by the next process, which ends in order.
    with serving(tmp_path) as (process, second):
        wait_until(second, lambda jobs: count(jobs, "running"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with serving(tmp_path) as (_, third):
        after = wait_until(third, lambda jobs: count(jobs, "succeeded") == len(sent))
        assert set(after) == set(sent)
        kept = [job for job in before if before[job]["status"] == "succeeded"]
        assert kept
        assert [after[job] for job in kept] == [before[job] for job in kept]
        for job, recording in zip(sent, recordings, strict=True):
            plain = httpx2.post(third.url, content=recording, timeout=120)
            answer = httpx2.get(f"{third.url}/v1/jobs/{job}", params={"format": "json"})
            assert without_scores(answer.json()) == without_scores(plain.json())
            assert answer.json()["text"]
        assert not [*(tmp_path / "audio").iterdir()]
        done = done_lines(first, second, third)
        assert len(done) == len(set(done)) > 1


def test_a_second_server_on_the_folder_does_not_start(tmp_path):
    from server.jobs.store import JobStore

    store = JobStore(tmp_path, 1, 1, 0.0)
    with ours(DATA_DIR=str(tmp_path), **MODELS) as process:
        _, told = process.communicate(timeout=120)
    store.close()
    assert process.returncode == 1
    assert re.search(r"START_FAILED: DATA_DIR=.*: another server uses it", told)
