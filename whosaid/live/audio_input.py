"""The audio of one session from the wire: bytes in, samples and speech turns out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whosaid.live.audio_stream import AudioStream
from whosaid.live.settings import AudioFormat, TurnSettings
from whosaid.live.turn_detection import Turn, TurnDetector

# Samples (n,) at 16 kHz, starts and stops of speech in them, and seconds of silence at their end.
Detected = tuple[NDArray[np.float32], list[Turn], float]


class AudioInput:
    """Decodes bytes in `format` and detects speech in them; for one thread at a time."""

    def __init__(self, detector: TurnDetector) -> None:
        self.format = AudioFormat.PCM_24000
        self._stream = AudioStream(self.format)
        self._detector = detector

    def push(self, data: bytes) -> Detected:
        """Decode `data` and detect speech in the samples that it completes."""
        return self._detected(self._stream.push(data))

    def flush(self) -> Detected:
        """Return the samples that the resampler still holds, with their turns."""
        return self._detected(self._stream.flush())

    def change(self, audio_format: AudioFormat, turns: TurnSettings | None) -> None:
        """Change the settings for the bytes that follow. Flush before a change of format."""
        if audio_format is not self.format:
            self.format, self._stream = audio_format, AudioStream(audio_format)
        self._detector.change(turns or TurnSettings())

    def reset(self) -> None:
        """Reset the detector: ongoing speech starts anew."""
        self._detector.reset()

    def _detected(self, samples: NDArray[np.float32]) -> Detected:
        return samples, self._detector.push(samples), self._detector.silent_for
