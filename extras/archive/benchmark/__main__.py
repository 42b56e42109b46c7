"""Times `python -m extras.archive` beside a plain loop over its files.

First some recordings of a talk's length, by a loop with one
thread and with all, and by one worker and two, by turns; then many short ones by two workers, whose
memory is watched.

Every run is a process of its own, started as a user starts it. The figures come from the files that
the run wrote. A result's file is written when its recording ends and says how long that took, so
the cluster's start is separated from the work without asking the cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.pages import fill, terminal_text
from benchmarks.report import RESULTS, listed, save, settings
from benchmarks.speed.recordings import recording
from config import DEMO_MODELS, REPOSITORY
from extras.archive.benchmark.figures import figures
from tests.support.audio_files import wav_file
from whosaid.cli.parser import CommandParser, option
from whosaid.timebase import SAMPLE_RATE

WORK, PAGE = RESULTS / "archive", Path(__file__).with_name("README.md")
# Recordings and their seconds, and the repeats of each way through them.
LONG, LONG_SECONDS, REPEATS = 40, 20, 3
SHORT, SHORT_SECONDS = 2_000, 2
PACKAGES = ("torch", "transformers", "numpy", "ray", "pyarrow")
MIB = 2**20
LOOK_S = 1.0  # between two looks at the memory


@dataclass(frozen=True)
class Run:
    """Seconds of the whole command, seconds in which recordings were computed, and those of each
    recording, without what is written before and after it.
    """

    whole: float
    work: float
    each: list[float]


def main() -> None:
    parser = CommandParser(
        "python -m extras.archive.benchmark", "What the archive adds to a plain loop.", ()
    )
    option(
        parser, "--quick", "a short smoke test, whose figures prove nothing", action="store_true"
    )
    option(parser, "--publish", "write the figures into README.md", action="store_true")
    options = parser.parse_args()
    long, short, repeats = (4, 20, 1) if options.quick else (LONG, SHORT, REPEATS)
    talks, clips = (
        make_files("talks", long, LONG_SECONDS),
        make_files("clips", short, SHORT_SECONDS),
    )
    results: dict[str, Any] = {
        "settings": settings(PACKAGES),
        "talks": {"files": long, "seconds": LONG_SECONDS, "runs": {}},
    }
    cores = os.cpu_count() or 1
    ways = [("loop", 1), ("loop", cores), ("archive", 1), ("archive", 2)]
    for turn in range(repeats):
        for way, count in ways if turn % 2 == 0 else reversed(ways):
            run = run_loop(talks, count) if way == "loop" else run_archive(talks, count)
            runs = results["talks"]["runs"].setdefault(f"{way}, {count}", [])
            runs.append({"whole": run.whole, "work": run.work})
            save(RESULTS / "archive.part.json", results)
            print(f"{way}, {count}: {run.whole:.1f} s, of which {run.work:.1f} s work", flush=True)
    alone = run_loop(clips, 1)
    seen: list[dict[str, float]] = []
    together = run_archive(clips, 2, seen)
    results["clips"] = {
        "files": short,
        "seconds": SHORT_SECONDS,
        "loop": alone.work,
        "work": together.work,
        "each": statistics.mean(together.each),
        "memory": seen,
    }
    save(RESULTS / "archive.json", results)
    measured = figures(results) | {"settings": listed(results["settings"])}
    print(terminal_text(measured))
    if options.publish and not options.quick:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


def make_files(name: str, count: int, seconds: int) -> Path:
    """Write a folder of different cuts of one dialogue, and return it."""
    folder = WORK / f"{name}-{count}"
    if folder.is_dir():
        return folder
    samples, length = recording(600), seconds * SAMPLE_RATE
    starts = np.linspace(0, len(samples) - length, count).astype(int)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for number, start in enumerate(starts):
        cut = samples[start : start + length].astype(np.float64)
        (part / f"{number:05}.wav").write_bytes(wav_file(cut, SAMPLE_RATE))
    return part.rename(folder)


def run_loop(folder: Path, threads: int) -> Run:
    """Run the plain loop with `threads` threads."""
    started = time.perf_counter()
    said = subprocess.run(
        _command("extras.archive.benchmark.loop", str(folder), threads=threads),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    whole = time.perf_counter() - started
    return Run(whole, json.loads(said.stdout)["work"], [])


def run_archive(folder: Path, workers: int, seen: list[dict[str, float]] | None = None) -> Run:
    """Run the command with so many workers; add what its processes hold to `seen`."""
    out = WORK / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = _command("extras.archive", str(folder), "--out", str(out), "--actors", str(workers))
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        if seen is not None:
            seen += memory_of(process.pid, out)
        time.sleep(LOOK_S if seen is not None else LOOK_S / 10)
    whole = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"python -m extras.archive ended with status {process.returncode}")
    return Run(whole, *work_of(out, len(list(folder.iterdir()))))


def memory_of(pid: int, out: Path) -> Iterator[dict[str, float]]:
    """Yield a run's memory in MiB (its own process, its largest worker, Ray's other processes) and
    the number of recordings that are done. Ends with the process.
    """
    try:
        run = psutil.Process(pid)
        held = {child.pid: _named_rss(child) for child in run.children(recursive=True)}
        driver = run.memory_info().rss / MIB
    except psutil.NoSuchProcess:
        return
    found = [each for each in held.values() if each]
    workers = [rss for name, rss in found if name.startswith("ray::") and "Actor" in name]
    if workers:
        done = sum(1 for each in (out / "results").glob("*.json")) if out.is_dir() else 0
        others = sum(rss for _, rss in found) - sum(workers)
        yield {"done": done, "run": driver, "worker": max(workers), "others": others}


def _named_rss(process: psutil.Process) -> tuple[str, float] | None:
    try:
        return " ".join(process.cmdline()) or process.name(), process.memory_info().rss / MIB
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def work_of(out: Path, count: int) -> tuple[float, list[float]]:
    """Return the seconds from the first recording's start to the last one's end, and each one's."""
    begun, ended, each = [], [], []
    for path in (out / "results").glob("*.json"):
        seconds = json.loads(path.read_text(encoding="utf-8"))["recording"]["seconds"]
        written = path.stat().st_mtime
        begun.append(written - seconds)
        ended.append(written)
        each.append(seconds)
    if len(each) != count:
        raise RuntimeError(f"{len(each)} results of {count} recordings")
    return max(ended) - min(begun), each


def _command(module: str, *arguments: str, threads: int | None = None) -> list[str]:
    """Runs a module on the embedded models, offline; without an assistant and speakers, which cost
    the same everywhere.
    """
    unset = ("ASSISTANT_MODEL", "DIARIZATION_MODEL", "OMP_NUM_THREADS")
    variables = [f"ASR_MODEL={DEMO_MODELS / 'asr'}", "HF_HUB_OFFLINE=1"]
    if threads is not None:
        variables.append(f"OMP_NUM_THREADS={threads}")
    removed = [part for name in unset for part in ("-u", name)]
    return ["env", *removed, *variables, sys.executable, "-m", module, *arguments]


if __name__ == "__main__":
    main()
