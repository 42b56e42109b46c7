"""Pages of docs/benchmarks are made of results alone, and only between their marks."""

import re
from importlib import import_module

import pytest

from benchmarks import pages
from benchmarks.options import BENCHMARKS
from benchmarks.pages import NOTHING, PLACE, fill, publish
from benchmarks.report import PAGES

DOCUMENTS = [*PAGES.glob("*.md"), *PAGES.parent.glob("*.md")]
TIMES = {"other statuses": {}, "different texts": 1, "med": 1.0, "p95": 2.5, "requests": 40}
LOAD = {"models": "demo models", "server": "ours", "rate": 3.0, **TIMES}
THEIRS = {**LOAD, "server": "hf-serve", "rate": 2.0, "different texts": 2}

LOADS = ("text, 1", "speakers, 1", "text, 16", "speakers, 16")
HELD = ("at rest", *(f"{load}: peak" for load in LOADS), "after them", "unloaded")
RISING = [101.0 + minute for minute in range(9)]

# Results of benchmarks, and rows that their pages then have.
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
    "operate": (
        {
            "served": [
                {
                    "models": "demo models",
                    "starts": [
                        {"ready": ready, "start": 1.0, "asr": 2.0, "diarization": 0.5}
                        for ready in (3.0, 9.0, 4.0)
                    ],
                    "memory": dict.fromkeys(HELD, 1234.5),
                    "speeds": dict(zip(LOADS, (5.0, 5.0, 20.0, 10.0), strict=True)),
                    "again": 2.5,
                }
            ],
            "growth": [{"models": "demo models", "requests": 9, "minima": [0.0] * 5 + RISING}],
        },
        [
            "| demo models | 4.0 s | 1.0 s | 2.0 s | 0.5 s |",
            f"| demo models{' | 1.23 GB' * len(HELD)} |",
            "| demo models | 5.0 | 5.0 | 20.0 | 10.0 | 2.5 s |",
            "| demo models | 9 | 101 102 103 104 105 106 107 108 109 | +60 (+60 to +60) |",
            "| two vCPUs (intel-spr x2) | 0.067 | demo models, speakers | 10.0 s | 0.0067 |",
            "| H200 | 5 | large-v3, decoding, measured | 1,256.0 s | 0.0040 |",
        ],
    ),
    "word-times": (
        {
            "recordings": [
                {"set": "read", "engine": "ours", "name": name, "words": 4, "errors": errors}
                for name, errors in (("a", [[0.02, -0.3]]), ("b", [[-0.1, 0.1], [0.0, 0.02]]))
            ]
        },
        ["| read | ours | 3 of 8 | 20 ms | 40 ms | 100% | 100 ms | 140 ms | 67% |"],
    ),
    "words": (
        {
            "clips": {"tts": {"texts": ["we met Ada"], "phrases": [["Ada"]], "others": ["Bo"]}},
            "answers": {
                "tts": {
                    "none": [{"text": "We met Ida.", "seconds": 2.0}],
                    "1,000 distractors alone": [{"text": "Bo met Ada", "seconds": 3.0}],
                }
            },
        },
        [
            "| tts, 1 | none | 1 of 1 | 0.00% | 0 | 1 | 1.00 |",
            "| tts, 1 | 1,000 distractors alone | 0 of 1 | 50.00% | 1 | 0 | 1.50 |",
        ],
    ),
}


def headers(page):
    """The columns of a page's tables, without numbers of words."""
    return [re.sub(r"\d+", "N", line) for line in re.findall(r"(.*)\n\| ---", page)]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_page_is_filled_from_results(name, in_place, tmp_path, monkeypatch, capsys):
    module, *_ = BENCHMARKS[name]
    page = next(each for each in DOCUMENTS if each.name == f"{name}.md")
    before = page.read_text(encoding="utf-8")
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    (tmp_path / f"{name}.md").write_text(before, encoding="utf-8")
    (tmp_path / "build").mkdir()
    results, rows = EXAMPLES[name]
    tables = import_module(module).figures(results)
    publish(name, tmp_path / "build" / "x.json", {"cores": 2}, tables, in_place)
    after = (tmp_path / (f"{name}.md" if in_place else "build/x.md")).read_text(encoding="utf-8")
    assert [row for row in rows if row not in after.splitlines()] == []
    assert "\ncores: 2\n" in after
    assert [each for each in headers(before) if each not in headers(after)] == []
    assert PLACE.sub("", after) == PLACE.sub("", before)
    printed = capsys.readouterr().out
    assert [row for row in rows if row[0] == "|" and row not in printed.splitlines()] == []
    if not in_place:
        assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") == before


def test_empty_tables_say_so_and_other_places_are_refused():
    page = "<!-- figures: times -->\n| 1 |\n<!-- end -->"
    assert NOTHING in fill(page, {"times": ""})
    assert r"| \1 |" in fill(page, {"times": r"| \1 |"})
    with pytest.raises(ValueError, match="the page has comments for"):
        fill(page, {"times": "x", "more": "x"})
