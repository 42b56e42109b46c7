"""The routes of jobs: one is written to the disk before its id is told.

Nobody sees another key's jobs, nor that there are some.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import to_json

from audio.decode import decode_base64
from endpoint import Endpoint
from errors import InvalidParameter
from server.api_key import token_of
from server.errors import JobNotDone, JobsDisabled
from server.jobs.callbacks import read_target
from server.jobs.description import CREATE, LIST, READ, REMOVE
from server.jobs.runner import FORMATS, JobRunner, write_request
from server.jobs.store import Job, Status
from server.jobs.wire import job_json
from server.request_body import read_body
from transcription_request import TranscriptionRequest

JSON = "application/json"
MEDIA_TYPES = {"vtt": "text/vtt", "tsv": "text/tab-separated-values"}


def router(endpoint: Endpoint, runner: JobRunner | None, hosts: Collection[str]) -> APIRouter:
    """The routes, which say that there are no jobs where there is no `runner`; callbacks may go to
    `hosts`.
    """
    if runner is None:
        return _without_jobs()
    routes, store = APIRouter(prefix="/v1"), runner.store

    def owner(request: Request) -> bytes:
        return store.owner(token_of(request.headers))

    @routes.post("/jobs", **CREATE)
    async def create(request: Request) -> Response:
        await asyncio.to_thread(store.check_room, 0)
        body, as_text = await read_body(request)
        callback_url = take_callback_url(body, hosts)
        asked = await asyncio.to_thread(endpoint.parse, body, as_text)
        job = await asyncio.to_thread(_keep, runner, owner(request), endpoint, asked, callback_url)
        runner.wake()
        # From the root, as the request may have come for `/v1/jobs/`, too.
        location = f"{request.scope['root_path']}/v1/jobs/{job.id}"
        return Response(_body(runner, job), 202, {"Location": location}, JSON)

    @routes.get("/jobs", **LIST)
    async def list_all(request: Request) -> Response:
        jobs = await asyncio.to_thread(store.jobs, owner(request))
        body = {"object": "list", "data": [_told(runner, job) for job in jobs]}
        return Response(to_json(body), media_type=JSON)

    @routes.get("/jobs/{job}", **READ)
    async def read(job: str, request: Request) -> Response:
        form = request.query_params.get("format")
        if form not in (None, "json", *FORMATS):
            raise InvalidParameter(f"format: should be json, {', '.join(FORMATS)}")
        found = await asyncio.to_thread(store.job, owner(request), job)
        result = await asyncio.to_thread(store.result, owner(request), job)
        if form is None:
            answer = None if result is None else result.answer
            return Response(_body(runner, found, answer), media_type=JSON)
        if result is None:
            raise JobNotDone(f"the job is {found.status}")
        if form == "json":
            return Response(result.answer, media_type=JSON)
        text = json.loads(result.files)[form]
        return Response(text, media_type=MEDIA_TYPES.get(form, "text/plain"))

    @routes.delete("/jobs/{job}", **REMOVE)
    async def remove(job: str, request: Request) -> Response:
        if not await asyncio.to_thread(store.cancel, owner(request), job, time.time()):
            await asyncio.to_thread(store.remove, owner(request), job)
            return Response(status_code=204)
        runner.cancel(job)
        found = await asyncio.to_thread(store.job, owner(request), job)
        return Response(_body(runner, found), media_type=JSON)

    return routes


def take_callback_url(body: dict[str, Any], hosts: Collection[str]) -> str | None:
    """The address in a body's parameters, of which the transcription knows nothing; None where
    there is none. Raises InvalidParameter, CallbackNotAllowed.
    """
    parameters = body.get("parameters")
    url = parameters.pop("callback_url", None) if isinstance(parameters, dict) else None
    if url is None:
        return None
    if not isinstance(url, str):
        raise InvalidParameter("callback_url: should be text")
    read_target(url, hosts)
    return url


def _keep(
    runner: JobRunner,
    owner: bytes,
    endpoint: Endpoint,
    asked: TranscriptionRequest,
    callback_url: str | None,
) -> Job:
    audio = decode_base64(asked.upload.take(), endpoint.limits)
    return runner.store.add(owner, audio, write_request(asked), callback_url, time.time())


def _told(runner: JobRunner, job: Job) -> dict[str, Any]:
    progress = runner.progress.get(job.id) if job.status is Status.RUNNING else None
    return job_json(job, runner.kept_seconds, progress)


def _body(runner: JobRunner, job: Job, answer: bytes | None = None) -> bytes:
    """What is told of one job; its answer has the bytes that `/` would answer with."""
    told = to_json(_told(runner, job))
    return told[:-1] + b',"answer":' + (answer or b"null") + b"}"


def _without_jobs() -> APIRouter:
    routes = APIRouter(prefix="/v1", include_in_schema=False)

    @routes.api_route("/jobs", methods=["GET", "POST"])
    @routes.api_route("/jobs/{job}", methods=["GET", "DELETE"])
    async def refuse() -> None:
        raise JobsDisabled("this server keeps no jobs: DATA_DIR names the folder for them")

    return routes
