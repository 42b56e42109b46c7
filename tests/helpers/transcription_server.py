"""A server on loopback with scripted answers to recordings."""

import json
import threading

from tests.helpers.loopback import Handler, Loopback

ANSWER = {"text": " good\u2028morning", "speakers": [], "chunks": [], "duration": 61.0}
INFO = {"model": "openai/whisper-base", "diarization": False}
FILES = {"srt": "1\n", "vtt": "WEBVTT\n", "txt": "good morning\n", "tsv": "0\n", "rttm": ""}


class FakeServer(Loopback):
    """Answers each request with the next of `replies`, functions of the handler; the last stays.
    `info` is its answer about its models, None if it has no such route."""

    def __init__(self) -> None:
        super().__init__(FakeHandler)
        self.replies = [answer_plainly]
        self.info: dict | None = INFO
        self.bodies: list[dict] = []
        self.asked: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()


class FakeHandler(Handler):
    def do_POST(self) -> None:
        if self.path == "/info":
            info = self.server.info
            self.send(404 if info is None else 200, json.dumps(info or {}).encode())
            return
        body = json.loads(self.body() or "{}")
        with self.server.lock:
            self.server.asked.append((self.command, self.path))
            self.server.bodies.append(body)
            self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
            replies = self.server.replies
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        reply(self, body)

    do_GET = do_DELETE = do_POST


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
