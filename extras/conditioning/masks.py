"""Masks of mixtures: what the endpoint's diarizer finds, with voices assigned by the true turns."""

import warnings

import numpy as np
from scipy.optimize import linear_sum_assignment

from extras.conditioning.mixtures import Mixture
from whosaid.asr.frontend.target_speaker import Mask
from whosaid.diarization.activity import SpeakerActivity
from whosaid.diarization.probabilities import SoftDecisions
from whosaid.diarization.pyannote import file_of, load_stock_pipeline
from whosaid.overlap import Track
from whosaid.timebase import TOKENS_PER_SECOND
from whosaid.transcript import SpeakerTurn

STEP = 2.5  # seconds from one window of the segmentation to the next


class DiarizerMasks:
    """Runs the segmentation of a pyannote pipeline on mixtures."""

    def __init__(self, pipeline: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._segmentation = load_stock_pipeline(pipeline, None, None)._segmentation
        self._segmentation.conversion = SoftDecisions(self._segmentation.conversion)
        self._segmentation.step = STEP

    def of(self, mixture: Mixture) -> Mask:
        """Return the target's mask (frames, 4), as of `Track.mask`, by mean probabilities."""
        voices, frames = mixture.active.shape
        total, covered = np.zeros((voices + 1, frames), np.float32), np.zeros(frames)
        for window, found in self._segmentation(file_of(mixture.samples)):
            labels = [*map(str, range(found.shape[1] // 2))]
            rate, probabilities = len(found) / window.duration, found[:, len(labels) :]
            part = SpeakerActivity.averaged(probabilities, rate, labels)
            first = round(window.start * TOKENS_PER_SECOND)
            inside = slice(first, min(first + len(part.several), frames))
            part = part.within(0, (inside.stop - first) / TOKENS_PER_SECOND)
            heard = np.stack([*part.speaking.values()])
            together = mixture.active[:, inside].astype(float) @ heard.T
            for voice, speaker in zip(*linear_sum_assignment(together, maximize=True), strict=True):
                total[voice, inside] += heard[speaker]
            total[-1, inside] += part.several
            covered[inside] += 1
        *speaking, several = total / covered
        activity = SpeakerActivity({str(n): each for n, each in enumerate(speaking)}, several)
        turns = tuple(SpeakerTurn(name, 0, activity.end) for name in activity.speaking)
        return Track(turns[0].speaker, 0, activity.end, turns).mask(activity)
