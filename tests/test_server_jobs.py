"""The routes of jobs and their runner, with an endpoint that answers when the test says so; and, on
a Whisper, against the answers of `/`."""

import asyncio
import base64
import json
import sqlite3
import threading
import time
from contextlib import asynccontextmanager

import pytest

from config import InferenceConfig
from tests.helpers.asgi import HELLO, JSON, call, client, served
from tests.support.audio_files import request_body, speech
from whosaid.answer.formats import MEDIA_TYPES, file_bytes
from whosaid.endpoint.request import TranscriptionRequest, Upload
from whosaid.errors import InvalidAudio, ModelError
from whosaid.server.app import create_app
from whosaid.server.jobs.runner import FORMATS
from whosaid.server.jobs.store import CRASHED, JobStore
from whosaid.server.lifecycle import DrainingServer
from whosaid.server.settings import ServerSettings

ROOM = 2**20


def open_store(folder, most: int = 10, most_bytes: int = ROOM) -> JobStore:
    return JobStore(folder, most, most_bytes, time.time())


@asynccontextmanager
async def jobs(tmp_path, most=10, most_bytes=ROOM, **settings):
    """An endpoint and the app that keeps jobs, while these run."""
    endpoint, app = served(store=open_store(tmp_path, most, most_bytes), **settings)
    async with app.jobs.running():
        yield endpoint, app


async def send(app, body=HELLO, key=None, query=b"", **headers):
    given = {**JSON, **headers, **({"authorization": f"Bearer {key}"} if key else {})}
    return await call(app, "POST", "/v1/jobs", given, body, query=query)


async def ask(app, job="", method="GET", key=None, query=b""):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await call(app, method, f"/v1/jobs{job and '/'}{job}", headers, query=query)


async def becoming(app, job, *statuses, key=None) -> dict:
    """Return the job once it has one of these states; a job that ends otherwise fails the test."""
    while (told := (await ask(app, job, key=key)).json)["status"] not in statuses:
        assert told["status"] in ("queued", "running"), told
        await asyncio.sleep(0)
    return told


async def test_a_job_is_accepted_at_once_and_answered_later(tmp_path):
    async with jobs(tmp_path) as (endpoint, app):
        reply = await send(app)
        job = reply.json["id"]
        assert (reply.status, reply.headers["location"]) == (202, f"/v1/jobs/{job}")
        assert (reply.json["status"], reply.json["answer"]) == ("queued", None)
        await endpoint.began.wait()
        while (told := (await ask(app, job)).json)["progress"] != {"done": 0.5, "total": 1.5}:
            await asyncio.sleep(0)
        assert told["status"] == "running"
        early = await ask(app, job, query=b"format=srt")
        assert (early.status, early.code) == (409, "JOB_NOT_DONE")
        endpoint.release.set()
        told = await becoming(app, job, "succeeded")
        # A browser keeps no transcript on its disk.
        assert (await ask(app, job)).headers["cache-control"] == "no-store"
        assert (told["answer"]["duration"], told["progress"]) == (1.5, None)
        assert told["expires_at"] - told["ended_at"] == 86_400
        assert (await ask(app)).json["data"] == [{k: told[k] for k in told if k != "answer"}]
        assert (await ask(app, job, "DELETE")).status == 204
        assert (await ask(app, job)).status == 404
        assert not [*(tmp_path / "audio").iterdir()]


async def test_a_repeated_key_returns_its_job_also_after_a_restart(tmp_path):
    twice = {"idempotency-key": "one"}
    async with jobs(tmp_path, max_queue=9) as (endpoint, app):
        made = await asyncio.gather(*(send(app, **twice) for _ in range(3)))
        assert {each.status for each in made} == {202}
        (job,) = {each.json["id"] for each in made}
        other = await send(app, (b'{"inputs": "BBBB"}',), **twice)
        assert (other.status, other.code) == (422, "IDEMPOTENCY_KEY_REUSED")
        assert (await send(app, **{"idempotency-key": "two"})).json["id"] != job
        assert (await send(app)).json["id"] != job
        wrong = await send(app, **{"idempotency-key": "x" * 256})
        assert (wrong.status, wrong.code) == (422, "INVALID_REQUEST")
    async with jobs(tmp_path) as (endpoint, app):
        endpoint.release.set()
        assert (await send(app, **twice)).json["id"] == job
        told = await becoming(app, job, "succeeded")
        assert (await send(app, **twice)).json == told
        assert len((await ask(app)).json["data"]) == 3
        assert (await ask(app, job, "DELETE")).status == 204
        endpoint.release.clear()
        assert (await send(app, **twice)).json["status"] in ("queued", "running")


async def test_a_job_that_fails_says_why(tmp_path):
    async with jobs(tmp_path) as (endpoint, app):
        endpoint.error = InvalidAudio("no audio stream found")
        endpoint.release.set()
        told = await becoming(app, (await send(app)).json["id"], "failed")
        message = "INVALID_AUDIO: no audio stream found"
        assert told["error"] == {"code": "INVALID_AUDIO", "message": message}


@pytest.mark.parametrize("recovers", [True, False])
async def test_a_job_failed_by_the_server_runs_once_more(tmp_path, monkeypatch, recovers):
    monkeypatch.setattr("whosaid.server.jobs.runner.TICK_S", 0.001)
    async with jobs(tmp_path) as (endpoint, app):
        endpoint.error = ModelError("no process can be started")
        endpoint.release.set()
        job, put_back = (await send(app)).json["id"], app.jobs.store.put_back_failed

        def recover(job):
            endpoint.error = None if recovers else endpoint.error
            return put_back(job)

        monkeypatch.setattr(app.jobs.store, "put_back_failed", recover)
        told = await becoming(app, job, "succeeded", "failed")
        error = None if recovers else "MODEL_ERROR: no process can be started"
        assert (told["error"] and told["error"]["message"], len(endpoint.seen)) == (error, 2)


@pytest.mark.parametrize("status", ["succeeded", "failed"])
async def test_the_end_of_a_job_waits_for_the_disk(tmp_path, monkeypatch, status):
    monkeypatch.setattr("whosaid.server.jobs.store.TICK_S", 0.001)
    errors = [sqlite3.OperationalError("database or disk is full")] * 2

    async with jobs(tmp_path, max_running_jobs=1) as (endpoint, app):
        write = app.jobs.store.end

        def full_at_first(*arguments, **named):
            if errors:
                raise errors.pop()
            return write(*arguments, **named)

        monkeypatch.setattr(app.jobs.store, "end", full_at_first)
        endpoint.error = InvalidAudio("x") if status == "failed" else None
        endpoint.release.set()
        sent = [(await send(app)).json["id"] for _ in range(2)]
        for job in sent:
            told = await becoming(app, job, "succeeded", "failed")
            assert told["status"] == status
        assert (errors, len(endpoint.seen)) == ([], 2)


async def test_waiting_and_running_jobs_are_cancelled(tmp_path):
    async with jobs(tmp_path, max_running_jobs=1) as (endpoint, app):
        first = (await send(app)).json["id"]
        await endpoint.began.wait()
        second = (await send(app)).json["id"]
        for job in (second, first):
            assert (await ask(app, job, "DELETE")).json["status"] == "cancelled"
        while endpoint.outstanding:
            await asyncio.sleep(0)
        assert not [*(tmp_path / "audio").iterdir()]
        assert len(endpoint.seen) == 1
        assert (await ask(app, first)).json["status"] == "cancelled"


async def test_a_key_sees_only_its_own_jobs(tmp_path):
    async with jobs(tmp_path, api_key="first") as (endpoint, app):
        assert (await send(app)).status == 401
        endpoint.release.set()
        job = (await send(app, key="first")).json["id"]
        await becoming(app, job, "succeeded", key="first")
    async with jobs(tmp_path, api_key="second") as (_, app):
        foreign = [await ask(app, job, method, key="second") for method in ("GET", "DELETE")]
        nobodys = await ask(app, "job_0", key="second")
        assert [each.body for each in foreign] == [nobodys.body] * 2
        assert nobodys.status == 404
        assert (await ask(app, key="second")).json["data"] == []
    async with jobs(tmp_path, api_key="first") as (_, app):
        assert (await ask(app, job, key="first")).json["status"] == "succeeded"
    kept = (tmp_path / "jobs.sqlite").read_bytes()
    assert b"first" not in kept


async def test_a_drain_leaves_jobs_to_the_next_process(tmp_path):
    async with jobs(tmp_path) as (endpoint, app):
        job = (await send(app)).json["id"]
        await endpoint.began.wait()
        app.admission.draining = True
        DrainingServer(app, endpoint, 600).begin_to_drain()
        while endpoint.outstanding:
            await asyncio.sleep(0)
        assert (await send(app)).code == "DRAINING"
    for _ in range(3):  # which counts as no crash
        async with jobs(tmp_path) as (endpoint, app):
            await endpoint.began.wait()
    async with jobs(tmp_path) as (endpoint, app):
        endpoint.release.set()
        await becoming(app, job, "succeeded")


async def test_a_job_fails_after_the_engine_stopped_twice(tmp_path):
    async def stop_engine(endpoint):
        await endpoint.began.wait()
        endpoint.recogniser.alive, endpoint.error = False, ModelError("it has stopped")
        endpoint.release.set()
        while endpoint.outstanding:
            await asyncio.sleep(0)

    async with jobs(tmp_path) as (endpoint, app):
        job = (await send(app)).json["id"]
        await stop_engine(endpoint)
    async with jobs(tmp_path) as (endpoint, app):
        await stop_engine(endpoint)
        assert (await ask(app, job)).json["status"] == "running"
    async with jobs(tmp_path) as (_, app):
        told = (await ask(app, job)).json
        assert (told["status"], told["error"]["message"]) == ("failed", CRASHED)


async def test_wrong_requests_are_refused_before_anything_is_kept(tmp_path):
    async with jobs(tmp_path, most=1, most_bytes=100) as (_, app):
        wrong = [
            (b'{"inputs": "AAAA", "parameters": {"batch_size": 0}}', 400, "INVALID_PARAMETER"),
            (b'{"inputs": "!"}', 400, "INVALID_AUDIO"),
            (b"[]", 422, "INVALID_REQUEST"),
            (b'{"inputs": "%b"}' % (b"AAAA" * 50), 413, "BODY_TOO_LARGE"),
        ]
        for body, status, code in wrong:
            reply = await send(app, [body])
            assert (reply.status, reply.code) == (status, code)
            assert reply.json["error"]["code"] == code
        assert (await ask(app)).json["data"] == []
        for _ in range(2):  # the same job
            assert (await send(app, **{"idempotency-key": "one"})).status == 202
        reply = await client(app, "POST", "/v1/jobs", JSON, HELLO).run()
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "JOBS_FULL", "60")
        assert reply.parts_read == 0
        assert (await ask(app, query=b"format=doc")).status == 200
        listed = (await ask(app)).json["data"][0]["id"]
        assert (await ask(app, listed, query=b"format=doc")).code == "INVALID_PARAMETER"


async def test_without_a_folder_the_routes_say_so():
    _, app = served()
    sending = client(app, "POST", "/v1/jobs", JSON, HELLO)
    replies = [await sending.run(), await ask(app), await ask(app, "x")]
    replies.append(await ask(app, "x", "DELETE"))
    assert {(each.status, each.code) for each in replies} == {(404, "JOBS_DISABLED")}
    assert sending.reply.parts_read == 0


async def test_log_and_metrics_name_no_job_of_a_path(tmp_path, caplog):
    caplog.set_level("INFO")

    async with jobs(tmp_path) as (endpoint, app):
        await ask(app, "canary-5ecret")
        endpoint.release.set()
        await becoming(app, (await send(app)).json["id"], "succeeded")
        metrics = (await call(app, "GET", "/metrics")).body.decode()
        assert 'asr_jobs{status="succeeded"} 1.0' in metrics
        assert 'route="/v1/jobs/{job}"' in metrics
        assert "canary" not in metrics + caplog.text


async def test_only_metrics_wait_for_the_disk(tmp_path, monkeypatch):
    async with jobs(tmp_path) as (_, app):
        asked, go, counts = threading.Event(), threading.Event(), app.jobs.store.counts

        def slow():
            asked.set()
            assert go.wait(60)
            return counts()

        monkeypatch.setattr(app.jobs.store, "counts", slow)
        reading = asyncio.create_task(call(app, "GET", "/metrics"))
        await asyncio.to_thread(asked.wait)
        assert (await call(app, "GET", "/health")).status == 200
        assert not reading.done()
        go.set()
        assert b"asr_jobs_bytes" in (await reading).body


def test_a_request_is_kept_whole():
    """Clips of known speakers and warnings included, and nothing that was not given."""
    from whosaid.server.jobs.runner import write_request

    clip = {"name": "Ada", "reference": base64.b64encode(b"x" * 9000).decode()}
    parameters = {"known_speakers": [clip], "batch_size": 3, "output": ["srt"], "language": "en"}
    config = InferenceConfig.read(parameters)
    request = TranscriptionRequest(Upload([b""]), config, None, warnings=("unknown",))
    kept = json.loads(write_request(request, [2, 3]))
    assert InferenceConfig.read(kept["parameters"]) == config
    others = {"warnings": ["unknown"], "key": None, "sizes": [2, 3]}
    assert kept == {"parameters": parameters, **others}


@pytest.fixture(scope="module")
def audio(wav) -> bytes:
    return wav(speech(2.0))


async def test_answers_and_files_equal_those_of_the_contract(tiny_endpoint, audio, tmp_path):
    wanted = {"return_timestamps": "word", "output": ["srt"], "unknown": 1}
    body = json.dumps(request_body(audio, **wanted)).encode()
    all_files = json.dumps(request_body(audio, **wanted | {"output": [*FORMATS]})).encode()
    raw = {"content-type": "audio/wav", "content-length": len(audio)}
    query = b"return_timestamps=word&output=srt&unknown=1"

    settings = ServerSettings(page=False, max_running_jobs=1)
    app = create_app(tiny_endpoint, settings, store=open_store(tmp_path))
    async with app.jobs.running():
        plain = (await call(app, headers=JSON, parts=[body])).body
        files = (await call(app, headers=JSON, parts=[all_files])).json["output"]
        sent = [await send(app, [body]), await send(app, [audio], query=query, **raw)]
        for job in [each.json["id"] for each in sent]:
            assert (await becoming(app, job, "succeeded"))["answer"] == json.loads(plain)
            assert (await ask(app, job, query=b"format=json")).body == plain
            for name in FORMATS:
                reply = await ask(app, job, query=f"format={name}".encode())
                assert reply.body == file_bytes(name, files[name])
                assert reply.headers["content-type"].startswith(MEDIA_TYPES[name])
