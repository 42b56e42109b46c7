"""Compares the server with hf-serve under load: `scripts/bench load`.

The demo models, and each FOLDER with a Whisper, run on both servers by turns: users who send one
request after another, and short requests beside a ten-minute recording. Only ours also gets short
requests beside a hundred such recordings as Opus.
"""

import asyncio
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.load.clients import beside, body_of, closed, json_body
from benchmarks.load.servers import DEMO, HF_SERVE, OURS, SERVERS, running
from benchmarks.report import Results, Tables, settings
from benchmarks.speed.recordings import recording
from tests.support.audio_files import encoded, wav_file
from whosaid.timebase import SAMPLE_RATE

PACKAGES = ("torch", "transformers", "fastapi", "uvicorn", "hf-serve", "httpx2")
SHORT, LONG, VERY_LONG = 8, 60, 600  # seconds of audio
SHARE_BESIDE = 0.2  # of the slower server's capacity, so that short requests saturate neither
OPUS = ("-c:a", "libopus", "-b:a", "12k")
PARAMETERS = {"language": "en", "diarize": False}

# A measurement with its part of the results.
Measured = Iterator[tuple[str, dict[str, Any]]]
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """The measurements, and the seconds of each.

    A user sends at least `fewest` requests. `beside` short requests are sent beside long ones,
    finally beside a `crowd` of concurrent ones.
    """

    users: tuple[int, ...]
    lengths: tuple[int, ...]
    very_long: int
    cell: float
    fewest: int
    beside: int
    crowd: int


WHOLE = Plan((1, 4, 16), (SHORT, LONG), VERY_LONG, cell=15.0, fewest=2, beside=40, crowd=100)
QUICK = Plan((1, 16), (SHORT,), 120, cell=3.0, fewest=1, beside=6, crowd=4)


def measure(options: Namespace, path: Path) -> None:
    """Measure every model through both servers; `path` is written after each measurement."""
    plan = QUICK if options.quick else WHOLE
    models = {"demo models": DEMO}
    models |= {folder.name: {"ASR_MODEL": str(folder.resolve())} for folder in options.model}
    facts = {**settings(PACKAGES), "seconds a cell": plan.cell}
    facts["seconds of a short request"] = plan.lengths[0]
    facts["seconds of a long one beside them"] = plan.very_long
    empty: dict[str, Any] = {"users": [], "beside": [], "crowd": []}
    results = Results(path, facts, empty, options.fresh or options.quick)
    for name, environment in models.items():
        with running(environment) as urls:
            for part, found in _measured(urls, plan):
                row = {"models": name, **found}
                results.put(part, row, "models", "server", "seconds", "users", "long ones")


def _measured(urls: dict[str, str], plan: Plan) -> Measured:
    """Yield every measurement of one set of models, server by server."""
    short = body_of(recording(plan.lengths[0]), **PARAMETERS)
    _warm_up(urls, short, max(plan.users))
    capacity: dict[str, float] = {}
    turns = cycle((SERVERS, tuple(reversed(SERVERS))))  # the servers start by turns
    for seconds in plan.lengths:
        body = body_of(recording(seconds), **PARAMETERS)
        for users in plan.users:
            for server in next(turns):
                load = asyncio.run(closed(urls[server], body, users, plan.cell, plan.fewest))
                if seconds == plan.lengths[0]:
                    capacity[server] = max(capacity.get(server, 0.0), load.rate)
                facts = {"seconds": seconds, "users": users, "server": server}
                yield "users", {**facts, **load.figures()}
    yield from _beside(urls, plan, short, 1 / (SHARE_BESIDE * min(capacity.values())))


def _beside(urls: dict[str, str], plan: Plan, short: bytes, pause: float) -> Measured:
    """Yield measurements of short requests, one every `pause` seconds: beside a long one, alone,
    and beside many long ones of one client.
    """
    audio = recording(plan.very_long)
    long = body_of(audio, **PARAMETERS)
    for server in SERVERS:
        load = asyncio.run(beside(urls[server], short, long, pause, plan.beside))
        yield "beside", {"server": server, "pause": pause, **load.figures()}
    # As Opus, ten minutes take less than a megabyte.
    opus = encoded(wav_file(audio.astype(float), SAMPLE_RATE), "long.ogg", *OPUS)
    long = json_body(opus, **PARAMETERS)
    for crowd in (0, plan.crowd):
        load = asyncio.run(beside(urls[OURS], short, long, pause, plan.beside, crowd))
        facts = {"server": OURS, "pause": pause, "long ones": crowd}
        yield "crowd", {**facts, **load.figures()}


def _warm_up(urls: dict[str, str], body: bytes, users: int) -> None:
    """Send first requests, so that memory for rows is allocated before anything is timed."""
    for url in urls.values():
        first = asyncio.run(closed(url, body, users, 0.0, 1))
        if first.statuses:
            raise SystemExit(f"a server refuses the measured requests: {first.statuses}")


def figures(results: Cell) -> Tables:
    """Return the tables of users and of short requests beside long ones."""
    users: dict[tuple[Any, ...], dict[str, Cell]] = {}
    for cell in results["users"]:
        what = (cell["models"], cell["seconds"], cell["users"])
        users.setdefault(what, {})[cell["server"]] = cell
    return {
        "users": [_users(*each) for each in users.items() if len(each[1]) == len(SERVERS)],
        "beside": [_where(cell) | _times(cell) for cell in results["beside"]],
        "crowd": [_where(cell) | _times(cell) for cell in results["crowd"]],
    }


def _users(what: tuple[Any, ...], servers: Mapping[str, Cell]) -> dict[str, str]:
    """Return a row with the figures of both servers."""
    models, seconds, users = what
    row = {"models": models, "audio": f"{seconds} s", "users": str(users)}
    for server in SERVERS:
        times = _times(servers[server])
        row[f"{server}: median / p95"] = f"{times['median']} / {times['p95']}"
        row[f"{server}: requests"] = times["requests"]
    ratio = servers[OURS]["rate"] / servers[HF_SERVE]["rate"]
    return row | {"ours : hf-serve": f"{ratio:.2f}"}


def _where(cell: Cell) -> dict[str, str]:
    crowd = {"long ones": str(cell["long ones"])} if "long ones" in cell else {}
    return {"models": cell["models"], "server": cell["server"], **crowd}


def _times(cell: Cell) -> dict[str, str]:
    notes = [f"{count}x {status}" for status, count in cell["other statuses"].items()]
    notes += ["texts differ"] * (cell["different texts"] > 1)
    noted = f" ({', '.join(notes)})" if notes else ""
    return {
        "median": _seconds(cell.get("med")),
        "p95": _seconds(cell.get("p95")),
        "requests": f"{cell['requests']}{noted}",
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
