"""Chooses the device, the precision and the number of threads.

Nothing falls back to the CPU silently: if an NVIDIA device is present and torch cannot use it
(mostly because the driver is older than torch's CUDA needs), the process ends with one line.
DEVICE=cpu asks for the CPU all the same.
"""

import logging
import platform
import sys
import timeit
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import joblib
import torch
import torch.nn.functional as F

from whosaid.errors import StartError
from whosaid.runtime.environment import nvidia_device_present
from whosaid.runtime.host_memory import keep_freed

logger = logging.getLogger("endpoint")

T = TypeVar("T")


def _onednn_is_faster() -> bool:
    """Time products of a decoder's size on packed weights, and by `F.linear`, in a few ms."""
    weight, x = torch.ones(1024, 1024), torch.ones(24, 1024)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    multiply = torch.ops.mkldnn._linear_pointwise.default
    ours = partial(multiply, x, packed, None, "none", [], "")
    torchs = partial(F.linear, x, weight)
    return min(timeit.repeat(ours, number=3)) < min(timeit.repeat(torchs, number=3))


# torch has oneDNN's private operators, which its own compiler calls. Builds for x86 have MKL as
# well; on ARM oneDNN may lack the processor's fast products (Arm Compute Library).
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and (  # type: ignore[no-untyped-call]
    torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    or _onednn_is_faster()
)
DIARIZATION_BYTES = 1_500_000_000  # by its shapes, besides weights
# After which a thread of Python lets another run. A GPU's step waits for its host several times:
# beside a thread that only computes in Python it took 103 ms at Python's 5 ms, and 6 ms at this
# interval, for 1% more processor time (on a busy CPU, in turns).
SWITCH_SECONDS = 0.0005
BFLOAT16_CAPABILITY = (8, 0)  # of CUDA devices
# By precision: torch's name for the processor's flag, the vendors' name, and the operator behind
# `asr.model.cpu_kernels`.
CPU_FLAGS = {
    torch.bfloat16: (
        "_is_avx512_bf16_supported",
        "AVX512_BF16, or ARM's BF16",
        "mkldnn::_linear_pointwise",
    ),
    torch.int8: ("_is_vnni_supported", "AVX512_VNNI", "onednn::qlinear_pointwise"),
}


def choose_device(wanted: str) -> torch.device:
    """Return the device for "auto", "cuda" or "cpu", a Mac's CPU because its GPU has no float64.
    Raises StartError if torch cannot use CUDA, for "auto" if there is an NVIDIA device.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the errors below repeat torch's reason
        if torch.cuda.is_available():
            return torch.device("cuda")
    if wanted == "cuda":
        raise StartError(f"DEVICE=cuda, but torch cannot use CUDA: {_cuda_failure()}")
    if nvidia_device_present():
        raise StartError(
            "an NVIDIA device is present, but torch cannot use it: "
            f"{_cuda_failure()} (DEVICE=cpu serves on the CPU all the same)"
        )
    return torch.device("cpu")


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the dtype for `wanted`, a name that config.py accepts. "auto" is float16 on CUDA, and
    on a CPU bfloat16 if its flags say that it multiplies this in hardware, else float32. Raises
    StartError if the device lacks the precision.
    """
    if device.type == "cuda":
        if wanted == "int8":
            raise StartError("DTYPE=int8: on CUDA choose float16, bfloat16 or float32")
        if wanted == "bfloat16" and torch.cuda.get_device_capability(device) < BFLOAT16_CAPABILITY:
            # Older GPUs compute bfloat16 without tensor cores and without fused attention.
            raise StartError("DTYPE=bfloat16: this GPU is older than Ampere; choose float16")
        dtype: torch.dtype = torch.float16 if wanted == "auto" else getattr(torch, wanted)
        return dtype
    if wanted == "float16":
        raise StartError("DTYPE=float16: on a CPU choose auto, bfloat16, int8 or float32")
    if wanted == "float32":
        return torch.float32
    # With int8, products of many positions are computed in bfloat16.
    reason = _missing(torch.bfloat16) or (_missing(torch.int8) if wanted == "int8" else "")
    if not reason:
        return torch.int8 if wanted == "int8" else torch.bfloat16
    if wanted != "auto":
        raise StartError(
            f"DTYPE={wanted} needs {reason} (DTYPE=auto chooses an available precision)"
        )
    logger.info("computing in float32: bfloat16 needs %s", reason)
    return torch.float32


def prepare_device(device: torch.device) -> None:
    """Set the process's number of threads, its allocator, and CUDA's attention kernels."""
    keep_freed()
    usable = joblib.cpu_count()
    if torch.get_num_threads() > usable:
        # OpenMP counts the processors of the affinity mask; a container's quota may be smaller.
        torch.set_num_threads(usable)
    if device.type == "cuda":
        # cuDNN's attention, torch's default on Hopper and later, builds a plan per shape, hundreds
        # of milliseconds each (transformers#48163).
        torch.backends.cuda.enable_cudnn_sdp(False)
        # Devices before Ampere split sums of products and would add up the parts in float16.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        sys.setswitchinterval(SWITCH_SECONDS)
    logger.info("computing on %s with %d threads", device.type, torch.get_num_threads())


def warn_if_memory_is_short(device: torch.device) -> None:
    """Warn if the models have left less of a CUDA device than diarization needs."""
    if device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free -= torch.cuda.memory_allocated(device)
    if free < DIARIZATION_BYTES:
        message = "memory is short: diarization may need %.1f GB, and the models leave %.1f GB"
        logger.warning(message, DIARIZATION_BYTES / 1e9, free / 1e9)


def set_threads(count: int) -> None:
    """Set the number of OpenMP threads for this thread and for threads yet to start. A thread takes
    over the last number when it first uses torch, so this thread does so here.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


def compute_beside(work: Callable[[], T], threads: int, device: torch.device) -> T:
    """Return `work()`, computed beside the engine with `threads` OpenMP threads.

    On a CPU a new thread computes and then ends. OpenMP keeps a team of threads for every living
    thread that has computed; with more of them than processors, every product waits for a wake-up:
    an 8 s recording took 0.20 s instead of 0.11 s. On CUDA the calling thread computes and should
    live on: cuDNN leaks the plans of threads that end (pytorch#169153).
    """
    if device.type != "cpu":
        set_threads(threads)
        return work()
    with ThreadPoolExecutor(1, initializer=set_threads, initargs=(threads,)) as pool:
        return pool.submit(work).result()


def _missing(dtype: torch.dtype) -> str:
    """Return what this CPU or torch lacks to multiply in `dtype`; "" if nothing."""
    flag, name, operator = CPU_FLAGS[dtype]
    on_arm = dtype == torch.bfloat16 and platform.machine() == "aarch64"
    supports = _arm_supports_bfloat16 if on_arm else getattr(torch.cpu, flag, lambda: False)
    if not supports():
        return f"a processor with {name}"
    library, _, function = operator.partition("::")  # a release may rename it
    if not HAS_ONEDNN:
        return "a build of torch whose oneDNN is fast"
    return "" if hasattr(getattr(torch.ops, library), function) else f"torch's {operator}"


def _arm_supports_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _cuda_failure() -> str:
    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return "it finds no device"
