"""What is shown of a run, by a clock that the tests set."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from extras.archive.manifest import Recording
from extras.archive.progress import Progress, failure_table
from extras.archive.records import Record

RECORDINGS = [Recording(str(n), f"/in/{n}.wav", 500, 1) for n in range(4)]


def test_lines_come_now_and_then_and_a_summary_at_the_end(capsys):
    clock = iter([0.0, 5.0, 9.0, 70.0, 3600.0])
    progress = Progress(RECORDINGS, lambda: next(clock))
    for n in range(3):
        outcome = {"code": "INVALID_AUDIO"} if n == 2 else {"duration": 1800.0}
        progress.add(Record(str(n), f"/in/{n}.wav", **outcome))
    assert capsys.readouterr().err == (
        "3/4 recordings, 1:00:00 of audio in 0:01:10, 51.4 x real time, 0:00:32 left, 1 failed\n"
    )
    assert progress.summary() == (
        "2 recordings done and 1 failed, 1:00:00 of audio in 1:00:00, 1.0 x real time."
    )


def test_the_table_of_failures_shows_the_first_of_each_code():
    records = [Record(str(n), f"/in/{n}\n.wav", "INVALID_AUDIO", "empty") for n in range(5)]
    missing = Record("x", "/in/x.wav", "NOT_FOUND", "there is no such file")
    assert failure_table([missing, *records]).splitlines() == [
        "INVALID_AUDIO: 5 recordings",
        r"  /in/0\n.wav: empty",
        r"  /in/1\n.wav: empty",
        r"  /in/2\n.wav: empty",
        "  and 2 more",
        "NOT_FOUND: 1 recording",
        "  /in/x.wav: there is no such file",
    ]
