"""The contract's routes, against hf-serve's own router with the same handler."""

import asyncio
import json
import math
import os
from collections.abc import Callable

import pytest
from fastapi import FastAPI
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient

from config import InferenceConfig
from tests.helpers.asgi import call
from tests.helpers.openai_answers import KnownAnswers
from tests.support.audio_files import request_body, speech
from whosaid.endpoint.request import TranscriptionRequest
from whosaid.server.app import create_app
from whosaid.server.gate import Gate
from whosaid.server.native import encode
from whosaid.server.settings import ServerSettings

os.environ.setdefault("TASK", "custom")
CANARY = "canary-5ecret"


@pytest.fixture(scope="module")
def app(tiny_endpoint) -> Gate:
    return create_app(tiny_endpoint, ServerSettings(page=False))


@pytest.fixture(scope="module")
def hf_serve(tiny_handler) -> TestClient:
    from hf_serve.routers.custom import router

    app = FastAPI()
    app.include_router(router(tiny_handler))
    return TestClient(app)


@pytest.fixture(scope="module")
def audio(wav) -> bytes:
    return wav(speech(2.0))


def post(app, body: bytes, kind: str | None = None, path="/", query=b"", **headers):
    given = {"content-length": len(body), **headers}
    if kind is not None:
        given["content-type"] = kind
    return asyncio.run(call(app, path=path, headers=given, parts=[body], query=query))


@pytest.fixture(scope="module")
def known() -> KnownAnswers:
    return KnownAnswers()


@pytest.fixture(scope="module")
def quick(known) -> Gate:
    """An app that reads every request and transcribes nothing."""
    return create_app(known, ServerSettings(page=False))


@pytest.fixture(scope="module")
def read(known, quick) -> Callable[..., TranscriptionRequest]:
    """Return a function that gives the endpoint's request for a body."""

    def send(*arguments, **options) -> TranscriptionRequest:
        reply = post(quick, *arguments, **options)
        assert reply.status == 200, reply.body
        return known.asked

    return send


def json_body(audio: bytes, **parameters) -> bytes:
    return json.dumps(request_body(audio, **parameters)).encode()


def form(**parts: tuple[str, bytes]) -> bytes:
    lines = b""
    for name, (filename, content) in parts.items():
        extra = f'; filename="{filename}"' if filename else ""
        head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
        lines += head.encode() + content + b"\r\n"
    return lines + b"--edge--\r\n"


FORM = "multipart/form-data; boundary=edge"
PARAMETERS = [
    {},
    {"return_timestamps": "word", "batch_size": 2, "unknown \u00e9": 1},
    {"return_timestamps": False, "num_speakers": "2", "output": ["srt", "vtt"]},
    {"channels": "separate", "channel_names": "caller", "return_timestamps": "word"},
]


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_answers_equal_hf_serves_bytes(app, hf_serve, audio, parameters):
    body = json_body(audio, **parameters)
    expected = hf_serve.post("/", content=body, headers={"content-type": "application/json"})
    reply = post(app, body, "application/json", "/predict" if parameters else "/")
    assert (reply.status, reply.body) == (200, expected.content)
    assert reply.headers["content-type"] == expected.headers["content-type"]


AWKWARD = {
    "floats": [0.0, -0.0, 0.1, 1e-7, 1e16, 1e22, 123456789.125, 2.0, math.nan, math.inf],
    "others": [None, True, 0, -(2**63), 2**70, [], {}],
    "text \u00e9": '\u0000\n\t"\\/\u007f\u2028\u4e2d\U0001f600<&>',
}


def test_awkward_values_are_written_as_by_hf_serve():
    from hf_serve.routers.custom import router

    app = FastAPI()
    app.include_router(router(lambda _: AWKWARD))
    headers = {"content-type": "application/json"}
    assert asyncio.run(call(app, headers=headers, parts=[b"{}"])).body == encode(AWKWARD)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((each, 422) for each in (b"[]", b"null", b"", b"{", b"[" * 100_000)),
        *((each, 400) for each in (b'{"inputs": "\xff"}', b"{}", b'{"inputs": "!"}')),
        (b'{"inputs": "AAAA", "parameters": []}', 400),
        (b'{"inputs": "AAAA", "parameters": {"batch_size": 0}}', 400),
    ],
)
def test_refusals_have_hf_serves_statuses(app, hf_serve, body, status):
    reply = post(app, body, "application/json")
    assert reply.status == status
    assert reply.code in ("INVALID_REQUEST", "INVALID_AUDIO", "INVALID_PARAMETER")
    if b"[[" not in body:  # which no server of the contract survives with a status
        theirs = hf_serve.post("/", content=body, headers={"content-type": "application/json"})
        assert theirs.status_code == status
        if status == 400 and b"\xff" not in body:
            assert reply.body == theirs.content


@pytest.mark.parametrize(
    "kind", [None, "audio/mpeg", "application/octet-stream", "application/x-www-form-urlencoded"]
)
def test_a_raw_body_is_audio_under_any_type(read, audio, kind):
    asked = read(audio, kind, query=b"batch_size=2")
    assert (asked.upload.take(), asked.config.batch_size) == ([audio], 2)


@pytest.mark.parametrize("kind", ["application/vnd.api+json", "Application/JSON; charset=utf-8"])
def test_json_says_that_it_is_json(read, audio, kind):
    assert read(b"\n " + json_body(audio, language="en"), kind).config.language == "en"


@pytest.mark.parametrize(
    "kind", [None, "application/octet-stream", "application/x-www-form-urlencoded"]
)
def test_json_without_its_type_is_refused_with_advice(quick, audio, kind):
    """No audio begins with a brace, and a foreign page could send this body without a preflight."""
    reply = post(quick, b"\n " + json_body(audio), kind)
    assert (reply.status, reply.code) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert reply.json["detail"].endswith("Content-Type: application/json")


def test_the_query_string_is_read_as_text(read, quick, audio):
    query = b"batch_size=2&assisted=0&output=srt&output=vtt&stream=false"
    config = read(audio, query=query).config
    assert (config.batch_size, config.assisted, config.output) == (2, False, ["srt", "vtt"])
    wrong = post(quick, audio, query=b"batch_size=many")
    assert (wrong.status, wrong.code) == (400, "INVALID_PARAMETER")


def test_query_parameters_beside_a_form_or_json_are_refused(quick, audio):
    """The endpoint would ignore them. Unknown names, such as an API's version, are ignored."""
    in_form = form(file=("talk.wav", audio)), FORM
    for route, (body, kind) in (
        ("/", (json_body(audio), "application/json")),
        ("/predict", (json_body(audio), "application/vnd.api+json")),
        ("/invocations", (json_body(audio), "application/json")),
        ("/", in_form),
        ("/v1/audio/transcriptions", in_form),
    ):
        for name in ("language", "batch_size", "callback_url"):
            reply = post(quick, body, kind, route, f"{name}=en".encode())
            told = reply.body.decode()
            refusal = f"INVALID_REQUEST: {name}: is in the query"
            assert (reply.status, refusal in told) == (400, True)
        assert post(quick, body, kind, route, b"stream=false&api-version=1").status == 200


def test_names_of_a_query_are_walked_once(read, quick, audio, monkeypatch):
    """A list for each name took minutes for the 64 KiB that a head may have."""
    monkeypatch.setattr(QueryParams, "getlist", None)
    asked = read(audio, "audio/wav", query=b"&".join(b"n%d" % n for n in range(90)))
    assert "and 82 more" in asked.warnings[0]
    refused = post(quick, audio, "audio/wav", query=b"&".join(b"n%d" % n for n in range(9_000)))
    assert (refused.status, refused.json["detail"][:15]) == (400, "INVALID_REQUEST")


def test_a_form_of_file_and_parameters_is_read(read, audio):
    parameters = b'{"batch_size": "2", "assisted": "false", "language": "en"}'
    fields = {"batch_size": ("", b"2"), "assisted": ("", b"false")}
    wanted = InferenceConfig(batch_size=2, assisted=False, language="en")
    for body in (
        form(file=("a.wav", audio), parameters=("", parameters)),
        form(file=("", audio), parameters=("", parameters)),
        form(file=("a.wav", audio), **fields, parameters=("", b'{"language": "en"}')),
    ):
        asked = read(body, FORM)
        assert (asked.config, asked.upload.take()) == (wanted, [audio])
    extra = form(file=("a.wav", audio), other=("", b"1"))
    assert read(extra, FORM).warnings[0] == "unknown parameters are ignored: other"


def test_repeated_form_fields_are_refused_except_lists(read, quick, audio):
    def after(first: bytes, **parts: tuple[str, bytes]) -> bytes:
        return first.removesuffix(b"--edge--\r\n") + form(file=("a.wav", audio), **parts)

    lists = after(form(output=("", b"srt")), output=("", b"vtt"))
    assert read(lists, FORM).config.output == ["srt", "vtt"]
    both = form(file=("a.wav", audio), language=("", b"en"), parameters=("", b'{"language": "de"}'))
    for body, told in (
        (after(form(text=("", b"so it")), text=("", b"goes")), "text: is given several times"),
        (both, "repeats a field of the form"),
    ):
        refused = post(quick, body, FORM)
        assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
        assert told in refused.json["detail"]


@pytest.mark.parametrize(
    "body",
    [
        form(parameters=("", b"{}")),
        form(file=("", b"text")),
        form(file=("a", b""), parameters=("", b"[]")),
        form(file=("a", b""), parameters=("", b"{")),
        form(file=("a", b""), parameters=("p.json", b"{}")),
        form(file=("a", b""), other=("b", b"")),
        b"--edge\r\nnot a form",
        b"",
    ],
)
def test_a_wrong_form_is_refused(quick, body):
    for kind in (FORM, "multipart/form-data"):  # without a boundary
        reply = post(quick, body, kind)
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")


def test_events_end_with_the_answer(quick, audio):
    body = json_body(audio, language="en")
    whole = post(quick, body, "application/json").json
    by_query = post(quick, body, "application/json", query=b"stream=true")
    by_number = post(quick, body, "application/json", query=b"stream=1")
    by_header = post(quick, body, "application/json", accept="text/event-stream")
    for reply in (by_query, by_number, by_header):
        lines = reply.body.decode().split("\n\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert events[0] == {"type": "decoded", "duration": 31.5}
        assert events[-1] == {"type": "answer", "answer": whole}
    assert post(quick, body, "application/json", query=b"stream=perhaps").status == 400


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"inputs": "' + CANARY.encode() + b'"}', "application/json"),
        (b'{"inputs": "' + CANARY.encode(), "application/json"),
        (b'["' + CANARY.encode() + b'"]', "application/json"),
        (b'{"inputs": "AAAA", "parameters": {"task": "canary-5ecret"}}', "application/json"),
        (CANARY.encode() * 50, None),
        (form(file=(CANARY, CANARY.encode()), parameters=("", b"{}")), FORM),
        (form(file=(CANARY, b"x"), parameters=("", CANARY.encode())), FORM),
        (CANARY.encode(), FORM),
    ],
)
def test_no_answer_and_no_log_repeats_a_body(app, caplog, body, kind):
    caplog.set_level("INFO")
    reply = post(app, body, kind, query=b"language=canary-5ecret", **{"x-any": CANARY})
    assert 400 <= reply.status < 500
    assert CANARY not in reply.body.decode() + str(reply.headers) + caplog.text
