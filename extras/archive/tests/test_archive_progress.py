"""What is shown of a run, by a clock that the tests set."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("pyarrow")

from extras.archive.manifest import Recording
from extras.archive.progress import Progress, clock_time, counted, failure_table, span
from extras.archive.records import Record

RECORDINGS = [Recording(str(n), f"/in/{n}.wav", 1, 1, duration=1800.0) for n in range(4)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, times: list[float], done: int) -> Progress:
    """Progress whose clock is read at these times."""
    clock = iter(times)
    progress = Progress(RECORDINGS, 3, stream, lambda: next(clock))
    for n in range(done):
        progress.add(Record(str(n), f"/in/{n}.wav", code="INVALID_AUDIO" if n == 2 else ""))
    return progress


def test_lines_elsewhere_come_now_and_then():
    stream = io.StringIO()
    shown(stream, [0.0, 10.0, 20.0, 70.0, 70.0, 70.0], 3)
    assert stream.getvalue() == (
        "3/4 recordings, 1.50 h of 2.00 h of audio, 77.1 x real time, 30 s left, 1 failed\n"
    )


def test_a_terminal_has_one_line_that_is_written_again():
    stream = Terminal()
    shown(stream, [0.0, *[10.0] * 3, *[20.0] * 3, *[20.0] * 9], 2).close()
    first, second, last = stream.getvalue().split("\r")[1:]
    assert first.startswith("1/4 recordings, 30.0 min")
    assert second.startswith("2/4 recordings, 1.00 h of 2.00 h of audio")
    assert last.endswith("\x1b[K\n")


def test_the_summary():
    progress = shown(io.StringIO(), [0.0, 10.0, 10.0, 10.0, 3600.0], 3)
    assert progress.summary() == (
        "2 recordings done and 1 failed, 1.50 h of audio in 1:00:00, 1.5 x real time."
        " 3 done before."
    )


def test_the_table_of_failures_shows_the_first_of_each_code():
    records = [Record(str(n), f"/in/{n}\n.wav", "INVALID_AUDIO", "empty") for n in range(5)]
    table = failure_table(
        [Record("x", "/in/x.wav", "NOT_FOUND", "there is no such file"), *records]
    )
    assert table.splitlines() == [
        r"INVALID_AUDIO       5  /in/0\n.wav: empty",
        r"                       /in/1\n.wav: empty",
        r"                       /in/2\n.wav: empty",
        "                       and 2 more",
        "NOT_FOUND           1  /in/x.wav: there is no such file",
    ]
    assert failure_table([]) == ""


def test_numbers_for_people():
    lengths = (0.4, 36, 90, 3600, 3600 * 1234)
    assert [span(each) for each in lengths] == ["0 s", "36 s", "1.5 min", "1.00 h", "1234 h"]
    assert [counted(number) for number in (0, 1, 2)] == [
        "0 recordings",
        "1 recording",
        "2 recordings",
    ]
    assert [clock_time(seconds) for seconds in (0.4, 3661.6, 90_000)] == [
        "0 s",
        "1:01:02",
        "25:00:00",
    ]
