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

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from extras.conditioning.encoder import MASK_RATE, classes_of
from whosaid.asr.frontend.vad import DetectSpeech
from whosaid.timebase import SAMPLE_RATE

TRAIN, DEVELOPMENT, TEST = "train", "development", "test"
FRAME = SAMPLE_RATE // MASK_RATE  # samples
WINDOW = 6 * SAMPLE_RATE  # a fifth of Whisper's window, so that a training step is cheap
SHORTEST, LONGEST = 2 * SAMPLE_RATE, 57 * SAMPLE_RATE // 10  # of a piece
QUIET = 3  # frames; a recording is cut where so many together are quietest
LOUDNESS = 0.05  # root mean square of every voice before its gain
# What the others do while the target speaks, and how often.
KINDS = {"alone": 0.1, "apart": 0.3, "two": 0.5, "three": 0.1}
LONGEST_APART = 18 * SAMPLE_RATE // 5  # leaves other voices room in the window
PLACEMENTS = 1  # of a piece in its window; each has one target, which is computed once
# The chances of room responses and of noise.
ROOM, NOISE = 0.3, 0.3

Samples = NDArray[np.float32]
Frames = NDArray[np.bool_]


def speaker_of(path: Path) -> str:
    return path.stem.partition("-")[0]


def part_of(speaker: str) -> str:
    """Return the part of the split that a speaker belongs to: of ten, one or two are tests."""
    tenth = int(hashlib.sha256(speaker.encode()).hexdigest(), 16) % 10
    return TEST if tenth < 2 else DEVELOPMENT if tenth == 2 else TRAIN


@dataclass(frozen=True, eq=False)
class Piece:
    """Some seconds of one voice, and the frames in which it speaks."""

    name: str
    speaker: str
    samples: Samples
    active: Frames


@dataclass(frozen=True, eq=False)
class Mixture:
    """A training window: its samples, its mask (frames, classes), and the target voice in it."""

    samples: Samples
    mask: NDArray[np.float32]
    target: int
    placement: int
    kind: str


def cut(name: str, samples: Samples, detect_speech: DetectSpeech) -> Iterator[Piece]:
    """Yield the pieces of a recording, cut in pauses if there are some."""
    generator = np.random.default_rng(list(name.encode()))
    active = np.zeros(len(samples) // FRAME, bool)
    for span in detect_speech(samples):
        active[round(span.start / FRAME) : round(span.stop / FRAME)] = True
    power = np.square(samples[: len(active) * FRAME]).reshape(-1, FRAME).mean(axis=1)
    power = np.convolve(power, np.ones(QUIET), "same")
    bounds = [0]
    while len(active) - bounds[-1] > LONGEST // FRAME:
        longest = int(generator.uniform(1.2 * SHORTEST, LONGEST)) // FRAME
        first = bounds[-1] + longest * 3 // 5
        bounds.append(first + int(power[first : bounds[-1] + longest].argmin()))
    for start, stop in pairwise([*bounds, len(active)]):
        part, speaks = samples[start * FRAME : stop * FRAME], active[start:stop]
        if speaks.sum() * FRAME >= SHORTEST // 2:
            level = np.sqrt(np.square(part.reshape(-1, FRAME)[speaks]).mean())
            scaled = (part * (LOUDNESS / max(level, 1e-6))).astype(np.float32)
            yield Piece(f"{name}:{start}", speaker_of(Path(name)), scaled, speaks)


def placed(piece: Piece, number: int, placement: int) -> tuple[int, float]:
    """Return where a piece begins in its window, in frames, and the gain of the whole window."""
    generator = np.random.default_rng([3, number, placement])
    room = (WINDOW - len(piece.samples)) // FRAME
    early = placement == 0
    start = generator.integers(0, room // 3 + 1) if early else generator.integers(0, room + 1)
    return int(start), float(10 ** generator.uniform(-0.6, 0.6))


def alone(piece: Piece, number: int, placement: int) -> tuple[Samples, Frames]:
    """Return the window with the piece alone, clean, and the frames in which it speaks."""
    start, gain = placed(piece, number, placement)
    window, active = np.zeros(WINDOW, np.float32), np.zeros(WINDOW // FRAME, bool)
    _add(window, piece.samples * gain, start * FRAME)
    _add(active, piece.active, start)
    return window, active


def mix(
    targets: Sequence[Piece],
    others: Sequence[Piece],
    generator: np.random.Generator,
    kind: str = "",
) -> Mixture:
    """Draw a training window of a random kind, or of `kind`."""
    kind = kind or str(generator.choice(list(KINDS), p=list(KINDS.values())))
    number = _draw(targets, generator, LONGEST_APART if kind == "apart" else LONGEST)
    target, placement = targets[number], int(generator.integers(PLACEMENTS))
    begin, gain = placed(target, number, placement)
    end = begin + len(target.active)
    room = _room(generator) if generator.random() < ROOM else None
    window, active = np.zeros(WINDOW, np.float32), np.zeros(WINDOW // FRAME, bool)
    speak = active.copy()  # the others
    smooth = int(generator.choice([5, 25, 40]))  # frames; pauses that a diarizer would skip
    _add(window, _in_room(target.samples, room, generator), begin * FRAME)
    _add(active, _jittered(target.active, generator, smooth), begin)
    for _ in range({"alone": 0, "three": 2}.get(kind, 1)):
        other = others[_draw(others, generator, LONGEST, target.speaker)]
        length, frames = len(other.active), len(active)
        if kind == "apart":
            gap = int(generator.integers(0, 20))
            after = frames - end > begin
            start = end + gap if after else begin - gap - length
        else:  # they overlap by a quarter of a second at least
            start = int(generator.integers(max(12, begin + 12) - length, min(frames, end) - 12))
        voice = _in_room(other.samples, room, generator) * 10 ** generator.uniform(-0.25, 0.25)
        _add(window, voice, start * FRAME)
        _add(speak, _jittered(other.active, generator, smooth), start)
    if generator.random() < NOISE:
        window += _noise(window, generator)
    return Mixture(window * np.float32(gain), classes_of(active, speak), number, placement, kind)


def _draw(
    pieces: Sequence[Piece], generator: np.random.Generator, longest: int, other_than: str = ""
) -> int:
    """Draw the number of a piece that is short enough, of another speaker than `other_than`."""
    while True:
        number = int(generator.integers(len(pieces)))
        if len(pieces[number].samples) <= longest and pieces[number].speaker != other_than:
            return number


def _add(whole: NDArray, part: NDArray, at: int) -> None:  # type: ignore[type-arg]
    first, last = max(at, 0), min(at + len(part), len(whole))
    if first < last:
        whole[first:last] += part[first - at : last - at]


def filled(active: Frames, pause: int) -> Frames:
    """Return the frames with pauses of at most `pause` frames filled."""
    found = active.copy()
    stops = np.flatnonzero(active[:-1] & ~active[1:]) + 1
    for stop in stops:
        again = active[stop : stop + pause + 1]
        found[stop : stop + int(again.argmax())] = True
    return found


def _jittered(active: Frames, generator: np.random.Generator, pause: int) -> Frames:
    """Return frames as a diarizer might: short pauses are filled, and bounds are off."""
    found = np.zeros_like(active)
    for turn in np.flatnonzero(np.diff(np.r_[0, filled(active, pause), 0])).reshape(-1, 2):
        first, last = np.rint(turn + generator.normal(0, 3, 2)).astype(int)
        found[max(first, 0) : max(last, 0)] = True
    return found


def _room(generator: np.random.Generator) -> float:
    return float(generator.uniform(0.15, 0.6))


def _in_room(samples: Samples, room: float | None, generator: np.random.Generator) -> Samples:
    """Return a voice in a room of `room` seconds reverberation, as from a place of its own."""
    if room is None:
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
