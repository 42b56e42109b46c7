"""Pictures for readers of the README: one question each, few bars, large labels.

What is drawn is kept as JSON under docs/benchmarks/results, a few numbers for each picture. So the
pictures can be drawn again without measuring again: `python -m benchmarks.charts`.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl

from benchmarks.report import PAGES, read, save

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "benchmarks", "svg.fonttype": "path", "font.size": 15}

from matplotlib import pyplot  # noqa: E402  # after the backend is chosen
from matplotlib.axes import Axes  # noqa: E402

RESULTS = PAGES / "results"
WIDTH = 8.6  # inches of 96 CSS pixels: a README's column, so that points are those of its text
TITLE, TEXT, NOTE = 18, 15, 12  # points
BAR, GAP, MARGIN = 0.36, 0.26, 0.15  # inches
TITLE_LINE, NOTE_LINE, NOTE_WIDTH = 0.5, 0.22, 88  # inches, inches, letters
LETTER, BOLD = 0.125, 0.145  # inches; widths of a letter of TEXT points, on average
CURVES = 5.4  # inches; height of a picture of curves
LINES, STROKES = ("#1f6fb2", "#d9822b", "#5a8f5a"), ("-", ":")
COLOURS = ("#1f6fb2", "#9aa5b1", "#cdd3da")


@dataclass(frozen=True)
class Chart:
    """One question and its bars.

    Every name in `bars` has one value for each of `groups`; a chart of one group leaves its name
    empty. The first name is this project's and is drawn in colour. `note` names models, machine,
    batch and audio.
    """

    question: str
    unit: str
    groups: tuple[str, ...]
    bars: dict[str, tuple[float, ...]]
    note: str
    digits: int = 1


@dataclass(frozen=True)
class Curves:
    """One question and how its answer depends on a number.

    Every name in `lines`, "whom: what", has one value for each of `places`; lines of one "whom"
    have one colour, and each "what" a stroke of its own. `chosen` is the place that is taken.
    """

    question: str
    unit: str
    axis: str
    places: tuple[float, ...]
    lines: dict[str, tuple[float, ...]]
    chosen: float
    note: str


Picture = Chart | Curves


def publish(charts: Mapping[str, Picture]) -> None:
    """Keep the numbers of each chart and draw it; keys are file names without suffix."""
    for name, chart in charts.items():
        save(RESULTS / f"{name}.json", asdict(chart))
        draw(chart, PAGES / f"{name}.svg")


def load(path: Path) -> Picture:
    """A chart that `publish` kept."""
    kept = read(path)
    if "lines" in kept:
        lines = {name: tuple(values) for name, values in kept["lines"].items()}
        return Curves(**{**kept, "places": tuple(kept["places"]), "lines": lines})
    bars = {name: tuple(values) for name, values in kept["bars"].items()}
    return Chart(**{**kept, "groups": tuple(kept["groups"]), "bars": bars})


def draw(chart: Picture, path: Path) -> None:
    """Write the chart as SVG: curves, or horizontal bars, each with its value at its end."""
    if isinstance(chart, Curves):
        _draw_curves(chart, path)
        return
    note = textwrap.wrap(chart.note, NOTE_WIDTH)
    bars = len(chart.groups) * (len(chart.bars) * BAR + GAP) - GAP
    top, bottom = MARGIN + TITLE_LINE, MARGIN + GAP + NOTE_LINE * len(note)
    figure = pyplot.figure(figsize=(WIDTH, top + bars + bottom))
    # One unit of the axes is one inch, y from top to bottom.
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(top + bars + bottom, 0))
    axes.set_axis_off()
    axes.text(MARGIN, MARGIN, chart.question, va="top", fontsize=TITLE, fontweight="bold")
    _draw_bars(axes, chart, top)
    below = axes.text(MARGIN, top + bars + bottom - MARGIN, "\n".join(note), va="bottom")
    below.set(fontsize=NOTE, color="#444444", linespacing=1.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


def _draw_bars(axes: Axes, chart: Chart, y: float) -> None:
    """Bars from `y` inches down, group by group; names to the left, values to the right."""
    left = 3 * MARGIN + BOLD * _longest(chart.groups) + LETTER * _longest(chart.bars)
    largest = max(value for values in chart.bars.values() for value in values)
    scale = (WIDTH - left - LETTER * 8) / largest
    for place, group in enumerate(chart.groups):
        middle = y + len(chart.bars) * BAR / 2
        axes.text(MARGIN, middle, group, va="center", fontsize=TEXT, fontweight="bold")
        for colour, (name, values) in zip(COLOURS, chart.bars.items(), strict=False):
            value, at = values[place], y + BAR / 2
            label = f"{value:.{chart.digits}f}{chart.unit}"
            axes.barh(at, value * scale, left=left, height=0.8 * BAR, color=colour)
            axes.text(left - LETTER, at, name, ha="right", va="center", fontsize=TEXT)
            axes.text(left + value * scale + LETTER, at, label, va="center", fontsize=TEXT)
            y += BAR
        y += GAP


def _draw_curves(chart: Curves, path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(WIDTH, CURVES), layout="constrained")
    subjects = list(dict.fromkeys(name.partition(": ")[0] for name in chart.lines))
    kinds = list(dict.fromkeys(name.partition(": ")[2] for name in chart.lines))
    for name, values in chart.lines.items():
        subject, _, kind = name.partition(": ")
        colour, stroke = LINES[subjects.index(subject)], STROKES[kinds.index(kind)]
        axes.plot(chart.places, values, stroke, color=colour, linewidth=2, label=name)
    axes.axvline(chart.chosen, color=COLOURS[1], linewidth=1)
    axes.set_title(chart.question, loc="left", fontsize=TITLE, fontweight="bold")
    axes.set_xlabel(chart.axis, fontsize=NOTE)
    axes.set_ylabel(chart.unit.strip(), fontsize=NOTE)
    axes.tick_params(labelsize=NOTE)
    axes.legend(fontsize=NOTE, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    text = "\n".join(textwrap.wrap(chart.note, NOTE_WIDTH))
    figure.supxlabel(text, x=0.01, ha="left", fontsize=NOTE, color="#444444")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


def _longest(names: Iterable[str]) -> int:
    """Letters of the longest name."""
    return max(map(len, names))


def main() -> None:
    """Draw every chart again from the numbers that were kept."""
    argparse.ArgumentParser(
        description="Draw every chart again from its kept numbers."
    ).parse_args()
    for path in sorted(RESULTS.glob("*.json")):
        draw(load(path), PAGES / f"{path.stem}.svg")


if __name__ == "__main__":
    main()
