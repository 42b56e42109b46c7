"""pyannote's pipeline as it comes, untouched: what ours is compared with."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from tests.support.speech import Samples
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.diarization.pyannote import load_stock_pipeline
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn


class StockPipeline:
    """The pipeline of a folder, with the batch sizes of its configuration."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipeline = load_stock_pipeline(str(folder), None, None)
        self._pipeline = pipeline.to(device)

    def __call__(self, samples: Samples, hints: SpeakerHints) -> list[SpeakerTurn]:
        """Return the turns of `samples`, (n,) at 16 kHz; they may extend a little past the end."""
        file = {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}
        found = self._pipeline(file, num_speakers=hints.num_speakers)
        annotation = getattr(found, "speaker_diarization", found)
        return [
            SpeakerTurn(str(label), float(segment.start), float(segment.end))
            for segment, _, label in annotation.itertracks(yield_label=True)
        ]
