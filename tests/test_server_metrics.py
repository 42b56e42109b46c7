"""Metrics for Prometheus: conventional names, and no series that a client can create."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.asgi import HELLO, JSON, call, served


async def read(app) -> dict:
    text = (await call(app, "GET", "/metrics")).body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family) -> dict:
    return {(each.name, *sorted(each.labels.values())): each.value for each in family.samples}


async def test_requests_and_their_seconds_are_counted():
    endpoint, app = served()
    endpoint.release.set()
    await call(app, headers=JSON, parts=HELLO)
    await call(app, headers=JSON, parts=HELLO, query=b"stream=true")
    await call(app, headers={"content-type": "text/html"}, parts=[b"x"])
    found = await read(app)
    requests = values(found["asr_requests"])
    assert requests["asr_requests_total", "/", "200", "OK"] == 2
    assert requests["asr_requests_total", "/", "415", "UNSUPPORTED_MEDIA_TYPE"] == 1
    assert values(found["asr_refused"])["asr_refused_total", "UNSUPPORTED_MEDIA_TYPE"] == 1
    assert values(found["asr_audio_seconds"])["asr_audio_seconds_total",] == 3.0
    for name in ("asr_time_to_first_event_seconds", "asr_queue_wait_seconds", "asr_body_bytes"):
        assert values(found[name])[f"{name}_count",] >= 1
    bounds = [each.labels.get("le") for each in found["asr_request_duration_seconds"].samples]
    last = max(float(bound) for bound in bounds if bound not in (None, "+Inf"))
    assert last == 600


async def test_metrics_read_the_engine_at_each_scrape():
    endpoint, app = served()
    endpoint.decode.clear()
    running = asyncio.ensure_future(call(app, headers=JSON, parts=HELLO))
    while not endpoint.seen:
        await asyncio.sleep(0)
    found = await read(app)
    endpoint.decode.set()
    endpoint.release.set()
    await running
    for name, value in {
        "asr_requests_in_progress": 1,
        "asr_held_body_bytes": len(HELLO[0]),
        "asr_queue_requests": 1,
        "asr_ready": 1,
        "asr_rows": 8,
        "asr_running_rows": 2,
        "asr_waiting_windows": 3,
        "asr_held_audio_bytes": 4,
        "asr_engine_alive": 1,
    }.items():
        assert values(found[name]) == {(name,): value}
    assert values(found["asr_load_seconds"]) == {("asr_load_seconds", "asr"): 2.5}
    for name, value in {"rounds": 7, "batch_rows": 9, "windows": 5, "tokens": 11}.items():
        assert values(found[f"asr_{name}"]) == {(f"asr_{name}_total",): value}
    drafts = {("asr_drafts_total", "accepted"): 4, ("asr_drafts_total", "rejected"): 2}
    assert values(found["asr_drafts"]) == drafts


async def test_clients_cannot_make_series():
    _, app = served()
    before = await read(app)
    for number in range(20):
        await call(app, f"METHOD{number}", f"/path{number}", query=f"q={number}".encode())
    after = await read(app)
    made = values(after["asr_requests"]).keys() - values(before["asr_requests"]).keys()
    unknown = ("asr_requests_total", "404", "NOT_FOUND", "other")
    assert made <= {unknown, ("asr_requests_total", "/metrics", "200", "OK")}


@pytest.mark.parametrize("draining", [False, True])
async def test_a_stopped_engine_is_not_ready_but_lives(draining):
    """The server drains when it finds that the engine has stopped."""
    endpoint, app = served()
    endpoint.recogniser.alive, app.admission.draining = False, draining
    ready, health = await call(app, "GET", "/ready"), await call(app, "GET", "/health")
    assert (ready.status, ready.code) == (503, "NOT_READY")
    assert health.status == 200
