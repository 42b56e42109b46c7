"""Foundations of the load benchmark: clients keep their rate, times match their answers."""

import asyncio
import dataclasses
import json
import re
import statistics

import pytest

from benchmarks.load import operate
from benchmarks.load.clients import Load, beside, closed
from config import REPOSITORY


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
    server = Server()

    async def run():
        async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            return await measure(f"http://127.0.0.1:{port}")

    return asyncio.run(run()), server


def test_every_user_asks_at_least_as_often_as_is_wanted():
    load, server = measured(lambda url: closed(url, b"good", users=3, seconds=0.0, fewest=4))
    assert server.asked == [b"good"] * 12
    assert server.most <= 3
    assert (len(load.seconds), load.statuses, load.texts) == (12, {}, {"good"})
    assert load.rate == pytest.approx(12 / load.wall)
    assert sum(load.seconds) <= 3 * load.wall


def test_refused_requests_are_counted_and_not_timed():
    load, _ = measured(lambda url: closed(url, b"4", users=2, seconds=0.0, fewest=2))
    assert (load.seconds, load.statuses, load.texts) == ([], {"429": 4}, set())
    assert load.rate == 0


def test_unanswered_requests_are_counted_by_their_error():
    load = asyncio.run(closed("http://127.0.0.1:1", b"good", users=1, seconds=0.0, fewest=1))
    assert (load.seconds, load.statuses) == ([], {"ConnectError": 1})


def test_only_short_requests_are_timed_beside_long_ones():
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


def test_refused_requests_fail_a_measurement():
    def ask(body):
        return measured(lambda url: asyncio.to_thread(operate.answered, url, [b"good", body], 2, 0))

    load, server = ask(b"fine")
    assert sorted(server.asked) == [b"fine"] * 2 + [b"good"] * 2
    assert (len(load.seconds), load.rate) == (4, pytest.approx(4 / load.wall))
    with pytest.raises(OSError, match="'429': 2"):
        ask(b"4")


def test_the_least_memory_of_each_whole_minute_is_kept():
    curve = [(0.1, 7.0), (59.9, 5.0), (60.0, 9.0), (61.0, 8.0), (119.0, 8.5), (120.5, 1.0)]
    assert operate.minima(curve, 2) == [5.0, 8.0]


def test_a_slope_is_that_of_the_line_and_noise_is_no_growth():
    line = operate.slope([2.0 + 0.5 * minute for minute in range(20)])
    assert (line.value, line.low, line.high) == pytest.approx((0.5,) * 3)
    noise = operate.slope([100.0 + 3 * (-1) ** minute for minute in range(20)])
    assert noise.low < 0 < noise.high


def test_seconds_of_a_load_are_those_of_the_metrics():
    text = '# HELP asr_load_seconds\nasr_load_seconds{part="asr"} 2.5\nasr_rows 0.0\nasr_rows_x 1\n'
    assert operate.load_seconds(text) == {"asr": 2.5}
    assert operate.IDLE.search(text)
    assert not operate.IDLE.search(text.replace("asr_rows 0.0", "asr_rows 32.0"))


def test_computed_speeds_are_those_measured_on_an_h200_within_a_ninth():
    document = (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| without \| (\d+) \| [\d.]+ \| (\d+) \|$", document, re.MULTILINE)
    for rows, speed in table:
        card = dataclasses.replace(operate.H200, rows=int(rows))
        assert operate.computed_speed(card) == pytest.approx(int(speed), rel=1 / 9)
    assert table[-1] == (str(operate.H200.rows), f"{operate.H200_SPEED:.0f}")
