"""What the OpenAPI description says of the routes of jobs."""

from __future__ import annotations

from typing import Any, get_args

from config import OutputFormat
from server.description import ANSWER, JSON_BODY, PARAMETERS, REFUSALS, TRANSCRIPTION
from server.jobs.store import Status

TIME: dict[str, Any] = {"type": ["integer", "null"]}
JOB: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "job"},
        "status": {"enum": [*Status]},
        "created_at": {"type": "integer", "description": "Seconds since 1970"},
        "started_at": TIME,
        "ended_at": TIME,
        "expires_at": TIME,
        "progress": {
            "type": ["object", "null"],
            "description": "Seconds of speech, while it runs",
            "properties": {"done": {"type": "number"}, "total": {"type": "number"}},
        },
        "error": {
            "type": ["object", "null"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        },
        "callback": {
            "type": ["object", "null"],
            "properties": {"delivered": {"type": "boolean"}, "tries": {"type": "integer"}},
        },
        "answer": {"anyOf": [ANSWER, {"type": "null"}]},
    },
    "required": ["id", "object", "status", "created_at"],
}
LISTED: dict[str, Any] = {
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": JOB}},
    "required": ["object", "data"],
}
FORMAT: dict[str, Any] = {
    "name": "format",
    "in": "query",
    "description": "The answer alone: its JSON, or a file",
    "schema": {"enum": ["json", *get_args(OutputFormat)]},
}
ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "examples": ["NOT_FOUND: there is no such job"]},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _refusals(*statuses: int) -> dict[int, dict[str, Any]]:
    return {status: _json(REFUSALS[status], ERROR) for status in statuses}


NOT_FOUND = {404: _json("The key has no such job", ERROR)}
CALLBACK_URL: dict[str, Any] = {
    "type": ["string", "null"],
    "description": "Who is told of the job's end, a host of CALLBACK_HOSTS",
}
SENT = {**PARAMETERS, "properties": {**PARAMETERS["properties"], "callback_url": CALLBACK_URL}}
IN_JSON = {"parameters": {"anyOf": [SENT, {"type": "null"}]}}
BODIES: dict[str, Any] = {
    **TRANSCRIPTION["openapi_extra"]["requestBody"]["content"],
    "application/json": {
        "schema": {**JSON_BODY, "properties": {**JSON_BODY["properties"], **IN_JSON}}
    },
}
CREATE: dict[str, Any] = {
    "summary": "Take a recording, and transcribe it later",
    "description": "What `/` takes, and among the parameters `callback_url`.",
    "status_code": 202,
    "responses": {
        202: _json("The job", JOB),
        **_refusals(*REFUSALS),
        507: _json("The disk takes no more", ERROR),
    },
    "openapi_extra": {"requestBody": {"required": True, "content": BODIES}},
    "operation_id": "create_job",
}
LIST: dict[str, Any] = {
    "summary": "The key's jobs, the newest first",
    "responses": {200: _json("Without answers", LISTED), **_refusals(401, 403, 429)},
    "operation_id": "list_jobs",
}
READ: dict[str, Any] = {
    "summary": "A job and, once it has succeeded, its answer",
    "responses": {
        200: {
            "description": "The job, or with `format` its answer",
            "content": {"application/json": {"schema": JOB}, "text/plain": {}},
        },
        **_refusals(400, 401, 403, 429),
        **NOT_FOUND,
        409: _json("With `format`: the job has no answer, or none yet", ERROR),
    },
    "openapi_extra": {"parameters": [FORMAT]},
    "operation_id": "read_job",
}
REMOVE: dict[str, Any] = {
    "summary": "Cancel a job, or forget one that has ended",
    "responses": {
        200: _json("It is cancelled", JOB),
        204: {"description": "It had ended, and is forgotten"},
        **_refusals(401, 403, 429),
        **NOT_FOUND,
        507: _json("The disk takes no more", ERROR),
    },
    "operation_id": "remove_job",
}
