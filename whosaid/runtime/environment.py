"""Reads and sets the process's environment, besides the settings of `config`."""

from __future__ import annotations

import os
import re
from pathlib import Path

CACHE = "asr-diarization-endpoint"


def turn_graphs_off() -> bool:
    """Set CUDA_GRAPHS=0 for processes started from here; return False if it was 0 before."""
    before, os.environ["CUDA_GRAPHS"] = os.environ.get("CUDA_GRAPHS"), "0"
    return before != "0"


def nvidia_device_present(devices: Path = Path("/dev")) -> bool:
    """Return whether this machine has an NVIDIA GPU, usable by torch or not.

    A GPU appears as `/dev/nvidia0`, in a container possibly with another number.
    NVIDIA_VISIBLE_DEVICES counts if it names devices, but not if it is `all`, because CUDA's
    container images set that on machines without a GPU too.
    """
    if any(re.fullmatch(r"nvidia\d+", path.name) for path in devices.glob("nvidia*")):
        return True
    return os.environ.get("NVIDIA_VISIBLE_DEVICES", "").strip() not in ("", "all", "none", "void")


def cache_folder() -> Path:
    """Return the folder of the demo's downloads, by the XDG rules; it may not exist yet."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification says to ignore a relative path.
    return (named if named.is_absolute() else Path.home() / ".cache") / CACHE
