"""The audio of one session as it comes over the wire: bytes in, samples and turns out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from live.audio_stream import AudioStream
from live.settings import AudioFormat, TurnSettings
from live.turn_detection import Turn, TurnDetector

# Samples (n,) at 16 kHz, the turns that the detector found in them, and for how many seconds nobody
# has spoken at their end.
Heard = tuple[NDArray[np.float32], list[Turn], float]


class AudioInput:
    """Bytes in `format`, heard by a `detector`; for one thread at a time."""

    def __init__(self, detector: TurnDetector) -> None:
        self.format = AudioFormat.PCM_24000
        self._stream = AudioStream(self.format)
        self._detector = detector

    def push(self, data: bytes) -> Heard:
        """What is complete with these bytes."""
        return self._heard(self._stream.push(data))

    def flush(self) -> Heard:
        """What the resampler still holds."""
        return self._heard(self._stream.flush())

    def change(self, audio_format: AudioFormat, turns: TurnSettings | None) -> None:
        """Hear what comes next otherwise. Before another format the last one has to be flushed."""
        if audio_format is not self.format:
            self.format, self._stream = audio_format, AudioStream(audio_format)
        self._detector.change(turns or TurnSettings())

    def reset(self) -> None:
        """Forget all speech: who goes on speaking begins anew."""
        self._detector.reset()

    def _heard(self, samples: NDArray[np.float32]) -> Heard:
        return samples, self._detector.push(samples), self._detector.silent_for
