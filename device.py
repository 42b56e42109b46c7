"""Which device computes, in which precision, and with how many threads.

The one decision: no silent service on the CPU. Where an NVIDIA device is present and torch cannot
use it (a driver older than torch's CUDA needs, mostly), the process ends with one line rather than
answer a hundred times slower, unless the CPU was asked for.
"""

from __future__ import annotations

import logging
import warnings

import joblib
import torch

from errors import StartError

logger = logging.getLogger("endpoint")


def choose_device(wanted: str, nvidia_present: bool) -> tuple[torch.device, torch.dtype]:
    """The device for `wanted` ("auto", "cuda" or "cpu"), and half precision on CUDA.

    A Mac computes on its CPU: its GPU has no float64, in which scores are summed. Raises StartError
    where CUDA is asked for, or a device of NVIDIA's is present, and torch cannot use it.
    """
    if wanted == "cpu":
        return torch.device("cpu"), torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch warns of here is said below
        if torch.cuda.is_available():
            return torch.device("cuda"), torch.float16
    if wanted == "cuda":
        raise StartError(f"DEVICE=cuda, but torch cannot use CUDA: {_cuda_failure()}")
    if nvidia_present:
        raise StartError(
            "an NVIDIA device is present, but torch cannot use it: "
            f"{_cuda_failure()} (DEVICE=cpu serves on the CPU all the same)"
        )
    return torch.device("cpu"), torch.float32


def prepare_device(device: torch.device) -> None:
    """Set what belongs to the whole process: threads, and which attention kernels CUDA uses."""
    usable = joblib.cpu_count()
    if torch.get_num_threads() > usable:
        # OpenMP counts the processors of the affinity mask; a container's quota may be smaller.
        torch.set_num_threads(usable)
    if device.type == "cuda":
        # torch's default on Hopper and later; it builds a plan per shape, hundreds of milliseconds
        # each (transformers#48163).
        torch.backends.cuda.enable_cudnn_sdp(False)
    logger.info("computing on %s with %d threads", device.type, torch.get_num_threads())


def _cuda_failure() -> str:
    """Torch's own reason, in one line."""
    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return "it finds no device"
