"""pyannote's networks from safetensors, so that nothing in a folder can run: pyannote's own
checkpoints are pickles, which can hold any code.

A network's folder has `model.safetensors`, the network's `state_dict`, and `config.json`:
`architecture`, the name of one of `ARCHITECTURES`; `hyperparameters`, its arguments; and
`specifications`, the fields of pyannote's Specifications, with the names of its enumerations.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

WEIGHTS, CONFIG = "model.safetensors", "config.json"
# Those of published pipelines, by the module that has them in every release.
ARCHITECTURES = {
    "PyanNet": "pyannote.audio.models.segmentation",
    "WeSpeakerResNet34": "pyannote.audio.models.embedding",
}


def has_networks(folder: Path) -> bool:
    """Whether a pipeline's folder has its networks as safetensors. Pickles beside them are never
    opened then.
    """
    return any(folder.glob(f"*/{WEIGHTS}"))


def load_network(folder: Path) -> torch.nn.Module:
    """The network of a folder, a `pyannote.audio.Model` on the CPU that is ready to be asked.

    Raises ValueError where `config.json` describes none; what safetensors and torch raise passes
    through.
    """
    described = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    name = described["architecture"]
    if name not in ARCHITECTURES:
        raise ValueError(f"{folder.name}/{CONFIG}: the architecture is none of {[*ARCHITECTURES]}")
    network = getattr(import_module(ARCHITECTURES[name]), name)(**described["hyperparameters"])
    network.specifications = _specifications(described["specifications"])
    network.setup()  # makes the layers that follow from the specifications
    network.load_state_dict(load_file(folder / WEIGHTS))
    loaded: torch.nn.Module = network.eval()
    return loaded


def _specifications(fields: dict[str, Any]) -> Any:  # noqa: ANN401
    from pyannote.audio.core.task import Problem, Resolution, Specifications

    converted = {
        "problem": Problem[fields["problem"]],
        "resolution": Resolution[fields["resolution"]],
        "warm_up": tuple(fields.get("warm_up", (0.0, 0.0))),
    }
    return Specifications(**fields | converted)
