"""Speech of the training voices: clips as log mel power for Whisper, recordings for Medusa heads.

Speed, reverberation and codecs change a clip once, when it is made. Powers of independent sounds
add, so gaps, levels, noise and overlaps are drawn anew for every training window (`windows`), as
additions of mel power, without going back to audio.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import spectrogram, window_function

from extras.demo_models.conversation import encode_opus
from tests.support.dialogue import Style, draw_dialogue
from tests.support.speech import (
    Clip,
    Samples,
    draw_clip,
    draw_voice,
    espeak_speakers,
    recorded_speakers,
    reverberate,
    through_codec,
    vocabulary,
)

MELS, FLOOR = 80, 1e-10
WHISPER = WhisperFeatureExtractor(feature_size=MELS)
# Clips per process: a process ends after so many, because espeak's oscillators keep their phase.
CLIPS_A_PROCESS = 500
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
# Seconds of short recordings and of recordings with several windows, and powers of ten of the
# noise.
SHORT, LONG, SHORT_SHARE = (6.0, 10.0), (20.0, 70.0), 0.3
NOISE, OVERLAP_SHARE = (-4.0, -2.0), 0.05

Mel = NDArray[np.float16]


@dataclass(frozen=True)
class SpokenMel:
    """One clip as log10 mel power (frames, 80), 100 frames a second.

    `words` are indices into `vocabulary()`, `spans` their start and end in seconds.
    """

    log_power: Mel
    words: NDArray[np.int16]
    spans: NDArray[np.float32]


def build_corpus(path: Path, count: int) -> None:
    """Speak `count` clips, and write them to `path`."""
    with get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        clips = pool.imap(draw_spoken_mel, range(count), chunksize=CLIPS_A_PROCESS)
        path.write_bytes(pickle.dumps([*track(clips, "speaking", count)]))


def load_corpus(path: Path) -> list[SpokenMel]:
    clips: list[SpokenMel] = pickle.loads(path.read_bytes())
    return clips


def build_recordings(folder: Path, count: int) -> None:
    """Write `count` dialogues to `folder` as audio files with a manifest, for `extras.medusa`."""
    folder.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(2) as pool:
        entries = pool.imap(partial(_record, folder), range(count), chunksize=8)
        manifest = [*track(entries, "recording", count)]
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def draw_spoken_mel(number: int) -> SpokenMel:
    """Draw a clip from a generator seeded with `number`, which may change its speed, reverberate
    it, and pass it through a codec.
    """
    generator = np.random.default_rng([2026, number])
    clip = draw_clip(draw_voice(_draw_names(generator, 1)[0], generator), generator)
    if generator.random() < SPEED_SHARE:
        clip = perturb_speed(clip, generator.uniform(*DURATION_FACTORS))
    if generator.random() < REVERB_SHARE:
        clip = replace(
            clip, samples=reverberate(clip.samples, generator.uniform(0.1, 0.4), generator)
        )
    if generator.random() < CODEC_SHARE:
        codec = CODECS[int(generator.integers(len(CODECS)))]
        clip = replace(clip, samples=through_codec(clip.samples, *codec))
    words = [vocabulary().index(word.text) for word in clip.words]
    spans = [(word.start, word.end) for word in clip.words]
    return SpokenMel(
        log_mel_power(clip.samples), np.array(words, np.int16), np.array(spans, np.float32)
    )


def _record(folder: Path, number: int) -> dict[str, str]:
    """Write a dialogue drawn from a generator seeded with `number`; return its manifest entry."""
    generator = np.random.default_rng([14, number])
    seconds = float(generator.uniform(*(SHORT if generator.random() < SHORT_SHARE else LONG)))
    style = Style(noise=10 ** generator.uniform(*NOISE), overlap_share=OVERLAP_SHARE)
    voices = [draw_voice(name, generator) for name in _draw_names(generator, 2)]
    scene = draw_dialogue(voices, seconds, style, generator)
    path = folder / f"{number:04d}.ogg"
    path.write_bytes(encode_opus(scene.samples))
    text = " ".join(word.text for word in scene.words)
    return {"path": path.name, "language": "en", "text": text}


def _draw_names(generator: np.random.Generator, count: int) -> list[str]:
    """Return `count` training voices of one synthesiser. A voice of flite is drawn more often than
    an espeak variant.
    """
    recorded = generator.random() < FLITE_SHARE
    names = recorded_speakers("training") if recorded else espeak_speakers("training")
    return [str(name) for name in generator.choice(names, count, replace=False)]


def log_mel_power(samples: Samples) -> Mel:
    """Log10 mel power (frames, 80), as Whisper's feature extractor has it before scaling."""
    log_power: NDArray[np.float64] = spectrogram(
        samples,
        window_function(WHISPER.n_fft, "hann"),
        frame_length=WHISPER.n_fft,
        hop_length=WHISPER.hop_length,
        power=2.0,
        mel_filters=WHISPER.mel_filters,
        log_mel="log10",
        mel_floor=FLOOR,
    )
    return log_power.T.astype(np.float16)


def perturb_speed(clip: Clip, factor: float) -> Clip:
    """Resample to `factor` times the duration; pitch and formants fall with it."""
    times = np.arange(round(len(clip.samples) * factor)) / factor
    samples = np.interp(times, np.arange(len(clip.samples)), clip.samples).astype(np.float32)
    words = (replace(word, start=word.start * factor, end=word.end * factor) for word in clip.words)
    return Clip(samples, tuple(words))
