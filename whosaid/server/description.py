"""Describes the bodies of requests and answers for `/openapi.json`.

Routes read bodies themselves, so that FastAPI neither reads a body before the request is admitted
nor repeats it in an error. `InferenceConfig` describes and checks the parameters.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from config import InferenceConfig
from whosaid.payload.parameters import Voice
from whosaid.server.jobs.store import Status

PARAMETERS: dict[str, Any] = InferenceConfig.model_json_schema()
REFUSALS = {
    400: "The audio, a parameter or the form is wrong",
    401: "The bearer token is missing or wrong",
    403: "The host, or the origin of the page, is not allowed",
    404: "The key has no such job",
    408: "The body arrives too slowly",
    409: "With `format`: the job has no answer, or none yet",
    413: "The body is too large",
    415: "The body's media type is not supported",
    422: "The body is not a JSON object",
    429: "The queue is full; retry after Retry-After",
    500: "The endpoint failed",
    503: "The server is loading its models, or shutting down",
    504: "The request exceeded the server's time limit",
    507: "The server's disk is full or fails",
}
# Refusals of a route that takes audio.
ANY_BODY = (400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)


class Detail(BaseModel):
    """An error of the routes of hf-serve's contract."""

    detail: str = Field(examples=["INVALID_AUDIO: no audio stream found"])


class OpenAIError(BaseModel):
    """An error as OpenAI's clients expect it."""

    message: str = Field(examples=["NOT_FOUND: there is no such job"])
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """An error of the routes under /v1."""

    error: OpenAIError


class Spoken(BaseModel):
    """A stretch of text; `timestamp` is its start and end in seconds."""

    text: str
    timestamp: list[float]
    speaker: str | None = None


class KnownSpeaker(BaseModel):
    """The result for a known speaker's name."""

    name: str
    label: str | None
    similarity: float | None
    matched: bool


class AnswerBody(BaseModel):
    """The transcript."""

    speakers: list[Spoken]
    chunks: list[Spoken]
    text: str
    language: str | None
    duration: float
    warnings: list[str]
    known_speakers: list[KnownSpeaker] = []
    voices: dict[str, Voice] = {}


class Progress(BaseModel):
    """Seconds of speech, while a job runs."""

    done: float
    total: float


class JobError(BaseModel):
    """The error of a failed job."""

    code: str
    message: str


class Callback(BaseModel):
    """Delivery of a job's callback."""

    delivered: bool
    tries: int


class JobBody(BaseModel):
    """A job; times are seconds since 1970."""

    id: str
    object: Literal["job"]
    status: Status
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    expires_at: int | None = None
    progress: Progress | None = None
    error: JobError | None = None
    callback: Callback | None = None
    answer: AnswerBody | None = None


class JobList(BaseModel):
    """The key's jobs, the newest first, without answers."""

    object: Literal["list"]
    data: list[JobBody]


def refusals(*statuses: int, model: type[BaseModel] = Detail) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of a route, by status."""
    return {status: {"description": REFUSALS[status], "model": model} for status in statuses}


def bodies(**more: object) -> dict[str, Any]:
    """Return the OpenAPI of the three kinds of bodies; `more` are additional parameters."""
    properties = {**PARAMETERS["properties"], **more}
    json_body = {
        "type": "object",
        "properties": {
            "inputs": {"type": "string", "description": "An audio file in base64"},
            "parameters": {"anyOf": [{**PARAMETERS, "properties": properties}, {"type": "null"}]},
        },
        "required": ["inputs"],
    }
    text = {"type": "string", "description": "The parameters as JSON", "default": "{}"}
    file = {"type": "string", "format": "binary"}
    form = {
        "type": "object",
        "properties": {"file": file, "parameters": text},
        "required": ["file"],
        "additionalProperties": {"type": "string", "description": "A parameter"},
    }
    content = {
        "application/json": {"schema": json_body},
        "multipart/form-data": {"schema": form},
        "application/octet-stream": {"schema": file},
    }
    return {"requestBody": {"required": True, "content": content}}
