"""Finds speech in a recording and plans its windows, while the recording is still being decoded.

A longer beginning of the recording is planned from its start each time, by the code for whole
recordings. Windows that later samples cannot change go to the transcription, which runs meanwhile.
The beginnings double, so all plans together take twice the time of the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.target_speaker import TargetSpeaker
from whosaid.asr.frontend.vad import (
    DetectSpeech,
    SpeechDetector,
    SpeechSearch,
    VadOptions,
    find_speech,
)
from whosaid.asr.frontend.windows import MARGIN, SampleSpan
from whosaid.asr.transcription import Arrival, Transcription
from whosaid.scheduling.steps import give_way
from whosaid.timebase import SAMPLE_RATE

# Shorter recordings are decoded whole before their first window, as are the first seconds of longer
# ones.
LONG_SECONDS, FIRST_SECONDS = 300, 90

Samples = NDArray[np.float32]


class Listener:
    """Plans a recording's windows of at most `limit` samples; with a `target`, for it alone."""

    def __init__(
        self,
        detect: DetectSpeech,
        vad: VadOptions | None,
        limit: int,
        target: TargetSpeaker | None = None,
    ) -> None:
        self._detect, self._vad, self.limit, self._target = detect, vad, limit, target
        self._search = SpeechSearch(detect.network) if isinstance(detect, SpeechDetector) else None

    async def plan(self, samples: Samples, complete: bool = True) -> Arrival:
        """Find speech and plan windows in small steps, 10 ms a minute of audio. `samples` begin
        with those of earlier calls; unless they are `complete`, more may change the last windows.
        """
        vad = self._vad
        speech: Sequence[SampleSpan] = (SampleSpan(0, len(samples)),)
        if vad is not None and self._target is not None:
            speech = self._target.speech
        elif vad is not None and self._search is not None:
            for _ in self._search.blocks(samples, complete):
                await give_way()
            speech = find_speech(self._search.probabilities, len(samples), vad, complete)
            await give_way()
        elif vad is not None:
            speech = self._detect(samples)
        pad = None if vad is None else vad.speech_pad_ms
        margin = MARGIN if pad is None else pad * SAMPLE_RATE // 1000
        schedule = Schedule(samples, speech, self.limit, margin, vad is not None, self._target)
        return Arrival(schedule, speech, complete)


@dataclass(eq=False)
class EarlyStart:
    """A transcription that runs while its recording is decoded; `wake` tells its thread of news.
    If it is `on_cpu`, it shares the processors with the decoding.
    """

    transcription: Transcription
    listener: Listener
    wake: Callable[[], None]
    on_cpu: bool
    due: int = field(
        default_factory=lambda: FIRST_SECONDS * SAMPLE_RATE
    )  # samples of the next plan

    async def hear(self, samples: Samples, complete: bool = False) -> bool:
        """Pass the windows of `samples` on if these have doubled, or are `complete`; tell if so."""
        if not complete and len(samples) < self.due:
            return False
        self.due = 2 * len(samples)
        self.transcription.arrivals.append(await self.listener.plan(samples, complete))
        self.wake()
        return True

    def fail(self, error: Exception) -> None:
        """Let the transcription fail because its recording cannot be decoded."""
        self.transcription.arrivals.append(error)
        self.wake()
