"""Which device computes, in which precision, and with how many threads.

Nothing falls back to the CPU silently. Where an NVIDIA device is present and torch cannot use it (a
driver older than torch's CUDA needs, mostly), the process ends with one line rather than answer a
hundred times slower, unless the CPU was asked for.
"""

from __future__ import annotations

import logging
import warnings

import joblib
import torch

from errors import StartError
from runtime.host_memory import keep_freed

logger = logging.getLogger("endpoint")

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
# By the precision of a CPU's products: torch's name for the processor's flag, the vendors', and the
# operator behind `asr.model.cpu_kernels`.
CPU_FLAGS = {
    torch.bfloat16: ("_is_avx512_bf16_supported", "AVX512_BF16", "mkldnn::_linear_pointwise"),
    torch.int8: ("_is_vnni_supported", "AVX512_VNNI", "onednn::qlinear_pointwise"),
}


def choose_device(wanted: str, nvidia_present: bool) -> torch.device:
    """The device for `wanted` ("auto", "cuda" or "cpu").

    A Mac computes on its CPU: its GPU has no float64, in which scores are summed. Raises StartError
    where CUDA is asked for, or a device of NVIDIA's is present, and torch cannot use it.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch warns of here is said below
        if torch.cuda.is_available():
            return torch.device("cuda")
    if wanted == "cuda":
        raise StartError(f"DEVICE=cuda, but torch cannot use CUDA: {_cuda_failure()}")
    if nvidia_present:
        raise StartError(
            "an NVIDIA device is present, but torch cannot use it: "
            f"{_cuda_failure()} (DEVICE=cpu serves on the CPU all the same)"
        )
    return torch.device("cpu")


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """The precision for `wanted`, one of config.py's names, on a device.

    "auto" is float16 on CUDA. On a CPU it is bfloat16 where the processor multiplies that in
    hardware, which its flags say: a measurement could come out otherwise at the next start. Raises
    StartError where the device does not compute in what is asked for.
    """
    if device.type == "cuda":
        if wanted == "int8":
            raise StartError("DTYPE=int8: on CUDA choose float16, bfloat16 or float32")
        return torch.float16 if wanted == "auto" else DTYPES[wanted]
    if wanted == "float16":
        raise StartError("DTYPE=float16: on a CPU choose auto, bfloat16, int8 or float32")
    if wanted == "float32":
        return torch.float32
    # Under int8 the products of many positions are in bfloat16.
    reason = _missing(torch.bfloat16) or (_missing(torch.int8) if wanted == "int8" else "")
    if not reason:
        return torch.int8 if wanted == "int8" else torch.bfloat16
    if wanted != "auto":
        raise StartError(f"DTYPE={wanted} needs {reason} (DTYPE=auto chooses what there is)")
    logger.info("computing in float32: bfloat16 needs %s", reason)
    return torch.float32


def prepare_device(device: torch.device) -> None:
    """Set what belongs to the whole process: threads, what the allocator keeps, and which attention
    kernels CUDA uses.
    """
    keep_freed()
    usable = joblib.cpu_count()
    if torch.get_num_threads() > usable:
        # OpenMP counts the processors of the affinity mask; a container's quota may be smaller.
        torch.set_num_threads(usable)
    if device.type == "cuda":
        # torch's default on Hopper and later; it builds a plan per shape, hundreds of milliseconds
        # each (transformers#48163).
        torch.backends.cuda.enable_cudnn_sdp(False)
    logger.info("computing on %s with %d threads", device.type, torch.get_num_threads())


def _missing(dtype: torch.dtype) -> str:
    """What a CPU lacks to multiply in bfloat16 or int8; empty if nothing."""
    flag, name, operator = CPU_FLAGS[dtype]
    if not getattr(torch.cpu, flag, lambda: False)():
        return f"a processor with {name}"
    # Private operators, which torch's own compiler calls: a release may rename them.
    library, _, function = operator.partition("::")
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):  # type: ignore[no-untyped-call]
        return "a build of torch with oneDNN and MKL"
    return "" if hasattr(getattr(torch.ops, library), function) else f"torch's {operator}"


def _cuda_failure() -> str:
    """Torch's own reason, in one line."""
    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return "it finds no device"
