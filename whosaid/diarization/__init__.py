"""Speaker diarization: who speaks when, and which speakers are known by name."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from whosaid.diarization.diarizer import Diarizer

NEMOTRON = "nemotron3_diarization"
# The pipeline that embeds voices for a model without embeddings, if it is there.
VOICES = Path(__file__).parents[2] / "models" / "diarization"


def load_diarizer(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> Diarizer:
    """Load `name`, a hub id or a local folder, onto `device`. Raises StartError if access is
    refused or libraries are too old, and other exceptions of the libraries.
    """
    if model_type(name, revision, token) == NEMOTRON:
        from whosaid.diarization.nemotron import load_nemotron

        nemotron = load_nemotron(name, revision, token, device)
        if not VOICES.is_dir() or find_spec("pyannote") is None:
            return nemotron
        from whosaid.diarization.voiced import VoicedDiarizer

        return VoicedDiarizer(nemotron, load_diarizer(str(VOICES), None, None, device))
    from whosaid.diarization.pyannote import load_pyannote

    return load_pyannote(name, revision, token, device)


def import_ahead() -> None:
    """Begin to import the libraries of pipelines in a thread, if they are installed."""
    if find_spec("pyannote"):
        from whosaid.diarization.pyannote import import_ahead

        import_ahead()


def model_type(name: str, revision: str | None, token: str | None) -> str | None:
    """Return `model_type` of the model's `config.json`; None without the file (pyannote's
    pipelines) or a download. Raises huggingface_hub's refusals, and ValueError for invalid JSON.
    """
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    file = f"{name}/config.json"
    try:
        if not Path(name).is_dir():
            file = huggingface_hub.hf_hub_download(
                name, "config.json", revision=revision, token=token
            )
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except (FileNotFoundError, EntryNotFoundError):  # the latter also offline without a cached file
        return None
    return config.get("model_type") if isinstance(config, dict) else None
