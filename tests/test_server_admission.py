"""The rules of admission and their order; no byte of a refused body is read."""

import asyncio
import base64
import gc
import hmac
import weakref
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.helpers.asgi import HELLO, JSON, MAX_AUDIO_BYTES, call, client, served
from whosaid.server.admission import SLACK_BYTES, Permits
from whosaid.server.errors import Refusal
from whosaid.server.gate import LITTLE_BYTES
from whosaid.server.keys import ApiKeys, Principal

TOO_LONG = MAX_AUDIO_BYTES * 2 + SLACK_BYTES
# Everything that is wrong with a request, the first to be told first.
FAULTS = ["token", "draining", "full", "length", "type"]
ANSWERS = {
    "token": (401, "UNAUTHORIZED"),
    "draining": (503, "DRAINING"),
    "full": (429, "BUSY"),
    "length": (413, "BODY_TOO_LARGE"),
    "type": (415, "UNSUPPORTED_MEDIA_TYPE"),
}


async def ask_with_faults(faults, path):
    _, app = served(api_key="key", max_queue=1)
    headers = {"authorization": "Bearer key", "content-type": "audio/wav"}
    headers["content-length"] = LITTLE_BYTES + 1
    if "token" in faults:
        headers["authorization"] = "Bearer other"
    app.admission.draining = "draining" in faults
    if "full" in faults:
        app.admission.permits.most = 0
    if "length" in faults:
        headers["content-length"] = TOO_LONG
    if "type" in faults:
        headers["content-type"] = "text/html"
    return await call(app, path=path, headers=headers, parts=[b"never read"])


@pytest.mark.parametrize("path", ["/", "/predict", "/v1/audio/transcriptions"])
@pytest.mark.parametrize("first", range(len(FAULTS)))
def test_the_cheapest_refusal_comes_first_without_reading(first, path):
    reply = asyncio.run(ask_with_faults(FAULTS[first:], path))
    assert (reply.status, reply.code) == ANSWERS[FAULTS[first]]
    assert reply.parts_read == 0
    assert reply.headers["connection"] == "close"
    told = reply.json["error"]["message"] if "v1" in path else reply.json["detail"]
    assert told == reply.headers["x-error-message"]


@pytest.mark.parametrize(
    ("key", "token", "name"),
    [("secret", b"secret", "key"), (None, b"", "anonymous"), (None, b"secret", "9b203fa4")],
)
def test_a_principal_is_a_keyed_digest_of_its_token(key, token, name):
    found = ApiKeys(key and SecretStr(key), owner_key=b"owners").authorize(token)
    assert found == Principal(name, hmac.digest(b"owners", token, "sha256"))


async def test_requests_beyond_the_queue_are_refused_until_one_ends():
    endpoint, app = served(max_queue=2)
    waiting = [asyncio.ensure_future(call(app, headers=JSON, parts=HELLO)) for _ in range(2)]
    await endpoint.began.wait()
    refused = await call(app, headers=JSON, parts=HELLO)
    assert (refused.status, refused.code) == (429, "BUSY")
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    for path, status in {"/health": 200, "/ready": 200, "/ping": 200, "/metrics": 200}.items():
        assert (await call(app, "GET", path)).status == status
    endpoint.release.set()
    assert [(await each).status for each in waiting] == [200, 200]
    assert (await call(app, headers=JSON, parts=HELLO)).status == 200
    assert app.admission.permits.taken == 0


def test_retry_after_grows_by_the_seconds_between_answers():
    now = [0.0]
    permits = Permits(1, 1, lambda: now[0])
    for _ in range(40):
        with permits.take():
            now[0] += 10
    waits = []
    with permits.take():
        for _ in range(20):
            with pytest.raises(Refusal) as caught, permits.take():
                pass
            waits.append(caught.value.retry_after)
    assert waits[:5] == [10, 20, 30, 40, 50]
    assert waits[-1] == max(waits) == 120


@pytest.mark.parametrize(
    ("kind", "fits"),
    [("audio/wav", 3000), ("application/json", 4000), ("", 4000), ("multipart/form-data", 3000)],
)
def test_a_limit_leaves_room_for_the_largest_audio(kind, fits):
    async def status(length):
        endpoint, app = served()
        endpoint.release.set()
        headers = {"content-type": kind, "content-length": length}
        return (await call(app, headers=headers, parts=[b"x"])).status

    assert asyncio.run(status(fits + SLACK_BYTES)) != 413
    assert asyncio.run(status(fits * 2 + SLACK_BYTES)) == 413


def chunked(app, parts):
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    return call(app, headers=headers, parts=parts)


def announced(length):
    return {"content-type": "application/json", "content-length": length}


async def test_bodies_have_so_many_bytes_together():
    """Received bytes count, and as many again must be free."""
    endpoint, app = served(max_queue=9, max_queue_bytes=100)
    endpoint.decode.clear()
    waiting = [asyncio.ensure_future(chunked(app, [b"{" + b" " * 30, *HELLO]))]
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert app.admission.permits.held_bytes == 0
    waiting = [asyncio.ensure_future(chunked(app, [b" " * 30, *HELLO]))]
    while not endpoint.seen:
        await asyncio.sleep(0)
    held = 30 + len(HELLO[0])
    assert app.admission.permits.held_bytes == held
    refused = await call(app, headers=announced(30), parts=HELLO)
    assert (refused.status, refused.code, refused.parts_read) == (429, "BUSY", 0)
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert "connection" not in refused.headers  # so little is read all the same
    waiting.append(asyncio.ensure_future(call(app, headers=announced(20), parts=HELLO)))
    while len(endpoint.seen) < 2:
        await asyncio.sleep(0)
    counted = await chunked(app, [bytes(10)] * 4)
    assert (counted.status, counted.code, counted.parts_read) == (429, "BUSY", 2)
    assert app.admission.permits.held_bytes == held + len(HELLO[0])
    assert app.admission.permits.taken == 2
    endpoint.decode.set()
    endpoint.release.set()
    assert [(await each).status for each in waiting] == [200, 200]
    assert app.admission.permits.held_bytes == 0
    untyped = {"transfer-encoding": "chunked"}
    assert (await call(app, headers=untyped, parts=[bytes(10)] * 10)).status == 200


CLIPS = b'{"inputs": "AAAA", "parameters": {"known_speakers": [{"name": "A", "reference": "AA"}]}}'


@pytest.mark.parametrize("streams", ["", "?stream=true"])
@pytest.mark.parametrize(("body", "held"), [(HELLO[0], 0), (CLIPS, len(CLIPS))])
async def test_a_body_counts_until_its_audio_is_decoded(body, held, streams):
    """A body with clips counts longer: clips may be slices of it; its permit is kept till then."""
    endpoint, app = served(max_queue_bytes=1000)
    endpoint.decode.clear()
    asked = call(app, headers=JSON, parts=[body], query=streams[1:].encode())
    running = asyncio.ensure_future(asked)
    permits = app.admission.permits
    while not endpoint.seen:
        await asyncio.sleep(0)
    assert (permits.taken, permits.held_bytes) == (1, len(body))
    endpoint.decode.set()
    await endpoint.began.wait()
    assert (permits.taken, permits.held_bytes) == (1, held)
    endpoint.release.set()
    assert (await running).status == 200
    assert (permits.taken, permits.held_bytes) == (0, 0)


DISPOSITION = b'Content-Disposition: form-data; name="file"; filename="a.wav"'
FORM = b"--x\r\n" + DISPOSITION + b"\r\n\r\nsound\r\n--x--\r\n"


class Sound(str):
    """A file, which unlike bytes can be referred to weakly."""


@pytest.mark.parametrize("path", ["/", "/v1/audio/transcriptions"])
async def test_no_route_keeps_a_decoded_file(path, monkeypatch):
    files = []

    def content(_):
        sound = Sound("sound")
        files.append(weakref.ref(sound))
        return sound

    monkeypatch.setattr("whosaid.server.request_body.content", content)
    monkeypatch.setattr("whosaid.server.openai_api.form.content", content)

    endpoint, app = served()
    headers = {"content-type": "multipart/form-data; boundary=x", "content-length": len(FORM)}
    running = asyncio.ensure_future(call(app, path=path, headers=headers, parts=[FORM]))
    await endpoint.began.wait()
    assert len(files) == 1
    while files[0]() is not None:  # the thread that has read it may be about to let it go
        await asyncio.sleep(0.01)
        gc.collect()
    endpoint.release.set()
    assert (await running).status == 200


async def test_announced_bytes_reserve_nothing():
    """Three senders announce more than there is and send a byte each; others are answered."""
    endpoint, app = served(max_queue=9, max_queue_bytes=3000)
    endpoint.release.set()
    slow = [client(app, headers=announced(1400), parts=[b"{"], ends=False) for _ in range(3)]
    running = []
    for each in slow:
        running.append(asyncio.ensure_future(each.run()))
        await asyncio.sleep(0)
    while app.admission.permits.held_bytes < 3:
        await asyncio.sleep(0)
    assert (await call(app, headers=announced(1000), parts=HELLO)).status == 200
    for each in slow:
        each.gone.set()
    await asyncio.wait(running)
    assert app.admission.permits.held_bytes == 0


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        *(
            ("/", {"content-type": each}, 200)
            for each in ("Audio/X-WAV; charset=binary", "video/mp4")
        ),
        *(("/", {"content-type": each}, 415) for each in ("text/plain", "image/png")),
        ("/", {}, 200),
        ("/", {"content-type": "application/x-www-form-urlencoded"}, 200),
        ("/", {"content-type": "multipart/mixed; boundary=x"}, 415),
        ("/", {"content-encoding": "gzip"}, 415),
        ("/v1/audio/translations", {"content-type": "application/json"}, 415),
        ("/v1/audio/translations", {}, 415),
    ],
)
async def test_media_types_without_sound_are_refused(path, headers, status):
    endpoint, app = served()
    endpoint.release.set()
    assert (await call(app, path=path, headers=headers, parts=[b"RIFF"])).status == status


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("given", "status"),
    [
        *((each, 200) for each in ("Bearer key", "bearer key", basic("key"))),
        *((each, 401) for each in (basic("other"), "Bearer keys", "Bearer \u00e9")),
        *((each, 401) for each in ("Basic !", "key", "")),
    ],
)
async def test_the_key_comes_as_bearer_token_or_password(given, status):
    endpoint, app = served(api_key="key")
    endpoint.release.set()
    reply = await call(app, headers={**JSON, "authorization": given}, parts=HELLO)
    assert reply.status == status
    assert reply.headers.get("www-authenticate", "").startswith("Bearer" if status == 401 else "")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", each, 200) for each in ("/health", "/ready", "/ping")),
        *(("GET", each, 200) for each in ("/", "/openapi.json", "/docs")),
        *(("GET", each, 401) for each in ("/metrics", "/v1/models")),
        *(("POST", each, 401) for each in ("/", "/ping", "/invocations", "/nothing")),
    ],
)
def test_only_health_routes_need_no_key(method, path, status):
    assert asyncio.run(call(served(api_key="key")[1], method, path)).status == status


async def test_probes_answer_while_draining():
    _, app = served()
    app.admission.draining = True
    for path, status in {"/health": 200, "/ready": 503, "/ping": 503, "/metrics": 200}.items():
        assert (await call(app, "GET", path)).status == status


def test_large_bodies_leave_room_for_small_ones():
    permits = Permits(9, 1000)
    with ExitStack() as stack:
        for _ in range(3):
            permit = stack.enter_context(permits.take())
            with suppress(Refusal):
                for size in range(10, 400, 10):
                    permit.grow(size)
        stack.enter_context(permits.take()).grow(10)
        assert permits.held_bytes <= 1000
    assert (permits.taken, permits.held_bytes) == (0, 0)


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=8),
    order=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 300)), max_size=80),
)
def test_the_limit_holds_and_a_body_gets_through(sizes, order):
    permits = Permits(9, 1000)
    with ExitStack() as stack:
        bodies = [stack.enter_context(permits.take()) for _ in sizes]
        complete, refused = set(), set()

        def send(name, part):
            body = bodies[name]
            if name in complete or name in refused:
                return
            try:
                body.grow(min(sizes[name], body.size + part))
            except Refusal:
                refused.add(name)
                body.leave()
                return
            if body.size == sizes[name]:
                complete.add(name)

        for name, part in order:
            send(name % len(sizes), part)
            assert permits.held_bytes == sum(body.size for body in bodies) <= 1000
        for name in range(len(bodies)):
            send(name, 900)
        assert complete
