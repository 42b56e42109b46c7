"""Attacks by raw sockets, on the server as it listens: malformed and ambiguous HTTP is refused with
a code and a closed connection, and no answer repeats the request or may be framed.

docs/reliability.md lists the attacks."""

import socket

import pytest

from tests.helpers.asgi import call, served
from tests.helpers.live_app import listening
from whosaid.server.lifecycle import DrainingServer

CANARY = b"canary7f3a"
HOST = b"host: localhost\r\n"
# What a proxy that finds another end of the first body would take for another client's request.
SMUGGLED = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def post(lines: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST / HTTP/" + version + b"\r\n" + HOST + lines + b"\r\n" + body


def get(path: bytes, lines: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + lines + b"connection: close\r\n\r\n"


def post_last(lines: bytes, body: bytes) -> bytes:
    return post(lines + b"connection: close\r\n", body)


FRAMING = {
    "both lengths": post(b"content-length: 4\r\n" + CHUNKED, b"0\r\n\r\n" + SMUGGLED),
    "both, other order": post(CHUNKED + b"content-length: 4\r\n", b"0\r\n\r\n" + SMUGGLED),
    "two lengths": post(b"content-length: 4\r\ncontent-length: 5\r\n", b"abcd" + SMUGGLED),
    "two lengths, one line": post(b"content-length: 4, 5\r\n", b"abcd" + SMUGGLED),
    "length with junk": post(b"content-length: 4x\r\n", b"abcd" + SMUGGLED),
    "signed length": post(b"content-length: +4\r\n", b"abcd" + SMUGGLED),
    "negative length": post(b"content-length: -1\r\n", SMUGGLED),
    "length of 30 digits": post(b"content-length: " + b"9" * 30 + b"\r\n", SMUGGLED),
    "another coding": post(b"transfer-encoding: gzip, chunked\r\n", b"0\r\n\r\n" + SMUGGLED),
    "identity": post(b"transfer-encoding: identity\r\n", SMUGGLED),
    "chunked twice": post(CHUNKED + CHUNKED, b"0\r\n\r\n" + SMUGGLED),
    "chunked in HTTP/1.0": post(CHUNKED, b"0\r\n\r\n" + SMUGGLED, b"1.0"),
    "space before the colon": post(b"transfer-encoding : chunked\r\n", b"0\r\n\r\n" + SMUGGLED),
    "folded coding": post(
        b"content-length: 4\r\ntransfer-encoding:\r\n chunked\r\n", b"0\r\n\r\n" + SMUGGLED
    ),
    "no chunk size": post(CHUNKED, b"zz\r\nabc\r\n0\r\n\r\n" + SMUGGLED),
    "no host": b"GET /metrics HTTP/1.1\r\n\r\n" + SMUGGLED,
    "two hosts": b"GET /metrics HTTP/1.1\r\nhost: evil\r\n" + HOST + b"\r\n" + SMUGGLED,
    "NUL in a header": get(b"/metrics", b"x: a\x00" + CANARY + b"\r\n"),
    "bytes in the path": get(b"/caf\xc3\xa9" + CANARY),
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190) + CANARY + b"\r\n",
}
ODD = {
    "path of 300": (get(b"/app/static/" + b"a" * 300), 404),
    "path of 60,000": (get(b"/" + CANARY * 6_000), 404),
    "dots": (get(b"/../../etc/passwd" + CANARY), 404),
    "encoded bytes": (get(b"/%00%ff%2e%2e%2f" + CANARY), 404),
    "another host in the target": (get(b"http://evil.example/metrics"), 404),
    "tunnel": (get(b"localhost:22").replace(b"GET", b"CONNECT"), 404),
    "trace": (get(b"/health", b"x: " + CANARY + b"\r\n").replace(b"GET", b"TRACE"), 405),
    "made-up method": (get(b"/").replace(b"GET", CANARY), 405),
    "query": (
        post_last(b"content-length: 1\r\n", b"a").replace(b"/ ", b"/?stream=%00%ff&%=&%zz ", 1),
        400,
    ),
    "4,000 headers": (get(b"/nothing", (b"x: " + CANARY + b"\r\n") * 4_000), 404),
    "foreign host": (get(b"/metrics").replace(b"localhost", CANARY), 403),
    "foreign origin": (get(b"/metrics", b"origin: http://" + CANARY + b"\r\n"), 403),
    "type": (post_last(b"content-length: 1\r\ncontent-type: text/" + CANARY + b"\r\n", b"a"), 415),
    "charset": (
        post_last(
            b"content-length: 2\r\ncontent-type: application/json; charset=" + CANARY + b"\r\n",
            b"{]",
        ),
        422,
    ),
    "untyped JSON": (post_last(b"content-length: 14\r\n", b'{"' + CANARY + b'":'), 415),
    "boundary": (
        post_last(
            b"content-length: 2\r\ncontent-type: multipart/form-data; boundary="
            + CANARY * 40
            + b"\r\n",
            b"ab",
        ),
        400,
    ),
    "id": (get(b"/nothing", b"x-request-id: \xff" + CANARY + b"\r\n"), 404),
}
GUARDS = (
    b"x-content-type-options: nosniff\r\n",
    b"content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n",
    b"cross-origin-resource-policy: same-origin\r\n",
    b"cache-control: no-store\r\n",
)


@pytest.fixture(scope="module")
def where():
    endpoint, gate = served()
    with listening(DrainingServer(gate, endpoint, 600)) as address:
        yield address


def answers(where, data: bytes) -> bytes:
    """Return everything received until the server closes the connection."""
    got = b""
    with socket.create_connection(where, timeout=60) as client:
        client.sendall(data)
        while part := client.recv(65536):
            got += part
    return got


@pytest.mark.parametrize("name", FRAMING)
def test_ambiguous_framing_is_400_and_closes_the_connection(where, name):
    got = answers(where, FRAMING[name])
    head = got.partition(b"\r\n\r\n")[0].lower() + b"\r\n"
    assert got.startswith(b"HTTP/1.1 400 "), got[:200]
    assert got.count(b"HTTP/1.1 ") == 1, "what followed was answered too"
    assert b"connection: close\r\n" in head
    assert CANARY not in got


@pytest.mark.parametrize("name", ODD)
def test_odd_requests_are_refused_without_repeating_them(where, name):
    request, status = ODD[name]
    got = answers(where, request)
    head, _, body = got.partition(b"\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 %d " % status), got[:200]
    assert b"x-error-message: " in head
    assert CANARY not in got
    assert b"evil" not in body
    for guard in GUARDS:
        assert (head.lower() + b"\r\n").count(guard) == 1


async def test_an_answer_that_has_its_own_policy_keeps_it():
    _, gate = served()

    async def page(scope, receive, send):
        headers = [(b"content-security-policy", b"default-src 'self'")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    gate.app = page
    reply = await call(gate, "GET", "/app/")
    assert reply.headers["content-security-policy"] == "default-src 'self'"
    assert reply.headers["x-content-type-options"] == "nosniff"
