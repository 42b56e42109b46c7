"""Diarization and its embedding stage, timed beside pyannote.audio as it comes.

pyannote.audio is a second pipeline from the same folder that `share_frames` has not changed. It
runs interleaved with ours and must give the same answer, at its own batch size and at the
endpoint's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Action, peak_memory, ratio, time_interleaved, time_once
from config import DEMO_MODELS
from tests.support.model_pairs import demo_pair
from tests.support.speech import Samples
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.transcriber import Transcriber
from whosaid.diarization import load_diarizer
from whosaid.diarization.clustering import complete_voices
from whosaid.diarization.diarizer import Diarization, Diarizer, SpeakerHints
from whosaid.diarization.embeddings import share_frames
from whosaid.diarization.pyannote import (
    CPU_BATCH,
    GPU_BATCH,
    PyannoteDiarizer,
    load_pyannote,
    load_stock_pipeline,
)
from whosaid.diarization.thread import warm_up
from whosaid.timebase import SAMPLE_RATE

FOLDER = str(DEMO_MODELS / "diarization")
NO_HINTS = SpeakerHints()
OURS, STOCK = "this project", "pyannote.audio"
Rows = list[list[str]]


@dataclass(frozen=True)
class Bench:
    """Where it runs, on what, and how often."""

    device: torch.device
    conversation: Samples
    repeats: int

    @property
    def batch_size(self) -> int:
        """The endpoint's."""
        return CPU_BATCH if self.device.type == "cpu" else GPU_BATCH

    def pipeline(self) -> Any:  # noqa: ANN401
        """pyannote.audio with the demo's models."""
        return stock_pipeline(FOLDER, self.device)

    def diarizers(self) -> dict[str, Diarizer]:
        """The endpoint's diarizer, and the same without `share_frames`."""
        return {
            OURS: load_diarizer(FOLDER, None, None, self.device),
            STOCK: PyannoteDiarizer(self.pipeline(), self.batch_size),
        }


def stock_pipeline(folder: str, device: torch.device) -> Any:  # noqa: ANN401
    """pyannote.audio as it comes, but with the endpoint's voices: turns are to be compared."""
    pipeline: Any = load_stock_pipeline(folder, None, None)
    pipeline.to(device)
    complete_voices(pipeline)
    return pipeline


def embed_demo(bench: Bench) -> Rows:
    """The embedding stage on the conversation: pyannote.audio at two batch sizes, and ours."""
    pipelines, file = (bench.pipeline(), bench.pipeline()), _file(bench.conversation)
    stock, ours = pipelines
    stock.segmentation_batch_size = bench.batch_size
    activity = stock.get_segmentations(file)
    if not share_frames(ours):
        raise ValueError("this pipeline cannot share frames")
    ours.embedding_batch_size = bench.batch_size

    def embed(pipeline: Any, batch_size: int) -> Any:  # noqa: ANN401
        pipeline.embedding_batch_size = batch_size
        return pipeline.get_embeddings(file, activity, exclude_overlap=True)

    actions: dict[str, Callable[[], Any]] = {
        f"{STOCK}, batch 1": lambda: embed(stock, 1),
        f"{STOCK}, batch {bench.batch_size}": lambda: embed(stock, bench.batch_size),
        OURS: lambda: embed(ours, bench.batch_size),
    }
    difference = np.abs(actions[OURS]() - actions[f"{STOCK}, batch 1"]()).max()
    seconds = time_interleaved(actions, bench.repeats, bench.device)
    voices = activity.data.any(axis=1).sum(axis=1)
    windows = f"{len(voices)} windows, {voices.mean():.1f} voices in each"
    rows = []
    for action, measured in seconds.items():
        gain = str(ratio(measured, seconds[OURS]))
        median = f"{np.median(measured):.2f}"
        rows.append([action, windows, f"{difference:.0e}", median, gain])
    return rows


def diarize(bench: Bench) -> dict[str, list[float]]:
    """Seconds of a diarization of the conversation by each, whose turns must be equal."""
    diarizers = bench.diarizers()
    turns = [each.diarize(bench.conversation, NO_HINTS) for each in diarizers.values()]
    if turns[0] != turns[1]:
        raise ValueError("the turns are not those of pyannote.audio")

    def action(diarizer: Diarizer) -> Action:
        return lambda: diarizer.diarize(bench.conversation, NO_HINTS)

    actions = {name: action(diarizer) for name, diarizer in diarizers.items()}
    return time_interleaved(actions, bench.repeats, bench.device)


@dataclass(frozen=True)
class Published:
    """A pipeline of real weights, and the speech that it hears over and over."""

    folder: str
    speech: Samples
    stock_minutes: float  # pyannote.audio hears no more at once

    def diarizers(self, device: torch.device, minutes: float) -> dict[str, PyannoteDiarizer]:
        """The endpoint's diarizer, and pyannote.audio with its own batch sizes."""
        diarizers = {OURS: load_pyannote(self.folder, None, None, device)}
        if minutes <= self.stock_minutes:
            pipeline = stock_pipeline(self.folder, device)
            diarizers[STOCK] = PyannoteDiarizer(pipeline, pipeline.embedding_batch_size)
        return diarizers


def diarize_published(
    bench: Bench, published: Published, minutes: float, threads: int
) -> list[str]:
    """A row of the table: `minutes` of real speech by each, whose turns must be equal; what
    pyannote.audio does not hear is measured once.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    samples = np.resize(published.speech, round(minutes * 60 * SAMPLE_RATE))
    diarizers = published.diarizers(bench.device, minutes)
    seconds: dict[str, list[float]] = {name: [] for name in diarizers}
    peaks: dict[str, list[float]] = {name: [] for name in diarizers}
    found: dict[str, Diarization] = {}
    for diarizer in diarizers.values():
        warm_up(diarizer)
    for repeat in range(bench.repeats if STOCK in diarizers else 1):
        for name in diarizers if repeat % 2 == 0 else reversed(list(diarizers)):

            def diarize(name: str = name) -> None:
                found[name] = diarizers[name].diarize(samples, NO_HINTS)

            def measure(name: str = name, diarize: Action = diarize) -> None:
                seconds[name].append(time_once(diarize, bench.device))

            peaks[name].append(peak_memory(measure, bench.device))
    torch.set_num_threads(before)
    if found.get(STOCK, found[OURS]) != found[OURS]:
        raise ValueError(f"{published.folder}: the turns are not those of pyannote.audio")
    gain = str(ratio(seconds[STOCK], seconds[OURS])) if STOCK in seconds else ""
    rates = [_median(seconds, name, 60 * minutes, 3) for name in (OURS, STOCK)]
    needed = [_median(peaks, name, 1, 0) for name in (OURS, STOCK)]
    return [f"{minutes:g} min", str(threads), *rates, gain, *needed]


def _median(measured: dict[str, list[float]], name: str, each: float, digits: int) -> str:
    return f"{np.median(measured[name]) / each:.{digits}f}" if name in measured else ""


def beside_recognition(bench: Bench, threads: int) -> list[str]:
    """Recognition and diarization of the conversation, each alone and both as the endpoint runs
    them, on `threads` each.

    torch gives every Python thread that computes a pool of so many threads: two pools of as many as
    there are cores share them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    transcriber = Transcriber(demo_pair(bench.device, torch.float32))
    diarizer = bench.diarizers()[OURS]

    def recognise() -> object:
        return transcriber.transcribe(
            bench.conversation, TranscriptionOptions(decode=DecodeOptions())
        )

    def diarize() -> object:
        return diarizer.diarize(bench.conversation, NO_HINTS)

    def both() -> None:
        with ThreadPoolExecutor(1) as executor:
            turns = executor.submit(diarize)
            recognise()
            turns.result()

    recognise()
    actions: dict[str, Action] = {"recognition": recognise, "diarization": diarize, "both": both}
    seconds = time_interleaved(actions, bench.repeats, bench.device)
    torch.set_num_threads(before)
    alone = [seconds["recognition"], seconds["diarization"]]
    slower, total = max(alone, key=np.median), [sum(pair) for pair in zip(*alone, strict=True)]
    medians = [f"{np.median(measured):.2f}" for measured in seconds.values()]
    gains = [str(ratio(seconds["both"], other)) for other in (slower, total)]
    return [str(threads), *medians, *gains]


def measure_memory(bench: Bench, minutes: int) -> Rows:
    """MiB at the peak of diarizing the conversation over and over, above what is held before."""
    long = np.resize(bench.conversation, minutes * 60 * SAMPLE_RATE)
    found: list[object] = []
    peaks = []
    for diarizer in bench.diarizers().values():

        def diarize(diarizer: Diarizer = diarizer) -> None:
            found.append(diarizer.diarize(long, NO_HINTS))

        peaks.append(f"{peak_memory(diarize, bench.device):.0f}")
    if found[0] != found[1]:
        raise ValueError("the turns are not those of pyannote.audio")
    return [[f"{minutes} min", f"{long.nbytes / 2**20:.0f}", *peaks]]


def _file(samples: Samples) -> dict[str, Any]:
    return {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}
