"""Who is refused while sending gets the whole answer, and nobody holds a connection for ever, be it
by sending or by not reading.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h11
import pytest
from asgi import served
from test_server_lifecycle import listening
from test_server_websocket import wait_for

from server.lifecycle import DrainingServer
from server.lingering import LingeringTransport

BODY = b" " * 600_000
CODES = {401: "UNAUTHORIZED", 413: "BODY_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE", 429: "BUSY"}
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def refusing() -> DrainingServer:
    """A server that has a key and no place."""
    service, gate = served(api_key="key", max_queue=1)
    gate.admission.places.most = 0
    return DrainingServer(gate, service, 600)


@pytest.fixture
def discarded(refusing, monkeypatch) -> list[int]:
    """The sizes of what was thrown away, when nothing was held."""
    sizes, discard = [], LingeringTransport.discard

    def count(transport, size) -> None:
        sizes.append(size)
        assert all(not each.cycle.body for each in refusing.server_state.connections)
        discard(transport, size)

    monkeypatch.setattr(LingeringTransport, "discard", count)
    return sizes


def head(chunked=False, **headers) -> bytes:
    headers = {"host": "a", "authorization": "Bearer key", "content-type": "audio/wav"} | headers
    length = ("transfer-encoding", "chunked") if chunked else ("content-length", len(BODY))
    lines = dict([length]) | {name.replace("_", "-"): value for name, value in headers.items()}
    said = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST / HTTP/1.1\r\n{said}\r\n".encode()


def in_chunks(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:999], body[999:], b""))


def read_answer(client: socket.socket) -> tuple[h11.Response, bytes]:
    """A whole answer, by its framing."""
    connection, response, body = h11.Connection(h11.CLIENT), None, b""
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(client.recv(4096))
        elif isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            assert isinstance(event, h11.EndOfMessage)
            return response, body


def connected(where) -> socket.socket:
    return socket.create_connection(where, timeout=60)


def wait_for_answer(client: socket.socket) -> None:
    """Return when there is something to read, and read nothing."""
    assert client.recv(1, socket.MSG_PEEK)


def send_until_cut(client: socket.socket, part: bytes) -> None:
    with suppress(ConnectionError):
        while True:
            client.sendall(part)


@pytest.mark.parametrize("sends_on", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("status", CODES)
def test_who_reads_after_sending_everything_gets_the_answer(
    refusing, monkeypatch, status, chunked, sends_on
):
    """All at once, or going on when the answer has been sent and the server has ended its side."""
    admission, given = refusing.gate.admission, {}
    if status == 401:
        given["authorization"] = "Bearer other"
    elif status != 429:
        admission.places.most = 1
    if status == 413:
        monkeypatch.setattr("server.admission.SLACK_BYTES", 0)
    if status == 415:
        given["content_type"] = "text/html"
    body = in_chunks(BODY) if chunked else BODY
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head(chunked, **given) + body[:200_000])
        if sends_on:
            wait_for_answer(client)
        client.sendall(body[200_000:])
        response, told = read_answer(client)
        headers = {name.decode(): value.decode() for name, value in response.headers}
        assert response.status_code == status
        assert headers["x-error-message"].startswith(CODES[status])
        assert CODES[status].encode() in told
        assert headers["connection"] == "close"
        assert ("retry-after" in headers) is (status == 429)
        assert client.recv(1) == b""


def test_an_endless_sender_is_cut_after_so_many_bytes(refusing, monkeypatch, discarded):
    """And nothing of it is held."""
    monkeypatch.setattr("server.lingering.LINGER_BYTES", 3_000_000)
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head(chunked=True) + in_chunks(BODY)[:100_000])
        assert read_answer(client)[0].status_code == 429
        assert client.recv(1) == b""
        send_until_cut(client, BODY)
    assert 3_000_000 < sum(discarded) <= 3_000_000 + 256 * 1024
    assert max(discarded) <= 256 * 1024
    assert LingeringTransport.all_lingering == set()


def test_a_sender_that_drips_is_cut_after_some_time(refusing, monkeypatch):
    monkeypatch.setattr("server.lingering.LINGER_S", 0.05)
    with listening(refusing) as where, connected(where) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(head())
        assert read_answer(client)[0].status_code == 429
        send_until_cut(client, b"x")
    assert LingeringTransport.all_lingering == set()


def test_so_many_connections_linger_and_no_more(refusing, monkeypatch, discarded):
    monkeypatch.setattr("server.lingering.MOST_LINGERING", 1)
    with listening(refusing) as where, connected(where) as first, connected(where) as second:
        for client in (first, second):
            client.sendall(head())
            assert read_answer(client)[0].status_code == 429
            assert client.recv(1) == b""
        assert len(LingeringTransport.all_lingering) == 1
        send_until_cut(second, BODY)
        assert discarded == []
        first.sendall(BODY)


def test_the_end_of_the_server_waits_for_nobody_who_sends(refusing, caplog):
    """uvicorn would say that its time to end was over."""
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head())
        assert read_answer(client)[0].status_code == 429
        assert client.recv(1) == b""
        assert len(LingeringTransport.all_lingering) == 1
        refusing.gate.admission.places.most = 1
        assert not refusing.busy
    assert LingeringTransport.all_lingering == set()
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
        assert response.status_code == 429
        assert b"connection" not in dict(response.headers)
        client.sendall(HEALTH)
        assert read_answer(client)[0].status_code == 200


def test_who_asks_before_sending_is_refused_and_not_told_to_go_on(refusing):
    with listening(refusing) as where, connected(where) as client:
        client.sendall(head(content_length=5, expect="100-continue"))
        response, _ = read_answer(client)
        assert (response.status_code, dict(response.headers)[b"connection"]) == (429, b"close")
        assert client.recv(1) == b""


def test_where_the_write_side_cannot_be_ended_alone_it_stays_open():
    """As with TLS in asyncio."""

    called = []

    class Transport:
        def can_write_eof(self) -> bool:
            return False

        def __getattr__(self, name):
            return lambda: called.append(name)

        def is_closing(self) -> bool:
            return False

    async def close() -> None:
        transport = LingeringTransport(Transport(), 60, lambda: True)
        transport.close()
        assert transport.is_closing()
        assert called == ["resume_reading"]
        transport.close()
        assert called == ["resume_reading", "abort"]
        transport.release()

    asyncio.run(close())
    assert LingeringTransport.all_lingering == set()


DESCRIPTION = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
SMALLEST = 2048  # of what the system keeps for a socket


@contextmanager
def taking_nothing(where) -> Iterator[socket.socket]:
    """A client whose system takes next to nothing for it."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALLEST)
        client.settimeout(60)
        client.connect(where)
        yield client


def test_who_asks_again_and_again_and_reads_nothing_is_cut_off(refusing, monkeypatch):
    """Without a key, where an answer waits for those before it to be taken."""
    monkeypatch.setattr("server.lifecycle.SECONDS_TO_TAKE", 0.1)
    connections = refusing.server_state.connections
    with listening(refusing) as where, taking_nothing(where) as client:
        client.sendall(DESCRIPTION * 1000)
        wait_for_answer(client)
        wait_for(refusing, lambda: not connections)
        with connected(where) as other:
            other.sendall(HEALTH)
            assert read_answer(other)[0].status_code == 200


@pytest.mark.parametrize("ends", [False, True])
def test_a_whole_answer_that_nobody_takes_keeps_no_connection(refusing, monkeypatch, ends):
    """It waits in the transport, for less than would stop who writes; the client has ended its own
    direction, or the server closes as nothing is asked.
    """
    monkeypatch.setattr("server.lifecycle.SECONDS_TO_TAKE", 0.1)
    refusing.config.timeout_keep_alive = 0.05
    connections, waiting = refusing.server_state.connections, []
    with listening(refusing) as where, taking_nothing(where) as client:
        wait_for(refusing, lambda: connections)
        (protocol,) = connections
        server = protocol.transport.get_extra_info("socket")
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALLEST)
        client.sendall(DESCRIPTION)

        def is_answered() -> bool:
            waiting.append(protocol.transport.get_write_buffer_size())
            return protocol.cycle is not None and protocol.cycle.response_complete

        wait_for(refusing, is_answered)
        assert 0 < waiting[-1] < 2**16
        if ends:
            client.shutdown(socket.SHUT_WR)
        wait_for(refusing, lambda: not connections)


class Buffered:
    """A transport whose client takes, from one look at it to the next, down to these sizes."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.aborted = [*sizes], asyncio.Event()

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)

    def abort(self) -> None:
        self.aborted.set()


def test_who_takes_an_answer_slowly_is_not_cut_off_until_it_takes_next_to_nothing():
    async def watch() -> list[int]:
        buffered = Buffered(3000, 2000, 1000, 900, 899, 0)
        LingeringTransport(buffered, 0.01).watch()
        await buffered.aborted.wait()
        return buffered.sizes

    assert asyncio.run(watch()) == [0]


def test_a_client_that_has_taken_its_answer_is_watched_no_more():
    async def watch() -> None:
        buffered = Buffered(3000)
        transport = LingeringTransport(buffered, 0.01)
        transport.watch()
        transport.unwatch()
        await asyncio.sleep(0.02)  # the timer would have been due before
        assert not buffered.aborted.is_set()

    asyncio.run(watch())
