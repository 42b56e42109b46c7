"""Pages of docs/benchmarks are made of results alone, and only between their marks."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from benchmarks import pages
from benchmarks.options import BENCHMARKS
from benchmarks.pages import NOTHING, PLACE, fill, publish
from benchmarks.report import PAGES

TIMES = {"other statuses": {}, "different texts": 1, "med": 1.0, "p95": 2.5, "requests": 40}
LOAD = {"models": "demo models", "server": "ours", "rate": 3.0, **TIMES}
THEIRS = {**LOAD, "server": "hf-serve", "rate": 2.0, "different texts": 2}
SESSION = {
    "recording": "a",
    "whole": True,
    "deltas": "red green",
    "completed": "red green blue",
    "told": [1.0, 2.0],
    "waits": [],
    "failure": "429",
}
SPOKEN = {"language": "en", "text": "red green blue grey", "reference": "truth", "seconds": 60.0}
SILENT = {"language": "en", "text": "", "reference": "truth", "seconds": 6.0}
PARTS = {"missed": 1.0, "false_alarm": 0.5, "confusion": 0.5, "total": 10.0}
TURNS = {"strict": PARTS, "speakers": 2}
BY_RULE = {rule: {"errors": 1, "total": 4} for rule in ("this project", "WhisperX")}
TALLY = {"known": 10.0, "right": 9.0, "wrong": 1.0, "strangers": 0.0, "strangers_named": 0.0}
OVERLAP = {
    measure: {"inside": {"errors": 1, "total": 2}, "outside": {"errors": 0, "total": 6}}
    for measure in ("text alone", "cpWER", "tcpWER")
}


def heard(*texts):
    """An engine's answers about a spoken and a silent recording."""
    return {
        name: {"text": text, "seconds": [2.0, 4.0, 3.0]}
        for name, text in zip(("spoken", "silent"), texts, strict=False)
    }


# Results of each benchmark, and rows that its page then has.
EXAMPLES = {
    "speed": (
        {
            "cells": [
                {
                    "models": "demo models",
                    "cell": "60 s",
                    "batch": 1,
                    "seconds": {"pipeline": [2.0] * 3, "ours": [1.0] * 3},
                    "acceptance": 0.5,
                }
            ]
        },
        ["| demo models: 60 s | 1 | 2.00 |  | 1.00 |  | 2.00 (2.00-2.00) |  |  | 0.50 |"],
    ),
    "load": (
        {
            "users": [{"seconds": 8, "users": 4, **each} for each in (LOAD, THEIRS)],
            "beside": [{**LOAD, "other statuses": {"429": 3}}],
            "crowd": [{**LOAD, "long ones": 100}],
        },
        [
            "| demo models | 8 s | 4 | 1.00 s / 2.50 s | 40 | 1.00 s / 2.50 s | 40 (texts differ)"
            " | 1.50 |",
            "| demo models | ours | 1.00 s | 2.50 s | 40 (3x 429) |",
            "| demo models | ours | 100 | 1.00 s | 2.50 s | 40 |",
        ],
    ),
    "live": (
        {
            "recordings": {"a": {**SPOKEN, "file": "red green blue grey"}},
            "ours": [
                {"clients": 1, "beside": False, "sessions": [SESSION]},
                {"clients": 4, "beside": True, "sessions": [SESSION]},
            ],
            "theirs": [SESSION],
        },
        [
            "| 1 client | 1.50 / 1.95 | - | 1 | 1 |",
            "| 4 clients, beside a file | 1.50 / 1.95 | - | 1 | 1 |",
            "| completed | 25.0% of 4 | 0 |",
            "| faster-whisper, LocalAgreement | 50.0% of 4 | 0 |",
        ],
    ),
    "real": (
        {
            "recordings": {"spoken": SPOKEN, "silent": SILENT, "only ours": SPOKEN},
            "answers": {
                "ours": {**heard("red green pink grey", ""), "only ours": {"text": ""}},
                "pipeline": heard("red", "thank you"),
            },
        },
        [
            "| ours | 25.0% | 25.0% |  | 6.0 | 0 |",
            "| pipeline | 75.0% | 75.0% | -50.0 | 6.0 | 2 |",
        ],
    ),
    "voices": (
        {
            "recordings": [
                {
                    "name": name,
                    "speakers": speakers,
                    "turns": {
                        known: dict.fromkeys(("pyannote.audio", "diarizer", "endpoint"), TURNS)
                        for known in ("estimated", "told")
                    },
                    "words": dict.fromkeys(("estimated", "told"), BY_RULE),
                    "seconds": {"pyannote.audio": 8.0, "diarizer": 1.0},
                }
                for name, speakers in (("one", 2), ("two", 3))
            ],
            "names": {"a clip of another recording": TALLY},
        },
        [
            "| estimated | pyannote.audio | 20.0% | 10.0% | 5.0% | 5.0% | 1/2 | 16.0 |",
            "| told | endpoint | 20.0% | 10.0% | 5.0% | 5.0% | 1/2 |  |",
            "| told | WhisperX | 25.0% (2 of 8) |",
            "| a clip of another recording | 90.0% | 10.0% | 10 |  | 0 |",
        ],
    ),
    "overlap": (
        {
            "overlap": [
                {
                    "name": name,
                    "parameters": parameters,
                    "seconds": seconds,
                    "errors": dict.fromkeys(
                        ("reference", "pipeline", "pipeline, WhisperX's rule"), OVERLAP
                    ),
                }
                for name in ("real, talk", "2 voices, 50% overlap, 0", "3 voices, 50% overlap, 0")
                for parameters, seconds in (("{}", 2.0), ("{1}", 3.0))
            ]
        },
        [
            f"| real | {{}} | 2 / 8 |{' 50.0% / 12.5% |' * 5} 1.00 |",
            f"| 50% overlap | {{1}} | 4 / 16 |{' 50.0% / 12.5% |' * 5} 1.50 |",
            'x-axis ["50% overlap"]',
            "line [12.5]",
        ],
    ),
}


def headers(page):
    """The columns of a page's tables, without numbers of words."""
    return [re.sub(r"\d+", "N", line) for line in re.findall(r"(.*)\n\| ---", page)]


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_page_is_filled_from_results(name, in_place, tmp_path, monkeypatch, capsys):
    module, *_ = BENCHMARKS[name]
    before = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    (tmp_path / f"{name}.md").write_text(before, encoding="utf-8")
    (tmp_path / "build").mkdir()
    results, rows = EXAMPLES[name]
    tables = import_module(module).figures(results)
    publish(name, tmp_path / "build" / "x.json", {"cores": 2}, tables, in_place)
    after = (tmp_path / (f"{name}.md" if in_place else "build/x.md")).read_text(encoding="utf-8")
    assert [row for row in rows if row not in after.splitlines()] == []
    assert "\ncores: 2\n" in after
    assert headers(after) == headers(before)
    assert PLACE.sub("", after) == PLACE.sub("", before)
    printed = capsys.readouterr().out
    assert [row for row in rows if row[0] == "|" and row not in printed.splitlines()] == []
    if not in_place:
        assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") == before


def test_a_table_of_nothing_says_so_and_places_that_do_not_fit_are_refused():
    page = "<!-- figures: times -->\n| 1 |\n<!-- end -->"
    assert NOTHING in fill(page, {"times": ""})
    assert r"| \1 |" in fill(page, {"times": r"| \1 |"})
    with pytest.raises(ValueError, match="the page has comments for"):
        fill(page, {"times": "x", "more": "x"})
