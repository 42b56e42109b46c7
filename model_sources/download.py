"""Fetches models from the hub before the endpoint loads them, with progress bars on a terminal.

The endpoint gets a folder. By itself it would show no bars, as a server should not, and repeat a
failed request for half a minute; here the first failure ends the demo with one line.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.utils.tqdm import enable_progress_bars

from config import MODEL_VARIABLES, ModelReference, ModelSettings
from runtime.errors import loading

# What transformers reads of a Whisper: many repositories hold the weights in other formats too.
WHISPER_FILES = ("*.json", "*.txt", "model.safetensors", "model-*-of-*.safetensors")
FOR_NEMO = "*.nemo"  # of NVIDIA's models, another form of the same weights


def with_local_models(settings: ModelSettings) -> ModelSettings:
    """The same settings with a local folder in place of every hub id, downloaded if need be.

    Raises StartError of one line where a model cannot be had.
    """
    folders = {}
    for name in MODEL_VARIABLES:
        field = name.lower()
        model = getattr(settings, field)
        if model is not None and not Path(model.name).is_dir():
            patterns = None if field == "diarization_model" else WHISPER_FILES
            with loading(name, model.name):
                folders[field] = _fetch(model, settings.token, patterns)
    return settings.model_copy(update=folders)


def _fetch(
    model: ModelReference, token: str | None, patterns: tuple[str, ...] | None
) -> ModelReference:
    """The snapshot of `model` in the local cache, complete as far as the hub can be reached."""
    if sys.stderr.isatty():
        with warnings.catch_warnings():
            # It warns where HF_HUB_DISABLE_PROGRESS_BARS forbids bars, which is the user's wish.
            warnings.simplefilter("ignore")
            enable_progress_bars()
    folder = snapshot_download(
        model.name,
        revision=model.revision,
        token=token,
        allow_patterns=None if patterns is None else list(patterns),
        ignore_patterns=FOR_NEMO,
    )
    return ModelReference(folder)
