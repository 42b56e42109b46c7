"""Sends recordings to a running server, ours or hf-serve, and follows their progress.

It requests events, but accepts plain JSON from a server without events. Nothing here needs torch.
"""

import base64
import json
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from itertools import count
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx2

from whosaid.runtime.environment import Proxy, proxy_of

ACCEPT = b"text/event-stream, application/json;q=0.9"
DONE, UNAUTHORIZED, RETRIED = (200, 202, 204), 401, (429, 503)
CONNECT_SECONDS = 10.0
# Hugging Face's proxy then waits so many seconds for an endpoint that was scaled to zero.
SCALED_TO_ZERO = {b"X-Scale-Up-Timeout": b"600"}
JOBS, INFO = "/v1/jobs", "/info"
# Seconds between two polls of a job.
FIRST_PAUSE_S, LONGEST_PAUSE_S, SLOWER = 0.5, 5.0, 1.5
# Tries: fewer if the connection was lost, because the recording may have crashed the server. Jobs
# are looked at more often, because the server itself tries each twice at most.
MOST_REFUSALS, MOST_LOST_CONNECTIONS = 30, 3
# A proxy's statuses for an unreachable server. GETs are sent again, because they change nothing.
GATEWAY = (502, 504)
LONGEST_WAIT_S = 120.0
# Jobs for a recording, and the errors after which another is sent: a job is gone, or a key is used.
MOST_JOBS, ANOTHER_JOB = 3, ("NOT_FOUND: ", "IDEMPOTENCY_KEY_REUSED: ")

# The end of a URL that names one of the server's routes, its page, or OpenAI's SDK's base.
ROUTE = re.compile(
    r"/+(app(/.*)?|docs|predict|info|health|ready|metrics|openapi\.json"
    r"|v1(/+(audio|jobs|models|realtime)(/.*)?)?)?/*$"
)
ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
NO_REASON = "the server answers with status {}"
NOBODY_LISTENS = "is a server running there? scripts/serve starts one"
KEY_WANTED = "the server needs a key: set API_KEY"
KEY_REFUSED = "the server does not accept the key in API_KEY"

# An endpoint's refusal. Codes in REFUSE_ALL concern every recording: the key, the server, a
# parameter or a clip. Only the parameters in OF_CHANNELS depend on the recording.
REFUSAL = re.compile(r"([A-Z_]+): (?:([a-z_]+)(?:\[\d+\](?:\.\w+)*)?: )?(.+)")
OF_CHANNELS = ("channel_names", "channel_starts")
OF_PARAMETERS = ("INVALID_PARAMETER", "INVALID_REFERENCE", "UNSUPPORTED")
REFUSE_ALL = (*OF_PARAMETERS, "JOBS_DISABLED", "QUOTA_EXCEEDED")
DRAINING = "DRAINING: "  # the beginning of the error of a server that stops


class OnProgress(Protocol):
    """Takes seconds of written speech, done and in total, or then the share of `speakers` and 1."""

    def __call__(self, done: float, total: float, speakers: bool = False, /) -> object: ...


T = TypeVar("T")
Read = Callable[[httpx2.Response], T]
Headers = Mapping[bytes, bytes]


class Failed(Exception):
    """A recording was not transcribed; `str()` gives the reason on one line.

    If a parameter is wrong, `param` is its name and `reason` the error.
    """

    param, reason = "", ""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split()) or "no reason given")


class Unusable(Failed):
    """No recording can be transcribed: the models do not load, the server is unreachable or refuses
    this client, or it refuses a parameter of all requests.
    """


def failure(reason: str) -> Failed:
    """Return the error for an endpoint's refusal: `CODE: text` or `CODE: parameter: text`."""
    found = REFUSAL.fullmatch(" ".join(reason.split()))
    if found is None:
        return Failed(reason)
    code, param, text = found.groups()
    refuses_all = code in REFUSE_ALL and param not in OF_CHANNELS
    error = (Unusable if refuses_all else Failed)(reason)
    error.param, error.reason = param or "", text
    return error


class _Retry(Exception):
    """Try again, after the server's `seconds` if it names any; in the end raise `error`. `lost`:
    the server got the request, perhaps, and the connection broke.
    """

    def __init__(self, error: Failed, lost: bool, seconds: float | None = None) -> None:
        self.error, self.lost, self.seconds = error, lost, seconds


@dataclass(frozen=True)
class Client:
    """A running server; safe to use from several threads.

    `seconds` is the read timeout of a request. Once the server was reached, the client waits for it
    to restart. With `jobs` no connection stays open during a transcription, because proxies would
    close it.
    """

    url: str
    api_key: str | None = None
    seconds: float = 3600.0
    sleep: Callable[[float], object] = time.sleep
    jobs: bool = False
    first_stage: ClassVar[str] = "waiting for the server"
    _reached: threading.Event = field(default_factory=threading.Event)
    # The numbers of requests with equal bodies, by digest: each of them has its own job.
    _copies: dict[str, Iterator[int]] = field(default_factory=lambda: defaultdict(count))

    @property
    def models(self) -> dict[str, Any] | None:
        """Return the server's model and whether it diarizes; None if unknown. Raises Unusable."""
        if not {"model", "diarization"} <= self._info.keys():
            return None
        return {"model": str(self._info["model"]), "diarization": bool(self._info["diarization"])}

    @cached_property
    def _info(self) -> dict[str, Any]:
        """The server's models and limits; empty without such a route, for example hf-serve's."""
        try:
            return self._ask("GET", INFO, b"", lambda response: _object(response.read()))
        except Unusable:
            raise
        except Failed:
            return {}

    def prepare(self, files: Sequence[bytes], on_load: object = None) -> None:
        """Raise Failed if the server accepts only smaller files. It checks all else by itself."""
        limit = self._info.get("max_audio_bytes")
        total = sum(map(len, files))
        if isinstance(limit, int) and total > limit:
            size, most = (f"{each / 2**20:,.1f} MiB" for each in (total, limit))
            raise Failed(f"not sent, because the file has {size} and the server accepts {most}")

    def partial_answer(self, *_: object) -> None:
        """Return None: only the server has the decoded windows."""

    @contextmanager
    def transcribed(
        self,
        files: Sequence[bytes],
        parameters: Mapping[str, Any],
        on_progress: OnProgress,
        begun: object = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the server's answer to a recording's files, and delete a job after a block without
        an error. `on_progress` takes the seconds done and in total. Requests are repeated after 429
        and 503. Raises Failed or Unusable.
        """
        encoded = [base64.b64encode(data).decode() for data in files]
        inputs = encoded if len(encoded) > 1 else encoded[0]
        body = json.dumps({"inputs": inputs, "parameters": dict(parameters)}).encode()
        if not self.jobs:
            yield self._ask("POST", "", body, lambda response: _read(response, on_progress))
            return
        job = self._ended_job(body, on_progress)
        if job["status"] == "succeeded":
            yield _answer(job["answer"])
        self._forget(job)
        if job["status"] != "succeeded":
            error = job.get("error") or {}
            raise failure(str(error.get("message", f"the job was {job['status']}")))

    def _ended_job(self, body: bytes, on_progress: OnProgress) -> dict[str, Any]:
        """Return the ended job of a request, which an interrupted run may have sent. Send another
        if that run's has failed, or another run deletes the job. Raises Failed.
        """
        digest = sha256(repr(self.models).encode() + body).hexdigest()
        copy, attempt = next(self._copies[digest]), 0
        while True:
            attempt += 1
            key = {b"Idempotency-Key": f"{digest}-{copy}-{attempt}".encode()}
            try:
                job = self._ask("POST", JOBS, body, _job, key)
                if attempt < MOST_JOBS and job["status"] in ("failed", "cancelled"):
                    self._forget(job)
                    continue
                return self._followed(job, on_progress)
            except Failed as error:
                if attempt == MOST_JOBS or not str(error).startswith(ANOTHER_JOB):
                    raise

    def _followed(self, job: dict[str, Any], on_progress: OnProgress) -> dict[str, Any]:
        """Return the job once it has ended. Raises Failed."""
        pause = FIRST_PAUSE_S
        while job["status"] in ("queued", "running"):
            self.sleep(pause)
            pause = min(SLOWER * pause, LONGEST_PAUSE_S)
            job = self._ask("GET", f"{JOBS}/{job['id']}", b"", _job)
            if progress := job.get("progress"):
                on_progress(float(progress["done"]), float(progress["total"]))
        return job

    def _forget(self, job: Mapping[str, Any]) -> None:
        with suppress(Failed, _Retry):  # it expires
            self._ask_once("DELETE", f"{JOBS}/{job['id']}", b"", lambda response: None)

    def _ask(
        self, method: str, route: str, body: bytes, read: Read[T], more: Headers | None = None
    ) -> T:
        """Send a request until it is answered, and `read` that. Raises Failed after many tries."""
        attempts: Counter[bool] = Counter()  # keys: whether the connection was lost
        while True:
            try:
                return self._ask_once(method, route, body, read, more)
            except _Retry as again:
                attempts[again.lost] += 1
                attempt = attempts[again.lost]
                risks = again.lost and not route.startswith(f"{JOBS}/")
                if attempt >= (MOST_LOST_CONNECTIONS if risks else MOST_REFUSALS):
                    raise again.error from again
                wait = max(min(2.0**attempt, 30), again.seconds or 0)
                self.sleep(min(wait, LONGEST_WAIT_S))

    def _ask_once(
        self, method: str, route: str, body: bytes, read: Read[T], more: Headers | None = None
    ) -> T:
        headers = {b"Content-Type": b"application/json", b"Accept": ACCEPT}
        headers |= {**SCALED_TO_ZERO, **(more or {})}
        if self.api_key:
            headers[b"Authorization"] = f"Bearer {self.api_key}".encode()
        timeout = httpx2.Timeout(self.seconds, connect=CONNECT_SECONDS)
        url = endpoint(self.url) + route
        proxy = proxy_of(url)
        connections = self._connections(proxy)
        try:
            with connections.stream(
                method, url, content=body, headers=headers, timeout=timeout
            ) as response:
                if response.status_code not in DONE:
                    raise self._refusal(response, proxy)
                self._reached.set()
                return read(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            why = ERROR_NUMBER.sub("", str(error)) or "no answer"
            raise self._nobody_listens(why, proxy) from error
        except httpx2.TransportError as error:
            told = Failed(f"{self.url}: {error or type(error).__name__}")
            raise _Retry(told, lost=True) from error
        except httpx2.InvalidURL as error:
            raise Unusable(f"{self.url}: {error}") from error
        except ValueError as error:
            raise Unusable(f"{self.url} does not answer as a transcription server") from error

    def _connections(self, proxy: Proxy | None) -> httpx2.Client:
        try:
            return _connections(proxy.url if proxy else None)
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            socks = isinstance(error, ImportError)
            why = "SOCKS needs the package socksio" if socks else "its address is not understood"
            raise Unusable(nobody_listens(self.url, why, proxy)) from error

    def _nobody_listens(self, why: str, proxy: Proxy | None) -> Exception:
        error = Unusable(nobody_listens(self.url, why, proxy))
        return _Retry(error, lost=False) if self._reached.is_set() else error

    def _refusal(self, response: httpx2.Response, proxy: Proxy | None) -> Exception:
        reason = refusal_reason(response.status_code, response.headers, response.read())
        no_reason = NO_REASON.format(response.status_code)
        by_proxy = response.request.url.scheme == "http" and reason == no_reason
        if proxy and by_proxy:  # a server says why
            return self._nobody_listens(f"status {response.status_code}", proxy)
        self._reached.set()
        if response.status_code == UNAUTHORIZED:
            return unauthorized(reason, self.api_key)
        error = failure(reason)
        if response.status_code in GATEWAY and response.request.method == "GET":
            return _Retry(error, lost=True)
        if response.status_code not in RETRIED or isinstance(error, Unusable):
            return error
        seconds = response.headers.get("retry-after", "")
        return _Retry(error, lost=False, seconds=float(seconds) if seconds.isdecimal() else None)


@cache
def _connections(proxy: str | None) -> httpx2.Client:
    """Return a factory of connections, one for each request; certificates are loaded once."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(transport=httpx2.HTTPTransport(limits=limits, proxy=proxy))


def endpoint(url: str) -> str:
    """Return the URL for recordings, given the URL of a server, its page or any of its routes."""
    scheme, where, path, _, _ = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(scheme, scheme)
    return f"{scheme}://{where}{ROUTE.sub('', path)}"


def _read(response: httpx2.Response, on_progress: OnProgress) -> dict[str, Any]:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return _follow(response.iter_bytes(), on_progress)
    return _answer(json.loads(response.read()))


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one if the body is none."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _job(response: httpx2.Response) -> dict[str, Any]:
    job = _object(response.read())
    if not {"id", "status"} <= job.keys():
        raise ValueError("no job")
    return job


def _follow(parts: Iterable[bytes], on_progress: OnProgress) -> dict[str, Any]:
    """Return the answer at the end of a stream of events. Raises Failed for an error event, and
    _Retry if the stream breaks off or the server stops.
    """
    for event in events(parts):
        kind = event.get("type")
        if "error" in event:
            error = event["error"]
            told = failure(str(error.get("message") if isinstance(error, dict) else error))
            raise _Retry(told, lost=False) if str(told).startswith(DRAINING) else told
        if kind == "decoded":
            on_progress(0.0, float(event["duration"]))
        elif kind == "progress":
            on_progress(float(event["done"]), float(event["total"]))
        elif kind == "speakers":
            on_progress(float(event["share"]), 1.0, True)
        elif kind == "answer":
            return _answer(event["answer"])
    raise _Retry(Failed("the server's answer broke off"), lost=True)


def events(parts: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of server-sent events, with one line of data each."""
    for line in _lines(parts):
        if line.startswith(b"data:"):
            event = json.loads(line.removeprefix(b"data:"))
            if isinstance(event, dict):
                yield event


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines that end with line feeds; a transcript may contain Unicode's line separators."""
    begun: list[bytes] = []
    for part in parts:
        first, *others = part.split(b"\n")
        begun.append(first)
        for other in others:
            yield b"".join(begun)
            begun = [other]


def _answer(body: object) -> dict[str, Any]:
    if not isinstance(body, dict) or "text" not in body:
        raise ValueError("no transcription")
    return body


def refusal_reason(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Return the server's error text, from any of the formats of hf-serve-like servers."""
    if message := headers.get("x-error-message"):
        return message
    told = _object(body)
    said = told.get("detail", told.get("error"))
    if isinstance(said, dict):
        said = said.get("message")
    return said if isinstance(said, str) else NO_REASON.format(status)


def unauthorized(reason: str, api_key: str | None) -> Unusable:
    return Unusable(f"{reason} ({KEY_REFUSED if api_key else KEY_WANTED})")


def nobody_listens(url: str, why: str, proxy: Proxy | None = None) -> str:
    if proxy is None:
        return f"{url}: {why}; {NOBODY_LISTENS}"
    host = urlsplit(url).hostname
    through = f"{why}, through the proxy {proxy.address} of {proxy.variable}"
    return f"{url}: {through}; NO_PROXY={host} connects without it"
