"""Sounds that are not speech: silence, noise and music. A recogniser should find no words in them.

Music is synthesised (chords, arpeggio, melody, drums), so no recording is needed and no voice can
be in it."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE

# Seconds after which noise changes its colour and level; the range of that level in dBFS.
NOISE_STEP, NOISE_DB = 15.0, (-50.0, -20.0)
MUSIC_DB = -20.0
TEMPO = (84, 132)  # beats a minute
# Degrees of the major scale, in semitones, and chord progressions as degrees of it.
SCALE = (0, 2, 4, 5, 7, 9, 11)
PROGRESSIONS = ((0, 4, 5, 3), (0, 5, 3, 4), (5, 3, 0, 4), (1, 4, 0, 5))
# Amplitudes of a note's partials.
PARTIALS = (1.0, 0.5, 0.3, 0.15, 0.1, 0.05)

Signal = NDArray[np.float64]


def silence(seconds: float, generator: np.random.Generator | None = None) -> Samples:
    """Digital silence; the generator is not used."""
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def noise(seconds: float, generator: np.random.Generator) -> Samples:
    """White and pink noise of changing loudness."""
    count, step = round(seconds * SAMPLE_RATE), round(NOISE_STEP * SAMPLE_RATE)
    parts = [_steady(min(step, count - start), generator) for start in range(0, count, step)]
    return np.concatenate(parts).clip(-1, 1).astype(np.float32)


def music(seconds: float, generator: np.random.Generator) -> Samples:
    """Four-bar phrases, each in a key, tempo and progression of its own."""
    count, parts, length = round(seconds * SAMPLE_RATE), list[Signal](), 0
    while length < count:
        parts.append(_phrase(generator))
        length += len(parts[-1])
    played = np.concatenate(parts)[:count]
    played *= 10 ** (MUSIC_DB / 20) / played.std()
    return played.clip(-1, 1).astype(np.float32)


def coloured_noise(count: int, pink: bool, generator: np.random.Generator) -> Signal:
    """`count` samples of white or pink noise of standard deviation 1.

    Pink is white noise through the filter of order 3 of J. O. Smith, "Spectral Audio Signal
    Processing", 1/f noise."""
    white: Signal = generator.standard_normal(count)
    if not pink:
        return white
    above = [0.049922035, -0.095993537, 0.050612699, -0.004408786]
    shaped = lfilter(above, [1, -2.494956002, 2.017265875, -0.522189400], white)
    return np.asarray(shaped / shaped.std())


def _steady(count: int, generator: np.random.Generator) -> Signal:
    level = 10 ** (generator.uniform(*NOISE_DB) / 20)
    return level * coloured_noise(count, bool(generator.random() < 0.5), generator)


def _phrase(generator: np.random.Generator) -> Signal:
    """Four bars of four beats: a chord, its arpeggio, a melody above and drums below."""
    beat = 60 / generator.uniform(*TEMPO)
    key = int(generator.integers(45, 57))
    played = np.zeros(round(16 * beat * SAMPLE_RATE))
    for bar, degree in enumerate(PROGRESSIONS[int(generator.integers(len(PROGRESSIONS)))]):
        chord = [key + _semitones(degree + third) for third in (0, 2, 4)]
        for pitch in chord:
            _mix(played, 0.5 * _note(pitch, 4 * beat), bar * 4 * beat)
        for eighth in range(8):
            _mix(
                played, 0.4 * _note(chord[eighth % 3] + 12, beat / 2), (bar * 4 + eighth / 2) * beat
            )
        for quarter in range(4):
            at = (bar * 4 + quarter) * beat
            _mix(played, 0.6 * _note(key + 12 + _semitones(int(generator.integers(8))), beat), at)
            _mix(played, _drum(quarter, generator), at)
            _mix(played, 0.2 * _hit(0.03, generator), at + beat / 2)
    return played


def _semitones(degree: int) -> int:
    return SCALE[degree % 7] + 12 * (degree // 7)


def _note(pitch: int, seconds: float) -> Signal:
    """A plucked note; `pitch` is a MIDI number (69 is 440 Hz). Higher partials decay faster."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    frequency = 440 * 2 ** ((pitch - 69) / 12)
    # Sine and decay of the n-th partial are the n-th power of the first one's, of which the
    # imaginary part sounds.
    first = np.exp((2j * np.pi * frequency - 1) * time)
    audible = [each for n, each in enumerate(PARTIALS, 1) if n * frequency < SAMPLE_RATE / 2]
    played = np.zeros(len(time), complex)
    for loudness in reversed(audible):
        played = first * (played + loudness)
    attack = np.minimum(1, time / 0.01) * np.minimum(1, (seconds - time) / 0.02)
    return np.asarray(played.imag * attack)


def _drum(quarter: int, generator: np.random.Generator) -> Signal:
    """A bass drum on the odd beats, a snare on the even ones."""
    if quarter % 2:
        return 0.6 * _hit(0.15, generator)
    time = np.arange(round(0.2 * SAMPLE_RATE)) / SAMPLE_RATE
    return np.asarray(
        1.5 * np.sin(2 * np.pi * (50 * time + 4 * (1 - np.exp(-30 * time)))) * np.exp(-18 * time)
    )


def _hit(seconds: float, generator: np.random.Generator) -> Signal:
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return np.asarray(generator.standard_normal(len(time)) * np.exp(-5 * time / seconds))


def _mix(onto: Signal, sound: Signal, seconds: float) -> None:
    """Add a sound that starts after `seconds`; what reaches past the end is cut."""
    start = round(seconds * SAMPLE_RATE)
    part = onto[start : start + len(sound)]
    part += sound[: len(part)]
