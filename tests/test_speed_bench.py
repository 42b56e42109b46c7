"""What a cell of the speed benchmark keeps, with an engine that only counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.speed import bench
from benchmarks.speed.bench import Bench
from benchmarks.speed.cells import ASSISTED, CT2, OURS, PIPELINE, PIPELINE_ASSISTED, Cell, whole
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import DecodeStats


class Engine:
    """Notes every call; of a recording it plans windows that leave out a tenth, as silence."""

    def __init__(self, name: str, calls: list) -> None:
        self.name, self.calls = name, calls
        self.assisted_stats = DecodeStats()

    def transcribe(self, samples, batch_size, assisted):
        self._note(len(samples), batch_size, assisted)

    def decode(self, windows, batch_size, assisted=False):
        self._note(sum(map(len, windows)), batch_size, assisted)

    def _note(self, samples, batch_size, assisted):
        self.calls.append((self.name, assisted, samples, batch_size))
        stats = self.assisted_stats
        stats.drafted, stats.accepted = stats.drafted + 4, stats.accepted + 3 * assisted
        stats.drafted_rows += 1

    def windows(self, samples):
        return [samples[: len(samples) * 9 // 10]]


@pytest.fixture
def calls(monkeypatch):
    def time_interleaved(actions, repeats, _device):
        """As the true one, without a clock and without collecting garbage before each."""
        return {name: [1.0 for _ in range(repeats) if not run()] for name, run in actions.items()}

    def recording(seconds):
        return np.zeros(seconds * SAMPLE_RATE, np.float32)

    monkeypatch.setattr(bench, "recording", recording)
    monkeypatch.setattr(bench, "time_interleaved", time_interleaved)
    return []


def bench_of(calls):
    made = object.__new__(Bench)
    made.pair, made.device = SimpleNamespace(name="demo models"), torch.device("cpu")
    made.ours = Engine("ours", calls)
    made.pipeline, made.ctranslate2 = Engine("pipeline", calls), Engine("CTranslate2", calls)
    return made


def test_a_recording_lasts_as_long_as_it_is_and_every_column_hears_it(calls):
    (cell,) = whole(60, 1)
    kept = bench_of(calls).measure(cell, budget=0.0)
    assert (kept["audio"], kept["cell"], kept["batch"]) == (60, "60 s", 1)
    samples = 60 * SAMPLE_RATE
    assert calls[:5] == [
        ("pipeline", False, samples, 1),
        ("pipeline", True, samples, 1),
        ("CTranslate2", False, samples * 9 // 10, 1),
        ("ours", False, samples, 1),
        ("ours", True, samples, 1),
    ]
    assert list(kept["seconds"]) == [PIPELINE, PIPELINE_ASSISTED, CT2, OURS, ASSISTED]


@pytest.mark.parametrize(("warm_up", "repeats"), [(1e9, 3 + 1), (0.0, 3)])
def test_a_short_first_repeat_warms_up_and_a_long_one_counts(calls, monkeypatch, warm_up, repeats):
    monkeypatch.setattr(bench, "WARM_UP", warm_up)
    kept = bench_of(calls).measure(Cell(2, (OURS, ASSISTED), window=15), budget=0.0)
    assert [call[1] for call in calls].count(True) == repeats
    assert {name: len(times) for name, times in kept["seconds"].items()} == {OURS: 3, ASSISTED: 3}


def test_given_windows_are_four_full_batches_and_statistics_are_of_what_was_timed(calls):
    kept = bench_of(calls).measure(Cell(2, (ASSISTED,), window=15), budget=0.0)
    assert kept["audio"] <= 8 * 15
    assert calls[-1] == ("ours", True, round(kept["audio"] * SAMPLE_RATE), 2)
    assert (kept["acceptance"], kept["tokens per step"]) == (0.75, 4.0)
