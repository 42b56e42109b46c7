"""A request that ends early frees its rows; its client gets an error if that is still possible."""

import asyncio
import json
import re

import pytest

from tests.helpers.asgi import HELLO, JSON, call, client, served
from whosaid.server.gate import METHODS
from whosaid.server.lifecycle import DrainingServer

CANARY = "canary-5ecret"


async def fed(endpoint) -> None:
    """Wait until a request is being computed."""
    await endpoint.began.wait()
    assert endpoint.outstanding == 1


def freed(endpoint, app) -> bool:
    return (endpoint.outstanding, endpoint.freed, app.admission.permits.taken) == (0, 1, 0)


@pytest.mark.parametrize("stream", [b"", b"stream=true"])
async def test_a_client_that_leaves_frees_its_rows(stream):
    endpoint, app = served()
    leaving = client(app, headers=JSON, parts=HELLO, query=stream)
    running = asyncio.ensure_future(leaving.run())
    await fed(endpoint)
    leaving.gone.set()
    reply = await running
    assert freed(endpoint, app)
    assert not reply.complete
    text = (await call(app, "GET", "/metrics")).body.decode()
    assert "asr_cancelled_total 1.0" in text
    assert 'asr_requests_total{code="CLIENT_GONE",route="/",status="499"} 1.0' in text


@pytest.mark.parametrize("stream", [b"", b"stream=true"])
async def test_the_deadline_is_504_or_an_error_event(stream):
    endpoint, app = served(request_timeout=0.3)
    reply = await call(app, headers=JSON, parts=HELLO, query=stream)
    if stream:
        assert (reply.status, reply.complete) == (200, True)
        assert last_event(reply)["error"]["code"] == "DEADLINE_EXCEEDED"
    else:
        assert (reply.status, reply.code) == (504, "DEADLINE_EXCEEDED")
        assert reply.headers["x-should-retry"] == "false"  # to OpenAI's client
    # On a slow machine the deadline passes before the endpoint is asked.
    assert (endpoint.outstanding, app.admission.permits.taken) == (0, 0)


@pytest.mark.parametrize("stream", [b"", b"stream=true"])
async def test_the_end_of_draining_is_told(stream):
    endpoint, app = served()
    running = asyncio.ensure_future(call(app, headers=JSON, parts=HELLO, query=stream))
    await fed(endpoint)
    DrainingServer(app, endpoint, 600).end_all()
    reply = await running
    told = last_event(reply)["error"]["message"] if stream else reply.json["detail"]
    assert told.startswith("DRAINING: ")
    assert reply.status == (200 if stream else 503)
    assert freed(endpoint, app)


def last_event(reply) -> dict:
    return json.loads(reply.body.decode().strip().rpartition("data: ")[2])


@pytest.mark.parametrize("stream", [b"", b"stream=true"])
async def test_an_exception_is_500_without_its_text(stream, caplog):
    endpoint, app = served()
    endpoint.error = KeyError(CANARY)
    endpoint.release.set()
    reply = await call(app, headers=JSON, parts=HELLO, query=stream)
    told = last_event(reply)["error"]["message"] if stream else reply.json["detail"]
    assert told.startswith("MODEL_ERROR: unexpected KeyError")
    assert reply.status == (200 if stream else 500)
    assert CANARY not in reply.body.decode() + caplog.text
    assert freed(endpoint, app)


async def test_a_body_that_stalls_is_given_up(monkeypatch):
    monkeypatch.setattr("whosaid.server.gate.PATIENCE_S", 0.05)

    _, app = served()
    reply = await call(app, headers={"transfer-encoding": "chunked"}, parts=[b"x"], ends=False)
    assert (reply.status, reply.code) == (408, "BODY_TIMEOUT")
    assert reply.headers["connection"] == "close"
    assert app.admission.permits.taken == 0


@pytest.mark.parametrize(
    ("given", "taken"),
    [("abc-1.2:3_4", True), ("a" * 101, False), ("bad id", False), ("", False), ("-x", False)],
)
def test_a_valid_request_id_is_adopted(given, taken):
    reply = asyncio.run(call(served()[1], "GET", "/health", headers={"x-request-id": given}))
    assert (reply.headers["x-request-id"] == given) is taken
    assert reply.headers["x-request-id"].isascii()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("POST", "/v1/nothing", 404, "NOT_FOUND"),
        ("PUT", "/predict", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/predict", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/v1/models", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/redoc", 404, "NOT_FOUND"),
    ],
)
def test_unknown_paths_and_methods_have_our_shape(method, path, status, code):
    reply = asyncio.run(call(served()[1], method, path))
    assert (reply.status, reply.code) == (status, code)
    assert set(reply.json) == ({"error"} if path.startswith("/v1") else {"detail"})
    assert ("allow" in reply.headers) is (status == 405)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/", {"GET", "HEAD", "POST"}),
        ("/predict", {"POST"}),
        ("/health", {"GET", "HEAD"}),
        ("/metrics", {"GET", "HEAD"}),
        ("/v1/models/whisper-1", {"GET"}),
        ("/v1/audio/transcriptions", {"POST"}),
    ],
)
async def test_a_refused_method_lists_the_allowed_ones(path, methods):
    endpoint, app = served()
    endpoint.release.set()
    replies = {method: await call(app, method, path, headers=JSON) for method in METHODS}
    refused = {method for method, reply in replies.items() if reply.status == 405}
    assert refused == {*METHODS} - methods - {"OPTIONS"}
    assert (replies["OPTIONS"].status, replies["OPTIONS"].body) == (204, b"")
    for method in (*refused, "OPTIONS"):
        assert set(replies[method].headers["allow"].split(", ")) == methods


@pytest.mark.parametrize("path", ["/predict/", "/health/", "//"])
async def test_a_last_slash_changes_nothing(path):
    endpoint, app = served()
    endpoint.release.set()
    method = "GET" if "health" in path else "POST"
    assert (await call(app, method, path, headers=JSON, parts=HELLO)).status == 200


async def test_the_log_names_routes_but_no_client_data(caplog):
    caplog.set_level("DEBUG", "server")

    endpoint, app = served()
    endpoint.release.set()
    secret = {"x-any": CANARY, "authorization": f"Bearer {CANARY}"}
    body = json.dumps({"inputs": CANARY, "parameters": {CANARY: CANARY}}).encode()
    query = f"token={CANARY}".encode()
    await call(app, headers=JSON | secret, parts=[body], query=query)
    await call(app, headers=JSON | secret, parts=[body[:-3]], query=query)
    await call(app, path=f"/{CANARY}", headers=secret)
    await call(app, CANARY, "/")
    assert len(caplog.records) == 4
    assert CANARY not in caplog.text
    first, _, other, without = caplog.messages
    assert re.fullmatch(r"POST / 200 OK in \d+\.\d\d s, by [0-9a-f]{8}, id \w+", first)
    assert re.findall(r"by \w+,", other) == re.findall(r"by \w+,", first)
    assert ", by anonymous, id " in without
