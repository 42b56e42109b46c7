"""Measures the host memory that this process may still take; keeps or returns freed memory.

Linux overcommits memory and ends a process that writes into too much of it without a MemoryError.
Therefore free memory is read in advance: the machine's, and that of the cgroups that limit a
container or a service.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

OWN_CGROUPS, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# For each version of cgroups: its folder, the files with limit and usage, and the line of
# memory.stat with cached files that are not in use. If there is no limit, version 1 writes about
# 2^63 and version 2 "max".
V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("", "memory.max", "memory.current", "inactive_file")
UNLIMITED = 1 << 60
# glibc's `mallopt`: how much may be free at a heap's end, and the size from which a block is a
# mapping of its own (at most 32 MiB).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGEST_IN_HEAP = 1 << 27, 1 << 25
# Linux's `madvise`: large pages for memory that will be written, and for memory that has been.
MADV_HUGEPAGE, MADV_COLLAPSE, LARGE_PAGE = 14, 25, 1 << 21


class HostMemory(NamedTuple):
    """Bytes that may be taken without swapping, and bytes in all."""

    free: int
    total: int


def host_memory() -> HostMemory:
    """Return the memory within the tightest limit. Takes a fraction of a millisecond."""
    machine = psutil.virtual_memory()
    limits = [HostMemory(machine.available, machine.total), *_cgroup_limits()]
    return HostMemory(
        max(0, min(limit.free for limit in limits)), min(limit.total for limit in limits)
    )


def keep_freed() -> None:
    """Let glibc keep a window's freed memory for the next window. By default the kernel clears its
    pages each time: up to 24,000 for a recording of 11 s with Whisper base.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed() -> None:
    """Let glibc return freed memory to the kernel, which takes milliseconds: a heap of blocks up to
    32 MiB shrinks only from its end. Else 450 MB stayed after states of many sizes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def use_large_pages(address: int, size: int, written: bool) -> None:
    """Ask Linux for pages of 2 MiB under memory that every step reads: looking up the addresses of
    4 KiB pages takes time, more in a virtual machine.
    """
    start = -(-address // LARGE_PAGE) * LARGE_PAGE
    stop = (address + size) // LARGE_PAGE * LARGE_PAGE
    if sys.platform == "linux" and start < stop:
        advice = MADV_COLLAPSE if written else MADV_HUGEPAGE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)


def _cgroup_limits() -> Iterator[HostMemory]:
    """Yield the memory under each limit of the process's cgroup and those above it. If a container
    sees its path on the host, only the uppermost folder of that exists.
    """
    for line in _lines(OWN_CGROUPS):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        version_folder, limit_file, usage_file, cached = V1 if controllers else V2
        names = [name for name in path.split("/") if name not in ("", "..")]
        for depth in range(len(names), -1, -1):
            folder = CGROUPS.joinpath(version_folder, *names[:depth])
            limit, used = _number(folder / limit_file), _number(folder / usage_file)
            if limit is not None and limit < UNLIMITED and used is not None:
                stat = dict(line.partition(" ")[::2] for line in _lines(folder / "memory.stat"))
                yield HostMemory(limit - used + int(stat.get(cached, 0)), limit)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is no file, or a word such as "max"."""
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
