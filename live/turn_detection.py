"""Tells when somebody begins and ceases to speak, while the audio comes.

The network and the rules are those of `asr.frontend.vad`, as far as they can be known without the
future. A file's detector amplifies 16 s by what is loudest among them; here only what was heard
counts, and no step is amplified beyond full scale. Speech is announced once it is certain, some
0.2 s after its first sample, and carries that sample; a threshold of 0.5 gives the spans that the
same probabilities have in a file, with pauses shorter than the silence that ends a turn in them.
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
    """Speech along one stream of samples, mono at 16 kHz; for one thread at a time.

    Many share the `detector`'s network. Each step of 512 samples is computed alone, so that pushes
    of any size give the same to the last bit.
    """

    def __init__(self, detector: SpeechDetector, settings: TurnSettings) -> None:
        self._network = detector.network
        self._gain = RunningGain()
        self._settings = settings
        self._pending = np.zeros(0, np.float32)
        self._begin(0)

    @property
    def speaking(self) -> bool:
        """Whether speech has started and not stopped."""
        return self._turns.speaking

    @property
    def silent_for(self) -> float:
        """Seconds since the last step of speech, in what is certain; from the stream's start, or
        the last reset, where there was none.
        """
        return self._turns.silent_steps * STEP / SAMPLE_RATE

    def push(self, samples: NDArray[np.float32]) -> list[Turn]:
        """What becomes known with these samples (n,), in order: starts and stops in turn."""
        heard = np.concatenate([self._pending, samples])
        whole = len(heard) - len(heard) % STEP
        self._pending = heard[whole:]
        found: list[Turn] = []
        for start in range(0, whole, STEP):
            (probability,) = self._stream.push(heard[start : start + STEP])
            turn = self._turns.hear(float(probability))
            if turn is not None:
                found.append(turn)
        return found

    def change(self, settings: TurnSettings) -> None:
        """Go on with other settings; what has started stays so."""
        self._settings = settings
        self._turns.change(settings)

    def reset(self) -> None:
        """Forget all speech. Samples are still counted from the stream's start, and how loud they
        were is still known.
        """
        self._begin(self._turns.sample + len(self._pending))
        self._pending = np.zeros(0, np.float32)

    def _begin(self, sample: int) -> None:
        self._stream = SileroStream(self._network, self._gain)
        self._turns = Turns(self._settings, sample)


class RunningGain:
    """Amplifies each step as its past asks for: quiet speech is found, as in a file.

    The level is that of the last 16 s. A step that is louder is amplified to full scale, no more.
    """

    def __init__(self) -> None:
        self._peaks = torch.zeros(BLOCK // STEP)
        self._heard = 0

    def __call__(self, steps: Tensor) -> float:
        """The factor of one step (1, 64 + 512)."""
        peak = float(steps.abs().amax())
        self._peaks[self._heard % len(self._peaks)] = peak
        self._heard += 1
        gain = gain_for(loudness(self._peaks[: self._heard]))
        return max(1.0, min(gain, 1 / max(peak, 1e-9)))


class Turns:
    """Speech in a sequence of probabilities, one for each step from `sample` on.

    The rules of `asr.frontend.vad.find_speech`, step by step. Its three thresholds are those of a
    setting of 0.5 and move with it. A run of probable steps that has not become speech when the
    silence would end a turn is waited for.
    """

    def __init__(self, settings: TurnSettings, sample: int) -> None:
        self._first, self._steps = sample, 0
        self.speaking = False
        self._stop = 0  # the step after the last one of speech
        self._run: int | None = None  # where the present run of probable steps began
        self._run_counts = False  # one of them is likely
        self._span: _Span | None = None
        self.change(settings)

    def change(self, settings: TurnSettings) -> None:
        """Use these settings from the next step on."""
        options = VadOptions(settings.threshold)
        self._thresholds = options.stop, options.start, options.peak
        samples = settings.silence_duration_ms * SAMPLE_RATE // 1000
        self._silence = max(SHORTEST_PAUSE, -(-samples // STEP))

    @property
    def sample(self) -> int:
        """The sample after the last step."""
        return self._first + self._steps * STEP

    @property
    def silent_steps(self) -> int:
        """Steps since the last one of speech."""
        return self._steps - self._stop

    def hear(self, probability: float) -> Turn | None:
        """What one more step's probability makes known."""
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
        """What a step without speech makes known."""
        if self._span is not None and self._steps - self._span.stop >= SHORTEST_PAUSE:
            self._span = None
        if not self.speaking or self._span is not None or self.silent_steps < self._silence:
            return None
        self.speaking = False
        return SpeechStopped(self._first + self._stop * STEP)


@dataclass
class _Span:
    """Runs of probable steps, with short pauses between them at most, from a `start`."""

    start: int
    stop: int = 0
    likely: int = 0
    certain: bool = False

    def extend(self, stop: int, likely: bool, certain: bool) -> None:
        """Let it last until `stop`."""
        self.stop = stop
        self.likely += likely
        self.certain |= certain

    @property
    def is_speech(self) -> bool:
        """Whether it has what every span of speech has."""
        return self.likely >= SHORTEST_SPEECH and self.certain
