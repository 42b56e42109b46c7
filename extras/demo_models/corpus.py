"""The training corpus: clips of all training voices, stored as log mel power.

Powers of independent sounds add. So gaps, levels, noise and overlaps are drawn anew for every
training window, as additions of mel power, without going back to audio.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from extras.demo_models.channel import degrade
from tests.support.speech import (
    FLITE_PITCH,
    FRAME,
    Clip,
    Samples,
    draw_clip,
    draw_voice,
    speakers,
    vocabulary,
)

MELS = 80
FFT = 400
FLOOR = 1e-10
SHARD_CLIPS = 500
SHARDS = "shard-???.npz"  # complete ones
FLITE_SHARE = 0.15

Mel = NDArray[np.float16]


@dataclass(frozen=True)
class SpokenMel:
    """One clip as log10 mel power (frames, 80), 100 frames a second.

    `words` are indices into `vocabulary()`, `spans` their start and end in seconds.
    """

    log_power: Mel
    words: NDArray[np.int16]
    spans: NDArray[np.float32]


@cache
def mel_filters() -> NDArray[np.float64]:
    """Whisper's mel filters, (201 frequencies, 80)."""
    filters: NDArray[np.float64] = WhisperFeatureExtractor(feature_size=MELS).mel_filters
    return filters


def log_mel_power(samples: Samples) -> Mel:
    """Log10 mel power (frames, 80), as Whisper's feature extractor has it before scaling."""
    padded = np.pad(samples, (FFT // 2, FFT // 2 + FRAME))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::FRAME]
    window = np.hanning(FFT + 1)[:-1]
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2 @ mel_filters()
    log_power: Mel = np.log10(np.maximum(power, FLOOR)).astype(np.float16)
    return log_power


def build_corpus(folder: Path, clips: int, workers: int = 2) -> Iterator[Path]:
    """Write `clips` clips in shards, keeping those that exist. Yields the path of each shard."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(folder / f"shard-{index:03d}.npz", index) for index in range(clips // SHARD_CLIPS)]
    missing = [job for job in jobs if not job[0].exists()]
    yield from (path for path, _ in jobs if path.exists())
    with get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_write_shard, missing)


def load_corpus(folder: Path) -> list[SpokenMel]:
    """Return all clips of the shards that exist."""
    return [clip for path in sorted(folder.glob(SHARDS)) for clip in _read_shard(path)]


def _write_shard(job: tuple[Path, int]) -> Path:
    """Write one shard, drawn from a seed of its own. It appears under its name when complete."""
    path, index = job
    generator = np.random.default_rng([2026, index])
    clips = [_draw_training_clip(generator) for _ in range(SHARD_CLIPS)]
    word_ids = {word: number for number, word in enumerate(vocabulary())}
    mels = [log_mel_power(clip.samples) for clip in clips]
    words = [word for clip in clips for word in clip.words]
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        mel=np.concatenate(mels),
        frames=[len(mel) for mel in mels],
        counts=[len(clip.words) for clip in clips],
        words=np.array([word_ids[word.text] for word in words], np.int16),
        spans=np.array([(word.start, word.end) for word in words], np.float32),
    )
    partial.rename(path)
    return path


def _draw_training_clip(generator: np.random.Generator) -> Clip:
    """Return a clip of a training voice; flite's voices are drawn more often than one espeak
    variant.
    """
    recorded = generator.random() < FLITE_SHARE
    names = [name for name in speakers("training") if (name in FLITE_PITCH) == recorded]
    voice = draw_voice(names[int(generator.integers(len(names)))], generator)
    return degrade(draw_clip(voice, generator), generator)


def _read_shard(path: Path) -> Iterator[SpokenMel]:
    with np.load(path) as shard:
        mel, words, spans = shard["mel"], shard["words"], shard["spans"]
        frame_ends, word_ends = np.cumsum(shard["frames"]), np.cumsum(shard["counts"])
    mels, ids, times = (
        np.split(mel, frame_ends[:-1]),
        np.split(words, word_ends[:-1]),
        np.split(spans, word_ends[:-1]),
    )
    yield from map(SpokenMel, mels, ids, times)
