"""Windows in which voices talk at once, mixed from recordings of single voices.

A recording's speaker is its file name up to the first hyphen, as in LibriSpeech. Speakers are split
into training, development and test by a digest of their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from extras.conditioning.encoder import MASK_RATE, classes_of
from whosaid.asr.frontend.vad import DetectSpeech
from whosaid.timebase import SAMPLE_RATE

TRAIN, DEVELOPMENT, TEST = "train", "development", "test"
FRAME = SAMPLE_RATE // MASK_RATE  # samples
WINDOW = 6 * SAMPLE_RATE  # a fifth of Whisper's window, so that a training step is cheap
SHORTEST, LONGEST = 120, 245  # frames of a piece, before it is cut in a pause
SPARE = 50  # frames after a piece: a text ends in the silence after speech
LEAST_SPEECH = 50  # frames
LOUDNESS = (0.015, 0.15)  # root mean square of a voice while it speaks
# Kinds of mixtures, by what the other voices do, and their probabilities.
KINDS = {"alone": 0.1, "apart": 0.3, "two": 0.5, "three": 0.1}
LONGEST_APART = 180  # frames of a target that leaves other voices room in the window
LEAST_OVERLAP = 12  # frames
ROOM, NOISE = 0.3, 0.3  # chances of room responses and of noise

Samples = NDArray[np.float32]
Frames = NDArray[np.bool_]


def speaker_of(file: str) -> str:
    return Path(file).stem.partition("-")[0]


def part_of(speaker: str) -> str:
    """Return the part of the split that a speaker belongs to."""
    tenth = int(hashlib.sha256(speaker.encode()).hexdigest(), 16) % 10
    return TEST if tenth < 2 else DEVELOPMENT if tenth == 2 else TRAIN


@dataclass(frozen=True, eq=False)
class Piece:
    """Some seconds of a voice: its root mean square, the frames in which it speaks, and its first
    frame in a window.
    """

    name: str
    speaker: str
    samples: Samples
    level: float
    active: Frames
    start: int

    def placed(self, values: NDArray[Any], frame: int) -> NDArray[Any]:
        """Return `values`, `frame` to a frame, in a window that is else empty."""
        window = np.zeros(WINDOW // FRAME * frame, values.dtype)
        window[self.start * frame :][: len(values)] = values
        return window


@dataclass(frozen=True, eq=False)
class Mixture:
    """A training window: samples, mask (frames, classes), and the number of the target's piece."""

    samples: Samples
    mask: NDArray[np.float32]
    target: int


def cut(file: str, samples: Samples, detect_speech: DetectSpeech) -> Iterator[Piece]:
    """Yield the pieces of a recording, cut where it is quiet."""
    generator = np.random.default_rng(list(file.encode()))
    active = np.zeros(len(samples) // FRAME, bool)
    for span in detect_speech(samples):
        active[round(span.start / FRAME) : round(span.stop / FRAME)] = True
    frames = samples[: len(active) * FRAME].reshape(-1, FRAME)
    power = np.convolve(np.square(frames).mean(axis=1), np.ones(3), "same")
    bounds = [0]
    while len(active) - bounds[-1] > LONGEST:
        longest = int(generator.integers(SHORTEST, LONGEST))
        first = bounds[-1] + longest * 3 // 5
        bounds.append(first + int(np.argmin(power[first : bounds[-1] + longest])))
    for start, stop in pairwise([*bounds, len(active)]):
        speaks = active[start:stop]
        if speaks.sum() >= LEAST_SPEECH:
            level = float(np.exp(generator.uniform(*np.log(LOUDNESS))))
            gain = level / np.sqrt(np.square(frames[start:stop][speaks]).mean())
            part = (frames[start:stop].ravel() * gain).astype(np.float32)
            place = int(generator.integers(WINDOW // FRAME - SPARE - len(speaks) + 1))
            yield Piece(f"{file}:{start}", speaker_of(file), part, level, speaks, place)


def mix(
    targets: Sequence[Piece],
    others: Sequence[Piece],
    generator: np.random.Generator,
    kind: str = "",
) -> Mixture:
    """Draw a training window of a random kind, or of `kind`."""
    kind = kind or str(generator.choice(list(KINDS), p=list(KINDS.values())))
    number = _draw(targets, generator, LONGEST_APART if kind == "apart" else LONGEST)
    target = targets[number]
    room = generator.uniform(0.15, 0.6) if generator.random() < ROOM else 0.0
    begin, end = target.start, target.start + len(target.active)
    pause = int(generator.choice([5, 25, 40]))  # frames that a diarizer would skip
    window = target.placed(_in_room(target.samples, room, generator), FRAME)
    active = target.placed(_diarized(target.active, generator, pause), 1)
    speak = np.zeros_like(active)
    for _ in range({"alone": 0, "three": 2}.get(kind, 1)):
        other = others[_draw(others, generator, LONGEST, target.speaker)]
        length = len(other.active)
        if kind == "apart":
            gap = int(generator.integers(0, 20))
            start = end + gap if len(active) - end >= begin else begin - gap - length
        else:
            low, high = max(0, begin) + LEAST_OVERLAP - length, min(len(active), end)
            start = int(generator.integers(low, high - LEAST_OVERLAP))
        gain = target.level / other.level * 10 ** generator.uniform(-0.25, 0.25)
        _add(window, _in_room(other.samples, room, generator) * gain, start * FRAME)
        _add(speak, _diarized(other.active, generator, pause), start)
    if generator.random() < NOISE:
        window += _noise(window, generator)
    return Mixture(window, classes_of(active, speak), number)


def _draw(
    pieces: Sequence[Piece], generator: np.random.Generator, longest: int, other_than: str = ""
) -> int:
    """Draw the number of a piece that is short enough, of another speaker than `other_than`."""
    while True:
        number = int(generator.integers(len(pieces)))
        if len(pieces[number].active) <= longest and pieces[number].speaker != other_than:
            return number


def _add(whole: NDArray[Any], part: NDArray[Any], start: int) -> None:
    """Add a part that may begin before the whole and end after it."""
    first, last = max(start, 0), min(start + len(part), len(whole))
    whole[first:last] += part[first - start : last - start]


def filled(active: Frames, pause: int) -> Frames:
    """Return the frames with pauses of at most `pause` frames filled."""
    found = active.copy()
    for stop in np.flatnonzero(active[:-1] & ~active[1:]) + 1:
        found[stop : stop + int(np.argmax(active[stop : stop + pause + 1]))] = True
    return found


def _diarized(active: Frames, generator: np.random.Generator, pause: int) -> Frames:
    """Return frames as a diarizer might: short pauses are filled, and bounds are off."""
    found = np.zeros_like(active)
    for turn in np.flatnonzero(np.diff(np.r_[0, filled(active, pause), 0])).reshape(-1, 2):
        first, last = np.rint(turn + generator.normal(0, 3, 2)).astype(int)
        found[max(first, 0) : max(last, 0)] = True
    return found


def _in_room(samples: Samples, room: float, generator: np.random.Generator) -> Samples:
    """Return a voice at a random place in a room of `room` seconds reverberation, if not 0."""
    if not room:
        return samples
    times = np.arange(int(room * SAMPLE_RATE)) / SAMPLE_RATE
    response = generator.standard_normal(len(times)) * 10 ** (-3 * times / room)
    response *= generator.uniform(0.1, 0.5) / np.linalg.norm(response)
    response[0] = 1.0
    return np.asarray(fftconvolve(samples, response)[: len(samples)], np.float32)


def _noise(window: Samples, generator: np.random.Generator) -> Samples:
    """Return noise 8 to 30 dB below the window, white to brownish."""
    spectrum = np.fft.rfft(generator.standard_normal(len(window)))
    spectrum /= np.maximum(1, np.arange(len(spectrum)) / 300) ** generator.uniform(0, 1)
    noise = np.fft.irfft(spectrum, len(window))
    level = np.sqrt(np.square(window).mean() / np.square(noise).mean())
    return np.asarray(noise * level * 10 ** (-generator.uniform(8, 30) / 20), np.float32)
