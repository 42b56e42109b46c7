"""What the page about load rests on: clients that ask as often as they say, k6's columns, and
tables and pictures that tell what was kept.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import statistics
from contextlib import asynccontextmanager, nullcontext

import pytest

from benchmarks.load import __main__ as command
from benchmarks.load.clients import COLUMNS, Load, arriving, beside, closed, columns
from benchmarks.load.figures import charts
from benchmarks.load.servers import HF_SERVE, OURS
from benchmarks.report import read
from tests.benchmark_pages import render, rows_of
from whosaid.audio.decode import AudioLimits, decode_audio


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
    """What `measure` makes of a server's address, and the server."""
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
    assert columns(load.seconds) == {}


def test_whom_nobody_answers_is_counted_by_its_error():
    load = asyncio.run(closed("http://127.0.0.1:1", b"good", users=1, seconds=0.0, fewest=1))
    assert (load.seconds, load.statuses) == ([], {"ConnectError": 1})


def test_arrivals_are_as_many_as_the_rate_says():
    load, server = measured(lambda url: arriving(url, b"good", rate=200.0, seconds=0.05))
    assert server.asked == [b"good"] * 10
    assert len(load.seconds) == 10
    assert load.wall >= 9 / 200


def test_short_requests_are_told_apart_from_the_long_ones_beside_them():
    (load, of_long), server = measured(lambda url: beside(url, b"short", b"long", 0.005, 6))
    assert server.asked.count(b"short") == len(load.seconds) == 6
    assert (load.texts, of_long.texts) == ({"short"}, {"long"})
    assert server.asked.count(b"long") >= len(of_long.seconds) > 0


def test_so_many_long_requests_are_open_at_once():
    (load, _), server = measured(lambda url: beside(url, b"short", b"long", 0.005, 6, 5))
    assert len(load.seconds) == 6
    assert server.most >= 5


def test_opus_is_small_and_as_long_as_was_asked_for():
    content = json.loads(command.opus_body_of(20, language="en"))
    file = base64.b64decode(content["inputs"])
    assert content["parameters"] == {"language": "en"}
    assert len(file) < 20 * 2_000
    assert decode_audio(file, 16_000, AudioLimits(60, 10**6)).duration == pytest.approx(20, abs=0.1)


def test_columns_are_k6s():
    seconds = [0.3, 0.1, 0.9, 0.2, 0.5, 0.4, 2.0]
    tenths = statistics.quantiles(seconds, n=20, method="inclusive")
    assert columns(seconds) == pytest.approx(
        {
            "avg": statistics.mean(seconds),
            "min": 0.1,
            "med": statistics.median(seconds),
            "max": 2.0,
            "p90": tenths[17],
            "p95": tenths[18],
        }
    )
    assert tuple(columns(seconds)) == COLUMNS


def test_each_server_begins_every_other_time_and_is_asked_a_share_of_its_own_capacity(monkeypatch):
    rates = {OURS: 4.0, HF_SERVE: 2.0}
    asked, arrived, paused, crowds = [], [], [], []

    async def fake_closed(url, body, users, seconds, fewest):
        asked.append((url, users))
        return Load([1.0] * round(rates[url] * users), wall=float(users))

    async def fake_arriving(url, body, rate, seconds):
        arrived.append((url, rate))
        return Load([1.0], wall=1.0)

    async def fake_beside(url, body, long, pause, most, at_once=1):
        paused.append(pause)
        crowds.append((url, at_once))
        return Load([1.0]), Load([7.0, 9.0])

    monkeypatch.setattr(command, "closed", fake_closed)
    monkeypatch.setattr(command, "arriving", fake_arriving)
    monkeypatch.setattr(command, "beside", fake_beside)
    for name in ("body_of", "opus_body_of"):
        monkeypatch.setattr(command, name, lambda *_, **__: b"")
    urls = {name: name for name in (OURS, HF_SERVE)}
    found = list(command._measured(urls, command.WHOLE, (False,), diarize=False))
    turns = [url for url, _ in asked[2:]]
    starts = turns[::2]
    assert starts == [OURS, HF_SERVE] * 3
    assert all(set(pair) == {OURS, HF_SERVE} for pair in zip(starts, turns[1::2], strict=True))
    shares = [share * rates[name] for share in command.SHARES for name in (OURS, HF_SERVE)]
    alone = command.SHARE_BESIDE * 2.0
    assert [rate for _, rate in arrived] == pytest.approx([*shares, alone])
    assert paused == pytest.approx([1 / alone] * 3)
    assert crowds == [(OURS, 1), (HF_SERVE, 1), (OURS, command.WHOLE.crowd)]
    assert [figures["long"] for part, figures in found if part == "beside"] == [9.0, 9.0]


def cell(server, users, rate, **more):
    load = Load([0.5, 1.5], {"429": 1} if users > 1 else {}, {"a", "b"} if users > 1 else {"a"})
    kept = {"models": "demo", "server": server, "seconds": 8, "assisted": False, "users": users}
    return {**kept, **load.figures(), "rate": rate, **more}


def results_of():
    servers = {OURS: 6.0, HF_SERVE: 2.5}
    return {
        "settings": {"diarization": False, "device": "A GPU"},
        "very long": 600,
        "users": [
            cell(name, users, rate * users) for users in (1, 16) for name, rate in servers.items()
        ],
        "arrivals": [cell(OURS, 1, 4.0, share=0.8, asked=4.8)],
        "beside": [cell(name, 1, 0.0, pause=0.25, long=None) for name in servers],
        "crowd": [cell(OURS, 1, 0.0, pause=0.25, answered=3) | {"long ones": 100}],
    }


def test_the_page_has_the_figures_of_each_cell(tmp_path, monkeypatch):
    rows = rows_of(render(command, "load", results_of(), tmp_path, monkeypatch))
    times = ["1.00 s", "500 ms", "1.00 s", "1.50 s", "1.40 s", "1.45 s"]
    name = "demo, 8 s plain"
    assert [name, "1", OURS, *times, "2", "6.00", "2.40"] in rows
    assert [name, "1", HF_SERVE, *times, "2", "2.50", ""] in rows
    assert [name, "16", OURS, *times, "2 (1x 429, texts differ)", "96.00", "2.40"] in rows
    assert ["demo", "80%", OURS, "4.80", *times, "2", "4.00"] in rows
    assert ["demo", HF_SERVE, "250 ms", "-", *times, "2"] in rows
    assert ["demo", "100", "3", "250 ms", *times, "2"] in rows


def test_the_pictures_show_most_users_and_the_slow_end_beside_long_requests():
    drawn = charts(results_of())
    assert drawn["load"].bars == {OURS: (96.0,), HF_SERVE: (40.0,)}
    assert "16 users with 8 s each" in drawn["load"].question
    assert drawn["load-beside"].bars == {OURS: (1.45,), HF_SERVE: (1.45,)}
    unanswered = results_of() | {"beside": [cell(OURS, 1, 0.0, p95=None)]}
    assert list(charts(unanswered)) == ["load"]


def test_models_that_are_not_measured_again_keep_their_figures(tmp_path, monkeypatch):
    numbers = itertools.count(1)

    def measurements(*_):
        for part, cell in (("users", {"seconds": 8, "users": 1}), ("beside", {"pause": 1.0})):
            for server in (OURS, HF_SERVE):
                yield part, {**cell, "server": server, "number": next(numbers)}

    monkeypatch.setattr(command, "running", lambda _: nullcontext({}))
    monkeypatch.setattr(command, "_measured", measurements)
    monkeypatch.setattr(command, "summary", lambda _: "")

    def run(model, fresh=False):
        command.run({model: {}}, command.QUICK, False, tmp_path / "load.json", fresh)
        kept = read(tmp_path / "load.json")
        return {
            part: [(cell["models"], cell["number"]) for cell in kept[part]]
            for part in ("users", "beside")
        }

    first = {"users": [("a", 1), ("a", 2)], "beside": [("a", 3), ("a", 4)]}
    assert run("a") == first
    second = {"users": [("b", 5), ("b", 6)], "beside": [("b", 7), ("b", 8)]}
    assert run("b") == {part: first[part] + second[part] for part in first}
    third = {"users": [("a", 9), ("a", 10)], "beside": [("a", 11), ("a", 12)]}
    assert run("a") == {part: third[part] + second[part] for part in first}
    assert run("c", fresh=True)["users"] == [("c", 13), ("c", 14)]
