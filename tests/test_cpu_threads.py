"""Threads follow what other processes leave, by counts written by hand and a real busy process."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from whosaid.asr.model import cpu_threads


@pytest.mark.parametrize(
    ("busy", "own", "seconds", "expected"),
    [(2.0, 2.0, 1.0, 0.0), (2.0, 1.0, 1.0, 1.0), (1.0, 0.5, 0.5, 1.0), (0.1, 0.2, 1.0, 0.0)],
)
def test_other_processes_use_the_busy_time_left(busy, own, seconds, expected):
    before = cpu_threads.CpuSample(5.0, 100.0, 7.0, 2)
    after = cpu_threads.CpuSample(5.0 + seconds, 100.0 + busy, 7.0 + own, 2)
    assert cpu_threads.others(before, after) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("most", "busy", "processors", "threads"),
    [
        *((2, 0.0, 2, 2), (2, 0.4, 2, 2), (2, 0.7, 2, 1), (2, 2.0, 2, 1), (16, 1.0, 16, 15)),
        # Fewer threads than processors: those that are left over are others' to use.
        *((4, 6.0, 16, 4), (5, 10.0, 16, 5), (4, 14.0, 16, 2)),
    ],
)
def test_each_thread_has_its_own_processor_and_one_remains(most, busy, processors, threads):
    assert cpu_threads.threads_beside(most, busy, processors) == threads


@pytest.fixture
def stat(tmp_path, monkeypatch):
    """The file of /proc from which processor times are read."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    return tmp_path / "stat"


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set; torch's threads are recorded, not changed."""
    now = {"time": 0.0, "own": 0.0, "threads": 2}
    monkeypatch.setattr(cpu_threads, "seconds_of_other_threads", lambda: 0.0)
    monkeypatch.setattr(cpu_threads.time, "perf_counter", lambda: now["time"])
    monkeypatch.setattr(cpu_threads.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(cpu_threads.torch, "get_num_threads", lambda: now["threads"])
    monkeypatch.setattr(cpu_threads.torch, "set_num_threads", lambda most: now.update(threads=most))
    monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _: {0, 1})
    return now


def write(stat: Path, busy: float, processors: int = 2) -> None:
    """Processors of ours, alike busy, `busy` seconds in all, and one of somebody else's."""
    ticks = round(busy * os.sysconf("SC_CLK_TCK") / processors)
    ours = [f"cpu{number} {ticks} 0 0 999 999 0 0 0 0 0" for number in range(processors)]
    another = f"cpu{processors} 77777 0 0 0 0 0 0 0 0 0"
    stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *ours, another]))


def test_threads_make_room_for_a_neighbour_and_return(stat, clock):
    threads = cpu_threads.CpuThreads(2)
    seen = []
    for at, busy, own in [(0, 0, 0), (0.05, 9, 0), (1, 2, 1.0), (2, 4, 2.0), (3, 5, 3.0)]:
        write(stat, busy)
        clock.update(time=float(at), own=own)
        threads.adjust()
        seen.append(clock["threads"])
    # The first call counts, the second comes too soon; then a neighbour, twice; then none.
    assert seen == [2, 2, 1, 1, 2]


def test_threads_fewer_than_processors_stay_while_as_many_are_left(stat, clock, monkeypatch):
    monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _: set(range(8)))
    clock["threads"] = 3
    threads = cpu_threads.CpuThreads(3)
    seen = []
    # Others keep 4 of 8 processors busy, then 6, then 4.
    for at, busy in [(0, 0), (1, 4), (2, 10), (3, 14)]:
        write(stat, float(busy), processors=8)
        clock["time"] = float(at)
        threads.adjust()
        seen.append(clock["threads"])
    assert seen == [3, 3, 2, 3]


def test_all_threads_are_back_when_nothing_is_left_to_do(stat, clock):
    threads = cpu_threads.CpuThreads(2)
    clock["threads"] = 1
    threads.restore()
    assert clock["threads"] == 2
    threads.enabled, clock["threads"] = False, 1
    threads.restore()
    assert clock["threads"] == 1


def test_an_old_count_says_nothing(stat, clock):
    threads = cpu_threads.CpuThreads(2)
    for at, busy in [(0, 0), (100, 150)]:
        write(stat, busy)
        clock["time"] = float(at)
        threads.adjust()
    assert clock["threads"] == 2


@pytest.mark.parametrize("counted", ["nothing", "another's processors"])
def test_threads_stay_if_the_kernel_counts_nothing(stat, clock, counted):
    if counted != "nothing":
        stat.write_text("cpu 1 2 3 4 5 6 7 8 9 10\ncpu0 9 0 0 9 9 0 0 0 0 0\n")
    threads = cpu_threads.CpuThreads(2)
    for at in (0.0, 1.0, 2.0):
        clock["time"] = at
        threads.adjust()
    assert clock["threads"] == 2


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux counts so")
def test_work_of_other_threads_is_counted_separately():
    with ThreadPoolExecutor(1) as other:
        other.submit(compute, 0.0).result()
        before = cpu_threads.seconds_of_other_threads()
        compute(0.2)
        ours = cpu_threads.seconds_of_other_threads() - before
        other.submit(compute, 0.3).result()
        assert ours < 0.1
        assert cpu_threads.seconds_of_other_threads() - before >= 0.25


def test_preparation_while_idle_removes_no_thread(clock, monkeypatch):
    """A preparation thread that goes on takes one thread once something is decoded."""
    busy = lambda self, now: cpu_threads.CpuSample(now, now, 0.0, 2, now)  # noqa: E731
    monkeypatch.setattr(cpu_threads.CpuThreads, "_sample", busy)
    threads, found = cpu_threads.CpuThreads(2), []
    threads.restore()
    threads.watch()
    for at in (1.0, 2.0):
        clock["time"] = at
        threads.adjust()
        found.append(clock["threads"])
    assert found == [2, 1]


def after_idling(stat, clock, computes) -> int:
    """The threads with which a request begins after four idle seconds, in which a neighbour
    `computes` at the times for which that is true."""
    threads, busy, ready = cpu_threads.CpuThreads(2), 0.0, 0.0
    clock["time"] = 0.0
    write(stat, busy)
    threads.adjust()
    threads.restore()
    for tick in range(1, 401):
        clock["time"], busy = tick / 100, busy + computes(tick / 100) / 100
        write(stat, busy)
        if clock["time"] >= ready:
            ready = clock["time"] + threads.watch()
            assert clock["threads"] == 2
    threads.adjust()
    return clock["threads"]


@pytest.mark.parametrize("rested", [0.7, 3.0])
def test_resting_neighbour_takes_no_thread(stat, clock, rested):
    assert after_idling(stat, clock, lambda at: at < 4 - rested) == 2


@pytest.mark.parametrize("begun", [0.0, 1.0, 3.4])
def test_computing_neighbour_takes_a_thread_from_the_start(stat, clock, begun):
    assert after_idling(stat, clock, lambda at: at > begun) == 1


def test_next_request_keeps_the_number_of_threads(stat, clock):
    threads = cpu_threads.CpuThreads(2)
    for at, busy in [(0.0, 0), (1.0, 1), (1.05, 1)]:
        write(stat, busy)
        clock["time"] = at
        threads.adjust()
        assert clock["threads"] == (1 if at else 2)
        threads.restore()
        assert clock["threads"] == 2


def test_watching_needs_counts_and_two_threads(stat, clock):
    assert cpu_threads.CpuThreads(2).watch() is None
    write(stat, 0.0)
    assert cpu_threads.CpuThreads(1).watch() is None
    assert cpu_threads.CpuThreads(2).watch() == cpu_threads.IDLE_INTERVAL
