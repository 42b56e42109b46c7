"""The figures of the archive's benchmark follow from what was measured."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.pages import fill
from extras.archive.benchmark import __main__ as benchmark
from extras.archive.benchmark.figures import figures


def test_what_an_archive_took_is_read_from_its_results(tmp_path):
    """Three recordings that end after 4, 7 and 9 s, and took 3, 3 and 5 s: work from 1 s on."""
    ends = {"a": (4.0, 3.0), "b": (7.0, 3.0), "c": (9.0, 5.0)}
    (tmp_path / "results").mkdir()
    for name, (end, seconds) in ends.items():
        path = tmp_path / "results" / f"{name}.json"
        path.write_text(json.dumps({"recording": {"seconds": seconds}}))
        os.utime(path, (end, end))
    work, each = benchmark.work_of(tmp_path, 3)
    assert (work, sorted(each)) == (8.0, [3.0, 3.0, 5.0])
    with pytest.raises(RuntimeError, match="3 results of 4"):
        benchmark.work_of(tmp_path, 4)


def test_the_archive_page_tells_what_was_measured():
    def runs(before, *work):
        return [{"whole": before + each, "work": each} for each in work]

    looks = [
        {"done": done, "run": 100 + done, "worker": 900, "others": 300} for done in range(0, 101, 5)
    ]
    clips = {"files": 100, "seconds": 2, "loop": 4.0, "work": 3.0, "each": 0.045}
    results = {
        "settings": {"device": "CPU", "processor": "P", "torch threads": 2},
        "talks": {
            "files": 10,
            "seconds": 20,
            "runs": {"loop, 1": runs(3, 10, 8, 9), "archive, 2": runs(12, 5, 4.5, 4)},
        },
    }
    results |= {"clips": clips | {"memory": looks}}
    page = benchmark.PAGE.read_text(encoding="utf-8")
    text = fill(page, figures(results) | {"settings": "none"})
    rows = [[each.strip() for each in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["loop, 1 thread", "3.0", "9.0", "22", "1.00 (1.00-1.00)"] in rows
    (both,) = [row for row in rows if row and row[0] == "archive, 2 workers"]
    assert both[1:4] == ["12.0", "4.5", "44"]
    assert both[4].startswith("2.00 (")
    assert "- long ones: 10 of 20 s\n- short ones: 100 of 2 s\n" in text
    shares = [row[1] for row in rows if row and row[0].endswith((" recording", "worker"))]
    assert shares == ["40 ms", "60 ms"]
    assert ["of it reading the file and the handler", "45 ms"] in rows
    assert ["of it all else: marks, results, records, Ray", "15 ms"] in rows
    assert ["the loop / two workers", "1.33"] in rows
    assert ["25", "125", "900", "300"] in rows
    assert ["100", "200", "900", "300"] in rows
    # Nobody looked before the run ended.
    assert figures(results | {"clips": clips | {"memory": []}})["memory"] == ""
