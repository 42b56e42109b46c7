"""Heads that are right as often as they are told to be, and the page about them."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from benchmarks.speed.engines import decode
from extras.medusa.benchmark import __main__ as command
from extras.medusa.benchmark import script
from extras.medusa.benchmark.script import WRONG, set_acceptance
from extras.medusa.tests.stand_ins import tiny_models
from tests.oracle import noise_windows, random_heads
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions

DEPTHS = 3


@pytest.fixture(scope="module")
def engine():
    return DecodeEngine(random_heads(tiny_models(), DEPTHS))


@pytest.fixture(scope="module")
def windows():
    return noise_windows(4)


def test_drafts_are_right_as_often_as_is_wanted():
    rates = (0.9, 0.5, 0.2)
    random = np.random.default_rng(0)
    texts = [tuple(random.integers(1, 50, 40).tolist()) for _ in range(250)]
    drafts = iter(script._draw(script._ahead(texts, DEPTHS), rates).tolist())
    right, places = np.zeros(DEPTHS), np.zeros(DEPTHS)
    for text in texts:
        for place in range(len(text)):
            for depth, draft in enumerate(next(drafts)):
                ahead = text[place + 1 + depth : place + 2 + depth]
                assert draft in (WRONG, *ahead)
                right[depth] += draft != WRONG
                places[depth] += len(ahead)
    assert right / places == pytest.approx(rates, abs=0.015)
    assert next(drafts, None) is None


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    ("rates", "kept"), [((1, 1, 1), 3), ((1, 1, 0), 2), ((1, 0, 1), 1), ((0, 1, 1), 0)]
)
def test_the_engine_keeps_what_was_made_right_and_writes_the_same(
    engine, windows, rates, kept, batch
):
    """A pass gains what is right and a token, up to the end of its text."""
    plain, _ = decode(engine, windows, DecodeOptions(batch_size=batch))
    set_acceptance(engine, windows, rates)
    options = DecodeOptions(assisted=True, batch_size=batch, drafts=DEPTHS)
    texts, stats = decode(engine, windows, options)
    assert texts == plain
    # The prompt's pass has chosen the first token; the end of text is one more.
    lengths = [len(text) for text in texts]
    assert stats.drafted_rows == sum(-(-length // (kept + 1)) for length in lengths)
    # In the last pass the end itself may be the token that was right.
    ends = [min(kept, (length - 1) % (kept + 1) + 1) for length in lengths]
    before = [kept * ((length - 1) // (kept + 1)) for length in lengths]
    assert stats.accepted == sum(ends) + sum(before)


def run(monkeypatch, folder, *options):
    """Run the command in a folder of its own, without an end to a page."""
    monkeypatch.setattr(command, "RESULTS", folder)
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    command.main()


def test_every_column_is_compared_with_the_plain_one(tmp_path, monkeypatch, capsys):
    cell = {
        "models": "demo models",
        "window": 30,
        "batch": 8,
        "seconds": {"plain": [4.0, 4.4, 4.2], "heads": [2.0, 2.2, 2.1]},
        "tokens a pass": {"plain": 1.0, "heads": 2.345},
        "MiB": {"plain": 10.4, "heads": 20.6},
    }
    measured = iter([cell, cell | {"models": "deep pair", "batch": 1}])
    empty = [command.Pair(name, {}) for name in ("demo models", "deep pair")]
    monkeypatch.setattr(command, "pairs", lambda _: empty)
    monkeypatch.setattr(command, "measure", lambda *_: next(measured))
    page = tmp_path / "README.md"
    page.write_text(command.PAGE.read_text())
    monkeypatch.setattr(command, "PAGE", page)
    run(monkeypatch, tmp_path, "--cells", "30 s, batch 8", "--publish")
    lines = page.read_text().splitlines()
    assert "| 30 s | 8 | plain | 4.20 | 1.00 (1.00-1.00) | 1.00 | 10 |" in lines
    assert "| 30 s | 8 | heads | 2.10 | 2.00 (2.00-2.00) | 2.35 | 21 |" in lines


def test_cells_that_are_not_measured_again_are_kept(tmp_path, monkeypatch):
    numbers = itertools.count(1)

    def measured(pair, engines, cell, budget):
        seconds, batch = cell
        return {"models": pair.name, "window": seconds, "batch": batch, "number": next(numbers)}

    pairs = [command.Pair(name, {}) for name in ("demo models", "deep pair")]
    monkeypatch.setattr(command, "pairs", lambda _: pairs)
    monkeypatch.setattr(command, "measure", measured)
    monkeypatch.setattr(command, "figures", lambda results, *_: kept.append(results["cells"]) or {})
    kept = []
    for options in (["--cells", "demo models, 5 s"], ["--cells", "batch 8"], ["--fresh"]):
        run(monkeypatch, tmp_path, *options)
    first, second, third = kept
    assert [cell["number"] for cell in first] == [1, 2, 3]
    assert {(cell["models"], cell["window"], cell["batch"]): cell["number"] for cell in second} == {
        ("demo models", 5, 1): 1,
        ("demo models", 5, 8): 4,
        ("demo models", 5, 24): 3,
        ("demo models", 30, 8): 5,
        ("deep pair", 5, 8): 6,
        ("deep pair", 30, 8): 7,
    }
    assert [cell["number"] for cell in third] == list(range(8, 20))
