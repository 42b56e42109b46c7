"""`python -m extras.ray_serve` with two replicas on this machine, on the demo's Whisper."""

import asyncio
import base64
import json
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import numpy as np
import openai
import psutil
import pytest
import yaml

pytest.importorskip("grpc_reflection")

from config import DEMO_MODELS, ModelSettings
from extras.ray_serve.deployment import FILE, OF_ONE_PROCESS
from tests.helpers.live_app import live
from tests.support.audio_files import conversation, wav_file
from tests.support.servers import SAME_NUMBERS, Server, following, ours
from whosaid.server.serving import load_app
from whosaid.server.settings import ServerSettings

pytestmark = [pytest.mark.slow, pytest.mark.reliability, pytest.mark.timeout(600)]

SECONDS = 300
# Seconds of processors that a replica uses for a recording alone: half of what one of half a minute
# takes. Idle ones use them in most of a minute, so waiting for more would wait for that.
COMPUTING = 0.3
# One thread each, whatever Ray gives them, so that numbers are rounded alike.
VARIABLES = {"ASR_MODEL": str(DEMO_MODELS / "asr"), "PAGE": "true", "OMP_NUM_THREADS": "1"}
Running = tuple[Server, subprocess.Popen[str]]
REPLICA = "ray::ServeReplica"
READY = "models ready"  # the line of each that has loaded


@contextmanager
def ray_served(tmp_path) -> Iterator[Running]:
    """Run the command with two replicas on a share of the cores. Names of unix sockets may have 107
    bytes, so Ray's folder is a short one. The command's log has every line of every replica."""
    told = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        told["http_options"]["port"] = free.getsockname()[1]
    (deployment,) = told["applications"][0]["deployments"]
    deployment["ray_actor_options"] = {"num_gpus": 0, "num_cpus": 0.5}
    deployment["autoscaling_config"] |= {"min_replicas": 2, "max_replicas": 2}
    deployment["health_check_period_s"] = 0.5  # so soon one that has died is replaced
    (tmp_path / "told.yaml").write_text(yaml.safe_dump(told))
    command = [sys.executable, "-m", "extras.ray_serve", "--config", str(tmp_path / "told.yaml")]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        process = ours(command, **VARIABLES, **token, RAY_TMPDIR=folder, RAY_DEDUP_LOGS="0")
        listens = r"listening on (http://127\.0\.0\.1:\d+)"
        with process, following(process, listens) as server:
            yield server, process


@pytest.fixture(scope="module")
def recording() -> bytes:
    """About half a minute of audio."""
    return wav_file(conversation()[: 30 * 16_000], 16_000)


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Iterator[Running]:
    """Share one cluster among all tests here, and check its end."""
    with ray_served(tmp_path_factory.mktemp("ray")) as (served, command):
        yield served, command
        what_was_accepted_is_answered_before_the_end(served, command)


def replicas(command: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(command.pid).children(recursive=True):
        try:
            found += [each] if each.cmdline()[0].startswith(REPLICA) else []
        except (psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
            continue
    return found


def seconds_used(processes: list[psutil.Process]) -> dict[psutil.Process, float]:
    return {each: sum(each.cpu_times()[:2]) for each in processes}


def wait_until_one_computes(before: dict[psutil.Process, float]) -> psutil.Process:
    """Return the replica that has used more than COMPUTING since; the others are idle."""

    def busiest() -> psutil.Process | None:
        used = {each: now - before[each] for each, now in seconds_used([*before]).items()}
        most = max(used, key=used.__getitem__)
        return most if used[most] > COMPUTING else None

    return wait_until(busiest)


def wait_until(is_so):
    end = time.monotonic() + SECONDS
    while not (found := is_so()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def ask(url: str, recording: bytes, number: int = 0) -> httpx2.Response:
    headers = {"content-type": "audio/wav", "x-request-id": f"request-{number}"}
    return httpx2.post(f"{url}/?language=en", content=recording, headers=headers, timeout=SECONDS)


def test_answers_are_those_of_one_process(both, recording, monkeypatch):
    served, _ = both
    for name, value in (VARIABLES | SAME_NUMBERS).items():
        monkeypatch.setenv(name, value)
    alone, _ = load_app(ModelSettings.from_environment(), ServerSettings.from_environment())
    with live(alone) as url:
        expected, refused = ask(url, recording), ask(url, b"no audio")
    answer = ask(served.url, recording)
    assert expected.status_code == answer.status_code == 200
    assert answer.content == expected.content
    assert answer.headers["x-request-id"] == "request-0"
    again = ask(served.url, b"no audio")
    assert (again.status_code, again.content) == (refused.status_code, refused.content)
    assert "language=" not in "".join(served.log)


def test_the_page_is_served_and_routes_with_state_are_refused(both):
    served, _ = both
    page = httpx2.get(f"{served.url}/app/")
    assert page.headers["content-type"].startswith("text/html")
    assert httpx2.get(f"{served.url}/info").json()["embedded"]
    assert httpx2.get(f"{served.url}/-/healthz").status_code == 200
    for path in OF_ONE_PROCESS:
        refused = httpx2.post(served.url + path, json={})
        assert (refused.status_code, "UNSUPPORTED" in refused.text) == (400, True)


def test_a_live_session_is_held_by_one_replica(both):
    served, _ = both
    samples = conversation()[: 4 * 16_000]
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    form = {"type": "audio/pcm", "rate": 16_000}

    async def session() -> list[str]:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none")
        texts = []
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as live:
            audio = {"input": {"format": form, "turn_detection": None}}
            await live.session.update(session={"type": "transcription", "audio": audio})
            await live.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
            await live.send({"type": "input_audio_buffer.commit", "final": True})
            async for event in live:
                if event.type.endswith("transcription.completed"):
                    texts.append(event.transcript)
        return texts

    assert "good morning how can i help you" in " ".join(asyncio.run(session()))


def test_retries_after_a_killed_replica_lose_nothing(both, recording):
    """Clients of the killed replica get an error at once that asks for a retry; each retry gets one
    answer."""
    served, command = both
    expected = ask(served.url, recording).content
    before = seconds_used(wait_until(lambda: replicas(command)))
    answers: dict[int, bytes] = {}
    told_to_ask_again = []

    def ask_until_answered(number: int) -> None:
        while (reply := ask(served.url, recording, number)).status_code == 503:
            assert reply.headers["x-error-message"].startswith("NO_REPLICA: ")
            assert reply.headers["retry-after"] == "1"
            told_to_ask_again.append(number)
        assert number not in answers
        answers[number] = reply.content

    clients = [threading.Thread(target=ask_until_answered, args=(each,)) for each in range(6)]
    for client in clients:
        client.start()
    wait_until_one_computes(before).kill()
    for client in clients:
        client.join()
    assert answers == dict.fromkeys(range(6), expected)
    assert 1 <= len(set(told_to_ask_again)) <= 6
    wait_until(lambda: len(replicas(command)) == 2)
    wait_until(lambda: sum(READY in line for line in served.log) == 3)


def what_was_accepted_is_answered_before_the_end(served, command) -> None:
    replies, recording = [], wav_file(conversation(), 16_000)
    client = threading.Thread(target=lambda: replies.append(ask(served.url, recording)))
    before = seconds_used(replicas(command))
    client.start()
    wait_until_one_computes(before)
    command.terminate()
    wait_until(lambda: any("draining" in line for line in served.log))
    assert client.is_alive()  # its recording was not answered before
    client.join()
    assert command.wait(SECONDS) == 0
    assert [reply.status_code for reply in replies] == [200]
    assert json.loads(replies[0].content)["text"]
