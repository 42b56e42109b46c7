"""The rules that refuse a request before a byte of its body is read.

Only a request's head decides, so a server under load spends nothing on a refusal. `server.gate`
applies the rules, the cheapest first: framing, host and origin, API key, draining, queue, announced
length, media type.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import get_args

from starlette.datastructures import Headers

from config import OutputFormat
from whosaid.errors import InvalidRequest
from whosaid.server.errors import Kind, Refusal
from whosaid.server.keys import Account
from whosaid.server.realtime.places import LivePlaces
from whosaid.server.settings import ServerSettings

# Routes that are answered under any load, and whether they need no token.
PROBES = ("/health", "/ready", "/ping", "/metrics")
WITHOUT_TOKEN = ("/", "/health", "/ready", "/ping", "/docs", "/openapi.json")
JOBS = "/v1/jobs"
TRANSCRIBING = (
    "/",
    "/predict",
    "/invocations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    JOBS,
)
RENDERING = tuple(f"/v1/transcripts/{form}" for form in ("json", *get_args(OutputFormat)))
FORM = "multipart/form-data"
# Media types that exclude audio; bodies of all other types are probed.
SILENT_TYPES = ("text", "image", "font", "model", "message", "multipart")
# Room for parameters, a form's other fields, and up to four voices that OpenAI's clients may add.
SLACK_BYTES = 16 * 2**20

# Probes reveal nothing about requests, and a cluster sends them to the container's address.
ASKED_BY_ADDRESS = ("/health", "/ready", "/ping")
READING = ("GET", "HEAD")
ANY = "*"
AUTHORITY = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^][:@/\s]+)(?::(?P<port>[0-9]*))?")
ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/\s]+)")
DEFAULT_PORTS = {"http": "80", "https": "443"}
# Methods and headers that a page of an allowed origin may send, and headers that it may read.
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    # By the Fetch standard * does not include the key's header.
    (b"access-control-allow-headers", b"Authorization, *"),
    (b"access-control-max-age", b"600"),
)
EXPOSED = b"Location, Retry-After, X-Error-Message, X-Request-Id, X-Should-Retry, X-Warnings"

# OpenAI's client waits if Retry-After is at most two minutes, else it gives up.
LONGEST_WAIT_S = 120
NEWEST = 0.2  # weight of the newest interval between two answers


class Permit:
    """A request's place in the queue, its body's bytes in memory (`size`), and its `account`."""

    def __init__(self, permits: Permits) -> None:
        self.size = 0
        self.account: Account | None = None
        self._permits, self._left = permits, False

    def grow(self, size: int) -> None:
        """Hold `size` bytes. Raises Refusal if there is no room for them."""
        self._permits.check_room(size, self)
        self._permits.held_bytes += size - self.size
        self.size = size

    def give_bytes_back(self) -> None:
        """Release the bytes, because the body is no longer in memory."""
        self._permits.held_bytes -= self.size
        self.size = 0

    def leave(self) -> None:
        """Release the place and its bytes; further calls do nothing."""
        self.give_bytes_back()
        self._permits.taken -= not self._left
        self._left = True


class Permits:
    """Limits requests without an answer to `most`, and their bodies to `max_bytes` together.

    Only received bytes count. A body may grow while as many bytes as it already has are free, or if
    it is the only one, so that small bodies find room beside large ones. A request without room is
    refused instead of waiting, so other half-sent bodies can complete. `now` returns seconds.
    """

    def __init__(
        self, most: int, max_bytes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.max_bytes, self.now = most, max_bytes, now
        self.taken = self.held_bytes = 0
        self._seconds_per_answer = 1.0
        self._last_answer = self._next_place = now()

    @contextmanager
    def take(self) -> Iterator[Permit]:
        """Yield a permit for the block. Raises Refusal with the seconds until one may be free."""
        if self.taken >= self.most:
            raise self._busy(f"{self.most} requests are waiting, the most allowed")
        if not self.taken:
            self._last_answer = self.now()
        permit = Permit(self)
        self.taken += 1
        try:
            yield permit
        finally:
            permit.leave()
            now = self.now()
            pause, self._last_answer = now - self._last_answer, now
            self._seconds_per_answer += NEWEST * (pause - self._seconds_per_answer)

    def check_room(self, size: int, permit: Permit) -> None:
        """Raise Refusal if `permit` may not hold `size` bytes now."""
        others = self.held_bytes - permit.size
        if others > 0 and others + 2 * size > self.max_bytes:
            raise self._busy(f"the bodies of all requests may have {self.max_bytes} bytes")

    def _busy(self, reason: str) -> Refusal:
        """Return a refusal; `Retry-After` grows for each by the mean seconds between answers."""
        now = self.now()
        latest = now + LONGEST_WAIT_S
        self._next_place = min(max(now, self._next_place) + self._seconds_per_answer, latest)
        wait = min(max(1, math.ceil(self._next_place - now)), LONGEST_WAIT_S)
        return Refusal(Kind.BUSY, reason, retry_after=wait)


class Admission:
    """Holds the permits of requests and live sessions, and knows whether the server is draining.

    `max_audio_bytes` is the models' limit on one audio file.
    """

    def __init__(self, settings: ServerSettings, max_audio_bytes: int) -> None:
        self.permits = Permits(settings.max_queue, settings.max_queue_bytes)
        self.live = LivePlaces(settings.max_live_sessions)
        self.max_audio_bytes = max_audio_bytes
        self.draining = False

    def check_draining(self) -> None:
        if self.draining:
            raise Refusal(Kind.DRAINING, "the server is shutting down")

    def check_live(self) -> None:
        if not self.live.most:
            raise Refusal(Kind.NOT_FOUND, "this server has no live sessions")
        self.check_draining()
        self.live.check()

    @property
    def free_live_places(self) -> int | None:
        """Return the number of live sessions that may open now; None if the server holds none."""
        if not self.live.most:
            return None
        try:
            self.check_live()
        except Refusal:
            return 0
        return self.live.most - len(self.live.taken)

    def body_limit(self, headers: Headers) -> int:
        """Return a body's most bytes; base64 takes 4/3 of its audio, and line breaks a little."""
        kind = media_type(headers)
        binary = kind == FORM or kind.startswith(("audio/", "video/"))
        audio = self.max_audio_bytes if binary else self.max_audio_bytes * 7 // 5
        return audio + SLACK_BYTES

    def check_length(self, headers: Headers) -> None:
        limit = self.body_limit(headers)
        if announced(headers) > limit:
            raise too_large(limit)


def announced(headers: Headers) -> int:
    """Return the body's length according to the request's head; 0 without Content-Length."""
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def check_framing(http_version: str, headers: Headers) -> None:
    """Raise InvalidRequest if a proxy may see the end of the body elsewhere, and so smuggle another
    request after it (RFC 9112, section 6.1). h11 refuses all other ambiguous requests.
    """
    if "transfer-encoding" in headers and ("content-length" in headers or http_version == "1.0"):
        text = "a body has either Content-Length or, since HTTP/1.1, Transfer-Encoding"
        raise InvalidRequest(text)


def check_type(path: str, headers: Headers) -> None:
    """Raise Refusal if by its media type or encoding the body is not what the route reads."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")
    kind = media_type(headers)
    if path in RENDERING and kind != "application/json":
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, "this route reads application/json")
    if path.startswith("/v1/audio/") and kind != FORM:
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, f"this route reads {FORM}")
    if kind != FORM and kind.partition("/")[0] in SILENT_TYPES:
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, f"this route reads JSON, {FORM} and audio files")


def media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def too_large(limit: int) -> Refusal:
    return Refusal(Kind.BODY_TOO_LARGE, f"the body may have {limit} bytes")


class OriginPolicy:
    """Checks a request's host and the web page that sent it against `settings`.

    For any page a browser sends requests to any address, loopback included. A foreign page is
    recognised by the name in `Host` if an attacker's DNS points here (DNS rebinding), or else by
    `Origin` and `Sec-Fetch-Site`, which scripts cannot set.

    With an API key every host is accepted unless `allowed_hosts` is set, because a foreign page
    does not have the key.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._hosts = {name.strip("[]") for name in settings.allowed_hosts}
        if not self._hosts and settings.needs_key:
            self._hosts = {ANY}
        self._origins = settings.allowed_origins
        self._bound_to = settings.host.lower()

    def check(self, method: str, path: str, headers: Headers) -> None:
        if path in ASKED_BY_ADDRESS and method in READING:
            return
        if not self._answers_to(host_name(headers.get("host", ""))):
            text = "this host is not allowed: add it to ALLOWED_HOSTS, or set API_KEY"
            raise Refusal(Kind.HOST_NOT_ALLOWED, text)
        if not self._is_listed(headers) and is_foreign(method, headers):
            raise Refusal(
                Kind.ORIGIN_NOT_ALLOWED,
                "pages of other sites are not answered, unless ALLOWED_ORIGINS names them; for this"
                " server's own page behind a proxy, let the proxy pass the Host header on",
            )

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Return whether this is a CORS preflight request of an allowed origin."""
        asks = method == "OPTIONS" and "access-control-request-method" in headers
        return asks and self._is_listed(headers)

    def answer_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers that let a page of an allowed origin read the answer."""
        if not self._origins:
            return []
        vary = [(b"vary", b"Origin")]
        if not self._is_listed(headers):
            return vary
        origin = headers["origin"].encode("latin-1")
        allowed = [(b"access-control-allow-origin", origin)]
        return [*vary, *allowed, (b"access-control-expose-headers", EXPOSED)]

    def _answers_to(self, name: str) -> bool:
        if not self._hosts:
            return is_loopback(name) or name == self._bound_to
        return any(
            allowed in (ANY, name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))
            for allowed in self._hosts
        )

    def _is_listed(self, headers: Headers) -> bool:
        origin = headers.get("origin", "").lower()
        return bool(ORIGIN.fullmatch(origin)) and not self._origins.isdisjoint((ANY, origin))


def host_name(host: str) -> str:
    """Return the name or address in a `Host`, without port and brackets; "" if there is none."""
    found = AUTHORITY.fullmatch(host.lower())
    return found["name"].strip("[]").removesuffix(".") if found else ""


def is_loopback(name: str) -> bool:
    """Return whether a name or address always means this machine (RFC 6761, section 6.3)."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def is_foreign(method: str, headers: Headers) -> bool:
    """Return whether a browser sends this for a page of another site, not by a followed link."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        # Browsers send Sec-Fetch-Site only to https and loopback.
        return site != "same-origin" if site else not _is_same(origin, headers.get("host", ""))
    follows_link = (
        method in READING
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    return site in ("same-site", "cross-site") and not follows_link


def _is_same(origin: str, host: str) -> bool:
    """Return whether an origin has the name and port of a `Host`; a proxy may set the scheme."""
    found = ORIGIN.fullmatch(origin.lower())
    if not found:
        return False  # "null": a sandboxed frame, a file
    ours, theirs = AUTHORITY.fullmatch(host.lower()), AUTHORITY.fullmatch(found["authority"])
    if not ours or not theirs or ours["name"] != theirs["name"]:
        return False
    default = DEFAULT_PORTS.get(found["scheme"])
    return (ours["port"] or default) == (theirs["port"] or default)
