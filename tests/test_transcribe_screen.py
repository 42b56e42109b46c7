"""What is told of a run: lines as recordings end, the time left, and the summary."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from transcribe import screen
from transcribe.screen import Lines, Tally, Terminal, clock, speed

ONE, TWO, THREE = (Path(name) for name in ("one.wav", "two.wav", "three.wav"))


@pytest.fixture
def time_passes(monkeypatch):
    """A clock that is ten seconds on whenever it is asked."""
    seconds = count(100.0, 10.0)
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(seconds))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (75.5, "1:16"), (3599.9, "1:00:00")],
)
def test_times_are_rounded_to_seconds_and_carried(seconds, text):
    assert clock(seconds) == text


def test_speed_needs_a_time():
    assert (speed(30.0, 12.0), speed(30.0, 0.0)) == ("2.5x real time", "at once")


@pytest.mark.usefixtures("time_passes")
def test_the_time_left_goes_by_bytes():
    tally = Tally({ONE: 100, TWO: 300}, started=100.0)
    assert tally.left() == ""
    tally.done = 1
    tally.end(ONE)
    # A quarter is behind after no time, then after ten seconds.
    assert [tally.left(), tally.left()] == [", about 0:00 left", ", about 0:30 left"]
    tally.done = 2
    tally.end(TWO)
    assert tally.left() == ""


@pytest.mark.usefixtures("time_passes")
def test_the_summary_counts_everything_that_was_asked_for():
    tally = Tally({ONE: 1, TWO: 1, THREE: 1}, skipped=2, audio=90.0, done=1, started=70.0)
    tally.failures.append((TWO, "INVALID_AUDIO: no audio"))
    assert tally.summary() == [
        "5 recordings: 1 done, 2 done before (--force transcribes them again), 1 failed, 1 not done"
        "; 1:30 of audio in 0:30, 3.0x real time",
        "failed: two.wav: INVALID_AUDIO: no audio",
    ]
    assert Tally({ONE: 1}, done=0).summary() == ["1 recording: 0 done, 1 not done"]


def test_a_single_recording_has_a_line_without_number_and_no_summary(capsys):
    with Terminal().shown(Tally({ONE: 1})) as lines:
        lines.begin(ONE)
        lines.finish(ONE, 30.0, 12.0, ["warning: quiet"])
    assert capsys.readouterr().err.splitlines() == [
        "one.wav: 0:30 of audio in 12.0 s, 2.5x real time",
        "one.wav: warning: quiet",
    ]


def test_however_a_run_ends_there_is_a_summary(capsys):
    terminal = Terminal()

    def run() -> None:
        with terminal.shown(Tally({ONE: 1, TWO: 1})) as lines:
            with terminal.without_bars():
                lines.fail(ONE, "no file")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    first, summary, failed = capsys.readouterr().err.splitlines()
    assert first == "[1/2] one.wav: no file"
    assert summary.startswith("2 recordings: 0 done, 1 failed, 1 not done")
    assert failed == "failed: one.wav: no file"


def test_lines_of_many_threads_are_numbered_one_after_the_other(capsys):
    paths = [Path(f"{number}.wav") for number in range(40)]
    lines = Lines(Tally(dict.fromkeys(paths, 1)))
    threads = [threading.Thread(target=lines.finish, args=(path, None, 1.0, ())) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("]")[0] for line in told] == [f"[{n}/40" for n in range(1, 41)]
    assert {line.split()[1] for line in told} == {f"{path}:" for path in paths}
