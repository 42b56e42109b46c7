"""The check of speed.

Absolute speeds are not checked, because GPUs differ. A larger batch, graphs and an assistant must
not be slower.
"""

import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.checks import NO_GPU
from benchmarks.gpu_check.page import Finding, judge, leave_out, note
from benchmarks.gpu_check.subject import Samples, Subject, lasting
from benchmarks.timing import time_interleaved, time_once
from config import REPOSITORY
from whosaid.timebase import SAMPLE_RATE, merged
from whosaid.transcript import Transcript

CLOCKS = "clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu"
SINGLE, USUAL = 1, 24
BATCHES, CPU_BATCHES = (SINGLE, 8, USUAL, 48, 96), (SINGLE, 8)
# Seconds of audio: of a row, so that a run fills its batch, at least SHORTEST; of a run on a CPU.
ROW_SECONDS, SHORTEST = 30.0, 60.0
CPU_SECONDS, QUICK_SECONDS = 60.0, 15.0
FILLS = 2  # of a batch, by the audio of a run: rows that end are filled again, as in service
REPEATS = 2
SLACK = 0.8  # tolerance of the fastest of few runs


@dataclass
class Run:
    """A way to transcribe, which should be as fast as the one called `baseline`; `transcript` is
    the newest run's.
    """

    subject: Subject
    recording: Samples
    batch_size: int
    baseline: str = ""
    assisted: bool = False
    eager: bool = False
    transcript: Transcript = field(init=False)

    def __call__(self) -> None:
        runner = self.subject.graphs if self.eager else None
        with nullcontext() if runner is None else runner.paused():
            given = self.recording, self.batch_size, self.assisted
            self.transcript = self.subject.transcribe(*given)


def check_speed(subject: Subject) -> list[Finding]:
    """Measure RTFx (seconds of audio a second) by batch, with and without graphs and assistant."""
    fitting = _fitting(subject)
    runs = _runs(subject, fitting)
    repeats = 1 if subject.quick else REPEATS
    if subject.on_cuda:
        for run in runs.values():
            if not run.eager:
                run()  # first runs are slower
    timed = time_interleaved(runs, repeats, subject.device)
    rtfx = {name: len(run.recording) / SAMPLE_RATE / min(timed[name]) for name, run in runs.items()}
    reason = "as many rows do not fit" if subject.on_cuda else NO_GPU
    usual = f"batch {min(USUAL, fitting[-1])}"
    named = subject.settings.asr_model.name
    model = "the demo's model" if named.startswith(str(REPOSITORY)) else named
    return [
        note("RTFx", f"{rtfx[usual]:.1f} at {usual}, {model}, best of {repeats}"),
        *(_judge_speed(name, run, rtfx) for name, run in runs.items()),
        *(leave_out(f"RTFx, batch {size}", reason) for size in BATCHES if size not in fitting),
        *_note_passes(subject, runs[usual]),
        _note_busy(subject, runs[usual]),
        _note_clocks(subject),
    ]


def _note_clocks(subject: Subject) -> Finding:
    """Note clocks and power right after work, by nvidia-smi."""
    name = "clocks and power"
    if not subject.on_cuda:
        return leave_out(name, NO_GPU)
    try:
        asked = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return leave_out(name, f"nvidia-smi failed: {type(error).__name__}")
    return note(name, "; ".join(told.stdout.split("\n")).strip("; "))


def _fitting(subject: Subject) -> list[int]:
    """Return the batches to time: those that fit, and if USUAL does not, all rows."""
    if not subject.on_cuda:
        return list(CPU_BATCHES)
    rows = subject.engine.memory.capacity
    return sorted({min(rows, USUAL), *(size for size in BATCHES if size <= rows)})


def _runs(subject: Subject, batches: list[int]) -> dict[str, Run]:
    def audio(size: int) -> Samples:
        if subject.on_cuda:
            return lasting(subject.recording, max(SHORTEST, FILLS * ROW_SECONDS * size))
        return lasting(subject.recording, QUICK_SECONDS if subject.quick else CPU_SECONDS)

    runs, before = {}, ""
    if subject.graphs is not None:
        before = "batch 1 without graphs"
        runs[before] = Run(subject, audio(SINGLE), SINGLE, eager=True)
    for size in batches:
        name = f"batch {size}"
        runs[name] = Run(subject, audio(size), size, before)
        before = name
    if subject.assisted:
        for size in (SINGLE, min(USUAL, batches[-1])):
            name = f"batch {size}"
            runs[f"{name}, assisted"] = Run(subject, audio(size), size, name, assisted=True)
    return runs


def _judge_speed(name: str, run: Run, rtfx: Mapping[str, float]) -> Finding:
    """Check that a run is not slower than its baseline, or keeps up with the audio."""
    acceptance = run.transcript.stats.acceptance
    drafted = "" if acceptance is None else f"; {acceptance:.0%} of drafts accepted"
    check, found = f"RTFx, {name}", f"{rtfx[name]:.1f}{drafted}"
    if not run.subject.on_cuda:
        return note(check, found)
    if not run.baseline:
        return judge(check, "at least 1", found, rtfx[name] >= 1)
    least = SLACK * rtfx[run.baseline]
    expected = f"at least {least:.1f} ({SLACK} of {run.baseline})"
    return judge(check, expected, found, rtfx[name] >= least)


def _note_passes(subject: Subject, run: Run) -> list[Finding]:
    """Note steps, tokens and retries, and the passes that graphs replay."""
    name, graphs = f"batch {run.batch_size}", subject.graphs
    stats = run.transcript.stats
    step_ms = 1e3 * stats.decode_seconds / max(1, stats.steps)
    steps = f"{stats.steps} steps of {step_ms:.2f} ms, {stats.tokens} tokens"
    findings = [note(f"work of {name}", f"{steps}, {stats.retries} windows decoded again")]
    if graphs is None:
        return findings
    before = graphs.replayed, graphs.eager
    run()
    replayed, eager = graphs.replayed - before[0], graphs.eager - before[1]
    return [*findings, note(f"passes of {name}", f"{replayed} replayed, {eager} run eagerly")]


def _note_busy(subject: Subject, run: Run) -> Finding:
    """Note the share of time in which the GPU computes or copies, by torch's profiler, which itself
    takes some of the time. A failing profiler is not a failure of the endpoint.
    """
    name = "GPU busy"
    if not subject.on_cuda:
        return leave_out(name, NO_GPU)
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            seconds = time_once(run, subject.device)
        spans = [
            (each.time_range.start, each.time_range.end)
            for each in profiled.events()
            if each.device_type.name == "CUDA"
        ]
    except Exception as error:
        return leave_out(name, f"torch's profiler failed: {type(error).__name__}: {error}")
    if not spans:
        return leave_out(name, "torch's profiler saw no work of the GPU")
    starts, stops = merged(spans)
    share = (stops - starts).sum() / 1e6 / seconds
    return note(name, f"{share:.0%} at batch {run.batch_size}")
