"""Who is let in: every refusal that needs no look into the body, cheapest first.

A request is judged by its head alone, before a byte of its body is read, so that a server under
pressure spends nothing on what it refuses. The order: framing, host and origin, API key
(`origin_policy.py`, `api_key.py`), draining, queue, announced length, media type.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from starlette.datastructures import Headers

from errors import EndpointError
from server.errors import BodyTooLarge, Busy, Draining, NotFound, UnsupportedMediaType
from server.places import Place, Places
from server.realtime.places import LivePlace, LivePlaces
from server.settings import ServerSettings

# Requests for these are answered whatever the load: by which routes, and whether without a token.
PROBES = ("/health", "/ready", "/metrics")
WITHOUT_TOKEN = ("/", "/health", "/ready", "/docs", "/openapi.json")
JOBS = "/v1/jobs"
TRANSCRIBING = ("/", "/predict", "/v1/audio/transcriptions", "/v1/audio/translations", JOBS)
FORM = "multipart/form-data"
# Types that say that the body is no sound; all others are looked into.
SILENT_TYPES = ("text", "image", "font", "model", "message", "multipart")
# Parameters, a form's other fields, and up to four voices that OpenAI's clients may add.
SLACK_BYTES = 16 * 2**20


class Admission:
    """Which requests are accepted; those that are not answered yet have `places`, and sessions that
    are open have those of `live`.

    `max_audio_bytes` is the models' limit on one audio file. `now` returns seconds.
    """

    def __init__(
        self,
        settings: ServerSettings,
        max_audio_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.places = Places(settings.max_queue, settings.max_queue_bytes, now)
        self.live = LivePlaces(settings.max_live_sessions)
        self.max_audio_bytes = max_audio_bytes
        self.draining = False

    def place(
        self, end: Callable[[EndpointError], None] | None = None
    ) -> AbstractContextManager[Place]:
        """One of the `max_queue` places, held while a request is answered; see Places.take.

        Raises Draining, or Busy.
        """
        if self.draining:
            raise Draining("the server is about to stop")
        return self.places.take(end)

    def live_place(self) -> AbstractContextManager[LivePlace]:
        """One of the `max_live_sessions` places, held while a session is open.

        Raises what `check_live` does.
        """
        self.check_live()
        return self.live.take()

    def check_live(self) -> None:
        """Raises NotFound where no live sessions are held; Draining or Busy where none may be
        opened now.
        """
        if not self.live.most:
            raise NotFound("this server holds no live sessions")
        if self.draining:
            raise Draining("the server is about to stop")
        self.live.check()

    @property
    def free_live_places(self) -> int | None:
        """How many more live sessions may be opened now; None where none are held."""
        if not self.live.most:
            return None
        try:
            self.check_live()
        except (Draining, Busy):
            return 0
        return self.live.most - self.live.taken

    def check_room(self, headers: Headers, place: Place) -> None:
        """Raises Busy where there is no room now for the bytes that the head announces."""
        announced = headers.get("content-length", "")
        if announced.isdecimal():
            self.places.make_room(int(announced), place)

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
        if path.startswith("/v1/audio/") and kind != FORM:
            raise UnsupportedMediaType(f"this route reads {FORM}")
        if kind != FORM and kind.partition("/")[0] in SILENT_TYPES:
            raise UnsupportedMediaType(f"this route reads JSON, {FORM} and audio files")

    def body_limit(self, headers: Headers) -> int:
        """The most bytes of a body; base64 takes 4/3 of its audio, and line breaks a little."""
        kind = media_type(headers)
        binary = kind == FORM or kind.startswith(("audio/", "video/"))
        audio = self.max_audio_bytes if binary else self.max_audio_bytes * 7 // 5
        return audio + SLACK_BYTES


def media_type(headers: Headers) -> str:
    """The body's media type in lower case, without parameters; "" where there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def too_large(limit: int) -> EndpointError:
    """The refusal of a body of more than `limit` bytes."""
    return BodyTooLarge(f"the body may have {limit} bytes")
