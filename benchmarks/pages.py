"""Puts what a benchmark measured into its page of docs/benchmarks.

Pages are written by hand. What is measured has its place between two comments, which a reader of
the rendered page does not see: `<!-- figures: NAME -->` and `<!-- end -->`. Only what lies between
them is replaced, so no sentence outside may tell a figure of a run.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.charts import Picture, publish
from benchmarks.report import PAGES, RESULTS, listed, save

BEGIN, END = "<!-- figures: {} -->", "<!-- end -->"
PLACE = re.compile(r"<!-- figures: ([^>]+) -->\n.*?<!-- end -->", re.DOTALL)
NOTHING = "Not measured."

Results = Mapping[str, Any]
# Markdown by the name of its place; empty where nothing was measured.
Figures = Mapping[str, str]
Pictures = Mapping[str, Picture]


def keep(
    name: str,
    results: Results,
    figures: Figures,
    options: Namespace,
    pictures: Pictures | None = None,
) -> None:
    """Keep a benchmark's results; write its page with `options.publish`, else a copy of it."""
    path = RESULTS / f"{name}{'-quick' if options.quick else ''}.json"
    save(path, results)
    copy = None if options.publish else path.with_suffix(".md")
    write_page(name, results, figures, pictures, copy)


def write_page(
    name: str,
    results: Results,
    figures: Figures,
    pictures: Pictures | None = None,
    copy: Path | None = None,
) -> None:
    """Fill the places of page `name`, among them `settings` and with `pictures` their own; print
    the figures.

    With `copy` the page itself stays as it is: the copy is filled, and no picture is drawn. Raises
    ValueError as `fill` does, before anything is written.
    """
    path = PAGES / f"{name}.md"
    figures = {**figures, "settings": listed(results["settings"])}
    if pictures is not None:
        shown = {} if copy else pictures
        links = [f"![{picture.question}]({key}.svg)" for key, picture in shown.items()]
        figures["pictures"] = "\n\n".join(links)
    try:
        page = fill(path.read_text(encoding="utf-8"), figures)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if pictures and not copy:
        publish(pictures)
    (copy or path).write_text(page, encoding="utf-8")
    print(terminal_text(figures))
    print(f"\nWritten to {copy or path}, where each figure is explained.")


def terminal_text(figures: Figures) -> str:
    """Return the figures for a terminal, each below its name, tables with aligned columns.

    Pictures, and what was not measured, are left out.
    """
    return "\n\n".join(
        f"{name}\n\n{_aligned(text)}"
        for name, text in figures.items()
        if text and name != "pictures"
    )


def _aligned(text: str) -> str:
    """Return Markdown with the cells of each column of its table padded to one width."""
    lines = text.split("\n")
    rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    for place, line in enumerate(lines):
        if line.startswith("| "):
            cells = line[2:-2].split(" | ")
            padded = [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]
            lines[place] = "  ".join(padded).rstrip()
    return "\n".join(line for line in lines if line.strip("-: ") or not line)


def fill(page: str, figures: Figures) -> str:
    """The page with all its places filled, whatever they hold.

    Raises ValueError where a place has no figures, figures have no place or more than one, or a
    comment has lost its other half.
    """
    places = PLACE.findall(page)
    if not len(places) == page.count(BEGIN.partition("{")[0]) == page.count(END):
        raise ValueError(f"a comment is missing: not every place begins and ends with {END!r}")
    if twice := {name for name in places if places.count(name) > 1}:
        raise ValueError(f"more than one place for {', '.join(sorted(twice))}")
    if homeless := figures.keys() - set(places):
        raise ValueError(f"no place for {', '.join(sorted(homeless))}")
    if empty := set(places) - figures.keys():
        raise ValueError(f"no figures for {', '.join(sorted(empty))}")

    def filled(place: re.Match[str]) -> str:
        return f"{BEGIN.format(place[1])}\n\n{figures[place[1]] or NOTHING}\n\n{END}"

    return PLACE.sub(filled, page)
