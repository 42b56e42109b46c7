import csv
from pathlib import Path

import pytest

from benchmarks.real.manifest import Recording
from extras.medusa.acceptance import Acceptance
from extras.medusa.evaluation import ASSISTED, PLAIN, Evaluated, summary, write_csv
from whosaid.transcript import Chunk, DecodeStats, Transcript

ACCEPTANCE = {"with timestamps": Acceptance((10, 6), (6, 3), tokens=19, passes=10)}


def transcript(text: str, accepted: int = 0, passes: int = 0) -> Transcript:
    stats = DecodeStats(accepted=accepted, drafted_rows=passes)
    return Transcript((Chunk(f" {text}", 0.0, 1.0, -0.1, 0.0),), "en", stats=stats)


def evaluated(name: str, reference: str, plain: str, assisted: str) -> Evaluated:
    texts = {PLAIN: transcript(plain), ASSISTED: transcript(assisted, accepted=6, passes=4)}
    seconds = {PLAIN: [2.0, 4.0, 3.0], ASSISTED: [1.0, 2.0, 1.5]}
    return Evaluated(Recording(Path(name), "en", reference), 6.0, texts, seconds)


RESULTS = [
    evaluated("one.wav", "the cat sat down", "The cat sat down.", "The cat sat down."),
    evaluated("two.wav", "a dog ran off", "a dog run off", "a dog run off"),
    evaluated("none.wav", "", "hello", "hello there"),
]


def test_errors_are_those_of_normalised_words_and_characters():
    right, wrong, _ = RESULTS
    assert (right.words(PLAIN).errors, right.words(PLAIN).total) == (0, 4)
    assert (wrong.words(PLAIN).errors, wrong.words(PLAIN).total) == (1, 4)
    assert (wrong.characters(PLAIN).errors, wrong.characters(PLAIN).total) == (1, 13)


def test_the_summary_adds_recordings_up():
    text = summary(RESULTS, ACCEPTANCE)
    plain, assisted = (line for line in text.splitlines() if line.startswith(("| pl", "| with h")))
    # One wrong word of 8; 9 seconds for 18 of audio, half of that with heads.
    assert plain.split(" | ")[1:4] == ["12.50%", "3.45%", "9.00"]
    assert "2.0 | 1.00 (1.00-1.00) | 1.00" in plain
    assert assisted.split(" | ")[3] == "4.50"
    assert "4.0 | 2.00 (" in assisted
    assert assisted.endswith("| 2.50 |")
    assert "Texts that differ: none.wav" in text
    assert "| with timestamps | 60.0% | 50.0% | 1.90 |" in text


def test_equal_texts_are_said_to_be(tmp_path):
    assert "All texts are equal." in summary(RESULTS[:2], {})


def test_the_csv_has_a_row_a_recording(tmp_path):
    write_csv(tmp_path / "out.csv", RESULTS)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["audio"] for row in rows] == ["one.wav", "two.wav", "none.wav"]
    assert [row["WER"] for row in rows] == ["0.0", "0.25", ""]
    assert [float(row["speed-up"]) for row in rows] == pytest.approx([2.0] * 3)
    assert [row["same text"] for row in rows] == ["True", "True", "False"]
