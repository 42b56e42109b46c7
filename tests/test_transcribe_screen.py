"""Shows a run: lines for ended recordings, the remaining time, and the summary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from whosaid.transcribe import screen
from whosaid.transcribe.screen import Run, Terminal, clock, speed

ONE, TWO, THREE = (Path(name) for name in ("one.wav", "two.wav", "three.wav"))


@pytest.fixture
def time_passes(monkeypatch) -> None:
    """A clock that is ten seconds on whenever it is asked."""
    seconds = count(100.0, 10.0)
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(seconds))


@pytest.fixture
def lines(capsys) -> Callable[[], list[str]]:
    """Return the lines shown since the last call."""
    return lambda: capsys.readouterr().err.splitlines()


def test_times_are_rounded_to_seconds_and_carried():
    seconds = (0.0, 59.4, 59.6, 75.5, 3599.9)
    assert [*map(clock, seconds)] == ["0:00", "0:59", "1:00", "1:16", "1:00:00"]
    assert (speed(30.0, 12.0), speed(30.0, 0.0)) == ("2.5x real time", "at once")


@pytest.mark.usefixtures("time_passes")
def test_the_time_left_goes_by_bytes_and_the_summary_counts_all(lines):
    with Terminal().shown({ONE: 100, TWO: 300, THREE: 0}, skipped=2) as run:
        run.finish(ONE, 90.0, 12.0, ())
        run.fail(TWO, "INVALID_AUDIO: no audio")
    # A quarter of the bytes took ten seconds.
    assert lines() == [
        "[1/3] one.wav: 1:30 of audio in 12.0 s, 7.5x real time, about 0:30 left",
        "[2/3] two.wav: INVALID_AUDIO: no audio",
        "5 recordings: 1 done, 2 done before (--force transcribes them again), 1 failed, 1 not done"
        "; 1:30 of audio in 0:20, 4.5x real time",
        "failed: two.wav: INVALID_AUDIO: no audio",
    ]


def test_a_single_recording_has_a_line_without_number_and_no_summary(lines):
    with Terminal().shown({ONE: 1}) as run:
        run.begin(ONE)
        run.finish(ONE, 30.0, 12.0, ["warning: quiet :smile: [red]"])
    assert lines() == [
        "one.wav: 0:30 of audio in 12.0 s, 2.5x real time",
        "one.wav: warning: quiet :smile: [red]",
    ]


def test_however_a_run_ends_there_is_a_summary(lines):
    terminal = Terminal()

    def fail() -> None:
        with terminal.shown({ONE: 1, TWO: 1}) as run:
            with terminal.without_bars():
                run.fail(ONE, "no file")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    first, summary, failed = lines()
    assert first == "[1/2] one.wav: no file"
    assert summary.startswith("2 recordings: 0 done, 1 failed, 1 not done")
    assert failed == "failed: one.wav: no file"


def test_lines_of_many_threads_are_numbered_one_after_the_other(lines):
    paths = [Path(f"{number}.wav") for number in range(40)]

    def finish(run: Run, path: Path) -> None:
        run.begin(path)
        run.finish(path, None, 1.0, ())

    with Terminal().shown(dict.fromkeys(paths, 1)) as run:
        threads = [threading.Thread(target=finish, args=(run, path)) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    *shown, _ = lines()
    assert [line.partition("]")[0] for line in shown] == [f"[{n}/40" for n in range(1, 41)]
    assert {line.split()[1] for line in shown} == {f"{path}:" for path in paths}
