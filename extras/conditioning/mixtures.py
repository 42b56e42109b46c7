"""Training windows: single voices, mixed anew for every step, and who speaks when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from tests.support.speech import Samples, reverberate
from whosaid.asr.frontend.vad import DetectSpeech
from whosaid.timebase import SAMPLES_PER_TOKEN

Frames = NDArray[np.bool_]  # 50 a second, as the encoder's

# Frames of the windows, a fifth, half and all of Whisper's, and of the longest piece in each. A
# piece is followed by SPARE frames of silence, in which its text ends.
WHOLE, SPARE = 1500, 50
WINDOWS = {300: 245, 750: 700, WHOLE: 1400}
# In a whole window a piece may have pauses, in which others speak: their number and most frames,
# and the least frames of speech before and after.
PAUSES, LONGEST_PAUSE, LEAST_TURN = 2, 400, 75
LEAST_SPEECH = 50  # frames of a piece
LOUDNESS = (0.015, 0.15)  # root mean square of a voice while it speaks
SPEEDS = ((1, 1), (9, 8), (8, 9))  # at which each voice is played, so that it sounds like others
KINDS = {"alone": 0.08, "apart": 0.17, "two": 0.55, "three": 0.2}  # probabilities
LEAST_OVERLAP = 12  # frames
WITHIN = 0.35  # probability that the shorter of two voices that overlap lies in the longer
GAIN_DB = 5.0  # level of other voices
ROOM, NOISE = 0.3, 0.3  # probabilities of reverberation and noise


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of one voice: samples at 16 kHz, the frames in which the voice speaks, and the piece's
    first frame in a window of so many `frames`.
    """

    name: str
    speaker: str
    samples: Samples
    active: Frames
    start: int
    frames: int

    @property
    def window(self) -> Samples:
        """The window that holds the piece alone."""
        window = np.zeros(self.frames * SAMPLES_PER_TOKEN, np.float32)
        _add(window, self.samples, self.start * SAMPLES_PER_TOKEN)
        return window


@dataclass(frozen=True, eq=False)
class Mixture:
    """A window's samples, and the frames (voices, frames) in which its voices speak, the target's
    first.
    """

    samples: Samples
    active: Frames


def cut_at_speeds(
    name: str, speaker: str, samples: Samples, detect: DetectSpeech
) -> Iterator[Piece]:
    """Yield the pieces of a recording of one voice at all SPEEDS, for all WINDOWS."""
    for up, down in SPEEDS:
        played = resample_poly(samples, up, down).astype(np.float32)
        for frames in WINDOWS:
            yield from cut(f"{name}:{up}:{down}:{frames}", speaker, played, detect, frames)


def cut(
    name: str, speaker: str, samples: Samples, detect: DetectSpeech, window: int
) -> Iterator[Piece]:
    """Yield the pieces of a recording of one voice for windows of so many frames, cut where it is
    quiet.
    """
    generator, most = np.random.default_rng(list(name.encode())), WINDOWS[window]
    active = np.zeros(len(samples) // SAMPLES_PER_TOKEN, bool)
    for span in detect(samples):
        active[span.start // SAMPLES_PER_TOKEN : span.stop // SAMPLES_PER_TOKEN] = True
    frames = samples[: len(active) * SAMPLES_PER_TOKEN].reshape(-1, SAMPLES_PER_TOKEN)
    power = np.convolve(np.square(frames).mean(axis=1), np.ones(3), "same")
    start = 0
    while start < len(active):
        stop = len(active)
        if stop - start > most:
            longest = int(generator.integers(most // 2, most))
            first = start + longest * 3 // 5
            stop = first + int(np.argmin(power[first : start + longest]))
        speaks = active[start:stop]
        if speaks.sum() >= LEAST_SPEECH:
            loudness = np.exp(generator.uniform(*np.log(LOUDNESS)))
            gain = loudness / np.sqrt(np.square(frames[start:stop][speaks]).mean())
            part = (frames[start:stop] * gain).astype(np.float32)
            if window == WHOLE:
                bounds = _pauses(power[start:stop], window - SPARE - len(speaks), generator)
                part, speaks = (np.insert(each, bounds, 0, axis=0) for each in (part, speaks))
            place = int(generator.integers(window - SPARE - len(speaks) + 1))
            yield Piece(f"{name}:{start}", speaker, part.ravel(), speaks, place, window)
        start = stop


def _pauses(
    power: NDArray[np.floating[Any]], room: int, generator: np.random.Generator
) -> NDArray[np.int_]:
    """Return the frames before which frames of pauses are put in, at most `room` of them."""
    bounds: list[int] = []
    for left in range(int(generator.integers(PAUSES + 1)), 0, -1):
        first = (bounds[-1] if bounds else 0) + LEAST_TURN
        last = len(power) - LEAST_TURN * left
        if last > first:
            first = int(generator.integers(first, last))
            bounds.append(first + int(np.argmin(power[first : first + LEAST_TURN])))
    shares = generator.dirichlet(np.ones(len(bounds) + 1))[:-1] * room
    return np.repeat(np.array(bounds, int), np.minimum(shares, LONGEST_PAUSE).astype(int))


def mix(
    target: Piece, others: Sequence[Piece], generator: np.random.Generator, kind: str = ""
) -> Mixture:
    """Mix a target with voices of other speakers, in a random one of KINDS or in `kind`."""
    kind = kind or str(generator.choice(list(KINDS), p=list(KINDS.values())))
    reverberation = generator.uniform(0.15, 0.6) if generator.random() < ROOM else 0.0
    samples = np.zeros(target.frames * SAMPLES_PER_TOKEN, np.float32)
    first, stop = target.start, target.start + len(target.active)
    active: list[Frames] = []

    def add(piece: Piece, start: int, gain: float) -> None:
        heard = piece.samples * np.float32(gain)
        if reverberation:
            heard = reverberate(heard, reverberation, generator)
        _add(samples, heard, start * SAMPLES_PER_TOKEN)
        active.append(np.zeros(target.frames, bool))
        _add(active[-1], piece.active, start)

    add(target, first, 1.0)
    for _ in range({"alone": 0, "three": 2}.get(kind, 1)):
        other = target
        while other.speaker == target.speaker:
            other = others[int(generator.integers(len(others)))]
        length = len(other.active)
        if kind == "apart":
            start = first - length if first > target.frames - stop else stop
        elif generator.random() < WITHIN:
            earliest, latest = sorted((first, stop - length))
            start = int(generator.integers(earliest, latest + 1))
        else:
            earliest, latest = first - length + LEAST_OVERLAP, stop - LEAST_OVERLAP
            start = int(generator.integers(earliest, latest))
        add(other, start, 10 ** (generator.uniform(-GAIN_DB, GAIN_DB) / 20))
    if generator.random() < NOISE:
        samples += _noise(samples, generator)
    return Mixture(samples, np.stack(active))


def _add(whole: NDArray[Any], part: NDArray[Any], start: int) -> None:
    """Add a part that may begin before the whole and end after it."""
    first, last = max(start, 0), min(start + len(part), len(whole))
    whole[first:last] += part[first - start : last - start]


def _noise(samples: Samples, generator: np.random.Generator) -> Samples:
    """Return noise 8 to 30 dB below the samples, from white to brown."""
    spectrum = np.fft.rfft(generator.standard_normal(len(samples)))
    spectrum /= np.maximum(1, np.arange(len(spectrum)) / 300) ** generator.uniform(0, 1)
    noise = np.fft.irfft(spectrum, len(samples))
    level = np.sqrt(np.square(samples).mean() / np.square(noise).mean())
    return np.asarray(noise * level * 10 ** (-generator.uniform(8, 30) / 20), np.float32)
