"""Foundations of the benchmarks: engines that agree, ratios, intervals, and kept results."""

import json

import numpy as np
import pytest
import torch

from benchmarks.counts import Interval
from benchmarks.pipeline import Pipeline
from benchmarks.report import Results, read
from benchmarks.speed import large
from benchmarks.speed.engines import CTranslate2, Ours
from benchmarks.timing import ratio, time_interleaved
from tests.support.model_pairs import Size, demo_pair
from whosaid.transcript import DecodeStats

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models():
    return demo_pair(CPU, torch.float32)


@pytest.mark.reliability
def test_every_engine_writes_the_same_for_one_window(models, sentence):
    ours, pipeline = Ours(models, None), Pipeline(models)
    text = ours.transcribe(sentence, 1, assisted=False)
    assert "museum" in text
    assert ours.assisted_stats == DecodeStats()
    assert ours.transcribe(sentence, 4, assisted=True) == text
    assert pipeline.transcribe(sentence, 24) == text
    (tokens,) = ours.decode([sentence], 1, assisted=True)
    assert CTranslate2(models, None).decode([sentence], 4) == [tokens]
    assert ours.assisted_stats.tokens >= 2 * len(tokens)
    (window,) = ours.windows(sentence)
    assert len(window) == pytest.approx(len(sentence), rel=0.3)


def test_random_weights_are_timed_with_an_assistant_and_without(monkeypatch):
    for name in ("SECONDS", "FULL_BATCHES", "REPEATS"):
        monkeypatch.setattr(large, name, 1)
    size = Size("narrow", "tiny", d_model=32, heads=2, layers=3)
    header, _, plain, assisted = large.page(CPU, size, [1], tokens=3).splitlines()
    assert header.startswith("| assistant | batch | ms a step")
    assert plain.startswith("| without | 1 |")
    assert assisted.startswith("| with | 1 |")


def test_random_weights_write_as_many_tokens_as_asked(models, sentence):
    ours = Ours(models, 3)
    decoded = ours.decode([sentence] * 2, 2, assisted=False)
    assert [len(tokens) for tokens in decoded] == [3, 3]
    assert ours.transcribe(sentence, 2, assisted=False) == str(decoded[:1])


def test_a_ratio_is_of_medians_and_inside_its_interval():
    measured = ratio([2.0, 2.2, 2.1, 9.0, 2.0], [1.0, 1.1, 1.05, 1.0, 1.0])
    assert measured.value == pytest.approx(2.1)
    assert 1.9 < measured.low <= measured.value <= measured.high < 9.1
    assert ratio([3.0] * 3, [1.5] * 3) == Interval(2.0, 2.0, 2.0)


def test_interval_of_a_ratio_covers_the_true_ratio():
    random = np.random.default_rng(0)
    draws = [
        ratio(random.lognormal(0.0, 0.2, 15) * 2, random.lognormal(0.0, 0.2, 15)) for _ in range(50)
    ]
    assert sum(each.low <= 2 <= each.high for each in draws) >= 44


def test_repeats_alternate_and_every_action_gets_as_many():
    order = []
    actions = {name: lambda name=name: order.append(name) for name in "abc"}
    measured = time_interleaved(actions, 3, CPU)
    assert "".join(order) == "abccbaabc"
    assert {name: len(seconds) for name, seconds in measured.items()} == {"a": 3, "b": 3, "c": 3}


def test_results_are_replaced_row_by_row_and_survive_errors(tmp_path, capsys):
    path, empty = tmp_path / "folder" / "kept.json", {"cells": []}
    results = Results(path, {}, empty, False)
    for row in ({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 1, "c": 2}, {"a": 2}):
        results.put("cells", row, "a", "b")
    kept = [{"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 2}, {"a": 2}]
    assert read(path)["cells"] == kept
    assert capsys.readouterr().err.endswith(" min  a 2\n")
    with pytest.raises(ValueError, match="JSON compliant"):
        results.put("cells", {"a": float("nan")}, "a")
    assert read(path)["cells"] == kept
    assert empty == {"cells": []}


def test_results_are_added_to_under_the_same_settings_alone(tmp_path):
    path, empty = tmp_path / "kept.json", {"cells": []}
    facts = {"precision": "float32", "minutes": 1.0, "repeats": 3}
    path.write_text(json.dumps({"cells": [1], "settings": facts}))
    again = facts | {"minutes": 7.0, "repeats": 1, "more": "x"}
    assert Results(path, again, empty, False).content == {"cells": [1], "settings": again}
    assert Results(path, facts, empty, True).content["cells"] == []
    for other in ({"precision": "int8"}, facts | {"precision": None}):
        with pytest.raises(SystemExit, match="with precision float32, and this run has"):
            Results(path, other, empty, False)
        assert Results(path, other, empty, True).content["cells"] == []
