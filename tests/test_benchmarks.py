"""What the benchmarks rest on: engines that agree, ratios and intervals that are right, pages and
pictures that tell what was measured.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from benchmarks import charts
from benchmarks.charts import Chart, Curves
from benchmarks.report import put, read, read_kept, save, table
from benchmarks.speed import __main__ as speed_benchmark
from benchmarks.speed import cpu, engines
from benchmarks.speed.cells import PIPELINE_ASSISTED, Cell, pairs, quick_pairs
from benchmarks.speed.engines import CTranslate2, Ours, TransformersPipeline
from benchmarks.speed.figures import charts as speed_charts
from benchmarks.speed.large import page
from benchmarks.timing import Ratio, peak_memory, ratio, repeats_within, time_interleaved
from tests.benchmark_pages import render
from tests.support.model_pairs import Size, demo_pair
from tests.support.speech import Voice, speak
from whosaid.transcript import DecodeStats

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models():
    return demo_pair(CPU, torch.float32)


@pytest.fixture(scope="module")
def sentence():
    """Two seconds that the demo models recognise."""
    voice = Voice("espeak", "f5", "en-us", 50, 160)
    return speak(voice, "is there a hotel near the museum").samples


def test_every_engine_writes_the_same_for_one_window(models, sentence):
    ours, pipeline = Ours(models, None), TransformersPipeline(models, None)
    text = ours.transcribe(sentence, 1, assisted=False)
    assert "museum" in text
    assert ours.assisted_stats == DecodeStats()
    assert ours.transcribe(sentence, 4, assisted=True) == text
    assert pipeline.transcribe(sentence, 24, assisted=False) == text
    assert pipeline.transcribe(sentence, 24, assisted=True) == text
    (tokens,) = ours.decode([sentence], 1, assisted=True)
    assert CTranslate2(models, None).decode([sentence], 4) == [tokens]
    assert ours.assisted_stats.tokens >= 2 * len(tokens)
    (window,) = ours.windows(sentence)
    assert len(window) == pytest.approx(len(sentence), rel=0.3)


def test_a_step_of_the_main_model_takes_longer_than_one_of_its_smaller_assistant(
    models, monkeypatch
):
    monkeypatch.setattr(engines, "TIMED_STEPS", 4)
    main, assistant = Ours(models, None).step_seconds()
    assert 0 < assistant < main


@pytest.mark.parametrize("part", [cpu.threads, cpu.neighbours])
def test_decoding_is_timed_beside_what_else_computes(part, monkeypatch):
    monkeypatch.setattr(cpu, "SECONDS", 2)
    ((name, *ratios),) = part(["demo"], 1)
    assert name == "demo"
    assert all(float(each.split()[0]) > 0 for each in ratios)
    assert ratios


def test_random_weights_write_as_many_tokens_as_asked(models, sentence):
    ours = Ours(models, 5)
    assert [len(tokens) for tokens in ours.decode([sentence] * 3, 2, assisted=False)] == [5] * 3
    assert ours.transcribe(sentence, 2, assisted=False) == str(
        ours.decode([sentence], 2, assisted=False)
    )
    alone = dataclasses.replace(models, assistant=None)
    with pytest.raises(ValueError, match="no assistant"):
        Ours(alone, 5).step_seconds()


def test_statistics_of_calls_add_up():
    total = DecodeStats()
    for accepted in (3, 1):
        call = DecodeStats(
            steps=2, tokens=6, drafted=4, accepted=accepted, drafted_rows=2, steps_by_drafts={2: 2}
        )
        total.add(call)
    assert total.acceptance == 0.5
    assert total.tokens_per_step == 2
    assert (total.steps, total.steps_by_drafts) == (4, {2: 4})


def test_a_ratio_is_of_medians_and_inside_its_interval():
    measured = ratio([2.0, 2.2, 2.1, 9.0, 2.0], [1.0, 1.1, 1.05, 1.0, 1.0])
    assert measured.value == pytest.approx(2.1)
    assert 1.9 < measured.low <= measured.value <= measured.high < 9.1
    assert ratio([3.0] * 3, [1.5] * 3) == Ratio(2.0, 2.0, 2.0)


def test_the_interval_of_a_ratio_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    draws = [
        ratio(random.lognormal(0.0, 0.2, 15) * 2, random.lognormal(0.0, 0.2, 15))
        for _ in range(100)
    ]
    assert sum(each.low <= 2 <= each.high for each in draws) >= 88


def test_repeats_alternate_and_every_action_gets_as_many():
    order = []
    actions = {name: lambda name=name: order.append(name) for name in "abc"}
    measured = time_interleaved(actions, 3, CPU)
    assert "".join(order) == "abccbaabc"
    assert {name: len(seconds) for name, seconds in measured.items()} == {"a": 3, "b": 3, "c": 3}
    assert [repeats_within(10, each) for each in (100, 2.5, 0.001)] == [3, 4, 15]


def test_memory_counts_what_is_needed_at_once_though_it_was_freed_before():
    def action():
        return np.ones(4_000_000).sum()  # 30.5 MiB

    assert [peak_memory(action, CPU) for _ in range(2)] == [pytest.approx(31, abs=3)] * 2


def test_results_outlive_a_run_that_was_broken_off(tmp_path):
    save(tmp_path / "folder" / "results.json", {"cells": [1]})
    with pytest.raises(ValueError, match="JSON compliant"):
        save(tmp_path / "folder" / "results.json", {"cells": [float("nan")]})
    assert read(tmp_path / "folder" / "results.json") == {"cells": [1]}
    assert table(("a", "b"), [("x", "1")]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x | 1 |",
    ]


def cell(models, name, batch, acceptance=None, **seconds):
    return {
        "models": models,
        "cell": name,
        "batch": batch,
        "audio": 60.0,
        "seconds": {name.replace("_", " "): [value] * 3 for name, value in seconds.items()},
        "acceptance": acceptance,
        "tokens per step": 2.0,
        "steps by drafts": {"4": 7},
    }


def results_of(*cells):
    facts = {"main step ms": 30.0, "draft step ms": 3.0, "max tokens": 60}
    settings = {"device": "CPU", "processor": "Z80", "torch threads": 2, "dtype": "torch.float32"}
    models = {each["models"]: facts for each in cells}
    return json.loads(json.dumps({"settings": settings, "models": models, "cells": cells}))


def test_the_page_says_which_targets_were_missed(tmp_path, monkeypatch):
    results = results_of(
        cell("demo models", "60 s", 4, pipeline=3.0, ours=1.0, ours_assisted=1.0),
        cell("deep pair, 0.9", "60 s", 1, 0.9, ours=3.4, ours_assisted=2.0),
        cell("deep pair, 0.3", "60 s", 8, 0.3, ours=1.0, ours_assisted=1.1),
    )
    text = render(speed_benchmark, "speed", results, tmp_path, monkeypatch)
    lines = [line for line in text.splitlines() if line.endswith(("| met |", "| MISSED |"))]
    verdicts = [line.endswith("| met |") for line in lines]
    assert verdicts == [True, False, True, True, False]
    assert "10.0" in text
    assert speed_charts(results) == {}


def test_the_picture_of_speed_has_the_measured_medians():
    base = cell("base size", "10 min", 24, pipeline=40.0, CTranslate2=20.0, ours=10.0)
    drawn = speed_charts(results_of(base | {"seconds": base["seconds"] | {"ours assisted": [9]}}))
    assert list(drawn) == ["speed"]
    assert list(drawn["speed"].bars.values()) == [(10.0,), (20.0,), (40.0,)]
    assert "60 tokens a window" in drawn["speed"].note
    assert "Z80, 2 threads, float32" in drawn["speed"].note


def test_a_chart_is_drawn_again_from_its_kept_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(charts, "PAGES", tmp_path)
    monkeypatch.setattr(charts, "RESULTS", tmp_path / "results")
    bars = {"this": (1.0, 2.0), "that": (3.0, 4.0)}
    chart = Chart("How long?", " s", ("short", "long"), bars, note="by hand " * 40)
    lines = {"here: right": (9.0, 5.0), "there: right": (8.0, 1.0)}
    curves = Curves("How many?", "%", "threshold", (0.0, 1.0), lines, 0.5, note="by hand " * 40)
    charts.publish({"example": chart, "curves": curves})
    assert charts.load(tmp_path / "results" / "example.json") == chart
    assert charts.load(tmp_path / "results" / "curves.json") == curves
    first = (tmp_path / "example.svg").read_bytes()
    (tmp_path / "example.svg").unlink()
    monkeypatch.setattr(sys, "argv", ["charts"])
    charts.main()
    assert (tmp_path / "example.svg").read_bytes() == first
    assert ElementTree.fromstring(first).tag.endswith("svg")


def test_every_picture_has_its_kept_numbers():
    names = {path.stem for path in charts.PAGES.glob("*.svg")}
    assert names == {path.stem for path in charts.RESULTS.glob("*.json")}
    for name in names:
        chart = charts.load(charts.RESULTS / f"{name}.json")
        if isinstance(chart, Curves):
            assert {len(values) for values in chart.lines.values()} == {len(chart.places)}
            continue
        assert {len(values) for values in chart.bars.values()} == {len(chart.groups)}
        assert len(chart.bars) <= 3


def test_cells_that_repeat_others_are_not_timed():
    for pair in (*pairs(), *quick_pairs()):
        assert len(set(pair.cells)) == len(pair.cells)
        assert all(one.batch == 1 or PIPELINE_ASSISTED not in one.columns for one in pair.cells)
        assert bool(pair.memory_seconds) == (pair.memory_cell is not None)
    assert Cell(4, (), window=15).name == "16 windows of 15 s"
    assert Cell(4, (), seconds=600).name == "10 min"


def test_random_weights_are_timed_with_an_assistant_and_without():
    written = []
    page(CPU, Size("narrow", "tiny", d_model=32, heads=2, layers=3), [1], written.append, tokens=3)
    header, _, plain, assisted = "".join(written).splitlines()
    assert header.startswith("| assistant | batch | ms a step")
    assert plain.startswith("| without | 1 |")
    assert assisted.startswith("| with | 1 |")


def test_a_row_takes_the_place_of_the_one_that_it_measures_again():
    rows = [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 1}]
    put(rows, {"a": 1, "b": 1, "c": 2}, "a", "b")
    put(rows, {"a": 2, "c": 3}, "a", "b")
    assert rows == [{"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 2, "c": 1}, {"a": 2, "c": 3}]


def test_results_are_added_to_under_the_same_settings_alone(tmp_path):
    path, empty = tmp_path / "kept.json", {"cells": []}
    facts = {"precision": "float32", "minutes": 1.0, "repeats": 3}
    first = read_kept(path, facts, empty, False)
    assert first == {"cells": [], "settings": facts}
    first["cells"].append({"a": 1})
    save(path, first)
    assert empty == {"cells": []}
    again = facts | {"minutes": 7.0, "repeats": 1, "more": "x"}
    assert read_kept(path, again, empty, False) == {"cells": [{"a": 1}], "settings": again}
    assert read_kept(path, facts, empty, True)["cells"] == []
    for other in ({"precision": "int8"}, facts | {"precision": None}):
        with pytest.raises(SystemExit, match="with precision float32, and this run has"):
            read_kept(path, other, empty, False)
        assert read_kept(path, other, empty, True)["cells"] == []


class CountingBench:
    """Stands for `speed`'s; it numbers its measurements."""

    def __init__(self, pair, device, dtype):
        self.pair = pair

    def costs(self):
        return {"ours": 1.0}

    def measure(self, cell, budget):
        named = {"models": self.pair.name, "cell": cell.name, "batch": cell.batch}
        return named | {"number": next(self.numbers)}

    def memory(self, cell):
        return {"ours": 10.0}


def test_speed_keeps_the_cells_that_it_does_not_measure_again(tmp_path, monkeypatch):
    monkeypatch.setattr(speed_benchmark, "Bench", CountingBench)
    monkeypatch.setattr(CountingBench, "numbers", itertools.count(1), raising=False)
    monkeypatch.setattr(speed_benchmark, "summary", lambda _: "")
    path, pair = tmp_path / "speed.json", next(iter(quick_pairs()))
    assert [cell.name for cell in pair.cells] == ["8 s", "8 windows of 8 s"]

    def run(some, fresh=False):
        speed_benchmark.run([pair], some, CPU, path, 0.0, fresh)
        kept = read(path)
        assert kept["models"].keys() == {pair.name}
        return {cell["cell"]: cell["number"] for cell in kept["cells"]}

    assert run("") == {"8 s": 1, "8 windows of 8 s": 2}
    assert run("windows") == {"8 s": 1, "8 windows of 8 s": 3}
    assert run("windows", fresh=True) == {"8 windows of 8 s": 4}
