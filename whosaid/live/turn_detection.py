"""Detects starts and stops of speech in live audio.

The network and the rule are those of `asr.frontend.vad`, without its look-ahead: only past audio
counts for the loudness, and no step is amplified beyond full scale. A start is reported once it is
certain, some 0.2 s after the first sample of speech, and carries that sample. At a threshold of 0.5
the turns are a file's spans, joined over pauses that are too short to end a turn.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whosaid.asr.frontend.vad import (
    BLOCK,
    SHORTEST_PAUSE,
    STEP,
    SileroStream,
    SpeechDetector,
    SpeechRule,
    VadOptions,
    gain_for,
    loudness,
)
from whosaid.live.settings import TurnSettings
from whosaid.timebase import SAMPLE_RATE

# 40 dB: before the first speech, rumble at -72 dB with 50 dB, as in files, passes for speech.
MAX_GAIN = 100


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech begins at this sample of the stream."""

    sample: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Speech ended before this sample of the stream, and enough silence followed."""

    sample: int


Turn = SpeechStarted | SpeechStopped


class TurnDetector:
    """Detects speech in one stream of samples, mono at 16 kHz; for one thread at a time. Streams
    share the `detector`'s network. Results do not depend on the sizes of pushes.
    """

    def __init__(self, detector: SpeechDetector, settings: TurnSettings) -> None:
        self._network = detector.network
        self._gain = RunningGain()
        self._settings = settings
        self._pending = np.zeros(0, np.float32)
        self._begin(0)

    @property
    def silent_for(self) -> float:
        """Seconds since the last certain step of speech, or else since the start or last reset."""
        return self._turns.silent_steps * STEP / SAMPLE_RATE

    def push(self, samples: NDArray[np.float32]) -> list[Turn]:
        """Add samples (n,). Return the starts and stops that become certain, in order."""
        joined = np.concatenate([self._pending, samples])
        whole = len(joined) - len(joined) % STEP
        self._pending = joined[whole:]
        steps = (joined[start : start + STEP] for start in range(0, whole, STEP))
        found = [self._turns.push(float(self._stream.push(step)[0])) for step in steps]
        return [turn for turn in found if turn is not None]

    def change(self, settings: TurnSettings) -> None:
        self._settings = settings
        self._turns.change(settings)

    def reset(self) -> None:
        """Drop all speech, but keep the number of samples so far and their loudness."""
        self._begin(self._turns.sample + len(self._pending))
        self._pending = np.zeros(0, np.float32)

    def _begin(self, sample: int) -> None:
        self._stream = SileroStream(self._network, self._gain)
        self._turns = TurnFinder(self._settings, sample)


class RunningGain:
    """Amplifies quiet audio for the detector by the loudness of the last 16 s."""

    def __init__(self) -> None:
        self._peaks = torch.zeros(BLOCK // STEP)
        self._steps = 0

    def __call__(self, steps: Tensor) -> float:
        """Return the factor for one step (1, 64 + 512), which keeps it within full scale."""
        peak = float(steps.abs().amax())
        self._peaks[self._steps % len(self._peaks)] = peak
        self._steps += 1
        gain = gain_for(loudness(self._peaks[: self._steps]))
        return max(1.0, min(gain, MAX_GAIN, 1 / max(peak, 1e-9)))


class TurnFinder:
    """Finds turns in probabilities, one for each step from `sample` on.

    The thresholds of `SpeechRule` move with the settings' threshold. A turn does not end while a
    run of probable steps may still become speech.
    """

    def __init__(self, settings: TurnSettings, sample: int) -> None:
        self._first = sample
        self.speaking = False
        self._stop = 0  # the step after the last step of speech
        self._rule = SpeechRule(VadOptions(settings.threshold))
        self.change(settings)

    def change(self, settings: TurnSettings) -> None:
        self._rule.change(VadOptions(settings.threshold))
        samples = settings.silence_duration_ms * SAMPLE_RATE // 1000
        self._silence = max(SHORTEST_PAUSE, -(-samples // STEP))

    @property
    def sample(self) -> int:
        return self._first + self._rule.steps * STEP

    @property
    def silent_steps(self) -> int:
        return self._rule.steps - self._stop

    def push(self, probability: float) -> Turn | None:
        """Add the probability of a step. Return a start or stop that it makes certain."""
        found = self._rule.push(probability)
        if found is not None and self._rule.is_speech(found):
            self._stop = self._rule.steps
            if not self.speaking:
                self.speaking = True
                return SpeechStarted(self._first + found.start * STEP)
        silent = self._rule.run is None and self._rule.joined is None
        if not self.speaking or not silent or self.silent_steps < self._silence:
            return None
        self.speaking = False
        return SpeechStopped(self._first + self._stop * STEP)
