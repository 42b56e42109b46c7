"""A client that is refused while it sends gets the whole answer."""

import logging
import socket
from contextlib import suppress
from http.client import HTTPResponse

import pytest

from tests.helpers.asgi import served
from tests.helpers.live_app import listening
from whosaid.server.lifecycle import DrainingServer

BODY = b" " * 600_000
CODES = {401: "UNAUTHORIZED", 413: "BODY_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE", 429: "BUSY"}
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def refusing() -> DrainingServer:
    """Make a server that has a key and no free place."""
    service, gate = served(api_key="key", max_queue=1)
    gate.admission.permits.most = 0
    return DrainingServer(gate, service, 600)


def head(chunked=False, **headers) -> bytes:
    headers = {"host": "a", "authorization": "Bearer key", "content-type": "audio/wav"} | headers
    length = ("transfer-encoding", "chunked") if chunked else ("content-length", len(BODY))
    lines = dict([length]) | {name.replace("_", "-"): value for name, value in headers.items()}
    said = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST / HTTP/1.1\r\n{said}\r\n".encode()


def in_chunks(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:999], body[999:], b""))


def read_answer(client: socket.socket) -> tuple[HTTPResponse, bytes]:
    """A whole answer, by its framing."""
    response = HTTPResponse(client)
    response.begin()
    return response, response.read()


def connected(where) -> socket.socket:
    return socket.create_connection(where, timeout=60)


def wait_for_answer(client: socket.socket) -> None:
    """Return when there is something to read, and read nothing."""
    assert client.recv(1, socket.MSG_PEEK)


@pytest.mark.parametrize(
    ("status", "chunked", "sends_on"),
    [(401, False, True), (413, True, False), (415, True, True), (429, False, False)],
)
def test_a_client_that_reads_last_gets_the_answer(refusing, monkeypatch, status, chunked, sends_on):
    """The client sends everything at once, or goes on after the answer was sent."""
    admission, given = refusing.gate.admission, {}
    if status == 401:
        given["authorization"] = "Bearer other"
    elif status != 429:
        admission.permits.most = 1
    if status == 413:
        monkeypatch.setattr("whosaid.server.admission.SLACK_BYTES", 0)
    if status == 415:
        given["content_type"] = "text/html"
    body = in_chunks(BODY) if chunked else BODY
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head(chunked, **given) + body[:200_000])
        if sends_on:
            wait_for_answer(client)
        client.sendall(body[200_000:])
        response, told = read_answer(client)
        headers = response.headers
        assert response.status == status
        assert headers["x-error-message"].startswith(CODES[status])
        assert CODES[status].encode() in told
        assert headers["connection"] == "close"
        assert ("retry-after" in headers) is (status == 429)
        assert client.recv(1) == b""


def test_a_dripping_sender_is_cut_off(refusing, monkeypatch):
    monkeypatch.setattr("whosaid.server.gate.LINGER_S", 0.05)
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head())
        assert read_answer(client)[0].status == 429
        with suppress(ConnectionError):
            while True:
                client.sendall(b"x")


def test_a_stopping_server_waits_for_no_sender(refusing, caplog):
    """uvicorn would say that its time to end was over."""
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head())
        assert read_answer(client)[0].status == 429
        refusing.gate.admission.permits.most = 1
        assert not refusing.busy
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("late", [False, True])
def test_after_a_small_body_the_connection_is_kept(refusing, late):
    body = b" " * 60_000
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head(content_length=len(body)))
        if late:
            wait_for_answer(client)
        client.sendall(body)
        response, _ = read_answer(client)
        assert response.status == 429
        assert "connection" not in response.headers
        client.sendall(HEALTH)
        assert read_answer(client)[0].status == 200


def test_expect_100_continue_is_answered_by_the_refusal(refusing):
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head(content_length=5, expect="100-continue"))
        response, _ = read_answer(client)
        assert (response.status, response.headers["connection"]) == (429, "close")
        assert client.recv(1) == b""
