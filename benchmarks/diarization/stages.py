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
from pyannote.audio import Pipeline
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.audio.pipelines.speaker_verification import PyannoteAudioPretrainedSpeakerEmbedding
from pyannote.core import SlidingWindow, SlidingWindowFeature

from asr.engine.request import DecodeOptions
from asr.transcriber import Transcriber
from asr.transcription import TranscriptionOptions
from benchmarks.timing import Action, peak_memory, ratio, time_interleaved
from config import DEMO_MODELS
from demo.build.clip import Samples
from diarization.diarizer import Diarizer, SpeakerHints
from diarization.embeddings import share_frames
from diarization.loading import load_diarizer
from diarization.pyannote_pipeline import CPU_BATCH, GPU_BATCH, PyannoteDiarizer
from testing.model_pairs import demo_pair
from timebase import SAMPLE_RATE

FOLDER = str(DEMO_MODELS / "diarization")
# Seconds, seconds, and frames a window: those of segmentation-3.0 and community-1.
WINDOW, STEP, FRAMES = 10.0, 1.0, 589
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
        pipeline: Any = Pipeline.from_pretrained(FOLDER)
        pipeline.to(self.device)
        return pipeline

    def diarizers(self) -> dict[str, Diarizer]:
        """The endpoint's diarizer, and the same without `share_frames`."""
        return {
            OURS: load_diarizer(FOLDER, None, None, self.device),
            STOCK: PyannoteDiarizer(self.pipeline(), self.batch_size),
        }


def embed_demo(bench: Bench) -> Rows:
    """The embedding stage of the demo's models on the conversation."""
    pipelines, file = (bench.pipeline(), bench.pipeline()), _file(bench.conversation)
    pipelines[0].segmentation_batch_size = bench.batch_size
    return _embed("demo models", bench, pipelines, file, pipelines[0].get_segmentations(file))


def embed_full_size(bench: Bench, seconds: float) -> Rows:
    """That of WeSpeaker's ResNet34, the network of community-1 and 3.1, with random weights."""
    torch.manual_seed(0)
    weights = WeSpeakerResNet34().state_dict()
    pipelines = (bench.pipeline(), bench.pipeline())
    for pipeline in pipelines:
        network = WeSpeakerResNet34()
        network.load_state_dict(weights)
        pipeline._embedding = PyannoteAudioPretrainedSpeakerEmbedding(network, device=bench.device)
        pipeline._segmentation.duration = WINDOW
    file = _file(np.resize(bench.conversation, round(seconds * SAMPLE_RATE)))
    activity = _three_voices(round((seconds - WINDOW) / STEP) + 1)
    return _embed("full size", bench, pipelines, file, activity)


def _three_voices(windows: int) -> SlidingWindowFeature:
    """Windows of three voices each, one after the other, every one a little into the next."""
    active = np.zeros((FRAMES, 3), np.float32)
    for voice in range(3):
        start, stop = voice * FRAMES // 3, (voice + 1) * FRAMES // 3 + FRAMES // 20
        active[start:stop, voice] = 1
    data = np.stack([np.roll(active, window * FRAMES // 10, axis=0) for window in range(windows)])
    return SlidingWindowFeature(data, SlidingWindow(start=0.0, duration=WINDOW, step=STEP))


def _embed(
    name: str,
    bench: Bench,
    pipelines: tuple[Any, Any],
    file: Any,  # noqa: ANN401
    activity: Any,  # noqa: ANN401
) -> Rows:
    """Rows of the table: pyannote.audio at two batch sizes, and ours."""
    stock, ours = pipelines
    if not share_frames(ours):
        raise ValueError(f"{name}: this pipeline cannot share frames")
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
        rows.append([f"{name}, {action}", windows, f"{difference:.0e}", median, gain])
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
            bench.conversation, TranscriptionOptions(decode=DecodeOptions(words=True))
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
