"""`Idempotency-Key` of transcriptions: once computed, also without the first client."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from tests.helpers.asgi import HELLO, JSON, call, client, served
from whosaid.server import idempotency


def with_key(key):
    return {**JSON, "idempotency-key": key}


ONCE = with_key("one")


async def test_repeated_requests_are_answered_once():
    endpoint, app = served(max_queue=9)
    asking = [asyncio.ensure_future(call(app, headers=ONCE, parts=HELLO)) for _ in range(3)]
    await endpoint.began.wait()
    endpoint.release.set()
    replies = [*[await each for each in asking], await call(app, headers=ONCE, parts=HELLO)]
    assert len(endpoint.seen) == 1
    assert {(each.status, each.body) for each in replies} == {(200, replies[0].body)}
    replayed = [each.headers.get("idempotent-replayed") for each in replies]
    assert replayed == [None, "true", "true", "true"]
    equally_long = {"parts": (HELLO[0].replace(b"AAAA", b"BBBB"),)}
    for other in ({"path": "/predict"}, {"query": b"x=1"}, equally_long):
        reply = await call(app, headers=ONCE, **{"parts": HELLO, **other})
        assert (reply.status, reply.code) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert (await call(app, headers=JSON, parts=HELLO)).status == 200
    assert len(endpoint.seen) == 2


@pytest.mark.parametrize("size", [1, 4, 12, 99])
def test_a_forms_boundary_does_not_count(size):
    def digest(boundary, content=b"AAAA"):
        body = b"--%b\r\n\r\n%b\r\n--%b--" % (boundary, content, boundary)
        parts = {"body": body[:size], "more_body": True}, {"body": body[size:]}
        receive = AsyncMock(side_effect=parts)
        kind = f"multipart/form-data; boundary={boundary.decode()}"
        return asyncio.run(idempotency.BodyDigest(receive, kind).whole())

    assert digest(b"one1") == digest(b"two2") != digest(b"two2", b"BBBB")


async def test_a_request_goes_on_without_its_client():
    """In its place of the queue, which limits such requests."""
    endpoint, app = served()
    leaving = client(app, headers=ONCE, parts=HELLO)
    running = asyncio.ensure_future(leaving.run())
    await endpoint.began.wait()
    leaving.gone.set()
    await running
    assert (endpoint.outstanding, app.admission.permits.taken) == (1, 1)
    endpoint.release.set()
    assert (await call(app, headers=ONCE, parts=HELLO)).status == 200
    assert len(endpoint.seen) == 1
    assert (endpoint.outstanding, app.admission.permits.taken) == (0, 0)


@pytest.mark.parametrize("error", [None, ValueError("broken")])
async def test_a_client_that_returns_takes_no_second_place(error):
    """The client may leave again. A second one is refused while it waits."""
    endpoint, app = served(max_queue=1)
    endpoint.error = error
    for _ in range(3):
        leaving = client(app, headers=ONCE, parts=HELLO)
        running = asyncio.ensure_future(leaving.run())
        await endpoint.began.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        leaving.gone.set()
        await running
    again = asyncio.ensure_future(call(app, headers=ONCE, parts=HELLO))
    await asyncio.sleep(0)
    assert (await call(app, headers=ONCE, parts=HELLO)).code == "BUSY"
    assert app.admission.permits.taken == 1
    endpoint.release.set()
    reply = await again
    assert reply.status == (429 if error else 200)  # a request that failed is to be sent again
    assert (len(endpoint.seen), app.admission.permits.taken) == (1, 0)
    endpoint.error = None
    assert (await call(app, headers=ONCE, parts=HELLO)).status == 200


async def test_errors_and_streams_are_not_kept():
    endpoint, app = served()
    endpoint.release.set()
    endpoint.error = ValueError("broken")
    assert (await call(app, headers=ONCE, parts=HELLO)).status == 500
    endpoint.error = None
    assert (await call(app, headers=ONCE, parts=HELLO)).status == 200
    for _ in range(2):
        reply = await call(app, headers=with_key("s"), parts=HELLO, query=b"stream=true")
        assert b"answer" in reply.body
    assert len(endpoint.seen) == 4


async def test_kept_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(idempotency, "MOST", 3)
    endpoint, app = served()
    endpoint.release.set()
    for key in "abcdefgh":
        await call(app, headers=with_key(key), parts=HELLO)
    assert len(app._idempotent._kept) <= 4
    last = await call(app, headers=with_key("h"), parts=HELLO)
    assert last.headers["idempotent-replayed"] == "true"
    await call(app, headers=with_key("a"), parts=HELLO)
    assert len(endpoint.seen) == 9
