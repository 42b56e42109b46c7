"""Who is let in: every refusal that needs no look into the body, cheapest first.

The one decision: a request is judged by its head alone, before a byte of its body is read, so that
a server under pressure spends nothing on what it refuses. The order: framing, host and origin, API
key (`origin_policy.py`, `api_key.py`), draining, queue, announced length, media type.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from starlette.datastructures import Headers

from config import ServerSettings
from errors import EndpointError
from server.errors import (
    BodyTooLarge,
    Busy,
    Draining,
    UnsupportedMediaType,
)

# Requests for these are answered whatever the load: by which routes, and whether without a token.
PROBES = ("/health", "/ready", "/metrics")
WITHOUT_TOKEN = ("/", "/health", "/ready", "/openapi.json")
TRANSCRIBING = ("/", "/predict", "/v1/audio/transcriptions", "/v1/audio/translations")
FORM = "multipart/form-data"
# Types that say that the body is no sound; all others are looked into.
SILENT_TYPES = ("text", "image", "font", "model", "message", "multipart")
# Parameters, a form's other fields, and up to four voices that OpenAI's clients may add.
SLACK_BYTES = 16 * 2**20
# OpenAI's client waits as told up to two minutes, and else gives up.
LONGEST_WAIT_S = 120
# Weight of the newest pause between two answers.
NEWEST = 0.2


class Admission:
    """Which requests are accepted, how many are not answered yet, and the bytes of their bodies.

    `max_audio_bytes` is the models' limit on one audio file. `now` returns seconds.
    """

    def __init__(
        self,
        settings: ServerSettings,
        max_audio_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_queue, self.max_bytes = settings.max_queue, settings.max_queue_bytes
        self.max_audio_bytes = max_audio_bytes
        self.draining = False
        self.admitted = self.held_bytes = 0
        self._now = now
        self._seconds_per_answer = 1.0
        self._last_answer = self._next_place = now()

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of the `max_queue` places, held while a request is answered.

        Raises Draining, or Busy with the seconds after which a place may be free.
        """
        if self.draining:
            raise Draining("the server is about to stop")
        if self.admitted >= self.max_queue:
            raise Busy(
                f"{self.max_queue} requests are waiting, and no more may", self._retry_after()
            )
        if not self.admitted:
            self._last_answer = self._now()
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1
            self._answered()

    def hold_body(self, headers: Headers) -> AbstractContextManager[HeldBody]:
        """Room for the body that is announced, held while its request is answered. Raises Busy."""
        announced = headers.get("content-length", "")
        return self.hold_bytes(int(announced) if announced.isdecimal() else 0)

    @contextmanager
    def hold_bytes(self, size: int) -> Iterator[HeldBody]:
        """Room for a body of `size` bytes, which may grow, until the block ends. Raises Busy."""
        held = HeldBody(self)
        try:
            held.grow(size)
            yield held
        finally:
            self.held_bytes -= held.size

    def take_bytes(self, more: int, held: int) -> None:
        """Hold `more` bytes for a body of which `held` are; raises Busy where there is no room.

        There always is for a body beside which there is no other.
        """
        if self.held_bytes > held and self.held_bytes + more > self.max_bytes:
            raise Busy(
                f"the bodies of all requests may have {self.max_bytes} bytes", self._retry_after()
            )
        self.held_bytes += more

    def check_length(self, headers: Headers) -> None:
        """Raises BodyTooLarge by what the head announces."""
        limit = self.body_limit(headers)
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise too_large(limit)

    def check_type(self, path: str, headers: Headers) -> None:
        """Raises UnsupportedMediaType where the head says that the body holds no sound."""
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("bodies are read as they are, without Content-Encoding")
        kind = media_type(headers)
        if path.startswith("/v1/") and kind != FORM:
            raise UnsupportedMediaType(f"this route reads {FORM}")
        if kind != FORM and kind.partition("/")[0] in SILENT_TYPES:
            raise UnsupportedMediaType(f"this route reads JSON, {FORM} and audio files")

    def body_limit(self, headers: Headers) -> int:
        """The most bytes of a body; base64 takes 4/3 of its audio, and line breaks a little."""
        kind = media_type(headers)
        binary = kind == FORM or kind.startswith(("audio/", "video/"))
        audio = self.max_audio_bytes if binary else self.max_audio_bytes * 7 // 5
        return audio + SLACK_BYTES

    def _answered(self) -> None:
        now = self._now()
        pause, self._last_answer = now - self._last_answer, now
        self._seconds_per_answer += NEWEST * (pause - self._seconds_per_answer)

    def _retry_after(self) -> int:
        """Seconds until a place is free for this client: each refused one is told a later time, as
        far apart as answers are.
        """
        now = self._now()
        latest = now + LONGEST_WAIT_S
        self._next_place = min(max(now, self._next_place) + self._seconds_per_answer, latest)
        return min(max(1, math.ceil(self._next_place - now)), LONGEST_WAIT_S)


class HeldBody:
    """The bytes that one body may take of those that all may; see Admission.hold_bytes."""

    def __init__(self, admission: Admission) -> None:
        self.size = 0
        self._admission = admission

    def grow(self, size: int) -> None:
        """Hold `size` bytes, if there are not so many already. Raises Busy."""
        if size > self.size:
            self._admission.take_bytes(size - self.size, self.size)
            self.size = size


def media_type(headers: Headers) -> str:
    """The body's media type in lower case, without parameters; "" where there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def too_large(limit: int) -> EndpointError:
    """The refusal of a body of more than `limit` bytes."""
    return BodyTooLarge(f"the body may have {limit} bytes")
