"""What every measurement leaves behind: its settings, figures as JSON, a Markdown table and a plot.

The one decision: the JSON file is the result and is written after every step; table and plot are
drawn from it alone. A run that was broken off can still be read so, and no page says what was not
measured.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

from benchmarks.timing import Ratio
from config import REPOSITORY

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 9}

from matplotlib import pyplot  # noqa: E402  # after the backend is chosen

RESULTS = REPOSITORY / "build" / "bench"
PAGES = REPOSITORY / "docs" / "benchmarks"
PACKAGES = ("torch", "transformers", "ctranslate2", "numpy")
Bar = tuple[str, Ratio]


def settings(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The machine, the threads and the versions that a figure depends on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def save(path: Path, content: object) -> None:
    """Write JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> Any:  # noqa: ANN401
    """What `save` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are aligned to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def listed(facts: Mapping[str, object]) -> str:
    """A Markdown list of what was set."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def plot_ratios(path: Path, panels: Mapping[str, Sequence[Bar]], label: str) -> None:
    """A panel of bars with their intervals for each comparison, the line of "equally fast" in each,
    as SVG.
    """
    longest = max(len(bars) for bars in panels.values())
    figure, axes = pyplot.subplots(
        1, len(panels), squeeze=False, figsize=(4.6 * len(panels), 1.2 + 0.24 * longest)
    )
    for axis, (title, bars) in zip(axes[0], panels.items(), strict=True):
        values = [ratio.value for _, ratio in bars]
        spread = [
            [ratio.value - ratio.low for _, ratio in bars],
            [ratio.high - ratio.value for _, ratio in bars],
        ]
        axis.barh(
            range(len(bars)), values, xerr=spread, color="#4878a8", ecolor="#222222", height=0.7
        )
        axis.set_yticks(range(len(bars)), [name for name, _ in bars])
        axis.invert_yaxis()
        axis.axvline(1.0, color="#b04040", linewidth=1)
        axis.set_title(title)
        axis.set_xlabel(label)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _processor() -> str:
    """The name the system gives the CPU."""
    listing = subprocess.run(
        ["lscpu"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    named = [line.partition(":")[2].strip() for line in listing if line.startswith("Model name")]
    return named[0] if named else platform.processor()
