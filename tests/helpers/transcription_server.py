"""A server on loopback with scripted answers to recordings."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = {"text": " good\u2028morning", "speakers": [], "chunks": [], "duration": 61.0}
INFO = {"model": "openai/whisper-base", "diarization": False}
FILES = {"srt": "1\n", "vtt": "WEBVTT\n", "txt": "good morning\n", "tsv": "0\n", "rttm": ""}


class FakeServer(ThreadingHTTPServer):
    """Answers each request with the next of `replies`, functions of the handler; the last stays.
    `info` is its answer about its models, None if it has no such route."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.replies = [answer_plainly]
        self.info: dict | None = INFO
        self.bodies: list[dict] = []
        self.asked: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing about a client that has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FakeHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        if self.path == "/info":
            info = self.server.info
            self.send(404 if info is None else 200, json.dumps(info or {}).encode())
            return
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length) or "{}")
        with self.server.lock:
            self.server.asked.append((self.command, self.path))
            self.server.bodies.append(body)
            self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
            replies = self.server.replies
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        reply(self, body)

    do_GET = do_DELETE = do_POST

    def send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def full_answer(body: dict) -> dict:
    asked = body.get("parameters", {}).get("output", ())
    return {**ANSWER, "output": {each: FILES[each] for each in asked}}


def answer_plainly(handler: FakeHandler, body: dict) -> None:
    handler.send(200, json.dumps(full_answer(body)).encode(), Content_Type="application/json")


def stream(*messages: dict):
    """A reply of events; a comment between them, and line separators left as they are."""

    def reply(handler: FakeHandler, body: dict) -> None:
        sent = [*messages, {"type": "answer", "answer": full_answer(body)}]
        handler.send(200, encode(sent), Content_Type="text/event-stream; charset=utf-8")

    return reply


def encode(messages: list[dict]) -> bytes:
    lines = [json.dumps(each, ensure_ascii=False) for each in messages]
    return "".join(f": ping\n\ndata: {line}\n\n" for line in lines).encode()


def refuse(status: int, body: object = None, **headers: str):
    def reply(handler: FakeHandler, _: dict) -> None:
        handler.send(status, json.dumps(body).encode(), **headers)

    return reply


DECODED = {"type": "decoded", "duration": 61.0}
HALF = {"type": "progress", "done": 30.5, "total": 61.0, "chunks": []}


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
