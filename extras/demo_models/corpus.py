"""The training corpus: clips of all training voices, stored as log mel power.

Speed, reverberation and codecs change a clip once, when it is made. Powers of independent sounds
add, so gaps, levels, noise and overlaps are drawn anew for every training window (`windows`), as
additions of mel power, without going back to audio.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from transformers import WhisperFeatureExtractor

from tests.support.speech import (
    FLITE_PITCH,
    FRAME,
    Clip,
    Samples,
    draw_clip,
    draw_voice,
    speakers,
    through_codec,
    vocabulary,
)
from whosaid.timebase import SAMPLE_RATE

MELS = 80
FFT = 400
FLOOR = 1e-10
SHARD_CLIPS = 500
FLITE_SHARE = 0.15
SPEED_SHARE, REVERB_SHARE, CODEC_SHARE = 0.5, 0.15, 0.15
DURATION_FACTORS = (0.89, 1.12)
CODECS = (
    ("wav", "pcm_mulaw", 8_000, 64_000),
    ("mp3", "libmp3lame", 8_000, 16_000),
    ("mp3", "libmp3lame", 16_000, 32_000),
    ("ogg", "libopus", 16_000, 12_000),
    ("ogg", "libopus", 48_000, 24_000),
    ("adts", "aac", 16_000, 24_000),
)

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
    paths = [folder / f"shard-{index:03d}.pickle" for index in range(clips // SHARD_CLIPS)]
    with get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        yield from pool.imap(_write_shard, enumerate(paths))


def load_corpus(folder: Path) -> list[SpokenMel]:
    """Return all clips of the shards that exist."""
    paths = sorted(folder.glob("shard-*.pickle"))
    return [clip for path in paths for clip in pickle.loads(path.read_bytes())]


def _write_shard(job: tuple[int, Path]) -> Path:
    """Write one shard, drawn from a seed of its own. It appears under its name when complete."""
    index, path = job
    if not path.exists():
        generator = np.random.default_rng([2026, index])
        clips = [_spoken_mel(_draw_training_clip(generator)) for _ in range(SHARD_CLIPS)]
        partial = path.with_suffix(".partial")
        partial.write_bytes(pickle.dumps(clips))
        partial.rename(path)
    return path


def _spoken_mel(clip: Clip) -> SpokenMel:
    words = [vocabulary().index(word.text) for word in clip.words]
    spans = [(word.start, word.end) for word in clip.words]
    return SpokenMel(
        log_mel_power(clip.samples), np.array(words, np.int16), np.array(spans, np.float32)
    )


def _draw_training_clip(generator: np.random.Generator) -> Clip:
    """Return a clip of a training voice; flite's voices are drawn more often than one espeak
    variant.
    """
    recorded = generator.random() < FLITE_SHARE
    names = [name for name in speakers("training") if (name in FLITE_PITCH) == recorded]
    voice = draw_voice(names[int(generator.integers(len(names)))], generator)
    clip = draw_clip(voice, generator)
    if generator.random() < SPEED_SHARE:
        clip = perturb_speed(clip, generator.uniform(*DURATION_FACTORS))
    if generator.random() < REVERB_SHARE:
        clip = replace(clip, samples=_reverberate(clip.samples, generator))
    if generator.random() < CODEC_SHARE:
        codec = CODECS[int(generator.integers(len(CODECS)))]
        clip = replace(clip, samples=through_codec(clip.samples, *codec))
    return clip


def perturb_speed(clip: Clip, factor: float) -> Clip:
    """Resample to `factor` times the duration; pitch and formants fall with it."""
    count = round(len(clip.samples) * factor)
    samples = np.interp(
        np.arange(count) / factor, np.arange(len(clip.samples)), clip.samples
    ).astype(np.float32)
    words = tuple(
        replace(word, start=word.start * factor, end=word.end * factor) for word in clip.words
    )
    return Clip(samples, words)


def _reverberate(samples: Samples, generator: np.random.Generator) -> Samples:
    """Convolve with an impulse and a tail of noise that decays by 60 dB in 0.1 to 0.4 s."""
    decay = generator.uniform(0.1, 0.4)
    time = np.arange(int(decay * SAMPLE_RATE)) / SAMPLE_RATE
    tail = generator.standard_normal(len(time)) * 10 ** (-3 * time / decay)
    tail *= generator.uniform(0.1, 0.5) / np.linalg.norm(tail)
    tail[0] = 1.0
    wet: Samples = fftconvolve(samples, tail)[: len(samples)].astype(np.float32)
    return wet
