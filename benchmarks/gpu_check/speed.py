"""The checks of speed and of memory.

Absolute speeds are not checked, because GPUs differ. A larger batch, graphs and an assistant must
not be slower.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.checks import NO_GPU
from benchmarks.gpu_check.memory import GB, MB, footprint
from benchmarks.gpu_check.page import Finding, judge, leave_out, note
from benchmarks.gpu_check.recording import Samples, lasting
from benchmarks.gpu_check.subject import Subject
from benchmarks.timing import time_interleaved, time_once
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

BATCHES = (1, 8, 24)
GPU_SECONDS, CPU_SECONDS, QUICK_SECONDS = 600.0, 60.0, 15.0  # of audio a run
REPEATS = 3
SLACK = 0.9  # tolerance of a median of few runs
# Tolerances for the models' memory: rounding by the allocator; inputs and outputs of encoder
# graphs; and cuBLAS on Hopper, 32 MiB for each of the four streams of decoding and captures.
MODELS_SHARE, MODELS_BYTES = 0.05, 192 << 20
GROWTH_BYTES = 32 << 20


@dataclass
class Run:
    """A way to transcribe; `transcript` is the newest run's."""

    subject: Subject
    recording: Samples
    batch_size: int
    assisted: bool = False
    eager: bool = False
    transcript: Transcript = field(init=False)

    def __call__(self) -> None:
        runner = self.subject.graphs if self.eager else None
        with nullcontext() if runner is None else runner.paused():
            self.transcript = self.subject.transcribe(
                self.recording, self.batch_size, self.assisted
            )

    @property
    def step_ms(self) -> float:
        """Return the mean milliseconds of a decoding step."""
        stats = self.transcript.stats
        return 1e3 * stats.decode_seconds / max(1, stats.steps)


def check_speed(subject: Subject) -> list[Finding]:
    """Measure RTFx (seconds of audio a second) by batch, with and without graphs and assistant."""
    whole, quick = (GPU_SECONDS, CPU_SECONDS) if subject.on_cuda else (CPU_SECONDS, QUICK_SECONDS)
    seconds = quick if subject.quick else whole
    recording = lasting(subject.recording, seconds)
    runs = _runs(subject, recording)
    repeats = 1 if subject.quick else REPEATS
    if subject.on_cuda:
        for run in _runs(subject, lasting(recording, CPU_SECONDS)).values():
            run()  # the first eager run is slow
    timed = time_interleaved(runs, repeats, subject.device)
    rtfx = {
        name: len(run.recording) / SAMPLE_RATE / median(timed[name]) for name, run in runs.items()
    }
    audio = f"{seconds:.0f} s of audio, median of {repeats}"
    findings = [_judge_batch(subject, rtfx, size) for size in BATCHES]
    findings += _judge_eager(subject, runs, rtfx)
    findings.append(_judge_assisted(subject, runs, rtfx))
    findings += _note_shares(subject, runs[f"batch {BATCHES[-1]}"])
    findings.append(_note_busy(subject, runs[f"batch {BATCHES[-1]}"]))
    return [note("measured over", audio), *findings]


def _note_shares(subject: Subject, run: Run) -> list[Finding]:
    """Note the shares of encoder, prefill and decoding, and the number of replayed passes."""
    stats, name = run.transcript.stats, f"batch {run.batch_size}"
    parts = {
        "encoding": stats.encode_seconds,
        "prefill": stats.prefill_seconds,
        "decoding": stats.decode_seconds,
    }
    total = sum(parts.values()) or 1.0
    shares = ", ".join(f"{part} {seconds / total:.0%}" for part, seconds in parts.items())
    findings = [
        note(f"shares of {name}", f"{shares} of {total:.2f} s; {run.step_ms:.2f} ms a step")
    ]
    graphs = subject.graphs
    if graphs is not None:
        replayed, eager = graphs.replayed, graphs.eager
        run()
        replayed, eager = graphs.replayed - replayed, graphs.eager - eager
        passes = f"{replayed} replayed, {eager} run eagerly"
        findings.append(note(f"passes of a request, {name}", passes))
    return findings


def _note_busy(subject: Subject, run: Run) -> Finding:
    """Note the share of time in which the GPU computes or copies, by torch's profiler, which itself
    takes some of the time. A failing profiler is not a failure of the endpoint.
    """
    name = f"GPU busy, batch {run.batch_size}"
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
    return note(name, f"{covered(spans) / 1e6 / seconds:.0%}")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of `spans`, which may overlap."""
    length, until = 0.0, -math.inf
    for start, stop in sorted(spans):
        length += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return length


def _runs(subject: Subject, recording: Samples) -> dict[str, Run]:
    runs = {f"batch {size}": Run(subject, recording, size) for size in BATCHES}
    if subject.graphs is not None:
        # Only steps at batch 1 are compared, so less audio is enough.
        runs["eager"] = Run(subject, lasting(recording, CPU_SECONDS), BATCHES[0], eager=True)
    if subject.assisted:
        runs["assisted"] = Run(subject, recording, BATCHES[-1], assisted=True)
        runs["assisted, batch 1"] = Run(subject, recording, BATCHES[0], assisted=True)
    return runs


def _judge_batch(subject: Subject, rtfx: Mapping[str, float], size: int) -> Finding:
    """Check that a larger batch is not slower, and that the smallest keeps up with the audio."""
    name = f"batch {size}"
    found = f"{rtfx[name]:.1f}"
    if not subject.on_cuda:
        return note(f"RTFx, {name}", found)
    before = max((each for each in BATCHES if each < size), default=None)
    if before is None:
        return judge(f"RTFx, {name}", "at least 1", found, rtfx[name] >= 1)
    least = SLACK * rtfx[f"batch {before}"]
    expected = f"at least {least:.1f} ({SLACK} of batch {before})"
    return judge(f"RTFx, {name}", expected, found, rtfx[name] >= least)


def _judge_eager(
    subject: Subject, runs: Mapping[str, Run], rtfx: Mapping[str, float]
) -> list[Finding]:
    """Check that steps with graphs take less time than eager steps."""
    name = "a step of batch 1, with graphs"
    if "eager" not in runs:
        return [leave_out(name, NO_GPU if not subject.on_cuda else "graphs are off")]
    graphs, eager = runs["batch 1"].step_ms, runs["eager"].step_ms
    expected = f"less than {eager:.2f} ms, as eagerly"
    found = f"{graphs:.2f} ms; RTFx eagerly {rtfx['eager']:.1f}"
    return [judge(name, expected, found, graphs < eager)]


def _judge_assisted(
    subject: Subject, runs: Mapping[str, Run], rtfx: Mapping[str, float]
) -> Finding:
    """Check that an assistant costs next to nothing: drafting stops if it does not pay."""
    name = f"RTFx, batch {BATCHES[-1]} and batch 1, assisted"
    if not subject.assisted:
        return leave_out(name, "ASSISTANT_MODEL names none")
    acceptance = runs["assisted"].transcript.stats.acceptance
    drafted = "nothing drafted" if acceptance is None else f"{acceptance:.0%} of drafts accepted"
    found = f"{rtfx['assisted']:.1f} and {rtfx['assisted, batch 1']:.1f}; {drafted} in batch 24"
    if not subject.on_cuda:
        return note(name, found)
    pairs = {"assisted": f"batch {BATCHES[-1]}", "assisted, batch 1": f"batch {BATCHES[0]}"}
    fine = all(rtfx[one] >= SLACK * rtfx[other] for one, other in pairs.items())
    return judge(name, f"each at least {SLACK} of that without", found, fine)


def check_memory(subject: Subject) -> list[Finding]:
    """Check the memory of the models after rows and graphs are freed against their shapes, and that
    requests of the default batch leave nothing behind.
    """
    if not subject.on_cuda:
        return [leave_out(name, NO_GPU) for name in ("models in memory", "peak of a request")]
    engine, device = subject.transcriber.engine, subject.device
    models = subject.transcriber.models
    loaded = [models.model] if models.assistant is None else [models.model, models.assistant.model]
    size = footprint(loaded, engine.main, engine.draft_model)
    with engine.computing():  # rows are made in the stream that decodes them
        for batch in engine.batches.values():
            batch.clear()
        gc.collect()
        held = torch.cuda.memory_allocated(device) - subject.allocated_before
        rows = engine.memory.ensure_capacity(BATCHES[-1]).capacity
    most = size.models * (1 + MODELS_SHARE) + MODELS_BYTES
    run = Run(subject, subject.recording, BATCHES[-1], subject.assisted)
    after = []
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats(device)
        run()
        gc.collect()
        after.append(torch.cuda.memory_allocated(device))
    peak, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    growth = after[-1] - after[-2]
    return [
        judge(
            "models in memory",
            f"{size.models / GB:.2f} GB by their shapes",
            f"{held / GB:.2f} GB",
            size.models <= held <= most,
        ),
        judge(
            f"rows of the default batch, {BATCHES[-1]}",
            "they fit",
            f"{rows} fit",
            rows >= BATCHES[-1],
        ),
        note("peak of a request", f"{peak / GB:.2f} GB; {reserved / GB:.2f} GB reserved in all"),
        judge(
            "memory after more requests",
            f"grows by at most {GROWTH_BYTES / MB:.0f} MB",
            f"{growth / MB:.1f} MB",
            growth <= GROWTH_BYTES,
        ),
    ]
