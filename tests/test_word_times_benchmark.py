"""The benchmark of word times: TextGrids of every form are read, and errors are what was moved."""

import json

import numpy as np
import pytest
import soundfile

from benchmarks.options import read_bench, run
from benchmarks.real import word_times
from benchmarks.real.engines import Setting
from benchmarks.real.word_times import errors_of, read_words
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Word

TRUTH = [Word("red", 0.5, 0.75), Word('"green"', 0.75, 1.0), Word("blue", 1.5, 2.0)]
SHORT = """File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n2.5\n<exists>\n3
"TextTier"\n"words heard"\n0\n2.5\n1
1.25\n"click"
"IntervalTier"\n"words"\n0\n2.5\n4
0.5\n0.75\n"red"
0.75\n1\n\"\"\"green\"\"\"
1\n1.5\n""
1.5\n2\n"blue"
"IntervalTier"\n"phones"\n0\n2.5\n1
0.5\n0.75\n"r"
"""
LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 2.5
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "Anna - words"
        xmin = 0
        xmax = 2.5
        intervals: size = 3
"""
for number, each in enumerate(TRUTH, 1):
    quoted = each.text.replace('"', '""')
    LONG += f"""        intervals [{number}]:
            xmin = {each.start}
            xmax = {each.end}
            text = "{quoted}"
"""


@pytest.mark.parametrize("text", [SHORT, LONG])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_form_of_a_textgrid_is_read_alike(text, encoding, tmp_path):
    grid = tmp_path / "a.TextGrid"
    grid.write_text(text, encoding=encoding)
    assert read_words(grid) == TRUTH


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("words", "has no words"),
        (SHORT[:230], "is no TextGrid"),
        (SHORT.replace("\n4\n", "\n5\n"), ""),
    ],
)
def test_a_wrong_textgrid_is_one_line(text, said, tmp_path):
    (tmp_path / "a.TextGrid").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.TextGrid: .*{said}"):
        read_words(tmp_path / "a.TextGrid")


def test_errors_are_those_of_words_that_were_recognised():
    found = [Word(" Red,", 0.6, 0.75), Word(" grey", 0.75, 1.0), Word(" blue.", 1.5, 1.8)]
    assert errors_of(found, TRUTH) == [(0.1, 0.0), (0.0, -0.2)]
    assert errors_of([Word(" red", 9.0, 9.1)], TRUTH) == []


class Late:
    """Stands in for an engine that hears every word 20 ms too late."""

    def __init__(self, name, *arguments):
        self.name = name

    def call(self, method, recording):
        assert (method, recording.language) == ("words", "en")
        return [Word(word.text, word.start + 0.02, word.end + 0.02) for word in TRUTH]

    def close(self):
        pass


def test_every_engine_is_measured_in_every_folder(tmp_path, monkeypatch):
    for folder in ("read", "noisy"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.TextGrid").write_text(SHORT)
        soundfile.write(tmp_path / folder / "a.wav", np.zeros(SAMPLE_RATE), SAMPLE_RATE)
    monkeypatch.setattr(word_times, "Apart", Late)
    monkeypatch.setattr(word_times, "setting_of", lambda _: Setting(tmp_path, tmp_path, "cpu"))
    output = tmp_path / "kept.json"
    asked = ["--recordings", str(tmp_path), "--model", "whisper", "--output", str(output)]
    assert run(read_bench(["word-times", *asked])) == 0
    rows = word_times.figures(json.loads(output.read_text()))["word times"]
    assert [(row["speech"], row["engine"]) for row in rows] == [
        (folder, engine) for engine in ("ours", "sequential") for folder in ("noisy", "read")
    ]
    assert {row["words"] for row in rows} == {"3 of 3"}
    assert {row["start: mean"] for row in rows} == {"20 ms"}
