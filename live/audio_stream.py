"""Audio as it comes over a wire, in pieces of any size, to samples at 16 kHz.

Samples are decoded and resampled as `audio.decode` does those of a file, by the same filter with
the same state from its first sample on: where the bytes are cut makes no difference, and a live
session hears what the file would give. G.711 (ITU-T G.711, 1988) has one byte a sample, so that a
table of 256 values decodes it.
"""

from __future__ import annotations

import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from audio.filters import FilterChain
from live.settings import AudioFormat
from timebase import SAMPLE_RATE

FULL_SCALE = 32_768  # of 16 bits


class AudioStream:
    """One stream of audio. The filter's delay is at most 2 ms, 4 ms at the start.

    A sample's time is its number: after a flush there are as many samples as the bytes last.
    """

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._odd = b""  # of a sample whose other byte has not come
        self._resampler: FilterChain | None = None
        self._heard = self._given = 0  # samples that came and that went, since the stream began

    def push(self, data: bytes) -> NDArray[np.float32]:
        """The samples (n,), float32 mono at 16 kHz, that are complete with `data`."""
        data = self._odd + data
        whole = len(data) - len(data) % self._format.bytes_per_sample
        self._odd = data[whole:]
        samples = decoded(data[:whole], self._format)
        self._heard += len(samples)
        if self._format.rate == SAMPLE_RATE:
            self._given += len(samples)
            return samples
        if not len(samples):
            return samples
        frame = AudioFrame.from_ndarray(samples[None], "flt", "mono")
        frame.sample_rate = self._format.rate
        if self._resampler is None:
            self._resampler = FilterChain(frame, (("aresample", str(SAMPLE_RATE)),))
        return self._resampled(self._resampler, frame)

    def flush(self) -> NDArray[np.float32]:
        """The samples that the filter still holds, and nothing of what comes next; half a sample
        that came is forgotten. More may be pushed afterwards.
        """
        self._odd = b""
        if self._resampler is None:
            return np.zeros(0, np.float32)
        rest = self._resampled(self._resampler, None)
        self._resampler.close()
        self._resampler = None
        return rest

    def _resampled(self, resampler: FilterChain, frame: AudioFrame | None) -> NDArray[np.float32]:
        """What is ready, at most as much as the audio lasts, and at the end as much."""
        lasts = -(-self._heard * SAMPLE_RATE // self._format.rate)
        ready = [np.zeros(0, np.float32), *(each.to_ndarray()[0] for each in resampler.push(frame))]
        samples = np.concatenate(ready)[: lasts - self._given]
        if frame is None:  # of less than the filter's length it makes nothing
            samples = np.pad(samples, (0, lasts - self._given - len(samples)))
        self._given += len(samples)
        return samples


def decoded(data: bytes, audio_format: AudioFormat) -> NDArray[np.float32]:
    """The samples (n,) of whole samples' bytes, from -1 to 1, at the format's rate."""
    if audio_format is AudioFormat.PCMU:
        return MU_LAW[np.frombuffer(data, np.uint8)]
    if audio_format is AudioFormat.PCMA:
        return A_LAW[np.frombuffer(data, np.uint8)]
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(FULL_SCALE)


def _mu_law() -> NDArray[np.float32]:
    """Each byte's sample: its bits are inverted, and of these the first is the sign, three are the
    exponent, and four the fraction of a value that has 33 added (G.711, table 2; here in 16 bits).
    """
    codes = ~np.arange(256, dtype=np.uint8)
    exponent, fraction = (codes >> 4 & 7).astype(np.int32), (codes & 15).astype(np.int32)
    size = ((2 * fraction + 33 << exponent) - 33) << 2
    return (np.where(codes & 128, -size, size) / FULL_SCALE).astype(np.float32)


def _a_law() -> NDArray[np.float32]:
    """Each byte's sample: every other bit is inverted; the sign's is set for positive samples, and
    the lowest of the eight segments has no leading one (G.711, table 1; here in 16 bits).
    """
    codes = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, fraction = (codes >> 4 & 7).astype(np.int32), (codes & 15).astype(np.int32)
    size = (2 * fraction + np.where(exponent > 0, 33, 1) << np.maximum(exponent - 1, 0)) << 3
    return (np.where(codes & 128, size, -size) / FULL_SCALE).astype(np.float32)


MU_LAW, A_LAW = _mu_law(), _a_law()
