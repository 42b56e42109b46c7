"""The contract's routes: POST `/` and `/predict`, with hf-serve's answers to the byte.

Routes take the bare request, so that FastAPI neither reads a body before the request is admitted
nor repeats it in an error.
"""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import to_json

from config import TEXT_BOOLEANS
from whosaid.answer.response import response
from whosaid.errors import InvalidParameter
from whosaid.server.description import ANY_BODY, AnswerBody, answers, bodies, refusals
from whosaid.server.request_body import read_body
from whosaid.server.service import Service
from whosaid.server.sse import EventStream, native_messages, wait_for_audio

STREAM = {
    "name": "stream",
    "in": "query",
    "description": "Progress and the answer as server-sent events",
    "schema": {"type": "boolean", "default": False},
}
TRANSCRIPTION: dict[str, Any] = {
    "summary": "Transcribe audio, with speakers",
    "description": "JSON with the audio in base64, a form, or the file itself with the parameters "
    "in the query string.",
    "responses": {200: answers(AnswerBody, "text/event-stream"), **refusals(*ANY_BODY)},
    "openapi_extra": {"parameters": [STREAM], **bodies()},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/", **TRANSCRIPTION, operation_id="transcribe")
    @routes.post("/predict", **TRANSCRIPTION, operation_id="predict")
    @routes.post("/invocations", include_in_schema=False)  # SageMaker's path
    async def predict(request: Request) -> Response:
        # No variable refers to the body, so that it is freed once its audio is decoded.
        transcription = await asyncio.to_thread(service.endpoint.parse, *await read_body(request))
        config = transcription.config
        if wants_events(request):
            events = service.stream(transcription, request.state.permit)
            decoded = await wait_for_audio(events)
            return EventStream(events, native_messages(decoded, events, config))
        answer = await service.answer(transcription, request.state.permit)
        content = await asyncio.to_thread(lambda: encode(response(answer, config)))
        return Response(content, media_type="application/json")

    return routes


def wants_events(request: Request) -> bool:
    """Return True if the client asks for progress, by media type or by `?stream=true`."""
    streams = TEXT_BOOLEANS.get(request.query_params.get("stream", "false").lower())
    if streams is None:
        raise InvalidParameter("should be true or false", "stream")
    return streams or "text/event-stream" in request.headers.get("accept", "")


def encode(answer: dict[str, Any]) -> bytes:
    """Serialize a handler's dict as hf-serve does, with the same serializer."""
    return to_json(answer, inf_nan_mode="null")
