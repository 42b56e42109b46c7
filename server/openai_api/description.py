"""The forms of OpenAI's routes, for the server's OpenAPI description.

It is written by hand, because the routes take the bare request: nothing may read a body before it
is admitted, or repeat it in an error.
"""

from __future__ import annotations

from typing import Any

from payload.parameters import MAX_CLIPS
from server.admission import FORM
from server.openai_api.fields import FORMATS, GRANULARITIES, SUBTITLES, TRANSCRIBE

TEXT: dict[str, Any] = {"type": "string"}
FLAG: dict[str, Any] = {"type": "boolean"}


def described(task: str) -> dict[str, Any]:
    """The operation's body and statuses."""
    fields: dict[str, Any] = {
        "file": {"type": "string", "format": "binary"},
        "model": TEXT,
        "language": TEXT,
        "languages[]": _several(TEXT, most=1),
        "prompt": TEXT,
        **({"text": TEXT} if task == TRANSCRIBE else {}),
        "keywords[]": _several(TEXT, most=200),
        "response_format": {"enum": [*FORMATS[task]], "default": "json"},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
        "timestamp_granularities[]": _several({"enum": [*GRANULARITIES]}),
        "stream": FLAG,
        "chunking_strategy": TEXT,
        "include[]": _several({"enum": ["logprobs"]}),
        "diarize": FLAG,
        "known_speaker_names[]": _several(TEXT, most=MAX_CLIPS),
        "known_speaker_references[]": _several(TEXT, most=MAX_CLIPS),
        "known_speaker_threshold": {"type": "number", "minimum": 0, "maximum": 1},
        "num_speakers": {"type": "integer", "minimum": 1, "maximum": 100},
        "channels": {"enum": ["mix", "separate"], "default": "mix"},
        "channel_names[]": _several(TEXT, most=8),
        "assisted": FLAG,
        **{name: {"type": "integer", "minimum": 1, "maximum": 1000} for name in SUBTITLES[:3]},
        **dict.fromkeys(SUBTITLES[3:], FLAG),
    }
    form = {"type": "object", "required": ["file"], "properties": fields}
    answers = {
        "200": "The answer, in the response format",
        "400": "A field or the audio is wrong, or cannot be served",
        "403": "The server does not answer to this host, or for pages of this origin",
        "413": "The body is too large",
        "415": f"The body is not {FORM}",
        "429": "Too many requests wait",
        "503": "The server is about to stop",
        "504": "The request took too long",
    }
    return {
        "requestBody": {"required": True, "content": {FORM: {"schema": form}}},
        "responses": {status: {"description": text} for status, text in answers.items()},
    }


def _several(one: dict[str, Any], most: int = 2) -> dict[str, Any]:
    return {"type": "array", "items": one, "maxItems": most}
