"""Shows a run: lines for ended recordings, the remaining time, and the summary."""

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from whosaid.transcribe import screen
from whosaid.transcribe.screen import RecordingStage, Run, Terminal, clock, speed

ONE, TWO, THREE = (Path(name) for name in ("one.wav", "two.wav", "three.wav"))


@pytest.fixture
def time_passes(monkeypatch) -> None:
    seconds = count(100.0, 10.0)
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(seconds))


@pytest.fixture
def lines(capsys) -> Callable[[], list[str]]:
    return lambda: capsys.readouterr().err.splitlines()


def test_times_are_rounded_to_seconds_and_carried():
    seconds = (0.0, 59.4, 59.6, 75.5, 3599.9)
    assert [*map(clock, seconds)] == ["0:00", "0:59", "1:00", "1:16", "1:00:00"]
    assert (speed(30.0, 12.0), speed(30.0, 0.0)) == ("2.5x real time", "at once")


@pytest.mark.usefixtures("time_passes")
def test_the_time_left_is_by_bytes(lines):
    with Terminal().shown({ONE: 100, TWO: 300, THREE: 0}, skipped=2) as run:
        run.finish(ONE, 90.0, 12.0, ())
        run.fail(TWO, "INVALID_AUDIO: no audio")
    # A quarter of the bytes took ten seconds; each look at the clock takes ten more.
    assert lines() == [
        "[1/3] one.wav: 1:30 of audio in 12.0 s, 7.5x real time, about 0:30 left",
        "[2/3] two.wav: INVALID_AUDIO: no audio",
        "5 recordings: 1 done, 2 done before (--force transcribes them again), 1 failed, 1 not done"
        "; 1:30 of audio in 0:30, 3.0x real time",
        "failed: two.wav: INVALID_AUDIO: no audio",
    ]


def test_a_single_recording_has_no_number_or_summary(lines):
    with Terminal().shown({ONE: 1}) as run:
        run.begin(ONE)
        run.finish(ONE, 30.0, 12.0, ["warning: quiet :smile: [red]"])
    done = "one.wav: 0:30 of audio in 12.0 s, 2.5x real time"
    assert lines() == [done, "one.wav: warning: quiet :smile: [red]"]


def test_however_a_run_ends_there_is_a_summary(lines):
    terminal = Terminal()

    def fail() -> None:
        with terminal.shown({ONE: 1, TWO: 1}) as run:
            with terminal.without_bars():
                run.fail(ONE, "no file")
            run.begin(TWO)
            run.advance(TWO, 17.0, 50.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    first, stopped, summary, failed = lines()
    assert stopped == "two.wav: stopped at 34%; the next run begins it anew"
    assert first == "[1/2] one.wav: no file"
    assert summary.startswith("2 recordings: 0 done, 1 failed, 1 not done")
    assert failed == "failed: one.wav: no file"


@pytest.fixture
def moment(monkeypatch) -> list[float]:
    """Return the time as the only item of a list, which a test sets."""
    now = [1000.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    return now


def part(path: Path, resumes: bool) -> SimpleNamespace:
    return SimpleNamespace(path=path, resumes=resumes)


def test_a_bar_tells_work_share_and_time_left(moment):
    stage, shown = RecordingStage(), []
    for at, step in (
        (1003.0, None),
        (1003.0, "loading the models"),
        (1012.0, "decoding the audio"),
        (1014.0, (0.0, 90.0)),
        (1017.0, (0.0, 60.0)),
        (1020.0, (3.0, 60.0)),
        (1034.0, (15.0, 60.0)),
        (1070.0, (60.0, 60.0)),
        (1074.0, (0.3, 1.0, True)),
        (1080.0, (0.5, 1.0, True)),
        (1082.0, (1.0, 1.0, True)),
        (1084.0, None),
    ):
        moment[0] = at
        shown.append(str(stage))
        if isinstance(step, str):
            stage.begin(step)
        elif step:
            stage.advance(*step)
    assert shown == [
        "reading, 0:03",
        "reading, 0:03",
        "loading the models, 0:09",
        "decoding the audio, 0:02",
        "finding speech, 0:03",
        "finding speech, 0:06",
        "0:03 of 1:00 of speech",
        # a quarter took 56 seconds
        "0:15 of 1:00 of speech, about 2:48 left",
        "finding who said what, 0:04",
        "finding who said what: 30%",
        # a fifth took 8 seconds
        "finding who said what: 50%, about 0:20 left",
        "the last steps, 0:02",
    ]


def test_the_time_left_of_a_folder_leaves_out_the_load_and_falls(moment, lines):
    with Terminal().shown({ONE: 100, TWO: 300}) as run:
        run.begin(ONE)
        run.load(ONE)
        moment[0] += 60.0
        run.work(ONE, "decoding the audio")
        moment[0] += 10.0
        run.finish(ONE, 5.0, 10.0, ())
        assert str(run) == "1 done, about 0:30 left"
        moment[0] += 12.0
        assert str(run) == "1 done, about 0:18 left"
        moment[0] += 30.0
        assert str(run) == "1 done, about 0:00 left"
    assert "about 0:30 left" in lines()[0]


@pytest.mark.parametrize(("resumes", "left"), [(True, "0:30"), (False, "0:17")])
def test_the_time_left_counts_only_work_of_this_run(moment, resumes, left):
    stage = RecordingStage(partial=part(ONE, resumes))
    stage.advance(0.0, 100.0)
    moment[0] += 20.0
    stage.advance(50.0, 100.0)  # all from the file, if there is one
    moment[0] += 20.0
    stage.advance(70.0, 100.0)
    assert str(stage) == f"1:10 of 1:40 of speech, about {left} left"


def test_ctrl_c_says_that_a_job_goes_on(lines):
    with suppress(KeyboardInterrupt), Terminal().shown({ONE: 1}) as run:
        run.begin(ONE)
        run.work(ONE, "waiting for the server", None, True)
        raise KeyboardInterrupt
    goes_on = "the server's job goes on, and the next run takes its answer"
    assert lines() == [f"one.wav: stopped at 0%; {goes_on}"]


@pytest.mark.parametrize("exists", [False, True])
def test_ctrl_c_says_what_the_next_run_goes_on_from(lines, tmp_path, exists):
    file = tmp_path / "one.partial.jsonl"
    if exists:
        file.touch()
    with suppress(KeyboardInterrupt), Terminal().shown({ONE: 1}) as run:
        run.begin(ONE)
        run.work(ONE, "decoding the audio", part(file, resumes=exists))
        run.advance(ONE, 17.0, 50.0)
        raise KeyboardInterrupt
    told = [f"one.wav: goes on from {file}"] if exists else []
    goes_on = f"{file} keeps that, and the next run goes on from there"
    again = goes_on if exists else "the next run begins it anew"
    assert lines() == [*told, f"one.wav: stopped at 34%; {again}"]


def test_lines_of_threads_are_numbered_in_order(lines):
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
