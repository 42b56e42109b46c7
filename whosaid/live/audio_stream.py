"""Decodes live audio, in pieces of any size, to samples at 16 kHz.

The resampling filter is that of `audio.decode` and keeps its state between pieces. So a live
session gets the samples of the whole file, however its bytes are cut. G.711 (ITU-T G.711, 1988) has
one byte a sample, so a table of 256 values decodes it.
"""

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from whosaid.audio.filters import FilterChain
from whosaid.live.settings import AudioFormat
from whosaid.timebase import SAMPLE_RATE

FULL_SCALE = 32_768  # of 16 bits


class AudioStream:
    """Decodes one stream of audio. The filter's delay is at most 2 ms, 4 ms at the start. A
    sample's index is its time: after a flush, samples and bytes have the same duration.
    """

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._odd = b""  # first byte of an incomplete sample
        self._resampler: FilterChain | None = None
        self._received = self._returned = 0  # samples since the stream began

    def push(self, data: bytes) -> NDArray[np.float32]:
        """Return the samples (n,), float32 mono at 16 kHz, that `data` completes."""
        data = self._odd + data
        whole = len(data) - len(data) % self._format.bytes_per_sample
        self._odd = data[whole:]
        samples = decoded(data[:whole], self._format)
        self._received += len(samples)
        if self._format.rate == SAMPLE_RATE or not len(samples):
            return samples
        frame = AudioFrame.from_ndarray(samples[None], "flt", "mono")
        frame.sample_rate = self._format.rate
        if self._resampler is None:
            self._resampler = FilterChain(frame, (("aresample", str(SAMPLE_RATE)),))
        return self._resampled(self._resampler, frame)

    def flush(self) -> NDArray[np.float32]:
        """Return the filter's remaining samples. More bytes may follow."""
        if self._resampler is None:
            return np.zeros(0, np.float32)
        rest = self._resampled(self._resampler, None)
        self._resampler.close()
        self._resampler = None
        return rest

    def _resampled(self, resampler: FilterChain, frame: AudioFrame | None) -> NDArray[np.float32]:
        """Push a frame, or flush with None. Return samples up to the duration received so far;
        after a flush exactly that many.
        """
        lasts = -(-self._received * SAMPLE_RATE // self._format.rate)
        ready = [np.zeros(0, np.float32), *(each.to_ndarray()[0] for each in resampler.push(frame))]
        samples = np.concatenate(ready)[: lasts - self._returned]
        if frame is None:  # audio shorter than the filter gives no samples
            samples = np.pad(samples, (0, lasts - self._returned - len(samples)))
        self._returned += len(samples)
        return samples


def decoded(data: bytes, audio_format: AudioFormat) -> NDArray[np.float32]:
    """Decode the bytes of whole samples to (n,), from -1 to 1, at the format's rate."""
    if audio_format is AudioFormat.PCMU:
        return MU_LAW[np.frombuffer(data, np.uint8)]
    if audio_format is AudioFormat.PCMA:
        return A_LAW[np.frombuffer(data, np.uint8)]
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(FULL_SCALE)


def _samples_of_bytes(codec: str) -> NDArray[np.float32]:
    """Return the sample of each byte (256,)."""
    context = av.CodecContext.create(codec, "r")
    assert isinstance(context, av.AudioCodecContext)
    context.sample_rate, context.layout = 8000, "mono"
    (frame,) = context.decode(av.Packet(bytes(range(256))))
    samples: NDArray[np.float32] = frame.to_ndarray()[0] / np.float32(FULL_SCALE)
    return samples


MU_LAW, A_LAW = _samples_of_bytes("pcm_mulaw"), _samples_of_bytes("pcm_alaw")
