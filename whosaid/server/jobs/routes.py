"""Routes of jobs. A job is written to disk before the client gets its id.

A client sees only the jobs of its own key.
"""

import asyncio
import json
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import to_json

from whosaid.answer.formats import MEDIA_TYPES, file_bytes
from whosaid.answer.kept import layout_of, rendered
from whosaid.audio.decode import decode_files
from whosaid.endpoint import Endpoint
from whosaid.errors import InvalidParameter
from whosaid.server.clock import now
from whosaid.server.description import (
    ANY_BODY,
    AnswerBody,
    ErrorBody,
    JobBody,
    JobList,
    answers,
    bodies,
    refusals,
)
from whosaid.server.errors import Kind, Refusal
from whosaid.server.idempotency import key_of
from whosaid.server.jobs.callbacks import read_target
from whosaid.server.jobs.runner import FORMATS, JobRunner
from whosaid.server.jobs.store import Job, JobStore, Result, Status
from whosaid.server.request_body import read_body

JSON = "application/json"
CALLBACK_URL = {
    "type": ["string", "null"],
    "description": "The URL to call after the job's end, on a host of CALLBACK_HOSTS",
}
IN_QUERY = {
    "name": "callback_url",
    "in": "query",
    "description": "If the body is the audio file",
    "schema": {"type": "string"},
}
FORMAT = {
    "name": "format",
    "in": "query",
    "description": "Return only the answer: its JSON, or a file",
    "schema": {"enum": ["json", *FORMATS]},
}
CREATE: dict[str, Any] = {
    "summary": "Transcribe a recording in the background",
    "description": "The same bodies as for `/`, with one more parameter, `callback_url`.",
    "status_code": 202,
    "responses": {
        202: {"description": "The job", "model": JobBody},
        **refusals(*ANY_BODY, 404, 507, model=ErrorBody),
    },
    "openapi_extra": {"parameters": [IN_QUERY], **bodies(callback_url=CALLBACK_URL)},
}
LIST: dict[str, Any] = {
    "summary": "The key's jobs, the newest first",
    "responses": {
        200: {"description": "Without answers", "model": JobList},
        **refusals(401, 403, 404, 429, model=ErrorBody),
    },
}
READ: dict[str, Any] = {
    "summary": "A job and, once it has succeeded, its answer; with `format` only the answer",
    "responses": {
        200: answers(JobBody | AnswerBody, *MEDIA_TYPES.values()),
        **refusals(400, 401, 403, 404, 409, 429, model=ErrorBody),
    },
    "openapi_extra": {"parameters": [FORMAT]},
}
REMOVE: dict[str, Any] = {
    "summary": "Cancel a job, or delete one that has ended",
    "responses": {
        200: {"description": "The job is cancelled", "model": JobBody},
        204: {"description": "The job had ended, and is deleted"},
        **refusals(401, 403, 404, 429, 507, model=ErrorBody),
    },
}


def router(endpoint: Endpoint, runner: JobRunner | None, hosts: Collection[str]) -> APIRouter:
    """Return the routes; JOBS_DISABLED without a `runner`. Callbacks may go to `hosts`."""
    routes = APIRouter(prefix="/v1")

    def enabled(request: Request) -> tuple[JobRunner, JobStore, bytes]:
        """Return the runner, its store and the owner of the client's jobs."""
        if runner is None:
            text = "this server has no jobs: set DATA_DIR to a folder for them"
            raise Refusal(Kind.JOBS_DISABLED, text)
        return runner, runner.store, request.state.principal.owner

    @routes.post("/jobs", **CREATE)
    async def create_job(request: Request) -> Response:
        runner, store, _ = enabled(request)
        if (key := key_of(request.headers)) is None:  # else the job may exist
            await asyncio.to_thread(store.check_room, 0)
        body, as_text = await read_body(request)
        callback_url = take_callback_url(body, hosts)
        async with endpoint.use_models():
            asked = await asyncio.to_thread(endpoint.parse, body, as_text)
        files = await asyncio.to_thread(decode_files, asked.upload.take(), endpoint.limits)
        sender = request.state.principal
        job = await asyncio.to_thread(runner.accept, sender, files, asked, callback_url, key)
        result = await asyncio.to_thread(store.result, sender.owner, job.id)  # of a repeated POST
        runner.wake()
        # An absolute path, because the request may have been for `/v1/jobs/`.
        location = f"{request.scope['root_path']}/v1/jobs/{job.id}"
        return Response(_body(runner, job, result), 202, {"Location": location}, JSON)

    @routes.get("/jobs", **LIST)
    def list_jobs(request: Request) -> Response:
        runner, store, owner = enabled(request)
        jobs = [job_json(runner, job) for job in store.jobs(owner)]
        return Response(to_json({"object": "list", "data": jobs}), media_type=JSON)

    @routes.get("/jobs/{job}", **READ)
    def read_job(job: str, request: Request) -> Response:
        runner, store, owner = enabled(request)
        form = request.query_params.get("format")
        if form not in (None, "json", *FORMATS):
            raise InvalidParameter(f"should be json, {', '.join(FORMATS)}", "format")
        found, result = store.job(owner, job), store.result(owner, job)
        if form is None:
            return Response(_body(runner, found, result), media_type=JSON)
        if result is None:
            raise Refusal(Kind.JOB_NOT_DONE, f"the job is {found.status}")
        if form == "json":
            return Response(result.answer, media_type=JSON)
        return Response(_file(result, form), media_type=MEDIA_TYPES[form])

    @routes.delete("/jobs/{job}", **REMOVE)
    async def remove_job(job: str, request: Request) -> Response:
        runner, store, owner = enabled(request)
        if not await asyncio.to_thread(store.cancel, owner, job, now()):
            await asyncio.to_thread(store.remove, owner, job)
            return Response(status_code=204)
        runner.cancel(job)
        found = await asyncio.to_thread(store.job, owner, job)
        return Response(_body(runner, found), media_type=JSON)

    return routes


def _file(result: Result, form: str) -> bytes:
    """Return a file of a job's result; the server that made it may have had fewer formats."""
    files = json.loads(result.files)
    if form not in files:
        files = rendered(json.loads(result.answer), [form], layout_of({}))
    return file_bytes(form, files[form])


def take_callback_url(body: dict[str, Any], hosts: Collection[str]) -> str | None:
    """Remove a body's `callback_url` from its parameters. Raises InvalidParameter, Refusal."""
    parameters = body.get("parameters")
    url = parameters.pop("callback_url", None) if isinstance(parameters, dict) else None
    if url is None:
        return None
    if not isinstance(url, str):
        raise InvalidParameter("should be text", "callback_url")
    read_target(url, hosts)
    return url


def job_json(runner: JobRunner, job: Job) -> dict[str, Any]:
    """Return a job in the form of `JobBody`, without its answer."""
    progress = runner.progress.get(job.id) if job.status is Status.RUNNING else None
    expires = None if job.ended is None else job.ended + runner.kept_seconds
    times = {"created": job.created, "started": job.started, "ended": job.ended, "expires": expires}
    return {
        "id": job.id,
        "object": "job",
        "status": job.status,
        **{f"{name}_at": None if time is None else int(time) for name, time in times.items()},
        "progress": progress
        and {"done": round(progress.done, 2), "total": round(progress.total, 2)},
        "error": job.error_json,
        "callback": job.callback_url
        and {"delivered": job.callback_delivered, "tries": job.callback_tries},
    }


def _body(runner: JobRunner, job: Job, result: Result | None = None) -> bytes:
    """Return a job as JSON; its `answer` is byte for byte an answer of `/`."""
    body = to_json(job_json(runner, job))
    return body[:-1] + b',"answer":' + (result.answer if result else b"null") + b"}"
