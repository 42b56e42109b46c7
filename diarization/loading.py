"""Loads the diarizer that a folder or a repository of the Hub holds."""

from __future__ import annotations

import torch

from diarization.diarizer import Diarizer
from diarization.pyannote_pipeline import load_pyannote


def load_diarizer(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> Diarizer:
    """Load `name`, a hub id or a local folder, onto `device`.

    Raises StartError where access is refused; other exceptions of the libraries pass through.
    """
    return load_pyannote(name, revision, token, device)
