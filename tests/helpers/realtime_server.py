"""A WebSocket server on loopback that holds scripted live sessions."""

import http
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

ITEM = "conversation.item"
TEXT = f"{ITEM}.input_audio_transcription"

Reply = Callable[["Talk"], None]


@dataclass
class Talk:
    """One session: the client's messages, and the server's answers."""

    connection: ServerConnection
    audio: bytearray
    updates: list[dict]
    final: bool = False

    def tell(self, kind: str, **fields: object) -> None:
        self.connection.send(json.dumps({"type": kind, "event_id": "event_1", **fields}))

    def hear(self, most: int | None = None) -> None:
        """Take messages until the audio is final, or there are so many bytes."""
        while not self.final and (most is None or len(self.audio) < most):
            message = self.connection.recv()
            if isinstance(message, bytes):
                self.audio += message
                continue
            event = json.loads(message)
            if event["type"] == "session.update":
                self.updates.append(event["session"])
                self.tell("session.updated", session=event["session"])
            else:
                assert event == {"type": "input_audio_buffer.commit", "final": True}
                self.final = True

    def start(self, item: str, ms: int, previous: str | None = None) -> None:
        self.tell("input_audio_buffer.speech_started", item_id=item, audio_start_ms=ms)

    def stop(self, item: str, ms: int, previous: str | None = None) -> None:
        self.tell("input_audio_buffer.speech_stopped", item_id=item, audio_end_ms=ms)
        self.tell("input_audio_buffer.committed", item_id=item, previous_item_id=previous)
        body = {"id": item, "type": "message", "content": [{"type": "input_audio"}]}
        for kind in ("added", "done"):
            self.tell(f"{ITEM}.{kind}", previous_item_id=previous, item=body)

    def of(self, kind: str, item: str, **fields: object) -> None:
        self.tell(f"{TEXT}.{kind}", item_id=item, content_index=0, **fields)

    def say(self, item: str, words: list[dict], unstable: str = "") -> None:
        """Send final words, as the two events that clients get."""
        self.of("delta", item, delta="".join(word["word"] for word in words))
        self.of("words", item, words=words, unstable=unstable)

    def complete(self, item: str, words: list[dict], language: str = "en") -> None:
        text = "".join(word["word"] for word in words).strip()
        usage = {"type": "duration", "seconds": 1.0}
        codes = [{"code": language}]
        self.of("completed", item, transcript=text, languages=codes, usage=usage, words=words)


def words(text: str, start: float, speaker: str | None = None) -> list[dict]:
    places = [(word, start + place / 2) for place, word in enumerate(text.split())]
    said = {"probability": 0.9, "speaker": speaker}
    return [{"word": f" {word}", "start": at, "end": at + 0.4, **said} for word, at in places]


@dataclass
class RealtimeServer:
    """Gives each session to `reply`; refuses with `status` and `body` if they are set."""

    reply: Reply
    status: int | None = None
    body: object = None
    port: int = 0
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    updates: list[dict] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)
    finals: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def refuse(self, connection: ServerConnection, request):
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.raw_items()})
        if self.status is None:
            return None
        return connection.respond(http.HTTPStatus(self.status), json.dumps(self.body))

    def hold(self, connection: ServerConnection) -> None:
        talk = Talk(connection, self.audio, self.updates)
        talk.tell("session.created", session={"type": "transcription"})
        try:
            self.reply(talk)
        except ConnectionClosed:
            pass
        finally:
            self.finals += talk.final


@contextmanager
def realtime_server(reply: Reply) -> Iterator[RealtimeServer]:
    held = RealtimeServer(reply)
    with serve(held.hold, "127.0.0.1", 0, process_request=held.refuse, compression=None) as server:
        held.port = server.socket.getsockname()[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield held
        server.shutdown()
        thread.join()
