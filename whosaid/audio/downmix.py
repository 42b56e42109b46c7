"""Decides where the mean of a recording's channels lacks what they hold.

Two channels in opposite phase, as from a cable with swapped wires, add up to nothing. Hum or noise
that lies on both lines in equal phase is then all that their mean holds, so its power tells
nothing: the mean lacks the voice if its power in the band of speech stands still while that of the
channels rises and falls.
"""

from typing import Any

import numpy as np
from numpy.fft import rfft  # numpy imports it with its first use, too late in a fork
from numpy.typing import NDArray

# Channels cancel each other out once their mean has less than CANCELLED of the power that the
# loudest channel alone would leave in it, until it has RESTORED of that power (hysteresis).
CANCELLED, RESTORED = 1 / 16, 1 / 4
STRETCH_SECONDS = 2  # of audio in which a voice is looked for
_FRAME_SECONDS, _FEWEST_FRAMES = 0.05, 10
_VOICE_HZ = 300, 3_400  # telephone band; hum has its power below
# Share of the loudest channel's power in a mean that lacks nothing. Without the voice it has half
# of the power, if hum is as loud as the voice.
_WHOLE = 7 / 8
_RATE = 8_000  # Hz: audio is reduced to at least this rate before the band is taken
# Share of the frames that hold no voice, only what lies below it, and the least share of the power
# that a voice has above that; the least correlation of two powers that follow each other.
_PAUSES, _VOICED, _FOLLOWS = 0.2, 1 / 4, 0.4


def instead_of_mean(
    samples: NDArray[np.float32], mean: NDArray[Any], taken: int | None
) -> int | None:
    """Return the channel of `samples` (n, channels) that replaces their `mean` (1, n), if any."""
    power = np.square(samples, dtype=np.float64).sum(axis=0)
    left = np.square(mean, dtype=np.float64).sum()
    threshold = CANCELLED if taken is None else RESTORED
    if not left < threshold * power.max() / samples.shape[1] ** 2:
        return None
    return _chosen(power, taken)


def voice_instead_of_mean(
    samples: NDArray[np.float32], mean: NDArray[Any], rate: int, taken: int | None
) -> int | None:
    """Return the channel with the voice if the mean lacks it; `taken` as in `instead_of_mean`."""
    loud = np.max(np.square(samples).mean(axis=0))
    if taken is None and np.square(mean).mean() > _WHOLE * loud:
        return None  # the usual case, without spectra
    spectra = _speech_spectra(np.concatenate([mean, samples.T]), rate)
    if spectra.shape[1] < _FEWEST_FRAMES:
        return taken
    power, voices = _power_and_voice(spectra)
    loudest = 1 + int(np.argmax(voices[1:]))
    # What the mean leaves out of the loudest channel: of opposite phases it is the voice alone.
    lost, lost_voice = _power_and_voice(spectra[loudest] - spectra[0])
    left = power[0] - power[0].mean()
    common, whole, noise = left @ lost, lost @ (lost - lost.mean()), left @ left
    threshold = (CANCELLED if taken is None else RESTORED) / samples.shape[1] ** 2
    # As a regression's slope the share of the voice's power that is left; as a correlation whether
    # anything is left.
    follows = common >= threshold * whole and common >= _FOLLOWS * np.sqrt(noise * whole)
    lacks = not follows and voices[0] < 12 * threshold * lost_voice
    is_still = taken is not None and voices[0] < _VOICED * power[0].mean()
    return _chosen(voices[1:], taken) if lacks or is_still else None


def _chosen(power: NDArray[np.float64], taken: int | None) -> int:
    if taken is not None and power[taken] >= RESTORED * np.max(power):
        return taken
    return int(np.argmax(power))


def _speech_spectra(signals: NDArray[np.float32], rate: int) -> NDArray[Any]:
    """Return the band of speech of each signal's frames, (signals, frames, frequencies)."""
    step = max(1, rate // _RATE)
    size = int(_FRAME_SECONDS * rate) // step
    count = signals.shape[1] // (size * step)
    frames = signals[:, : count * size * step].reshape(len(signals), count, size, step).mean(axis=3)
    low, high = (round(hertz * _FRAME_SECONDS) for hertz in _VOICE_HZ)
    return rfft(frames * np.hanning(size).astype(np.float32))[:, :, low:high]


def _power_and_voice(spectra: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the power of frames (..., frames), and the mean of what lies above the pauses."""
    power = np.square(np.abs(spectra), dtype=np.float64).sum(axis=-1)
    return power, power.mean(axis=-1) - np.sort(power)[..., int(_PAUSES * power.shape[-1])]
