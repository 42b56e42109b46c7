"""Results of measurements as JSON, and tables in Markdown."""

import importlib.metadata
import json
import os
import platform
import re
import sys
import time
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
# Settings in which results of one page may differ.
VARYING = ("date", "minutes", "repeats")
# The rows of each table, by its name, or a chart in Mermaid's language; empty if nothing was
# measured. All rows have the same keys.
Tables = dict[str, list[dict[str, str]] | str]


class Results:
    """A benchmark's results. Their file is written after every measurement, so that an interrupted
    run keeps them; pages are made from it alone.

    A run under the settings `facts` adds to the earlier results in `path`, or to `empty` if there
    are none or if `fresh`. Ends the process with one line if the earlier ones were measured under
    other settings: a page compares figures of one setting.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any], empty: Mapping[str, Any], fresh: bool
    ) -> None:
        kept = {} if fresh or not path.is_file() else read(path)
        earlier = kept.get("settings", {})
        for name, value in json.loads(json.dumps(facts)).items():
            if name not in VARYING and earlier.get(name, value) != value:
                raise SystemExit(
                    f"scripts/bench: {path} has results with {name} {earlier[name]}, and this run"
                    f" has {value}. --fresh drops those results; to keep them, move the file away"
                )
        self.path, self._started = path, time.perf_counter()
        self.content = {**deepcopy(dict(empty)), **kept, "settings": {**earlier, **facts}}

    def put(self, part: str, row: dict[str, Any], *keys: str) -> None:
        """Add a row to a list of the results, in place of the row with the same values of `keys`;
        write the file.
        """
        rows = self.content[part]
        same = (all(each.get(key) == row.get(key) for key in keys) for each in rows)
        place = next((number for number, found in enumerate(same) if found), len(rows))
        rows[place : place + 1] = [row]
        self.save(", ".join(f"{key} {row[key]}" for key in keys if key in row))

    def save(self, measured: str) -> None:
        """Write the file atomically, and print the measurement."""
        minutes = round((time.perf_counter() - self._started) / 60, 1)
        self.content["settings"]["minutes"] = minutes
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".part")
        text = json.dumps(self.content, indent=1, allow_nan=False) + "\n"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path)
        print(f"{minutes:5.1f} min  {measured}", file=sys.stderr, flush=True)


def read(path: Path) -> Any:  # noqa: ANN401
    return json.loads(path.read_text(encoding="utf-8"))


def settings(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return the machine, threads and versions on which figures depend."""
    processor = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "date": f"{datetime.now(tz=UTC):%Y-%m-%d}",
        "processor": processor[1] if processor else platform.processor(),
        "cores": os.cpu_count(),
        **({"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "torch threads": torch.get_num_threads(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, "" without rows; columns after the first are right-aligned."""
    if not rows:
        return ""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
