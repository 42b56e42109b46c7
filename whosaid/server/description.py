"""Describes the bodies of requests and answers for `/openapi.json`.

Routes read bodies themselves, so that FastAPI neither reads a body before the request is admitted
nor repeats it in an error. `InferenceConfig` describes and checks the parameters.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from config import InferenceConfig
from whosaid.endpoint.request import MOST_FILES
from whosaid.payload.parameters import Voice
from whosaid.server.admission import WITHOUT_TOKEN
from whosaid.server.jobs.store import Status
from whosaid.transcript import Unwritten

PARAMETERS: dict[str, Any] = InferenceConfig.model_json_schema()
REFUSALS = {
    400: "The audio, a parameter or the form is wrong",
    401: "The bearer token is missing or wrong",
    403: "The host, or the origin of the page, is not allowed",
    404: "The key has no such job, the server no jobs or live sessions, or another model is loaded",
    408: "The body arrives too slowly",
    409: "With `format`: the job has no answer, or none yet",
    413: "The body is too large",
    415: "The body's media type is not supported",
    422: "The body is not a JSON object",
    429: "The queue is full; retry after Retry-After",
    500: "The endpoint failed",
    503: "The server is loading its models, shutting down, or short of processes",
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


class Usage(BaseModel):
    """The length of the audio."""

    type: Literal["duration"]
    seconds: float


class Logprob(BaseModel):
    """A token."""

    token: str
    bytes: list[int]
    logprob: float


class TextTranscription(BaseModel):
    """The format `json`. Lists and objects come if requested and not empty."""

    text: str
    languages: list[dict[str, str]] = []
    logprobs: list[Logprob] = []
    usage: Usage | None = None
    known_speakers: list[KnownSpeaker] = []
    voices: dict[str, Voice] = {}
    unspoken: list[dict[str, Any]] = []
    warnings: list[str] = []


class VerboseSegment(BaseModel):
    """A segment with the scores of its window."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    language: str | None = None
    speaker: str | None = None


class TimedWord(BaseModel):
    """A word, from `start` to `end` seconds."""

    word: str
    start: float
    end: float
    speaker: str | None = None
    heard: str | None = None


class VerboseTranscription(TextTranscription):
    """The format `verbose_json`."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    segments: list[VerboseSegment] = []
    words: list[TimedWord] = []
    unwritten: list[Unwritten]


class DiarizedSegment(BaseModel):
    """Consecutive text of one speaker."""

    type: Literal["transcript.text.segment"]
    id: str
    start: float
    end: float
    text: str
    speaker: str


class DiarizedTranscription(TextTranscription):
    """The format `diarized_json`."""

    task: Literal["transcribe"]
    duration: float
    segments: list[DiarizedSegment]


class Model(BaseModel):
    """The loaded model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The loaded model, in a list."""

    object: Literal["list"]
    data: list[Model]


class SecretBody(BaseModel):
    """A client secret with its session; `expires_at` is in seconds since 1970."""

    value: str
    expires_at: int
    session: dict[str, Any]
    warnings: list[str] = []


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


def answers(model: object, *texts: str) -> dict[str, Any]:
    """Return a 200 answer: JSON of `model`, or text of the media types `texts`."""
    text = {"schema": {"type": "string"}}
    content: dict[str, Any] = {"application/json": {}, **dict.fromkeys(texts, text)}
    return {"description": "The answer", "model": model, "content": content}


def authenticate(described: dict[str, Any], required: bool) -> None:
    """Declare the bearer token for all routes but WITHOUT_TOKEN's; optional unless `required`."""
    security: list[dict[str, list[str]]] = [{"bearer": []}, *([] if required else [{}])]
    schemes = described.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["bearer"] = {"type": "http", "scheme": "bearer"}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if path not in WITHOUT_TOKEN or method != "get":
                operation["security"] = security


def bodies(**more: object) -> dict[str, Any]:
    """Return the OpenAPI of the three kinds of bodies; `more` are additional parameters."""
    properties, audio = {**PARAMETERS["properties"], **more}, {"type": "string"}
    json_body = {
        "type": "object",
        "properties": {
            "inputs": {
                "anyOf": [audio, {"type": "array", "items": audio, "maxItems": MOST_FILES}],
                "description": "An audio file in base64, or a file for each speaker",
            },
            "parameters": {"anyOf": [{**PARAMETERS, "properties": properties}, {"type": "null"}]},
        },
        "required": ["inputs"],
    }
    text = {"type": "string", "description": "The parameters as JSON", "default": "{}"}
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "maxItems": MOST_FILES}
    form = {
        "type": "object",
        "properties": {"file": {"anyOf": [file, files]}, "parameters": text},
        "required": ["file"],
        "additionalProperties": {"type": "string", "description": "A parameter"},
    }
    content = {
        "application/json": {"schema": json_body},
        "multipart/form-data": {"schema": form},
        "application/octet-stream": {"schema": file},
    }
    return {"requestBody": {"required": True, "content": content}}
