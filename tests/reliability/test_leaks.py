"""Nothing stays behind: memory, descriptors, threads, files, rows of clients that left."""

import asyncio
import json
import time

import pytest
import traffic

from tests.test_robustness import REFUSALS

MOST_MEMORY = 20  # MiB
REFUSED = ("inputs null", "parameters {'batch_size': 0}", "!!!!", "NaN", "above the time limit")


@pytest.mark.reliability
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("before", "count"), [(200, 1_000)])
@pytest.mark.parametrize("kind", [traffic.OURS, traffic.HF_SERVE])
def test_mixed_requests_leave_nothing_behind(subject_of, expected, kind, before, count):
    subject = subject_of(kind)
    refused = (traffic.in_json(REFUSALS[name][0]) for name in REFUSED)
    bodies = [*(request for request, _ in expected), *refused]
    mixed = [bodies[number % len(bodies)] for number in range(count)]
    clients = 8 if kind == traffic.OURS else 2
    traffic.send_all(subject.url, mixed[:before], clients)
    _settle(subject)
    held, footprint = subject.resident, subject.footprint
    answers = traffic.send_all(subject.url, mixed, clients)
    _settle(subject)
    grown, now = subject.resident - held, subject.footprint
    print(f"{kind}: {count} requests, RSS {grown:+.1f} MiB, {footprint} -> {now}")
    codes = {REFUSALS[name][1] for name in REFUSED}
    assert {traffic.code_of(answer) for answer in answers} <= {"OK", *codes}
    assert now[2] == footprint[2] == []
    assert now[0] <= footprint[0]
    # Threads that serve requests come as clients ask at once, at most one for each.
    assert now[1] <= footprint[1] + clients
    assert grown < MOST_MEMORY


def _settle(subject) -> None:
    """Wait until the server has closed the connections that clients have left."""
    ends = time.monotonic() + 60
    while subject.process.net_connections(kind="tcp")[1:]:
        assert time.monotonic() < ends, "connections that clients have left are still open"
        time.sleep(0.05)


@pytest.mark.parametrize("count", traffic.scaled(12, 300))
def test_clients_that_leave_free_their_rows(ours, plain, count):
    request, answer = plain
    whole = _raw(request["content"])

    async def leave(part: float) -> None:
        _, writer = await asyncio.open_connection(*_address(ours.url))
        writer.write(whole[: int(len(whole) * part)])
        await writer.drain()
        writer.close()

    async def all_leave(http) -> None:
        for start in range(0, count, 4):
            parts = (0.001, 0.5, 1.0, 1.0)
            await asyncio.gather(*(leave(part) for part in parts[: count - start]))
        ends = time.monotonic() + 60
        while await traffic.running_requests(http):
            assert time.monotonic() < ends, "requests of clients that left are still there"
            await asyncio.sleep(0.02)
        assert (await http.post("/", **request)).content == answer

    traffic.run(all_leave, ours.url)


def test_slow_senders_hold_up_nobody(ours, plain):
    request, answer = plain
    whole = _raw(request["content"])

    async def beside(http) -> None:
        slow = [await asyncio.open_connection(*_address(ours.url)) for _ in range(8)]
        for _, writer in slow:
            writer.write(whole[:-100])
            await writer.drain()
        quick = await asyncio.gather(*(http.post("/", **request) for _ in range(8)))
        assert [each.content for each in quick] == [answer] * 8
        for _, writer in slow:
            writer.write(whole[-100:])
        for reader, writer in slow:
            assert json.loads((await reader.read()).partition(b"\r\n\r\n")[2]) == json.loads(answer)
            writer.close()

    traffic.run(beside, ours.url)


@pytest.mark.reliability
def test_a_client_that_sends_nothing_gets_408(ours, plain):
    """The answer comes 30 s after the last bytes."""
    beginning = _raw(plain[0]["content"])[:2_000]

    async def wait() -> bytes:
        reader, writer = await asyncio.open_connection(*_address(ours.url))
        writer.write(beginning)
        answer = await reader.read()
        writer.close()
        return answer

    assert asyncio.run(wait()).startswith(b"HTTP/1.1 408 ")


def _raw(content: bytes) -> bytes:
    key = f"Bearer {traffic.KEY}"
    head = {**traffic.JSON, "authorization": key, "content-length": len(content)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return (
        f"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\r\n".encode() + content
    )


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)
