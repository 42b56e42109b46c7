"""What sharing frames gains, and what running beside speech recognition costs: `python -m
benchmarks.diarization`.

Four questions: how long the embedding stage takes in stock pyannote and here, on the demo's models
and on WeSpeaker's ResNet34 at full size (random weights: the network of community-1 and 3.1); how
long a whole diarization takes; how long speech recognition and diarization take side by side; and
what the diarization of a long file needs in memory. The one decision: stock is a second pipeline
from the same folder that `share_frames` has not seen, asked in turns with ours and held to the same
answer, at pyannote's own batch size and at the endpoint's.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyannote.audio import Pipeline
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
from pyannote.audio.pipelines.speaker_verification import PyannoteAudioPretrainedSpeakerEmbedding
from pyannote.core import SlidingWindow, SlidingWindowFeature

from asr.transcriber import TranscriptionOptions
from audio import AudioLimits, decode_audio
from benchmarks.report import PAGES, RESULTS, listed, save, settings, table
from benchmarks.timing import in_turns, peak_memory, ratio
from config import DEMO_MODELS, REPOSITORY, ModelSettings, prepare_environment
from demo.build.clip import Samples
from diarization.embeddings import share_frames
from diarization.pipeline import CPU_BATCH, GPU_BATCH, Diarizer, SpeakerHints, load_diarizer
from handler import EndpointHandler
from timebase import SAMPLE_RATE

FOLDER = str(DEMO_MODELS / "diarization")
WINDOW, STEP, FRAMES = (
    10.0,
    1.0,
    589,
)  # seconds, seconds, frames a window: segmentation-3.0 and community-1
PACKAGES = ("torch", "pyannote.audio", "transformers", "numpy")
NO_HINTS = SpeakerHints()
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Bench:
    """Where it runs, on what, and how often."""

    device: torch.device
    conversation: Samples
    turns: int

    @property
    def batch_size(self) -> int:
        """The endpoint's."""
        return CPU_BATCH if self.device.type == "cpu" else GPU_BATCH

    def pipeline(self) -> Any:  # noqa: ANN401
        """Stock pyannote on the demo's models."""
        pipeline: Any = Pipeline.from_pretrained(FOLDER)
        pipeline.to(self.device)
        return pipeline


# ---- the embedding stage


def demo_stage(bench: Bench) -> list[list[str]]:
    """The demo's models on the conversation, as its own segmentation hears it."""
    pipelines, file = (bench.pipeline(), bench.pipeline()), _file(bench.conversation)
    pipelines[0].segmentation_batch_size = bench.batch_size
    return _stages("demo models", bench, pipelines, file, pipelines[0].get_segmentations(file))


def full_stage(bench: Bench, seconds: float) -> list[list[str]]:
    """WeSpeaker's ResNet34 on windows that hold three voices each."""
    torch.manual_seed(0)
    weights = WeSpeakerResNet34().state_dict()
    pipelines = (bench.pipeline(), bench.pipeline())
    for pipeline in pipelines:
        network = WeSpeakerResNet34()
        network.load_state_dict(weights)
        pipeline._embedding = PyannoteAudioPretrainedSpeakerEmbedding(network, device=bench.device)
        pipeline._segmentation.duration = WINDOW
    file = _file(np.resize(bench.conversation, round(seconds * SAMPLE_RATE)))
    return _stages(
        "full size", bench, pipelines, file, _three_voices(round((seconds - WINDOW) / STEP) + 1)
    )


def _three_voices(windows: int) -> SlidingWindowFeature:
    """Each window holds three voices, one after the other, each a little into the next."""
    speaks = np.zeros((FRAMES, 3), np.float32)
    for voice in range(3):
        speaks[voice * FRAMES // 3 : (voice + 1) * FRAMES // 3 + FRAMES // 20, voice] = 1
    data = np.stack([np.roll(speaks, window * FRAMES // 10, axis=0) for window in range(windows)])
    return SlidingWindowFeature(data, SlidingWindow(start=0.0, duration=WINDOW, step=STEP))


def _stages(
    name: str,
    bench: Bench,
    pipelines: tuple[Any, Any],
    file: Any,  # noqa: ANN401
    activity: Any,  # noqa: ANN401
) -> list[list[str]]:
    """Rows of the table: stock at two batch sizes, and ours, whose embeddings must be the same."""
    stock, ours = pipelines
    assert share_frames(ours)
    ours.embedding_batch_size = bench.batch_size

    def embed(pipeline: Any, batch_size: int) -> Any:  # noqa: ANN401
        pipeline.embedding_batch_size = batch_size
        return pipeline.get_embeddings(file, activity, exclude_overlap=True)

    actions: dict[str, Callable[[], Any]] = {
        "stock, batch 1": lambda: embed(stock, 1),
        f"stock, batch {bench.batch_size}": lambda: embed(stock, bench.batch_size),
        "shared frames": lambda: embed(ours, bench.batch_size),
    }
    difference = np.abs(actions["shared frames"]() - actions["stock, batch 1"]()).max()
    seconds = in_turns(actions, bench.turns, bench.device)
    voices = activity.data.any(axis=1).sum(axis=1)
    about = f"{len(voices)} windows, {voices.mean():.1f} voices heard in each, largest difference {difference:.0e}"
    rows = []
    for action, measured in seconds.items():
        gain = str(ratio(measured, seconds["shared frames"]))
        rows.append([f"{name}, {action}", about, f"{np.median(measured):.2f}", gain])
    return rows


# ---- the whole


def whole(bench: Bench) -> list[list[str]]:
    """A diarization of the conversation, whose turns must be stock pyannote's."""
    stock, ours = (
        Diarizer(bench.pipeline(), bench.batch_size),
        load_diarizer(FOLDER, None, None, bench.device),
    )
    assert stock.diarize(bench.conversation, NO_HINTS) == ours.diarize(bench.conversation, NO_HINTS)
    actions: dict[str, Callable[[], object]] = {
        "stock": lambda: stock.diarize(bench.conversation, NO_HINTS),
        "shared frames": lambda: ours.diarize(bench.conversation, NO_HINTS),
    }
    seconds = in_turns(actions, bench.turns, bench.device)
    gains = {
        name: str(ratio(measured, seconds["shared frames"])) for name, measured in seconds.items()
    }
    return [[name, f"{np.median(measured):.2f}", gains[name]] for name, measured in seconds.items()]


def side_by_side(bench: Bench, threads: int) -> list[str]:
    """Speech recognition and diarization of the conversation, alone and as the endpoint runs them,
    on `threads` each.

    torch gives every Python thread its own pool of so many threads: with as many as there are
    cores, two pools share them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    handler = EndpointHandler(settings=ModelSettings.for_demo())
    transcriber, diarizer = handler._transcriber, handler._diarizer
    assert diarizer is not None
    speech = transcriber.detect(bench.conversation)

    def recognise() -> object:
        return transcriber.transcribe(bench.conversation, TranscriptionOptions(words=True), speech)

    def diarize() -> object:
        return diarizer.diarize(bench.conversation, NO_HINTS)

    def both() -> None:
        with ThreadPoolExecutor(1) as beside:
            turns = beside.submit(diarize)
            recognise()
            turns.result()

    recognise()
    actions: dict[str, Callable[[], object]] = {
        "recognition": recognise,
        "diarization": diarize,
        "both": both,
    }
    seconds = in_turns(actions, bench.turns, bench.device)
    torch.set_num_threads(before)
    alone = [seconds["recognition"], seconds["diarization"]]
    slower, total = max(alone, key=np.median), [sum(pair) for pair in zip(*alone, strict=True)]
    medians = [f"{np.median(measured):.2f}" for measured in seconds.values()]
    return [
        str(threads),
        *medians,
        str(ratio(seconds["both"], slower)),
        str(ratio(seconds["both"], total)),
    ]


def memory(bench: Bench, minutes: int) -> list[list[str]]:
    """Peaks of a diarization of the conversation over and over, above what is held before."""
    long = np.resize(bench.conversation, minutes * 60 * SAMPLE_RATE)
    stock, ours = (
        Diarizer(bench.pipeline(), bench.batch_size),
        load_diarizer(FOLDER, None, None, bench.device),
    )
    found: list[object] = []
    peaks = [
        peak_memory(lambda each=each: found.append(each.diarize(long, NO_HINTS)), bench.device)  # type: ignore[misc]
        for each in (ours, stock)
    ]
    assert found[0] == found[1]
    return [[f"{minutes} min", f"{long.nbytes / 2**20:.0f}", *(f"{peak:.0f}" for peak in peaks)]]


# ---- the page


def _file(samples: Samples) -> dict[str, Any]:
    return {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}


def measurements(bench: Bench, asked: argparse.Namespace) -> Iterator[Table]:
    """Every table, as soon as it is measured."""
    stage = ["Embedding stage", "windows", "seconds", "times as long as shared frames"]
    yield stage, demo_stage(bench)
    yield stage, full_stage(bench, asked.seconds)
    yield (
        ["Diarization of the conversation", "seconds", "times as long as shared frames"],
        whole(bench),
    )
    beside = [
        "Threads each",
        "recognition, s",
        "diarization, s",
        "both, s",
        "both / slower",
        "both / one by one",
    ]
    yield beside, [side_by_side(bench, threads) for threads in sorted({1, torch.get_num_threads()})]
    if asked.minutes:
        yield (
            ["Diarization of", "its samples, MiB", "peak, MiB", "stock's peak, MiB"],
            memory(bench, asked.minutes),
        )


def main() -> None:
    """Measure, print, and keep the figures and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="how often each is measured")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="audio for the network of full size"
    )
    parser.add_argument(
        "--minutes", type=int, default=60, help="audio for the memory; 0 leaves it out"
    )
    asked = parser.parse_args()
    prepare_environment()
    warnings.filterwarnings("ignore", module="pyannote")
    spoken = decode_audio(
        (REPOSITORY / "demo/conversation.ogg").read_bytes(), SAMPLE_RATE, AudioLimits(600, 10**7)
    )
    bench = Bench(
        torch.device("cuda" if torch.cuda.is_available() else "cpu"), spoken.samples, asked.turns
    )
    facts = settings(PACKAGES) | {"batch size": bench.batch_size, **vars(asked)}
    paragraphs, tables = ["# Diarization", listed(facts)], []
    print("\n\n".join(paragraphs), flush=True)
    for header, rows in measurements(bench, asked):
        tables.append((header, rows))
        paragraphs.append(table(header, rows))
        print("\n" + paragraphs[-1], flush=True)
    save(RESULTS / "diarization.json", {"settings": facts, "tables": tables})
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / "diarization.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
