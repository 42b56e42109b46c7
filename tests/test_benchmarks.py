"""What the benchmark of decoding stands on: its pairs say what they should, its engines agree, its
ratios are right.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from oracle import TINY, models_of, noise_windows

from asr.checkpoint.assistants import decoder_alone
from asr.checkpoint.loading import Assistant, Checkpoint, load_whisper
from asr.engine.engine import DecodeEngine, DecodeOptions
from benchmarks.report import read, save, table
from benchmarks.speed.__main__ import Cell, Row, quick_rows, remembered, rows
from benchmarks.speed.engines import ChunkedPipeline, CTranslate, Ours, decode
from benchmarks.speed.page import page
from benchmarks.timing import Ratio, in_turns, peak_memory, ratio, turns_within
from config import DEMO_MODELS
from demo.build.voices import Voice, speak
from testing.model_pairs import deepened, demo_pair, disturbed

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def sentence():
    """Two seconds that the demo models understand."""
    return speak(
        Voice("espeak", "f5", "en-us", 50, 160), "is there a hotel near the museum"
    ).samples


def greedy(models, windows):
    return decode(
        DecodeEngine(dataclasses.replace(models, assistant=None)),
        windows,
        DecodeOptions(batch_size=4),
    )


def acceptance(models, windows, most_tokens=30):
    ours = Ours(models, most_tokens)
    ours.rounds.tally = tally = ours.tallies[True]
    decode(ours.engine, windows, DecodeOptions(assisted=True, batch_size=4, drafts=4), most_tokens)
    return tally.acceptance


def paired(models, main, assistant):
    helper = Assistant("shallow", decoder_alone(assistant), shares_encoder=True, only_language=None)
    return dataclasses.replace(models, model=main, assistant=helper)


def test_the_demo_model_made_deep_says_the_same(sentence):
    models = load_whisper(Checkpoint(str(DEMO_MODELS / "asr")), CPU, torch.float32)
    deep = dataclasses.replace(models, model=deepened(models.model, 12, epsilon=0.0))
    assert deep.model.config.decoder_layers == len(deep.model.model.decoder.layers) == 12
    (said,) = greedy(deep, [sentence])
    assert [said] == greedy(models, [sentence])
    assert "hotel near the museum" in models.tokenizer.decode(said, skip_special_tokens=True)


def test_inserted_layers_compute_what_their_share_lets_through():
    models = models_of(TINY)
    windows = noise_windows(4)
    shares = [
        acceptance(paired(models, deepened(models.model, 6, epsilon), models.model), windows)
        for epsilon in (0.0, 0.3, 3.0)
    ]
    assert shares[0] == 1
    assert shares == sorted(shares, reverse=True)
    assert shares[2] < shares[1] < 1


def test_a_disturbed_assistant_is_wrong_more_often_and_changes_no_token():
    models, windows = models_of(TINY), noise_windows(4)
    pairs = [
        paired(models, models.model, disturbed(models.model, noise)) for noise in (0.0, 0.1, 1.0)
    ]
    shares = [acceptance(pair, windows) for pair in pairs]
    assert shares[0] == 1
    assert shares[2] < shares[1] < 1
    options = DecodeOptions(assisted=True, drafts=3)
    assert len({str(decode(DecodeEngine(pair), windows, options, 30)) for pair in pairs}) == 1


def test_every_engine_says_the_same_about_one_window(sentence):
    models = demo_pair(CPU, torch.float32)
    ours, pipeline = Ours(models, None), ChunkedPipeline(models, None)
    text = ours.transcribe(sentence, 1, assisted=False)
    assert "museum" in text
    assert ours.transcribe(sentence, 4, assisted=True) == text
    assert pipeline.transcribe(sentence, 24, assisted=False) == text
    assert pipeline.transcribe(sentence, 24, assisted=True) == text
    (tokens,) = ours.decode([sentence], 1, assisted=True)
    assert CTranslate(models, None).decode([sentence], 4) == [tokens]
    assert [len(window) for window in ours.windows(sentence)] == [
        pytest.approx(len(sentence), rel=0.3)
    ]


def test_a_ratio_is_of_medians_and_its_interval_holds_it():
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


def test_turns_alternate_and_every_action_gets_as_many():
    order = []
    measured = in_turns({name: lambda name=name: order.append(name) for name in "abc"}, 3, CPU)
    assert "".join(order) == "abccbaabc"
    assert {name: len(seconds) for name, seconds in measured.items()} == {"a": 3, "b": 3, "c": 3}
    assert [turns_within(10, each) for each in (100, 2.5, 0.001)] == [3, 4, 15]


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


def test_the_page_says_which_targets_were_missed():
    def cell(row, batch, acceptance, **seconds):
        return {
            "row": row,
            "cell": "60 s",
            "batch": batch,
            "audio": 60.0,
            "seconds": {name.replace("_", " "): [value] * 3 for name, value in seconds.items()},
            "acceptance": acceptance,
            "tokens a round": 2.0,
            "drafts": {"4": 7},
        }

    cells = [
        cell("demo models", 4, None, pipeline=3.0, ours=1.0, assisted=1.0),
        cell("deep pair, 0.9", 1, 0.9, ours=3.4, assisted=2.0),
        cell("deep pair, 0.3", 8, 0.3, ours=1.0, assisted=1.1),
    ]
    facts = {"main step ms": 30.0, "draft step ms": 3.0, "most tokens": None}
    results = {
        "settings": {"torch": "2"},
        "rows": {"deep pair, 0.9": facts},
        "cells": json.loads(json.dumps(cells)),
    }
    verdicts = [
        line for line in page(results).splitlines() if line.endswith(("| met |", "| MISSED |"))
    ]
    assert [line.split(" | ")[-1] == "met |" for line in verdicts] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert "10.0" in page(results)


def test_cells_that_repeat_others_are_not_timed():
    for row in (*rows(CPU), *quick_rows()):
        assert len(set(row.cells)) == len(row.cells)
        assert all(cell.batch == 1 or "pipeline assisted" not in cell.columns for cell in row.cells)
        assert bool(row.memory) == (remembered(row) is not None)
    assert sum(isinstance(row, Row) for row in rows(torch.device("cuda"))) == 8
    assert Cell(4, (), window=15).name == "16 windows of 15 s"
