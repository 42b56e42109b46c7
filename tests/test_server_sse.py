"""Server-sent events: bytes, pings, errors, closed streams, and the native routes' events."""

import asyncio
import json

import pytest

from config import InferenceConfig
from tests.helpers.openai_answers import SPOKEN, KnownAnswers
from whosaid.answer.response import response
from whosaid.asr import Transcribed
from whosaid.endpoint import Decoded, Diarized
from whosaid.endpoint.request import TranscriptionRequest, Upload
from whosaid.server import sse
from whosaid.transcript import Chunk

SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}


async def sent_by(stream: sse.EventStream, leaves_after: int | None = None):
    """Return the headers and body that a client gets who may leave after so many messages."""
    messages, left = [], asyncio.Event()

    async def receive():
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        messages.append(message)
        if len(messages) == leaves_after:
            left.set()
            await asyncio.sleep(0)

    await stream(SCOPE, receive, send)
    headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return headers, b"".join(message.get("body", b"") for message in messages)


def events_of(body: bytes):
    lines = body.decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def native_stream(endpoint, **parameters) -> sse.EventStream:
    config = InferenceConfig.read(parameters)
    request = TranscriptionRequest(Upload([b"sound"]), config, options=None)
    events = endpoint.stream(request, None)
    decoded = await sse.wait_for_audio(events)
    return sse.EventStream(events, sse.native_messages(decoded, events, request.config))


def native_events(endpoint, **parameters):
    async def run():
        return await sent_by(await native_stream(endpoint, **parameters))

    return asyncio.run(run())


@pytest.fixture
def endpoint():
    return KnownAnswers()


def test_an_event_is_one_line_whatever_it_holds():
    written = sse.encode({"text": "a\nb\r\n\u2028 \u00fc", "number": float("nan")})
    assert written.startswith(b"data: ")
    assert written.endswith(b"\n\n")
    assert len(written[:-2].splitlines()) == 1
    assert json.loads(written[6:]) == {"text": "a\nb\r\n\u2028 \u00fc", "number": None}


@pytest.mark.parametrize("parameters", [{}, {"return_timestamps": "word"}, {"multilingual": True}])
def test_native_events_are_progress_and_the_answer(endpoint, parameters):
    headers, body = native_events(endpoint, **parameters)
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    decoded, *progress, answer = events_of(body)
    whole = response(SPOKEN, InferenceConfig.read(parameters))
    assert decoded == {"type": "decoded", "duration": 31.5}
    assert answer == {"type": "answer", "answer": whole}
    assert {each["type"] for each in progress} == {"progress"}
    assert [chunk for each in progress for chunk in each["chunks"]] == whole["chunks"]
    assert [each["done"] for each in progress] == [1.1, 2.1, 31.2]


def test_times_never_go_back_from_event_to_event(endpoint):
    chunks = (Chunk(" a", 0.0, 2.0), Chunk(" b", 1.0, 1.5), Chunk(" c", 1.2, 99.0))
    transcript = SPOKEN.transcript.__class__(chunks, "en")
    endpoint.result = SPOKEN.__class__(31.5, transcript)
    _, *progress, answer = events_of(native_events(endpoint)[1])
    told = [chunk for each in progress for chunk in each["chunks"]]
    assert told == answer["answer"]["chunks"]
    assert [chunk["timestamp"] for chunk in told] == [[0.0, 2.0], [2.0, 2.02], [2.02, 31.5]]


async def test_an_estimated_duration_bounds_no_times():
    async def events():
        yield Transcribed(10.0, 31.5, ())
        yield Transcribed(30.0, 31.5, (Chunk(" a", 20.0, 40.0),))
        yield Transcribed(31.5, 31.5, (Chunk(" b", 40.0, 50.0),))
        yield Diarized(0.123)

    messages = sse.native_messages(Decoded(31.5, estimated=True), events(), InferenceConfig())
    _, *progress, speakers = [each async for each in messages]
    assert speakers == {"type": "speakers", "share": 0.12}
    told = [chunk["timestamp"] for each in progress for chunk in each["chunks"]]
    assert told == [[20.0, 40.0], [40.0, 50.0]]


async def test_pings_go_out_while_nothing_comes():
    """Three in a row, however many come before the first part on a busy machine."""
    go_on = asyncio.Event()

    async def slow():
        yield b"first"
        await go_on.wait()
        yield b"last"

    seen = []
    async for part in sse.with_pings(slow(), 0.001):
        seen.append(part)
        if seen[-4:] == [b"first", *3 * [sse.PING]]:
            go_on.set()
    assert [part for part in seen if part != sse.PING] == [b"first", b"last"]
    assert sse.PING == b": ping\n\n"


@pytest.mark.parametrize("leaves_after", [1, 2])
async def test_a_client_that_leaves_closes_the_request(leaves_after):
    closed = []

    async def endless():
        try:
            yield "the audio is read"
            yield {"number": 0}
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    events = endless()
    await anext(events)
    await sent_by(sse.EventStream(events, events), leaves_after)
    assert closed == [True]


def test_an_unsent_stream_closes_the_request(endpoint):
    async def run():
        stream = await native_stream(endpoint)

        async def fail(_message):
            raise ConnectionError

        with pytest.raises(BaseException):  # noqa: B017, PT011  # of a task group or bare
            await stream(SCOPE, asyncio.Event().wait, fail)

    asyncio.run(run())
    assert endpoint.closed == 1
