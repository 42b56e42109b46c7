"""Writes a benchmark's figures into its page of docs/benchmarks.

Pages are written by hand. Each measured table or chart is between two comments, which the rendered
page does not show: `<!-- figures: NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import PAGES, Tables, table

PLACE = re.compile(r"<!-- figures: ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)
NOTHING = "Not measured."


def publish(
    name: str, results: Path, settings: Mapping[str, Any], tables: Tables, in_place: bool
) -> None:
    """Print the tables and fill page `name`: in docs/benchmarks if `in_place` is true, else in a
    copy beside the file of `results`.
    """
    pages = (folder / f"{name}.md" for folder in (PAGES, PAGES.parent))
    page = next(each for each in pages if each.is_file())
    figures = {key: _markdown(rows) for key, rows in tables.items()}
    figures["settings"] = "; ".join(f"{key}: {value}" for key, value in settings.items())
    written = page if in_place else results.with_suffix(".md")
    if written.is_file() and not PLACE.search(written.read_text(encoding="utf-8")):
        raise SystemExit(f"{written} is not a page of figures, and is not overwritten")
    written.write_text(fill(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    for key, rows in tables.items():
        if rows and not isinstance(rows, str):
            print(f"{key}\n\n{figures[key]}\n")
    print(f"Written to {written}, where each figure is explained.")


def fill(page: str, figures: Mapping[str, str]) -> str:
    """Return the page with its places filled. Raises ValueError if places and figures differ."""
    places = PLACE.findall(page)
    if sorted(places) != sorted(figures):
        raise ValueError(f"the page has comments for {places}, the figures are {list(figures)}")
    shown = "<!-- figures: {} -->\n\n{}\n\n<!-- end -->"
    return PLACE.sub(lambda place: shown.format(place[1], figures[place[1]] or NOTHING), page)


def _markdown(rows: list[dict[str, str]] | str) -> str:
    if isinstance(rows, str):
        return rows
    return table([*rows[0]] if rows else [], [[*row.values()] for row in rows])
