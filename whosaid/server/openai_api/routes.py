"""The routes of OpenAI's audio API.

A request is checked in full, and its audio decoded, before an answer begins.
"""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import PlainTextResponse, Response

from whosaid.answer.response import Answer
from whosaid.endpoint.request import CUES
from whosaid.server.admission import FORM
from whosaid.server.description import (
    ANY_BODY,
    DiarizedTranscription,
    ErrorBody,
    Model,
    ModelList,
    TextTranscription,
    VerboseTranscription,
    answers,
    refusals,
)
from whosaid.server.openai_api import form
from whosaid.server.openai_api.bodies import file_of, json_body, text_of
from whosaid.server.openai_api.speakers import with_labels
from whosaid.server.openai_api.stream import stream_messages
from whosaid.server.service import Service
from whosaid.server.sse import EventStream, wait_for_audio

MEDIA_TYPES = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}
LONGEST_HEADER = 2000  # characters; proxies refuse long ones


def described(kind: type[form.TranslationForm], formats: object) -> dict[str, Any]:
    schema = kind.described()
    answer = answers(formats, "text/plain", "text/vtt", "text/event-stream")
    statuses = [status for status in ANY_BODY if status != 422]  # a body of JSON
    return {
        "responses": {200: answer, **refusals(*statuses, model=ErrorBody)},
        "openapi_extra": {"requestBody": {"required": True, "content": {FORM: {"schema": schema}}}},
    }


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1")
    endpoint, created = service.endpoint, int(time.time())
    closed = refusals(401, 403, model=ErrorBody)

    @routes.post(
        "/audio/transcriptions",
        **described(
            form.TranscriptionForm, VerboseTranscription | DiarizedTranscription | TextTranscription
        ),
    )
    async def create_transcription(request: Request) -> Response:
        """Transcribe an audio file."""
        return await _answer(request, form.TranscriptionForm, service)

    @routes.post(
        "/audio/translations",
        **described(form.TranslationForm, VerboseTranscription | TextTranscription),
    )
    async def create_translation(request: Request) -> Response:
        """Translate an audio file into English."""
        return await _answer(request, form.TranslationForm, service)

    @routes.get("/models", responses=closed)
    async def list_models() -> ModelList:
        """List the loaded model."""
        return ModelList(object="list", data=[form.model_body(endpoint, created)])

    @routes.get("/models/{model:path}", responses=closed | refusals(404, model=ErrorBody))
    async def read_model(model: str) -> Model:
        """Return the loaded model, under any name that requests may give it."""
        form.require_model(model, endpoint)
        return form.model_body(endpoint, created)

    return routes


async def _answer(request: Request, kind: type[form.TranslationForm], service: Service) -> Response:
    asked, permit = await form.read_form(request, kind, service.endpoint), request.state.permit
    if not asked.stream:
        answer = await service.answer(asked.request, permit)
        return await asyncio.to_thread(_respond, answer, asked)
    events = service.stream(asked.request, permit)
    await wait_for_audio(events)
    return EventStream(events, stream_messages(events, asked))


def _respond(answer: Answer, asked: form.AudioRequest) -> Response:
    """Return the answer in the response format; text is sent raw, not as a JSON string."""
    answer = with_labels(answer)
    if asked.format in (*CUES, "text"):
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
