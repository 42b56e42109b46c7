"""Puts what a benchmark measured into its page of docs/benchmarks: the one renderer.

Pages are written by hand. Each measured table has its place between two comments, which a reader of
the rendered page does not see: `<!-- figures: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import PAGES, Tables, listed, table_of

PLACE = re.compile(r"<!-- figures: ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)
NOTHING = "Not measured."
SETTINGS = "settings"


def publish(
    name: str, results: Path, settings: Mapping[str, Any], tables: Tables, in_place: bool
) -> None:
    """Print the tables and fill page `name`: in docs/benchmarks if `in_place` is true, else in a
    copy beside the file of `results`.
    """
    page = PAGES / f"{name}.md"
    figures = {key: table_of(rows) for key, rows in tables.items()}
    text = page.read_text(encoding="utf-8")
    written = page if in_place else results.with_suffix(".md")
    written.write_text(fill(text, {**figures, SETTINGS: listed(settings)}), encoding="utf-8")
    print(terminal_text(figures))
    print(f"\nWritten to {written}, where each figure is explained.")


def fill(page: str, figures: Mapping[str, str]) -> str:
    """Return the page with its places filled. Raises ValueError if places and figures differ."""
    places = PLACE.findall(page)
    if sorted(places) != sorted(figures):
        raise ValueError(f"the page has places for {places}, the figures are {list(figures)}")
    return PLACE.sub(
        lambda place: (
            f"<!-- figures: {place[1]} -->\n\n{figures[place[1]] or NOTHING}\n\n<!-- end -->"
        ),
        page,
    )


def terminal_text(figures: Mapping[str, str]) -> str:
    """Return the figures for a terminal, each below its name, tables with aligned columns."""
    return "\n\n".join(f"{name}\n\n{_aligned(text)}" for name, text in figures.items() if text)


def _aligned(text: str) -> str:
    """Return Markdown with the cells of each column of its table padded to one width."""
    rows = [line[2:-2].split(" | ") for line in text.split("\n") if line.startswith("| ")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    lines = []
    for line in text.split("\n"):
        if line.startswith("| "):
            first, *cells = line[2:-2].split(" | ")
            line = "  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        lines.append(line)
    return "\n".join(line for line in lines if line.strip("-: ") or not line)
