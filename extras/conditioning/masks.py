"""Masks of mixtures: what the endpoint's diarizer finds, with voices assigned by the true turns."""

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from extras.conditioning.mixtures import Mixture
from whosaid.asr.frontend.target_speaker import Mask
from whosaid.diarization.activity import SpeakerActivity
from whosaid.diarization.probabilities import SoftDecisions
from whosaid.diarization.pyannote import load_stock_pipeline
from whosaid.overlap import Track
from whosaid.timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from whosaid.transcript import SpeakerTurn

DECIDED = 0.35  # share of masks that are decisions: such diarizers exist
LIKELY = 0.5  # probability from which on a speaker is decided to speak
STEP = 2.5  # seconds from one window of the segmentation to the next


class DiarizerMasks:
    """Runs the segmentation of a pyannote pipeline on mixtures."""

    def __init__(self, pipeline: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._inference = load_stock_pipeline(pipeline, None, None)._segmentation
        self._soft = SoftDecisions(self._inference.conversion)

    def of(self, mixture: Mixture, generator: np.random.Generator) -> Mask:
        """Return the target's mask (frames, 4), as of `Track.mask`."""
        activity = self._activity(mixture)
        if generator.random() < DECIDED:
            likely = {
                name: (each > LIKELY).astype(np.float32) for name, each in activity.speaking.items()
            }
            several = np.sum([*likely.values()], axis=0) > 1
            activity = SpeakerActivity(likely, several.astype(np.float32))
        turns = tuple(SpeakerTurn(name, 0, activity.end) for name in activity.speaking)
        return Track(turns[0].speaker, 0, activity.end, turns).mask(activity)

    def _activity(self, mixture: Mixture) -> SpeakerActivity:
        """Return the mean probabilities of the segmentation's windows, by voice."""
        voices, frames = mixture.active.shape
        total, covered = np.zeros((voices + 1, frames), np.float32), np.zeros(frames)
        for inside, found in self._windows(mixture.samples, frames):
            *speakers, several = found.T
            together = mixture.active[:, inside].astype(float) @ np.transpose(speakers)
            for voice, speaker in zip(*linear_sum_assignment(together, maximize=True), strict=True):
                total[voice, inside] += speakers[speaker]
            total[-1, inside] += several
            covered[inside] += 1
        *speaking, several = total / covered
        return SpeakerActivity({str(n): each for n, each in enumerate(speaking)}, several)

    @torch.no_grad()
    def _windows(
        self, samples: NDArray[np.float32], frames: int
    ) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield windows' frames, and their probabilities (frames, speakers + 1)."""
        seconds = self._inference.duration
        size, last = round(seconds * SAMPLE_RATE), max(0.0, frames / TOKENS_PER_SECOND - seconds)
        for start in np.r_[np.arange(0, last, STEP), last]:
            heard = samples[round(start * SAMPLE_RATE) :][:size]
            part = torch.from_numpy(np.pad(heard, (0, size - len(heard))))
            found = self._soft(self._inference.model(part[None, None]))[0].numpy()
            speakers = range(found.shape[1] // 2)
            rate = len(found) / seconds
            activity = SpeakerActivity.averaged(
                found[:, len(speakers) :], rate, [*map(str, speakers)]
            )
            several = activity.several
            probabilities = np.stack([*activity.speaking.values(), several], axis=-1)
            first = round(start * TOKENS_PER_SECOND)
            inside = slice(first, min(first + len(several), frames))
            yield inside, probabilities[: inside.stop - first]
