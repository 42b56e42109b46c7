"""Many clients, too many clients, failing steps and the end of the process: every answer is the
right one or a refusal with a code."""

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator

import httpx2
import pytest
import torch
import traffic

from tests.helpers.live_app import listening
from whosaid.asr.engine.batch import Batch
from whosaid.asr.engine.scheduler import Finished
from whosaid.server.serving import load_server
from whosaid.server.settings import ServerSettings

pytestmark = pytest.mark.slow

CLIENTS = 16
OVERLOAD = 10
POISON = 77
EVERY = 25  # steps of several rows


@pytest.mark.reliability
@pytest.mark.parametrize("seconds", [300])
@pytest.mark.timeout(1_800)
def test_many_clients_get_the_answers_that_one_gets(ours, expected, seconds):
    counted = itertools.count()
    wrong: list[tuple[int, int, str]] = []

    async def all_clients(http) -> None:
        ends = time.monotonic() + seconds

        async def work(first: int) -> None:
            for number in itertools.count(first):
                request, answer = expected[number % len(expected)]
                got = await http.post("/", **request)
                next(counted)
                if got.content != answer:
                    wrong.append((number % len(expected), got.status_code, got.text[:200]))
                if time.monotonic() > ends:
                    return

        await asyncio.gather(*(work(first) for first in range(CLIENTS)))

    traffic.run(all_clients, ours.url)
    print(f"{next(counted)} answers in {seconds} s, {len(wrong)} wrong")
    assert wrong == []


@pytest.mark.parametrize("times", traffic.scaled(1, 10))
def test_overload_is_refused_and_accepted_requests_are_answered(ours, plain, times):
    """Ten times as many requests come at once as may wait."""
    request, answer = plain
    health, statuses = [], []

    async def overload(http) -> None:
        done = asyncio.Event()

        async def ask_health() -> None:
            while not done.is_set():
                started = time.perf_counter()
                assert (await http.get("/health")).status_code == 200
                health.append(time.perf_counter() - started)
                await asyncio.sleep(0.02)

        asking = asyncio.ensure_future(ask_health())
        for _ in range(times):
            posts = (http.post("/", **request) for _ in range(20 * OVERLOAD))
            for got in await asyncio.gather(*posts):
                statuses.append(got.status_code)
                if got.status_code == 429:
                    assert traffic.code_of(got) == "BUSY"
                    assert 1 <= int(got.headers["retry-after"]) <= 120
                else:
                    assert got.content == answer
        done.set()
        await asking

    traffic.run(overload, ours.url)
    counts = {status: statuses.count(status) for status in set(statuses)}
    slowest = 1000 * max(health)
    print(f"overload: {counts}, slowest of {len(health)} health checks {slowest:.0f} ms")
    assert set(counts) == {200, 429}
    assert counts[200] >= 20 * times


@pytest.mark.parametrize(("clients", "size"), traffic.scaled((60, 200_000), (200, 600_000)))
def test_a_client_refused_while_sending_reads_the_refusal(ours, plain, clients, size):
    """More clients come at once than may wait, each with a body that is refused unread."""
    request, answer = plain
    request = {**request, "content": request["content"].ljust(size)}
    got = traffic.send_all(ours.url, [request] * clients, clients)
    assert [each for each in got if isinstance(each, httpx2.HTTPError)] == []
    counts = {code: [traffic.code_of(each) for each in got].count(code) for code in ("OK", "BUSY")}
    print(f"{clients} clients with {size} bytes: {counts}")
    assert sum(counts.values()) == clients
    assert counts["OK"] >= 20
    assert {each.content for each in got if each.status_code == 200} == {answer}


@pytest.fixture
def faulty(settings, monkeypatch) -> Iterator[str]:
    """Run our server in this process: memory runs out now and then if several rows run, and a step
    fails if it has a row of a request with POISON as its `batch_size`."""
    step, steps = Batch.step, itertools.count(1)

    def failing(batch: Batch) -> list[Finished]:
        if any(row.options.batch_size == POISON for row in batch.rows):
            raise RuntimeError("a kernel failed")
        if len(batch.rows) > 1 and next(steps) % EVERY == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(batch)

    server = load_server(settings, ServerSettings(page=False, api_key=traffic.KEY))
    monkeypatch.setattr(Batch, "step", failing)
    with listening(server) as (host, port):
        yield f"http://{host}:{port}"
    server.close()


@pytest.mark.reliability
@pytest.mark.parametrize("count", [1_500])
@pytest.mark.timeout(1_800)
def test_failing_steps_harm_their_own_request_alone(faulty, expected, count):
    """Memory runs out again and again, and every fourth request has a step fail."""
    poisoned = json.loads(expected[0][0]["content"])
    poisoned["parameters"] = {"batch_size": POISON}
    requests, answers = [], []
    for number in range(count):
        request, answer = expected[number % len(expected)]
        requests += [request] if number % 3 else [traffic.in_json(poisoned), request]
        answers += [answer] if number % 3 else [None, answer]
    got = traffic.send_all(faulty, requests, 8)
    for each, answer in zip(got, answers, strict=True):
        if answer is None:
            assert (each.status_code, traffic.code_of(each)) == (500, "MODEL_ERROR")
        else:
            assert each.content == answer

    async def ready(http) -> tuple[int, int]:
        return (await http.get("/ready")).status_code, await traffic.running_requests(http)

    assert traffic.run(ready, faulty) == (200, 0)


@pytest.mark.reliability
@pytest.mark.timeout(1_800)
def test_accepted_requests_are_answered_after_a_signal(models, expected, tmp_path):
    """Twenty servers get the signal at different moments; tests/test_server_processes.py tests the
    end of one, and its messages."""
    with traffic.forked_servers(tmp_path) as start:
        for number in range(20):
            server = start(**models)
            asyncio.run(_end_under_load(server.url, server.process_id, expected, 0.03 * number))
            assert server.exit_status() == 0


async def _end_under_load(url, process_id, expected, seconds) -> None:
    """Send SIGTERM `seconds` after as many requests as there are clients have been accepted."""
    wanted = [expected[place % len(expected)] for place in range(CLIENTS)]
    async with traffic.client(url) as http:
        posts = [asyncio.ensure_future(http.post("/", **request)) for request, _ in wanted]
        while await traffic.running_requests(http) + sum(post.done() for post in posts) < CLIENTS:
            await asyncio.sleep(0.005)
        await asyncio.sleep(seconds)
        os.kill(process_id, signal.SIGTERM)
        late = asyncio.ensure_future(http.post("/", content=b"{}", headers=traffic.JSON))
        answers = await asyncio.gather(*posts)
        try:
            refused = await late
        except httpx2.HTTPError:
            pass  # the port was closed already
        else:
            assert refused.status_code in (400, 503)
    assert [answer.content for answer in answers] == [answer for _, answer in wanted]
