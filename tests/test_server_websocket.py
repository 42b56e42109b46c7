"""WebSockets by raw sockets on the server as it listens."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import struct
from contextlib import contextmanager

import pytest
from asgi import FakeEndpoint
from live_app import listening
from live_stand_ins import Drivers, live
from test_server_attacks import CANARY, GUARDS
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from whosaid.server.lifecycle import DrainingServer

SAMPLE_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    b"connection: keep-alive, Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: " + SAMPLE_KEY + b"\r\n"
)
CONTINUES, TEXT, BINARY, CLOSE, PING, PONG = (Opcode(kind) for kind in (0, 1, 2, 8, 9, 10))


def handshake(lines=UPGRADE, path=b"/v1/realtime") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n"


def frame(kind: Opcode, data: bytes = b"", last: bool = True) -> bytes:
    return Frame(kind, data, last).serialize(mask=True)


def announced(kind: int, size: int) -> bytes:
    """The head of a frame too large to be read: what came after it would reset the connection."""
    return struct.pack("!BBQ", 0x80 | kind, 0xFF, size) + bytes(4)


class Raw:
    """An open WebSocket, whose frames the library reads and the test writes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._protocol = ClientProtocol(parse_uri("ws://localhost/v1/realtime"))
        self._protocol.send_request(self._protocol.connect())
        connection.sendall(b"".join(self._protocol.data_to_send()))
        self._came: list = []
        assert self.read().status_code == 101

    def send(self, *arguments, **options) -> None:
        self.connection.sendall(frame(*arguments, **options))

    def read(self) -> Response | Frame | None:
        """Return the next message; None at the end."""
        while not self._came:
            data = self.connection.recv(65536)
            if not data:
                return None
            self._protocol.receive_data(data)
            self._came += self._protocol.events_received()
        return self._came.pop(0)

    def event(self) -> dict:
        return json.loads(self.read().data)

    def status(self) -> int:
        """Return the status of the next close."""
        while (came := self.read()).opcode is not CLOSE:
            pass
        return Close.parse(came.data).code


@contextmanager
def server(drivers=None, **settings):
    app = live(drivers or Drivers(), **settings)
    draining = DrainingServer(app, FakeEndpoint(), 600)
    with listening(draining) as where:
        yield draining, where


@contextmanager
def opened(where):
    with socket.create_connection(where, timeout=60) as connection:
        raw = Raw(connection)
        assert raw.event()["type"] == "session.created"
        yield raw


@pytest.fixture(scope="module")
def where():
    with server() as (_, address):
        yield address


def test_the_handshake_is_the_standards(where):
    """RFC 6455, section 1.3, has this key and its answer. Nothing is compressed."""
    deflate = b"sec-websocket-extensions: permessage-deflate\r\n"
    with socket.create_connection(where, timeout=60) as connection:
        connection.sendall(handshake(UPGRADE + deflate))
        head = connection.recv(65536).lower()
    assert b"sec-websocket-accept: " + b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".lower() in head
    assert b"sec-websocket-extensions" not in head
    assert b"x-request-id: " in head


def without(name: bytes) -> bytes:
    lines = UPGRADE.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(name))


NO_SESSIONS = {
    "no upgrade": (handshake(without(b"upgrade")), 426),
    "another protocol": (handshake(UPGRADE.replace(b": websocket", b": h2c")), 426),
    "no connection": (handshake(without(b"connection")), 426),
    "another path": (handshake(path=b"/v1/models"), 404),
    "no path": (handshake(path=b"/" + CANARY), 404),
}
NO_HANDSHAKES = {
    "no key": (handshake(without(b"sec-websocket-key")), 400),
    "short key": (handshake(UPGRADE.replace(SAMPLE_KEY, b"AAAA")), 400),
    "two keys": (handshake(UPGRADE + b"sec-websocket-key: " + SAMPLE_KEY + b"\r\n"), 400),
    "old version": (handshake(UPGRADE.replace(b": 13", b": 8")), 400),
}


@pytest.mark.parametrize("name", NO_SESSIONS)
def test_where_no_session_is_the_answer_is_that_of_any_request(where, name):
    sent, status = NO_SESSIONS[name]
    with socket.create_connection(where, timeout=60) as connection:
        connection.sendall(sent)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert all(guard in answer.lower() for guard in GUARDS)
    assert CANARY not in answer


@pytest.mark.parametrize("name", NO_HANDSHAKES)
def test_what_is_no_handshake_is_refused_by_uvicorn(where, name):
    sent, status = NO_HANDSHAKES[name]
    with socket.create_connection(where, timeout=60) as connection:
        connection.sendall(sent)
        assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)


def test_a_refused_upgrade_is_http_and_ends_the_connection_and_is_one_line_of_the_log(caplog):
    caplog.set_level(logging.INFO, "server")
    foreign = UPGRADE + b"origin: http://" + CANARY + b"\r\n"
    with server() as (draining, where):
        with socket.create_connection(where, timeout=60) as connection:
            connection.sendall(handshake(foreign))
            answer = b""
            while part := connection.recv(65536):
                answer += part
        wait_for(draining, lambda: not draining.server_state.tasks)
        lines = [
            (record.name, record.levelno, record.getMessage())
            for record in caplog.records
            if record.name.startswith(("server", "uvicorn"))  # an earlier test's threads may log
        ]
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"connection: close\r\n" in answer.lower()
    assert all(guard in answer.lower() for guard in GUARDS)
    assert b"ORIGIN_NOT_ALLOWED" in answer
    assert CANARY not in answer
    (line,) = lines[1:]  # the first says where it listens
    assert line[:2] == ("server", logging.INFO)
    assert line[2].startswith("GET /v1/realtime 403 ORIGIN_NOT_ALLOWED")


def test_messages_are_as_large_as_an_append_may_be():
    """In base64, with room for the rest of the event, in any number of frames."""
    drivers = Drivers()
    with server(drivers, max_append_bytes=300_000) as (_, where), opened(where) as raw:
        text = json.dumps(
            {
                "type": "input_audio_buffer.append",
                "audio": base64.b64encode(bytes(300_000)).decode(),
            }
        ).encode()
        raw.send(TEXT, text[:1000], last=False)
        for place in range(1000, len(text), 4096):
            raw.send(CONTINUES, text[place : place + 4096], last=place + 4096 >= len(text))
        raw.send(TEXT, b'{"type": "input_audio_buffer.commit"}')
        assert raw.event()["type"] == "input_audio_buffer.committed"
        assert drivers.opened[0].calls[0] == ("append", bytes(300_000))
        raw.connection.sendall(announced(TEXT, 500_000))
        assert raw.status() == 1009


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (frame(TEXT, b"\xff"), 1007),
        (Frame(TEXT, b"{}").serialize(mask=False), 1002),
        (b"\xc1\x80" + bytes(4), 1002),
        (frame(BINARY, b"a" * 20_000, last=False) + announced(CONTINUES, 90_000), 1009),
    ],
    ids=["no text", "no mask", "reserved bits", "too long"],
)
def test_what_is_no_websocket_ends_the_session_alone(sent, status):
    drivers = Drivers()
    with (
        server(drivers, max_append_bytes=30_000) as (_, where),
        opened(where) as raw,
        opened(where) as other,
    ):
        raw.connection.sendall(sent)
        assert raw.status() == status
        other.send(TEXT, b'{"type": "input_audio_buffer.clear"}')
        assert other.event()["type"] == "input_audio_buffer.cleared"


def wait_for(draining: DrainingServer, what) -> None:
    """Until `what` is so, as the server's own loop sees it."""

    async def see() -> None:
        while not what():
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(see(), draining.loops[0]).result(60)


def resets(connection: socket.socket) -> None:
    """Have TCP reset the connection when it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("unread", [0, 3])
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_client_that_is_far_ahead_and_vanishes_frees_its_place(
    caplog, monkeypatch, abruptly, unread
):
    """An hour of silence in one message, and messages that are not read before it has passed."""
    monkeypatch.setattr("whosaid.server.lifecycle.PING_S", 0.05)
    caplog.set_level(logging.INFO, "server")
    drivers = Drivers()
    with server(drivers, max_append_bytes=2**28) as (draining, where), opened(where) as raw:
        session = {"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}
        raw.send(TEXT, json.dumps({"type": "session.update", "session": session}).encode())
        assert raw.event()["type"] == "session.updated"
        places = draining.gate.admission.live
        raw.send(BINARY, bytes(3600 * 8000))
        wait_for(draining, lambda: places.audio_seconds == 3600)
        for _ in range(unread):
            raw.send(BINARY, bytes(800))
        if abruptly:
            resets(raw.connection)
        raw.connection.close()
        wait_for(draining, lambda: not places.taken)
        assert drivers.opened[0].closed == 1
    assert "3600.0 s of audio, closed with 1005" in caplog.text


def test_a_client_that_takes_nothing_frees_its_place_and_stops_nobody(monkeypatch):
    """It is refused repeatedly and reads no answer, not even the last one."""
    monkeypatch.setattr("whosaid.server.realtime.session.STALLED_S", 0.2)
    drivers = Drivers()
    with server(drivers) as (draining, where), opened(where) as raw:
        raw.connection.settimeout(0.2)
        wrong = frame(TEXT, b'{"type": "response.create"}') * 1000
        try:
            while True:
                raw.connection.sendall(wrong)
        except OSError:  # it is not read any more, or cut
            pass
        wait_for(draining, lambda: drivers.opened[0].closed == 1)
        with opened(where) as other:
            other.send(PING, b"x")
            assert other.read() == Frame(PONG, b"x")
