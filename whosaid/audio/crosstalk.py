"""Silences crosstalk, another channel's speech, in each channel before recognition.

A headset leaks into its neighbour's microphone, or a line echoes the other party, and the same
words would be written twice. A frame of a channel is silenced if it is softer than the same frame
of another channel and nearly all a filtered and delayed copy of it.

The delay is estimated for each block, from the phase of the cross-spectrum (Knapp and Carter, "The
generalized correlation method for estimation of time delay", 1976), and the filter's frequency
response for each frame, by least squares over the frames in which the other channel is louder.
Frames nearby have full weight, because clocks drift; the frame itself has none, so that a fit by
chance does not explain it. A residual below the copy's spectrum is a codec's noise, not speech.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.ndimage import uniform_filter1d

from whosaid.audio.decode import Audio
from whosaid.scheduling.steps import give_way
from whosaid.timebase import SAMPLE_RATE, runs

Samples = NDArray[np.float32]
Spectra = NDArray[np.complex64]  # (frames, bins)

# In samples. A frame is longer than most rooms' reverberation.
FRAME, HOP, BLOCK = 4096, 2048, 16 * SAMPLE_RATE
LONGEST_DELAY = SAMPLE_RATE // 2  # either way
# Bins of a frame with speech, without hum.
BAND = slice(200 * FRAME // SAMPLE_RATE, 4000 * FRAME // SAMPLE_RATE)
# A frame contributes to the filter if the other channel is LOUDER (3 dB to 60 dB). It is silenced
# if its crosstalk has MORE times the power of everything else.
LOUDER, FAINTEST, MORE = 2.0, 1e-6, 3.0
# Weights of frames in the estimate of a frame's filter: 1 up to NEAR frames away, ELSEWHERE in the
# rest of the block, 0 for direct neighbours, which share samples with the frame.
NEAR, ELSEWHERE = 8, 0.01
# Bins on either side that are averaged before powers are compared: 16 Hz, less than the distance
# between a voice's harmonics.
HIDDEN = 4
# Frames over which these powers are averaged; fewest frames to silence or to make a filter of.
AVERAGED, FEWEST = 3, 3
# Iterations of the filter's estimate, each with more weight on the frames that it explains.
REFINED = 3
TINY = float(np.finfo(np.float32).tiny)
# Channels that differ in less than this share of their power are copies of each other.
COPY = 1e-3


async def without_crosstalk(audio: Audio) -> Audio:
    """Silence crosstalk in all channels, in place and in small steps. Return the audio with a
    warning for each copy of a channel and each channel with crosstalk, or about a single channel.
    """
    channels = audio.channels
    if len(channels) == 1:
        alone = "channels: the audio has one channel, which is transcribed as it is"
        return replace(audio, warnings=(*audio.warnings, alone))
    warnings = [*audio.warnings, *_silence_copies(channels)]
    silenced = np.zeros(len(channels))
    for first in range(0, len(channels[0]), BLOCK):
        gains = []
        for place in range(len(channels)):
            gains.append(_gain(channels, place, first))
            await give_way()
        for place, gain in enumerate(gains):
            if gain is not None:
                channels[place][first : first + BLOCK] *= gain
                silenced[place] += len(gain) - gain.sum()
    for place in map(int, np.flatnonzero(silenced)):
        seconds = silenced[place] / SAMPLE_RATE
        warnings.append(f"channel {place}: {seconds:.2f} s of crosstalk from others are left out")
    return replace(audio, warnings=tuple(warnings))


def _silence_copies(channels: Sequence[Samples]) -> Iterator[str]:
    """Silence the second channel of each copied pair, or the softer one, and yield warnings."""
    power = [float(np.vdot(samples, samples)) for samples in channels]
    for first, second in combinations(range(len(channels)), 2):
        if not (power[first] and power[second]):
            continue
        likeness = float(np.vdot(channels[first], channels[second])) ** 2
        if likeness > (1 - COPY) * power[first] * power[second]:
            copy, kept = second, first
            if power[first] < power[second] / 2:
                copy, kept = first, second
            channels[copy][:] = power[copy] = 0
            yield f"channel {copy} is a copy of channel {kept}, and left out"


def _gain(channels: Sequence[Samples], target: int, first: int) -> Samples | None:
    """Return the factors for `target`'s samples in the block at `first`; None if all are 1."""
    length = min(BLOCK, len(channels[target]) - first)
    crosstalk = np.zeros(BLOCK // HOP + 1, bool)
    for source, samples in enumerate(channels):
        if source != target:
            crosstalk |= _find_crosstalk(channels[target], samples, first)
    if not crosstalk.any():
        return None
    at = np.arange(len(crosstalk)) * HOP
    return np.interp(np.arange(length), at, ~crosstalk).astype(np.float32)


def _find_crosstalk(target: Samples, source: Samples, first: int) -> NDArray[np.bool_]:
    """Return the frames (frames,) of the block in which `target` holds the sound of `source`."""
    nothing = np.zeros(BLOCK // HOP + 1, bool)
    own_cut = _cut(target, first)
    delay = _delay(own_cut, _cut(source, first))
    if delay is None:
        return nothing
    there, here = _spectra(_cut(source, first - delay)), _spectra(own_cut)
    power, loud = _power(here), _power(there)
    louder = _between(power, loud)
    if louder.sum() < FEWEST:
        return nothing
    # The median: in some frames the target speaks, or the source has not arrived yet.
    expected = loud * np.median((power / np.maximum(loud, TINY))[louder])
    cross, across = here * there.conj(), _squared(there)
    rest = power
    for _ in range(REFINED):
        weights = (louder / (rest + expected + TINY)).astype(np.float32)
        copied = there * _responses(cross, across, weights)
        rest = _power(here - copied)
    echo = np.minimum(_smoothed(copied), _smoothed(here))
    own = np.maximum(_smoothed(here - copied) - echo, 0)
    held = _averaged(echo) > MORE * _averaged(own)
    return _without_short_runs(held & _between(power, loud, 1.0))


def _cut(samples: Samples, first: int) -> Samples:
    """Return the samples under the frames of the block at `first`, zero-padded beyond the ends."""
    start, stop = first - FRAME // 2, first + BLOCK + FRAME // 2
    cut = samples[max(0, start) : max(0, stop)]
    before = min(max(0, -start), stop - start)
    return np.pad(cut, (before, stop - start - before - len(cut)))


def _delay(target: Samples, source: Samples) -> int | None:
    """Return the delay of `source` in `target`, in samples; None if `target` is never softer."""
    power = _powers(target)
    softer = _between(power, _powers(source))
    if not softer.any():
        return None
    # Frames of the target that are louder than usual are probably its own speech.
    usual = np.median(power[softer])
    weights = softer * np.sqrt(usual / np.maximum(power, usual))
    kept = target[: len(weights) * HOP] * np.repeat(weights, HOP).astype(np.float32)
    size = next_fast_len(len(target) + LONGEST_DELAY, real=True)
    cross = rfft(kept, size) * rfft(source, size).conj()
    cross /= np.abs(cross) + TINY
    in_band = slice(BAND.start * size // FRAME, BAND.stop * size // FRAME)
    cross[: in_band.start] = cross[in_band.stop :] = 0
    likeness = np.abs(irfft(cross, size))
    near = np.concatenate([likeness[-LONGEST_DELAY:], likeness[:LONGEST_DELAY]])
    return int(np.argmax(near)) - LONGEST_DELAY


def _between(
    power: NDArray[np.float64], loud: NDArray[np.float64], louder: float = LOUDER
) -> NDArray[np.bool_]:
    """Return the frames whose `power` is `louder` times below `loud` or more, and not too faint."""
    between: NDArray[np.bool_] = (power > FAINTEST * loud) & (louder * power < loud)
    return between


def _powers(samples: Samples) -> NDArray[np.float64]:
    whole = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    return np.square(whole, dtype=np.float64).sum(axis=1)


def _spectra(samples: Samples) -> Spectra:
    frames = sliding_window_view(samples, FRAME)[::HOP]
    spectra: Spectra = rfft(frames * np.hanning(FRAME).astype(np.float32))[:, BAND]
    return spectra


def _squared(spectra: Spectra) -> Samples:
    return np.square(spectra.real) + np.square(spectra.imag)


def _smoothed(spectra: Spectra) -> Samples:
    """Return the mean power of each bin and the HIDDEN bins on either side, (frames, bins)."""
    smoothed: Samples = uniform_filter1d(_squared(spectra), 2 * HIDDEN + 1, axis=1)
    return smoothed


def _power(spectra: Spectra) -> NDArray[np.float64]:
    """Return the power of each frame and its neighbours, (frames,)."""
    return _averaged(_squared(spectra))


def _averaged(power: Samples) -> NDArray[np.float64]:
    """Return the sum over all bins of each frame and its neighbours, (frames,)."""
    return np.convolve(power.sum(axis=1, dtype=np.float64), np.ones(AVERAGED), "same")


def _responses(cross: Spectra, across: Samples, weights: Samples) -> Spectra:
    """Return the response (frames, bins) of each frame that best makes the target from the source.
    `cross` is their cross-spectrum, `across` the source's power, `weights` are (frames,).
    """
    places = np.arange(len(weights))
    away = np.abs(places[:, None] - places)
    shares = np.where(away <= NEAR, 1 + ELSEWHERE, ELSEWHERE) * (away > 1)
    weighted = shares.astype(np.float32) * weights
    both = (weighted @ cross.view(np.float32)).view(np.complex64)  # real and imaginary parts alike
    responses: Spectra = both / (weighted @ across + TINY)
    return responses


def _without_short_runs(found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    kept = found.copy()
    for start, stop in runs(found):
        kept[start:stop] = stop - start >= FEWEST
    return kept
