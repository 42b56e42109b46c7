"""Training windows: single voices, mixed anew for every step, with masks of the speakers.

The true turns are known, and made as imprecise as a diarizer's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.speech import Samples, reverberate
from whosaid.asr.frontend.vad import DetectSpeech
from whosaid.timebase import SAMPLES_PER_TOKEN

Frames = NDArray[np.bool_]  # 50 a second, as the encoder's

WINDOW = 300  # frames, a fifth of Whisper's window: a training step takes a fifth of the time
LONGEST, LEAST_SPEECH = 245, 50  # frames of a piece
SPARE = 50  # frames of silence after a piece, in which its text ends
LOUDNESS = (0.015, 0.15)  # root mean square of a voice while it speaks
KINDS = {"alone": 0.1, "apart": 0.3, "two": 0.5, "three": 0.1}  # probabilities
LEAST_OVERLAP = 12  # frames
PAUSES = (5, 25, 40)  # frames of the longest pause that a diarizer would fill
BOUNDS = 3.0  # frames, standard deviation of a diarizer's bounds
GAIN_DB = 5.0  # level of other voices
ROOM, NOISE = 0.3, 0.3  # probabilities of reverberation and noise


@dataclass(frozen=True, eq=False)
class Piece:
    """At most LONGEST frames of one voice: samples at 16 kHz, the frames in which the voice speaks,
    and the piece's first frame in a window.
    """

    name: str
    speaker: str
    samples: Samples
    active: Frames
    start: int

    @property
    def window(self) -> Samples:
        """The window that holds the piece alone."""
        window = np.zeros(WINDOW * SAMPLES_PER_TOKEN, np.float32)
        _add(window, self.samples, self.start * SAMPLES_PER_TOKEN)
        return window


@dataclass(frozen=True, eq=False)
class Mixture:
    """A window's samples, and the target's mask (WINDOW, 4) of `asr.frontend.target_speaker`."""

    samples: Samples
    mask: NDArray[np.float32]


def cut(name: str, speaker: str, samples: Samples, detect: DetectSpeech) -> Iterator[Piece]:
    """Yield the pieces of a recording of one voice, cut where it is quiet."""
    generator = np.random.default_rng(list(name.encode()))
    active = np.zeros(len(samples) // SAMPLES_PER_TOKEN, bool)
    for span in detect(samples):
        active[span.start // SAMPLES_PER_TOKEN : span.stop // SAMPLES_PER_TOKEN] = True
    frames = samples[: len(active) * SAMPLES_PER_TOKEN].reshape(-1, SAMPLES_PER_TOKEN)
    power = np.convolve(np.square(frames).mean(axis=1), np.ones(3), "same")
    start = 0
    while start < len(active):
        stop = len(active)
        if stop - start > LONGEST:
            longest = int(generator.integers(LONGEST // 2, LONGEST))
            first = start + longest * 3 // 5
            stop = first + int(np.argmin(power[first : start + longest]))
        speaks = active[start:stop]
        if speaks.sum() >= LEAST_SPEECH:
            loudness = np.exp(generator.uniform(*np.log(LOUDNESS)))
            gain = loudness / np.sqrt(np.square(frames[start:stop][speaks]).mean())
            place = int(generator.integers(WINDOW - SPARE - len(speaks) + 1))
            part = (frames[start:stop].ravel() * gain).astype(np.float32)
            yield Piece(f"{name}:{start}", speaker, part, speaks, place)
        start = stop


def mix(
    target: Piece, others: Sequence[Piece], generator: np.random.Generator, kind: str = ""
) -> Mixture:
    """Mix a target with voices of other speakers, in a random one of KINDS or in `kind`."""
    kind = kind or str(generator.choice(list(KINDS), p=list(KINDS.values())))
    pause = int(generator.choice(PAUSES))
    reverberation = generator.uniform(0.15, 0.6) if generator.random() < ROOM else 0.0
    samples = np.zeros(WINDOW * SAMPLES_PER_TOKEN, np.float32)
    own, rest = np.zeros((2, WINDOW), bool)
    first, stop = target.start, target.start + len(target.active)

    def add(piece: Piece, start: int, gain: float, speak: Frames) -> None:
        heard = piece.samples * np.float32(gain)
        if reverberation:
            heard = reverberate(heard, reverberation, generator)
        _add(samples, heard, start * SAMPLES_PER_TOKEN)
        _add(speak, _as_diarized(piece.active, generator, pause), start)

    add(target, first, 1.0, own)
    for _ in range({"alone": 0, "three": 2}.get(kind, 1)):
        other = target
        while other.speaker == target.speaker:
            other = others[int(generator.integers(len(others)))]
        length = len(other.active)
        if kind == "apart":
            start = first - length if first > WINDOW - stop else stop
        else:
            earliest, latest = first - length + LEAST_OVERLAP, stop - LEAST_OVERLAP
            start = int(generator.integers(earliest, latest))
        add(other, start, 10 ** (generator.uniform(-GAIN_DB, GAIN_DB) / 20), rest)
    if generator.random() < NOISE:
        samples += _noise(samples, generator)
    classes = np.stack([~own & ~rest, own & ~rest, rest & ~own, own & rest], axis=-1)
    return Mixture(samples, classes.astype(np.float32))


def _add(whole: NDArray[Any], part: NDArray[Any], start: int) -> None:
    """Add a part that may begin before the whole and end after it."""
    first, last = max(start, 0), min(start + len(part), len(whole))
    whole[first:last] += part[first - start : last - start]


def _as_diarized(active: Frames, generator: np.random.Generator, pause: int) -> Frames:
    """Return frames with pauses up to `pause` frames filled and all bounds moved at random."""
    bounds = np.flatnonzero(np.diff(np.r_[False, active, False]))
    pauses = bounds[1:-1].reshape(-1, 2)
    filled = [each for each in pauses if each[1] - each[0] <= pause]
    turns = np.setdiff1d(bounds, filled).reshape(-1, 2)
    found = np.zeros_like(active)
    for start, stop in np.rint(turns + generator.normal(0, BOUNDS, turns.shape)).astype(int):
        found[max(start, 0) : max(stop, 0)] = True
    return found


def _noise(samples: Samples, generator: np.random.Generator) -> Samples:
    """Return noise 8 to 30 dB below the samples, from white to brown."""
    spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
    spectrum /= np.maximum(1, np.arange(len(spectrum)) / 300) ** generator.uniform(0, 1)
    noise = np.fft.irfft(spectrum, len(samples))
    level = np.sqrt(np.square(samples).mean() / np.square(noise).mean())
    return np.asarray(noise * level * 10 ** (-generator.uniform(8, 30) / 20), np.float32)
