"""The tables of the load benchmark's page, from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.load.servers import HF_SERVE, OURS
from benchmarks.report import Tables

# A measurement, or a whole file of results, as JSON has it.
Results = Mapping[str, Any]


def figures(results: Results) -> Tables:
    """Return the tables of users and of short requests beside long ones."""
    users: dict[tuple[Any, ...], dict[str, Results]] = {}
    for cell in results["users"]:
        what = (cell["models"], cell["seconds"], cell["users"])
        users.setdefault(what, {})[cell["server"]] = cell
    return {
        "users": [_users(what, servers) for what, servers in users.items()],
        "beside": [
            {**_where(cell), "long": _seconds(cell["long"]), **_times(cell)}
            for cell in results["beside"]
        ],
        "crowd": [
            {**_where(cell), "long ones": str(cell["long ones"]), **_times(cell)}
            for cell in results["crowd"]
        ],
    }


def _users(what: tuple[Any, ...], servers: Mapping[str, Results]) -> dict[str, str]:
    """Return a row with the figures of both servers, "-" for a server that was not measured."""
    models, seconds, users = what
    row = {"models": models, "audio": f"{seconds} s", "users": str(users)}
    for server in (OURS, HF_SERVE):
        times = _times(servers[server]) if server in servers else {}
        row[f"{server}: median / p95"] = f"{times['median']} / {times['p95']}" if times else "-"
        row[f"{server}: requests"] = times["requests"] if times else "-"
    rates = [servers[each]["rate"] for each in (OURS, HF_SERVE) if each in servers]
    return row | {"ours : hf-serve": f"{rates[0] / rates[1]:.2f}" if len(rates) == 2 else ""}


def _where(cell: Results) -> dict[str, str]:
    return {"models": cell["models"], "server": cell["server"]}


def _times(cell: Results) -> dict[str, str]:
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
