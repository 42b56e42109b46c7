"""Callbacks, against a receiver on loopback that checks them as Standard Webhooks says."""

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from tests.helpers.asgi import HELLO, JSON, call, served
from tests.helpers.loopback import Handler, Loopback
from tests.helpers.refusals import refused
from whosaid.errors import InvalidParameter
from whosaid.server.jobs import callbacks
from whosaid.server.jobs.callbacks import read_target, signed_headers
from whosaid.server.jobs.store import JobStore
from whosaid.server.keys import Principal
from whosaid.server.realtime.client_secrets import ClientSecrets
from whosaid.server.realtime.session_config import SessionConfig
from whosaid.server.settings import ServerSettings

KEY = b"k" * 24
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver(Loopback):
    """Answers each POST with the next of `statuses`; the last stays."""

    def __init__(self) -> None:
        super().__init__(ReceiverHandler)
        self.statuses, self.got = [204], []


class ReceiverHandler(Handler):
    def do_POST(self) -> None:
        self.server.got.append((self.path, dict(self.headers.items()), self.body()))
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        if isinstance(status, bytes):
            self.wfile.write(b"HTTP/1.1 %s OK\r\n\r\n" % status)
        else:
            self.send(status, Location=f"{self.server.url}/elsewhere")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


def verify(headers: dict[str, str], body: bytes) -> None:
    """Verify a signature like a receiver, by the specification's text."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 300


@asynccontextmanager
async def jobs(tmp_path, hosts):
    store = JobStore(tmp_path, 10, 2**20, 0.0)
    settings = {"callback_hosts": frozenset(hosts), "callback_secret": SecretStr(SECRET)}
    endpoint, app = served(store=store, **settings)
    async with app.jobs.running():
        yield endpoint, app


def asking(url: str) -> list[bytes]:
    return [json.dumps({"inputs": "AAAA", "parameters": {"callback_url": url}}).encode()]


async def told(app, job: str, tries: int) -> dict:
    while True:
        found = (await call(app, "GET", f"/v1/jobs/{job}")).json
        if found["callback"]["tries"] == tries:
            return found
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("status", ["succeeded", "failed"])
async def test_callbacks_are_signed_and_hold_no_answer(tmp_path, receiver, status):
    async with jobs(tmp_path, [receiver.host]) as (endpoint, app):
        endpoint.error = InvalidParameter("x") if status == "failed" else None
        endpoint.release.set()
        sent = await call(app, "POST", "/v1/jobs", JSON, asking(f"{receiver.url}/hook?a=b"))
        job = sent.json["id"]
        assert (await told(app, job, 1))["callback"] == {"delivered": True, "tries": 1}
    ((path, headers, body),) = receiver.got
    assert (path, headers["Host"]) == ("/hook?a=b", receiver.host)
    assert headers["webhook-id"] == job
    verify(headers, body)
    content = json.loads(body)
    assert content["type"] == f"job.{status}"
    assert content["data"].keys() == {"id", "status", "error"}


@pytest.mark.parametrize("jump", [-200_000, 200_000])
async def test_a_clock_that_jumps_expires_and_delays_nothing(tmp_path, receiver, monkeypatch, jump):
    """The wall clock jumps whenever it is read."""
    times = itertools.count(int(time.time()), jump)
    monkeypatch.setattr(time, "time", lambda: next(times))
    monkeypatch.setattr(callbacks, "PAUSES", (0,))
    receiver.statuses = [500, 204]

    async with jobs(tmp_path, [receiver.host]) as (endpoint, app), asyncio.timeout(60):
        endpoint.release.set()
        sent = await call(app, "POST", "/v1/jobs", JSON, asking(f"{receiver.url}/"))
        assert (await told(app, sent.json["id"], 2))["callback"]["delivered"]
        other = await call(app, "POST", "/v1/jobs", JSON, HELLO)
        while endpoint.outstanding:
            await asyncio.sleep(0.001)
        for job in (sent, other):
            assert (await call(app, "GET", f"/v1/jobs/{job.json['id']}")).status == 200
    secrets = ClientSecrets()
    value = secrets.create(60, SessionConfig(), Principal("key", b"")).value.encode()
    assert secrets.find(value).value.encode() == value


@pytest.mark.parametrize("statuses", [[500, 302, 400], [b"2_00", b"+204", b"0200"]])
async def test_refused_callbacks_are_given_up_at_last(tmp_path, receiver, monkeypatch, statuses):
    """Each attempt sends one message, wherever a redirect leads."""
    monkeypatch.setattr(callbacks, "PAUSES", (0, 0))
    receiver.statuses = statuses

    async with jobs(tmp_path, [receiver.host]) as (endpoint, app):
        endpoint.release.set()
        sent = await call(app, "POST", "/v1/jobs", JSON, asking(f"{receiver.url}/"))
        assert not (await told(app, sent.json["id"], 3))["callback"]["delivered"]
        assert app.jobs.store.callbacks() == []
    assert [path for path, _, _ in receiver.got] == ["/"] * 3
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
    for _, headers, body in receiver.got:
        verify(headers, body)


async def test_a_broken_receiver_fails_no_job(tmp_path):
    async def babble(_, writer):
        writer.write(b"hello\r\n")
        writer.close()

    listener = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with jobs(tmp_path, [f"127.0.0.1:{port}"]) as (endpoint, app):
        endpoint.release.set()
        for _ in range(2):
            sent = await call(app, "POST", "/v1/jobs", JSON, asking(f"http://127.0.0.1:{port}/"))
            found = await told(app, sent.json["id"], 1)
            assert (found["status"], found["callback"]["delivered"]) == ("succeeded", False)
            listener.close()


async def test_a_silent_host_delays_no_other(tmp_path, receiver, monkeypatch):
    """The host accepts connections, one at a time, and sends nothing."""
    monkeypatch.setattr(callbacks, "SECONDS_TO_ANSWER", 3600)

    called = []

    async def say_nothing(reader, writer):
        called.append(await reader.readline())
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    dead = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with jobs(tmp_path, [dead, receiver.host]) as (endpoint, app):
        endpoint.release.set()
        for _ in range(2):
            await call(app, "POST", "/v1/jobs", JSON, asking(f"http://{dead}/"))
        async with asyncio.timeout(60):
            while not called:
                await asyncio.sleep(0.001)
            for _ in range(2):
                sent = await call(app, "POST", "/v1/jobs", JSON, asking(f"{receiver.url}/"))
                assert (await told(app, sent.json["id"], 1))["callback"]["delivered"]
        assert called == [b"POST / HTTP/1.1\r\n"]
    silent.close()


async def test_nobody_is_called_who_is_not_allowed(tmp_path, receiver):
    async with jobs(tmp_path, ["a.test", "127.0.0.1"]) as (_, app):
        for url in (f"{receiver.url}/", "https://b.test/", "https://a.test.evil/"):
            reply = await call(app, "POST", "/v1/jobs", JSON, asking(url))
            assert (reply.status, reply.code) == (403, "CALLBACK_NOT_ALLOWED")
        reply = await call(app, "POST", "/v1/jobs", JSON, HELLO, query=b"callback_url=x")
        assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
        query = b"callback_url=https://b.test/"
        reply = await call(app, "POST", "/v1/jobs", {"content-length": 1}, [b"x"], query=query)
        assert reply.code == "CALLBACK_NOT_ALLOWED"
    assert receiver.got == []


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://a.test", "a.test:443"),
        ("HTTPS://A.test:443/x?y=%20", "a.test:443"),
        ("https://a.test?y", "a.test:443"),
        ("https://b.test:8443/", "b.test:8443"),
        ("http://localhost:9/x", "localhost:9"),
        ("http://[::1]:9/", "[::1]:9"),
    ],
)
def test_an_address_is_read(url, target):
    allowed = {"a.test", "b.test:8443", "localhost:9", "[::1]:9"}
    assert read_target(url, allowed) == target


INVALID = (
    *("http://a.test/", "https://me@a.test/", "https://a.test@b.test/", "https://a.test\\@b.test/"),
    *("https://a.test/ x", "https://a.test/\r\nHost: b", "https://a.test/\n", "https://a.test/#x"),
    *("ftp://a.test/", "//a.test/", "", "https://a.test/" + "x" * 2000, "https://a.test:65536/"),
)
UNLISTED = ("https://a.test:444/", "https://a.test:65535/", "https://a.test./", "https://127.1/")
UNLISTED += ("https://x.a.test/",)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        *((each, "INVALID_PARAMETER") for each in INVALID),
        *((each, "CALLBACK_NOT_ALLOWED") for each in UNLISTED),
    ],
)
def test_an_address_is_refused(url, error):
    with refused(error, "callback_url"):
        read_target(url, {"a.test"})


def test_the_signature_is_that_of_the_specification():
    """The example of its reference implementations."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    message = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    headers = signed_headers(secret, message, 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("variables", "wrong"),
    [
        ({"callback_hosts": "a.test"}, "CALLBACK_HOSTS: needs CALLBACK_SECRET"),
        ({"callback_secret": "short"}, "CALLBACK_SECRET: should be base64 of 24 to 64 bytes"),
        ({"callback_secret": "x" * 33}, "CALLBACK_SECRET: should be base64"),
        ({"callback_hosts": "https://a.test", "callback_secret": SECRET}, "CALLBACK_HOSTS: should"),
        ({"callback_hosts": "a.test:99999", "callback_secret": SECRET}, "CALLBACK_HOSTS: should"),
    ],
)
def test_callbacks_without_a_key_are_refused_at_start(variables, wrong):
    with pytest.raises(ValueError, match=f"^{wrong}"):
        ServerSettings.from_environment(**variables)
    both = {"callback_hosts": "a.test, b.test:8443", "callback_secret": SECRET}
    assert ServerSettings.from_environment(**both).callback_hosts == {"a.test", "b.test:8443"}
