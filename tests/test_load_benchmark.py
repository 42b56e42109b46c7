"""Foundations of the load benchmark: clients that keep their rate, and times that match their
answers."""

from __future__ import annotations

import asyncio
import json
import statistics
from contextlib import asynccontextmanager

import pytest

from benchmarks.load.clients import Load, beside, closed


class Server:
    """Answers POST on loopback: bodies of 4xx with that status, others with the text they are."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.at_once = self.most = 0

    async def answer(self, reader, writer):
        while head := await _head(reader):
            size = next(int(line[15:]) for line in head if line.startswith(b"content-length:"))
            body = await reader.readexactly(size)
            self.asked.append(body)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await asyncio.sleep(0)
            status = b"429 Too Many Requests" if body.startswith(b"4") else b"200 OK"
            said = json.dumps({"text": body.decode()}).encode()
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(said), said))
            self.at_once -= 1
            await writer.drain()
        writer.close()


async def _head(reader):
    try:
        return (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    except asyncio.IncompleteReadError:
        return []


def measured(measure):
    """Return the results of `measure` for a server's URL, and the server."""
    server = Server()

    @asynccontextmanager
    async def listening():
        async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"

    async def run():
        async with listening() as url:
            return await measure(url)

    return asyncio.run(run()), server


def test_every_user_asks_at_least_as_often_as_is_wanted():
    load, server = measured(lambda url: closed(url, b"good", users=3, seconds=0.0, fewest=4))
    assert server.asked == [b"good"] * 12
    assert server.most <= 3
    assert (len(load.seconds), load.statuses, load.texts) == (12, {}, {"good"})
    assert load.rate == pytest.approx(12 / load.wall)
    assert sum(load.seconds) <= 3 * load.wall


def test_what_is_refused_is_counted_and_not_timed():
    load, _ = measured(lambda url: closed(url, b"4", users=2, seconds=0.0, fewest=2))
    assert (load.seconds, load.statuses, load.texts) == ([], {"429": 4}, set())
    assert load.rate == 0


def test_whom_nobody_answers_is_counted_by_its_error():
    load = asyncio.run(closed("http://127.0.0.1:1", b"good", users=1, seconds=0.0, fewest=1))
    assert (load.seconds, load.statuses) == ([], {"ConnectError": 1})


def test_short_requests_are_told_apart_from_the_long_ones_beside_them():
    load, server = measured(lambda url: beside(url, b"short", b"long", 0.005, 6))
    assert server.asked.count(b"short") == len(load.seconds) == 6
    assert load.texts == {"short"}
    assert server.asked.count(b"long") > 0


def test_a_refused_long_request_is_an_error():
    with pytest.raises(OSError, match="429"):
        measured(lambda url: beside(url, b"short", b"4", 0.005, 6))


def test_figures_are_the_median_and_p95():
    seconds = [0.3, 0.1, 0.9, 0.2, 0.5, 0.4, 2.0]
    figures = Load(seconds).figures()
    assert figures["med"] == pytest.approx(statistics.median(seconds))
    twentieths = statistics.quantiles(seconds, n=20, method="inclusive")
    assert figures["p95"] == pytest.approx(twentieths[18])
    assert "med" not in Load().figures()
