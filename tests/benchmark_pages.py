"""Pages as a benchmark's own command fills them, in a folder that is not the project's."""

from __future__ import annotations

from benchmarks import pages
from benchmarks.options import read_options


def run_quick(command, name, folder, monkeypatch, *options):
    """What `scripts/bench NAME --quick` writes; `command` is its module."""
    for module in (command, pages):
        monkeypatch.setattr(module, "RESULTS", folder, raising=False)
    command.main(read_options(name, ["--quick", *options]))
    return (folder / f"{name}-quick.md").read_text(encoding="utf-8")


def rows_of(page):
    """The cells of every line of every table."""
    return [[each.strip() for each in line.split("|")[1:-1]] for line in page.splitlines()]
