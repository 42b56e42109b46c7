"""Detects starts and stops of speech in live audio.

The network and the rules are those of `asr.frontend.vad`, without its look-ahead. A file's detector
amplifies 16 s by their loudest part. Here only past audio counts, and no step is amplified beyond
full scale. A start is reported once it is certain, some 0.2 s after the first sample of speech, and
carries that sample. At a threshold of 0.5 the turns are the spans of a file with the same
probabilities, joined over pauses that are too short to end a turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.frontend.vad import (
    BLOCK,
    SHORTEST_PAUSE,
    SHORTEST_SPEECH,
    STEP,
    SileroStream,
    SpeechDetector,
    VadOptions,
    gain_for,
    loudness,
)
from live.settings import TurnSettings
from timebase import SAMPLE_RATE


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
    """Detects speech in one stream of samples, mono at 16 kHz; for one thread at a time.

    Streams share the `detector`'s network. Each step of 512 samples is computed alone, so that
    pushes of any size give bit-equal results.
    """

    def __init__(self, detector: SpeechDetector, settings: TurnSettings) -> None:
        self._network = detector.network
        self._gain = RunningGain()
        self._settings = settings
        self._pending = np.zeros(0, np.float32)
        self._begin(0)

    @property
    def speaking(self) -> bool:
        return self._turns.speaking

    @property
    def silent_for(self) -> float:
        """Seconds since the last certain step of speech, or else since the start or last reset."""
        return self._turns.silent_steps * STEP / SAMPLE_RATE

    def push(self, samples: NDArray[np.float32]) -> list[Turn]:
        """Add samples (n,). Return the starts and stops that become certain, in order."""
        joined = np.concatenate([self._pending, samples])
        whole = len(joined) - len(joined) % STEP
        self._pending = joined[whole:]
        found: list[Turn] = []
        for start in range(0, whole, STEP):
            (probability,) = self._stream.push(joined[start : start + STEP])
            turn = self._turns.push(float(probability))
            if turn is not None:
                found.append(turn)
        return found

    def change(self, settings: TurnSettings) -> None:
        """Use other settings from now on; ongoing speech goes on."""
        self._settings = settings
        self._turns.change(settings)

    def reset(self) -> None:
        """Drop all speech, but keep the number of samples so far and their loudness."""
        self._begin(self._turns.sample + len(self._pending))
        self._pending = np.zeros(0, np.float32)

    def _begin(self, sample: int) -> None:
        self._stream = SileroStream(self._network, self._gain)
        self._turns = Turns(self._settings, sample)


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
        return max(1.0, min(gain, 1 / max(peak, 1e-9)))


class Turns:
    """Finds turns in probabilities, one for each step from `sample` on.

    Applies the rules of `asr.frontend.vad.find_speech` step by step. Its three thresholds are for a
    setting of 0.5 and move with the setting. A turn does not end while a run of probable steps may
    still become speech.
    """

    def __init__(self, settings: TurnSettings, sample: int) -> None:
        self._first, self._steps = sample, 0
        self.speaking = False
        self._stop = 0  # the step after the last step of speech
        self._run: int | None = None  # first step of the current run of probable steps
        self._run_counts = False  # the run has a likely step
        self._span: _Span | None = None
        self.change(settings)

    def change(self, settings: TurnSettings) -> None:
        options = VadOptions(settings.threshold)
        self._thresholds = options.stop, options.start, options.peak
        samples = settings.silence_duration_ms * SAMPLE_RATE // 1000
        self._silence = max(SHORTEST_PAUSE, -(-samples // STEP))

    @property
    def sample(self) -> int:
        """Sample after the last step."""
        return self._first + self._steps * STEP

    @property
    def silent_steps(self) -> int:
        """Number of steps since the last step of speech."""
        return self._steps - self._stop

    def push(self, probability: float) -> Turn | None:
        """Add the probability of a step. Return a start or stop that it makes certain."""
        lasts, likely, certain = self._thresholds
        self._steps += 1
        if probability < lasts:
            self._run, self._run_counts = None, False
            return self._pause()
        if self._run is None:
            self._run = self._steps - 1
        self._run_counts |= probability >= likely
        if not self._run_counts:
            return None
        if self._span is None:
            self._span = _Span(self._run)
        self._span.extend(self._steps, probability >= likely, probability >= certain)
        if not self._span.is_speech:
            return None
        self._stop = self._steps
        if self.speaking:
            return None
        self.speaking = True
        return SpeechStarted(self._first + self._span.start * STEP)

    def _pause(self) -> SpeechStopped | None:
        """Return the stop of speech, if a step without speech makes it certain."""
        if self._span is not None and self._steps - self._span.stop >= SHORTEST_PAUSE:
            self._span = None
        if not self.speaking or self._span is not None or self.silent_steps < self._silence:
            return None
        self.speaking = False
        return SpeechStopped(self._first + self._stop * STEP)


@dataclass
class _Span:
    """Runs of probable steps from `start` on, with only short pauses between them."""

    start: int
    stop: int = 0
    likely: int = 0
    certain: bool = False

    def extend(self, stop: int, likely: bool, certain: bool) -> None:
        self.stop = stop
        self.likely += likely
        self.certain |= certain

    @property
    def is_speech(self) -> bool:
        return self.likely >= SHORTEST_SPEECH and self.certain
