"""What the OpenAPI description says of the contract's routes.

Bodies are described by hand, as routes read them by hand; parameters come from `InferenceConfig`,
which checks them. Descriptions name the statuses that are answered, all in one shape.
"""

from __future__ import annotations

from typing import Any

from config import InferenceConfig

REFUSALS = {
    400: "The audio, a parameter or the form is wrong",
    401: "The bearer token is missing or wrong",
    403: "The server does not answer to this host, or for pages of this origin",
    408: "The body does not arrive",
    413: "The body is too large",
    415: "The body is of a type that is not read",
    422: "The body is not a JSON object",
    429: "The queue is full, or wrong keys came too often; Retry-After says when to come again",
    500: "The endpoint failed",
    503: "The server has not loaded its models yet, or is about to stop",
    504: "The request took longer than the server allows",
}
ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "detail": {"type": "string", "examples": ["INVALID_AUDIO: no audio stream found"]}
    },
    "required": ["detail"],
}
PARAMETERS: dict[str, Any] = InferenceConfig.model_json_schema()
SPOKEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "timestamp": {"type": "array", "items": {"type": "number"}},
        "speaker": {"type": ["string", "null"]},
    },
    "required": ["text", "timestamp"],
}
KNOWN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "label": {"type": ["string", "null"]},
        "similarity": {"type": ["number", "null"]},
        "matched": {"type": "boolean"},
    },
    "required": ["name", "label", "similarity", "matched"],
}
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "speakers": {"type": "array", "items": SPOKEN},
        "chunks": {"type": "array", "items": SPOKEN},
        "text": {"type": "string"},
        "language": {"type": ["string", "null"]},
        "duration": {"type": "number"},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "known_speakers": {"type": "array", "items": KNOWN},
    },
    "required": ["speakers", "chunks", "text", "language", "duration", "warnings"],
}
JSON_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "inputs": {"type": "string", "description": "An audio file in base64"},
        "parameters": {"anyOf": [PARAMETERS, {"type": "null"}]},
    },
    "required": ["inputs"],
}
FORM_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "parameters": {"type": "string", "description": "The parameters as JSON", "default": "{}"},
    },
    "required": ["file"],
    "additionalProperties": {"type": "string", "description": "A parameter"},
}
STREAM: dict[str, Any] = {
    "name": "stream",
    "in": "query",
    "description": "Progress and the answer as server-sent events",
    "schema": {"type": "boolean", "default": False},
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, by status."""
    return {
        status: {
            "description": REFUSALS[status],
            "content": {"application/json": {"schema": ERROR}},
        }
        for status in statuses
    }


TRANSCRIPTION: dict[str, Any] = {
    "summary": "Transcribe audio, with speakers",
    "description": "JSON with the audio in base64, a form, or the file itself with the parameters "
    "in the query string.",
    "responses": {
        200: {
            "description": "The transcript",
            "content": {"application/json": {"schema": ANSWER}, "text/event-stream": {}},
        },
        **refusals(*REFUSALS),
    },
    "openapi_extra": {
        "parameters": [STREAM],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": JSON_BODY},
                "multipart/form-data": {"schema": FORM_BODY},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
    },
}
