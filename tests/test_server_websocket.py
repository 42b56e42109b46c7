"""WebSockets by raw sockets on the server as it listens."""

import asyncio
import base64
import json
import logging
import socket
import struct
from contextlib import contextmanager

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tests.helpers.asgi import FakeEndpoint
from tests.helpers.live_app import listening
from tests.helpers.live_stand_ins import Drivers, live
from tests.test_server_attacks import CANARY, GUARDS, answers
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
        """Return the next event; the server may ping before it."""
        while (came := self.read()).opcode is PING:
            pass
        return json.loads(came.data)

    def status(self) -> int:
        while (came := self.read()).opcode is not CLOSE:
            pass
        return Close.parse(came.data).code


@contextmanager
def server(drivers=None, **settings):
    draining = DrainingServer(live(drivers or Drivers(), **settings), FakeEndpoint(), 600)
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
    "no key": handshake(without(b"sec-websocket-key")),
    "short key": handshake(UPGRADE.replace(SAMPLE_KEY, b"AAAA")),
    "two keys": handshake(UPGRADE + b"sec-websocket-key: " + SAMPLE_KEY + b"\r\n"),
    "key beyond ASCII": handshake(UPGRADE.replace(SAMPLE_KEY, b"\xff" * 24)),
    "no version": handshake(without(b"sec-websocket-version")),
    "old version": handshake(UPGRADE.replace(b": 13", b": 8")),
    "version beyond ASCII": handshake(UPGRADE.replace(b": 13", b": \xff" + CANARY)),
    "two origins": handshake(UPGRADE + b"origin: http://a\r\norigin: http://b\r\n"),
    "protocol beyond ASCII": handshake(UPGRADE + b"sec-websocket-protocol: \xe9\r\n"),
    "two upgrades": handshake(b"upgrade: h2c\r\n" + UPGRADE),
    "POST": handshake().replace(b"GET", b"POST"),
    "length": handshake(UPGRADE + b"content-length: 0\r\n"),
    "body": handshake(UPGRADE + b"content-length: 2\r\n") + b"ab",
    "unsent body": handshake(UPGRADE + b"content-length: 99\r\n"),
    "POST /": handshake(UPGRADE + b"content-length: 2\r\n", b"/").replace(b"GET", b"POST") + b"ab",
    "chunks": handshake(UPGRADE + b"transfer-encoding: chunked\r\n") + b"0\r\n\r\n",
    "200 lines": handshake(UPGRADE + b"x: y\r\n" * 200),
    "long line": handshake(UPGRADE + b"x: " + CANARY * 900 + b"\r\n"),
}


@pytest.mark.parametrize("name", NO_SESSIONS)
def test_upgrades_without_a_session_are_answered_as_requests(where, name):
    sent, status = NO_SESSIONS[name]
    with socket.create_connection(where, timeout=60) as connection:
        connection.sendall(sent)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert all(guard in answer.lower() for guard in GUARDS)
    assert CANARY not in answer


def test_malformed_handshakes_are_refused_without_a_traceback(caplog):
    with server() as (draining, where):
        for name, sent in NO_HANDSHAKES.items():
            answer = answers(where, sent)
            assert answer.startswith(b"HTTP/1.1 400 "), name
            assert b"INVALID_REQUEST: a WebSocket begins" in answer
            assert all(guard in answer for guard in GUARDS)
            assert CANARY not in answer
            wait_for(draining, lambda: not draining.server_state.connections)
    assert [each for each in caplog.records if each.levelno > logging.WARNING] == []


def test_a_refused_upgrade_is_http_and_one_log_line(caplog):
    caplog.set_level(logging.INFO, "server")
    foreign = UPGRADE + b"origin: http://" + CANARY + b"\r\n"
    with server() as (draining, where):
        answer = answers(where, handshake(foreign))
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
    # An earlier test's server may log its last request late, but before this one listens.
    listens = next(at for at, line in enumerate(lines) if f":{where[1]}" in line[2])
    (line,) = lines[listens + 1 :]
    assert line[:2] == ("server", logging.INFO)
    assert line[2].startswith("GET /v1/realtime 403 ORIGIN_NOT_ALLOWED")


def test_messages_may_be_as_large_as_an_append():
    """An append is base64, with room for the rest of the event, in any number of frames."""
    drivers = Drivers()
    with server(drivers, max_append_bytes=300_000) as (_, where), opened(where) as raw:
        audio = base64.b64encode(bytes(300_000)).decode()
        text = json.dumps({"type": "input_audio_buffer.append", "audio": audio}).encode()
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
def test_malformed_frames_end_only_their_session(sent, status, caplog):
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
    assert not [each for each in caplog.records if each.exc_info]


def wait_for(draining: DrainingServer, what) -> None:
    """Wait until `what` is so, as the server's own loop sees it."""

    async def see() -> None:
        while not what():
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(see(), draining.loops[0]).result(60)


def resets(connection: socket.socket) -> None:
    """Have TCP reset the connection when it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("unread", [0, 3])
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_vanished_client_ahead_of_time_frees_its_permit(caplog, monkeypatch, abruptly, unread):
    """The client sends an hour of silence in one message, and messages that are not read before it
    has passed."""
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


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch):
    """The client is refused repeatedly and reads no answer, nor the last one; others are served."""
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
