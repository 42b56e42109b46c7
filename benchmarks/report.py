"""Results of measurements: settings and figures as JSON, and tables in Markdown.

The JSON file is written after every step and pages are made from it alone, so an interrupted run
keeps its results.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from config import REPOSITORY

RESULTS = REPOSITORY / "build" / "bench"
PAGES = REPOSITORY / "docs" / "benchmarks"
PACKAGES = ("torch", "transformers", "ctranslate2")
# Settings that results of one page may differ in.
VARYING = ("date", "minutes", "repeats")
# The rows of each table, by its name; empty if nothing was measured. All rows have the same keys.
Tables = dict[str, list[dict[str, str]]]


def settings(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return the machine, the threads and the versions that a figure depends on."""
    return {
        "date": f"{datetime.now(tz=UTC):%Y-%m-%d}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        **({"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "torch threads": torch.get_num_threads(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def save(path: Path, content: object) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> Any:  # noqa: ANN401
    """Return what `save` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_kept(path: Path, facts: Mapping[str, Any], empty: Mapping[str, Any], fresh: bool) -> Any:  # noqa: ANN401
    """Return the results that a run under the settings `facts` adds to.

    They are the earlier ones, or `empty` if there are none or `fresh` is true. Ends the process
    with one line if the earlier ones were measured under other settings: a page compares figures of
    one setting.
    """
    kept = {} if fresh or not path.is_file() else read(path)
    earlier = kept.get("settings", {})
    now = json.loads(json.dumps(facts))
    for name, value in now.items():
        if name not in VARYING and earlier.get(name, value) != value:
            raise SystemExit(
                f"scripts/bench: {path} has results with {name} {earlier[name]}, and this run has"
                f" {value}. --fresh drops those results; to keep them, move the file away"
            )
    return {**deepcopy(dict(empty)), **kept, "settings": {**earlier, **facts}}


def put(rows: list[dict[str, Any]], row: dict[str, Any], *keys: str) -> None:
    """Replace the row that has the same values under `keys`, or append a new one."""
    for place, each in enumerate(rows):
        if all(each.get(key) == row.get(key) for key in keys):
            rows[place] = row
            return
    rows.append(row)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns after the first are aligned to the right. Without rows
    nothing.
    """
    if not rows:
        return ""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table of rows by column; nothing without rows. Raises ValueError if columns
    differ.
    """
    header = list(rows[0]) if rows else []
    if any(list(row) != header for row in rows):
        raise ValueError(f"not every row of a table has the columns {', '.join(header)}")
    return table(header, [list(row.values()) for row in rows])


def listed(facts: Mapping[str, object]) -> str:
    """Return names and values in one line of Markdown."""
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


def _processor() -> str:
    """Return the name the system gives the CPU."""
    listing = subprocess.run(
        ["lscpu"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    named = [line.partition(":")[2].strip() for line in listing if line.startswith("Model name")]
    return named[0] if named else platform.processor()
