"""Every rule by which a request is refused before a byte of its body is read.

Only a request's head decides, so a server under load spends nothing on a refusal. `server.gate`
applies the rules, the cheapest first: framing, host and origin, API key, draining, queue, announced
length, media type.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from ipaddress import ip_address

from pydantic import SecretStr
from starlette.datastructures import Headers

from whosaid.errors import InvalidRequest
from whosaid.server.errors import Kind, Refusal
from whosaid.server.realtime.places import LivePlace, LivePlaces
from whosaid.server.settings import ServerSettings

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

# Probes reveal nothing of any request, and a cluster asks for them by the container's address.
ASKED_BY_ADDRESS = ("/health", "/ready")
READING = ("GET", "HEAD")
ANY = "*"
AUTHORITY = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^][:@/\s]+)(?::(?P<port>[0-9]*))?")
ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/\s]+)")
DEFAULT_PORTS = {"http": "80", "https": "443"}
# What a page of an allowed origin may send, and read of an answer beside its body.
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    # The star does not stand for the key's header, by the Fetch standard.
    (b"access-control-allow-headers", b"Authorization, *"),
    (b"access-control-max-age", b"600"),
)
EXPOSED = b"Location, Retry-After, X-Error-Message, X-Request-Id, X-Should-Retry, X-Warnings"

# OpenAI's client waits up to two minutes if it is told to, and else gives up.
LONGEST_WAIT_S = 120
NEWEST = 0.2  # weight of the newest pause between two answers


class Permit:
    """One request's place in the queue, and the `size` in bytes that is held of its body."""

    def __init__(self, permits: Permits) -> None:
        self.size = 0
        self._permits, self._left = permits, False

    def grow(self, size: int) -> None:
        """Hold `size` bytes. Raises Refusal if there is no room for them."""
        self._permits.check_room(size, self)
        self._permits.held_bytes += size - self.size
        self.size = size

    def give_bytes_back(self) -> None:
        """Hold no bytes any more, because nobody holds the body."""
        self._permits.held_bytes -= self.size
        self.size = 0

    def leave(self) -> None:
        """Give the place and its bytes back, once."""
        self.give_bytes_back()
        self._permits.taken -= not self._left
        self._left = True


class Permits:
    """At most `most` requests without an answer, whose bodies have `max_bytes` together.

    Only bytes that have arrived count. A body may grow while as many bytes again as it has are
    free, or if there is no other, so that small bodies find room beside large ones. Nobody waits
    for bytes: a request that finds no room is refused, and of several half-sent bodies the others
    go on. `now` returns seconds.
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
        """Yield a permit for the block. Raises Refusal with the seconds after which one may be
        free.
        """
        if self.taken >= self.most:
            raise self._busy(f"{self.most} requests are waiting, and no more may")
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
        """Return a refusal with `Retry-After`. Each refused client gets a later time, by the
        average seconds between answers.
        """
        now = self.now()
        latest = now + LONGEST_WAIT_S
        self._next_place = min(max(now, self._next_place) + self._seconds_per_answer, latest)
        wait = min(max(1, math.ceil(self._next_place - now)), LONGEST_WAIT_S)
        return Refusal(Kind.BUSY, reason, retry_after=wait)


class Admission:
    """The permits of requests and the places of live sessions, and whether the server drains.

    `max_audio_bytes` is the models' limit on one audio file. `now` returns seconds.
    """

    def __init__(
        self,
        settings: ServerSettings,
        max_audio_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.permits = Permits(settings.max_queue, settings.max_queue_bytes, now)
        self.live = LivePlaces(settings.max_live_sessions)
        self.max_audio_bytes = max_audio_bytes
        self.draining = False

    def permit(self) -> AbstractContextManager[Permit]:
        self.check_draining()
        return self.permits.take()

    def live_place(self) -> AbstractContextManager[LivePlace]:
        self.check_live()
        return self.live.take()

    def check_draining(self) -> None:
        if self.draining:
            raise Refusal(Kind.DRAINING, "the server is about to stop")

    def check_live(self) -> None:
        if not self.live.most:
            raise Refusal(Kind.NOT_FOUND, "this server holds no live sessions")
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
        return self.live.most - self.live.taken

    def body_limit(self, headers: Headers) -> int:
        """Return the limit of a body's bytes; base64 takes 4/3 of its audio, and line breaks a
        little.
        """
        kind = media_type(headers)
        binary = kind == FORM or kind.startswith(("audio/", "video/"))
        audio = self.max_audio_bytes if binary else self.max_audio_bytes * 7 // 5
        return audio + SLACK_BYTES

    def check_length(self, headers: Headers) -> None:
        limit = self.body_limit(headers)
        if announced(headers) > limit:
            raise too_large(limit)


def announced(headers: Headers) -> int:
    """Return the length that a head announces; 0 if it announces none."""
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def check_framing(http_version: str, headers: Headers) -> None:
    """Raise InvalidRequest if a proxy before the server may find another end of the body, and so
    another request after it (RFC 9112, section 6.1). h11 refuses everything else that is unclear.
    """
    if "transfer-encoding" in headers and ("content-length" in headers or http_version == "1.0"):
        raise InvalidRequest(
            "a body has either Content-Length or, since HTTP/1.1, Transfer-Encoding"
        )


def check_type(path: str, headers: Headers) -> None:
    """Raise Refusal if the head says that the body holds no sound."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(
            Kind.UNSUPPORTED_MEDIA_TYPE, "bodies are read as they are, without Content-Encoding"
        )
    kind = media_type(headers)
    if path.startswith("/v1/audio/") and kind != FORM:
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, f"this route reads {FORM}")
    if kind != FORM and kind.partition("/")[0] in SILENT_TYPES:
        raise Refusal(Kind.UNSUPPORTED_MEDIA_TYPE, f"this route reads JSON, {FORM} and audio files")


def media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def too_large(limit: int) -> Refusal:
    return Refusal(Kind.BODY_TOO_LARGE, f"the body may have {limit} bytes")


class ApiKey:
    """The key that clients must send; without a `key` every client is let in."""

    def __init__(self, key: SecretStr | None) -> None:
        self._key = key.get_secret_value().encode() if key else b""

    def begins_with(self, prefix: bytes) -> bool:
        return self._key.startswith(prefix)

    def authorize(self, given: bytes) -> None:
        """Raise Refusal unless `given` is the key, compared in constant time."""
        if not self._key:
            return
        if not given:
            raise Refusal(Kind.UNAUTHORIZED, "the bearer token is missing")
        if not hmac.compare_digest(given, self._key):
            raise Refusal(Kind.UNAUTHORIZED, "the bearer token is wrong")


def token_of(headers: Headers) -> bytes:
    """Return the key in a request's head, empty if there is none: a bearer token or, because
    browsers can send that, the password of HTTP's Basic scheme.
    """
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    given = credentials.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return given if scheme.lower() == "bearer" else b""
    try:
        return b64decode(given, validate=True).partition(b":")[2]
    except Base64Error:
        return b""


class OriginPolicy:
    """Checks a request's host and the web page that sent it against `settings`.

    A browser sends requests to any address on behalf of any page, to loopback too. Two things
    reveal a foreign page: the name in `Host` if a stranger's DNS points here (DNS rebinding), and
    else `Origin` and `Sec-Fetch-Site`, which no script can set.

    With an API key every host is answered unless `allowed_hosts` names some, because a page that
    came by a foreign name has no key to send.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._hosts = {name.strip("[]") for name in settings.allowed_hosts}
        if not self._hosts and settings.api_key:
            self._hosts = {ANY}
        self._origins = settings.allowed_origins
        self._bound_to = settings.host.lower()

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise Refusal for a foreign host or page."""
        if path in ASKED_BY_ADDRESS and method in READING:
            return
        if not self._answers_to(host_name(headers.get("host", ""))):
            raise Refusal(
                Kind.HOST_NOT_ALLOWED,
                "requests for this host are not answered: name it in ALLOWED_HOSTS, or set API_KEY",
            )
        if not self._is_listed(headers) and is_foreign(method, headers):
            raise Refusal(
                Kind.ORIGIN_NOT_ALLOWED,
                "pages of other sites are not answered, unless ALLOWED_ORIGINS names them; for this"
                " server's own page behind a proxy, let the proxy pass the Host header on",
            )

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Return whether a browser asks if a page of an allowed origin may send a request."""
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
    """Return whether a browser sends a request for a page of another site or port.

    A link to the page here is no such request: the browser goes there and shows it by itself.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        # Browsers tell the site to https and loopback alone.
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
