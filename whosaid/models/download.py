"""Downloads models from the Hub before the endpoint loads them.

The endpoint would show no progress, and would retry a failed request for half a minute.
"""

import sys
import warnings
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.utils.tqdm import enable_progress_bars

from config import MODEL_VARIABLES, ModelReference, ModelSettings
from whosaid.runtime.errors import loading

# Many repositories hold the weights in other formats too.
WHISPER_FILES = [
    *("*.json", "*.txt", "model.safetensors", "model-*-of-*.safetensors", "model.bin"),
    *("conditioning.safetensors", "adapter_model.safetensors"),
]
NEMO_FILES = "*.nemo"


def with_local_models(settings: ModelSettings) -> ModelSettings:
    """Return `settings` with downloaded folders for Hub IDs. Raises StartError of one line."""
    folders = {}
    for name in MODEL_VARIABLES:
        field = name.lower()
        model = getattr(settings, field)
        if model is not None and not Path(model.name).is_dir():
            with loading(name, model.name):
                _show_progress()
                folder = snapshot_download(
                    model.name,
                    revision=model.revision,
                    token=settings.token,
                    allow_patterns=None if field == "diarization_model" else WHISPER_FILES,
                    ignore_patterns=NEMO_FILES,
                )
                folders[field] = ModelReference(folder)
    return settings.model_copy(update=folders)


def _show_progress() -> None:
    """Show progress bars on a terminal, which `loading` turns off."""
    if sys.stderr.isatty():
        with warnings.catch_warnings():
            # The library warns if HF_HUB_DISABLE_PROGRESS_BARS is set, as the user wished.
            warnings.simplefilter("ignore")
            enable_progress_bars()
