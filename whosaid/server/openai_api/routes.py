"""The routes of OpenAI's audio API.

A request is checked in full, and its audio decoded, before an answer begins.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import JSONResponse, PlainTextResponse, Response

from whosaid.answer.response import Answer
from whosaid.server.admission import FORM
from whosaid.server.description import ErrorBody, refusals
from whosaid.server.metrics import Service
from whosaid.server.openai_api.bodies import file_of, json_body, text_of
from whosaid.server.openai_api.form import (
    FILES,
    AudioRequest,
    TranscriptionForm,
    TranslationForm,
    model_json,
    read_form,
    require_model,
)
from whosaid.server.openai_api.speakers import with_labels
from whosaid.server.openai_api.stream import stream_messages
from whosaid.server.sse import EventStream, wait_for_audio

MEDIA_TYPES = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}
LONGEST_HEADER = 2000  # characters; proxies refuse long ones


def described(kind: type[TranslationForm]) -> dict[str, Any]:
    form = kind.described()
    answer = {"description": "The answer, in the response format"}
    return {
        "responses": {200: answer, **refusals(400, 403, 413, 415, 429, 503, 504, model=ErrorBody)},
        "openapi_extra": {"requestBody": {"required": True, "content": {FORM: {"schema": form}}}},
    }


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1")
    endpoint, created = service.endpoint, int(time.time())

    @routes.post("/audio/transcriptions", **described(TranscriptionForm))
    async def transcribe(request: Request) -> Response:
        """Transcribe an audio file."""
        return await _answer(request, TranscriptionForm, service)

    @routes.post("/audio/translations", **described(TranslationForm))
    async def translate(request: Request) -> Response:
        """Translate an audio file into English."""
        return await _answer(request, TranslationForm, service)

    @routes.get("/models")
    async def models() -> JSONResponse:
        """List the loaded model."""
        return JSONResponse({"object": "list", "data": [model_json(endpoint, created)]})

    @routes.get("/models/{model:path}", responses={404: {"description": "Another model is loaded"}})
    async def model(model: str) -> JSONResponse:
        """Return the loaded model, under any name that requests may give it."""
        require_model(model, endpoint)
        return JSONResponse(model_json(endpoint, created))

    return routes


async def _answer(request: Request, kind: type[TranslationForm], service: Service) -> Response:
    asked, permit = await read_form(request, kind, service.endpoint), request.state.permit
    if not asked.stream:
        answer = await service.answer(asked.request, permit)
        return await asyncio.to_thread(_respond, answer, asked)
    events = service.stream(asked.request, permit)
    await wait_for_audio(events)
    return EventStream(events, stream_messages(events, asked))


def _respond(answer: Answer, asked: AudioRequest) -> Response:
    """Return the answer in the response format; text is sent raw, not as a JSON string."""
    answer = with_labels(answer)
    if asked.format in (*FILES, "text"):
        text = text_of(answer) if asked.format == "text" else file_of(answer, asked)
        headers = _warning_header(answer.warnings + _unspoken(answer))
        return PlainTextResponse(text, media_type=MEDIA_TYPES[asked.format], headers=headers)
    content = to_json(json_body(answer, asked), inf_nan_mode="null")
    headers = _warning_header(answer.warnings)
    return Response(content, media_type="application/json", headers=headers)


def _unspoken(answer: Answer) -> tuple[str, ...]:
    """Return a warning for unspoken parts of the client's `text`, which a file cannot list."""
    parts = len(answer.transcript.unspoken)
    return (f"text: not all is spoken; json lists {parts} as unspoken",) if parts else ()


def _warning_header(warnings: tuple[str, ...]) -> dict[str, str]:
    """Return the warnings as a header, because some formats have no field for them."""
    line = "; ".join(warnings).encode("ascii", "backslashreplace").decode("ascii")
    return {"X-Warnings": " ".join(line.split())[:LONGEST_HEADER]} if line else {}
