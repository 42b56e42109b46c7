"""Loads the diarizer that a folder or a repository of the Hub holds."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import torch
from huggingface_hub.errors import EntryNotFoundError

from diarization.diarizer import Diarizer

NEMOTRON = "nemotron3_diarization"


def load_diarizer(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> Diarizer:
    """Load `name`, a hub id or a local folder, onto `device`.

    Raises StartError where access is refused or the libraries are too old; other exceptions of
    theirs pass through.
    """
    # Each is imported where it is named: without a diarizer a start waits for neither.
    if model_type(name, revision, token) == NEMOTRON:
        from diarization.nemotron_diarizer import load_nemotron

        return load_nemotron(name, revision, token, device)
    from diarization.pyannote_pipeline import load_pyannote

    return load_pyannote(name, revision, token, device)


def model_type(name: str, revision: str | None, token: str | None) -> str | None:
    """What `config.json` calls the model; None where there is none, as with pyannote's pipelines,
    or it is not to be had: then what loads next says why.

    Raises what huggingface_hub does where access is refused, and ValueError for what is no JSON.
    """
    file = Path(name) / "config.json"
    if not Path(name).is_dir():
        try:
            file = Path(
                huggingface_hub.hf_hub_download(name, "config.json", revision=revision, token=token)
            )
        except EntryNotFoundError:  # one that is not in the cache, offline, is such an error too
            return None
    elif not file.is_file():
        return None
    config = json.loads(file.read_text(encoding="utf-8"))
    return config.get("model_type") if isinstance(config, dict) else None
