"""How much memory the host has left for this process; keeping what was freed, and giving it back.

Linux promises more memory than there is and ends a process that writes into too much of it, so no
MemoryError tells that it ran out. What is left has to be asked for before: of the kernel, and of
the cgroups that bound a container or a service.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # version 1 says so by a number of about 2^63, version 2 by "max"
# Of glibc's `mallopt`: how much is free at a heap's end when it shrinks, and from which size on a
# block is a mapping of its own, which it takes up to 32 MiB.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGEST_IN_HEAP = 1 << 27, 1 << 25


class HostMemory(NamedTuple):
    """Bytes that may be taken without swapping, and how many there are in all."""

    free: int
    total: int


class CgroupFiles(NamedTuple):
    """Where a version of cgroups has its folders, and says what it limits and counts."""

    folder: str
    limit: str
    used: str
    cached: str  # the line of memory.stat


V1 = CgroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = CgroupFiles("", "memory.max", "memory.current", "inactive_file")


def host_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> HostMemory | None:
    """What is left by the tightest of all bounds; None where none can be read, as on macOS.

    It takes half a dozen reads of small files: for now and then, not for every step.
    """
    bounds = [*_machine(proc), *_cgroups(proc, cgroups)]
    if not bounds:
        return None
    return HostMemory(max(0, min(each.free for each in bounds)), min(each.total for each in bounds))


def keep_freed() -> None:
    """Let the allocator keep what a window takes for the next one, where it is glibc's.

    By itself it gives the end of a heap back as soon as a few of the largest blocks are free there,
    and the kernel then clears page after page for the next window: with Whisper base up to 24,000
    of them for a recording of 11 s, of which none is left.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed() -> None:
    """Let the allocator give the kernel what was freed, where it is glibc's.

    There a block of more than 32 MiB is a mapping of its own, which ends when it is freed. Smaller
    ones come from heaps, and a heap shrinks by itself from its end alone: of states of many sizes
    that were made and freed in turn 450 MB stayed, of one batch of Whisper base 50 to 80 MB. This
    takes some milliseconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _machine(proc: Path) -> Iterator[HostMemory]:
    """That of the whole machine: `MemAvailable` counts caches of files that can be dropped."""
    values = _table(proc / "meminfo")
    if "MemAvailable:" in values and "MemTotal:" in values:
        yield HostMemory(values["MemAvailable:"] << 10, values["MemTotal:"] << 10)


def _cgroups(proc: Path, cgroups: Path) -> Iterator[HostMemory]:
    """Those of the process's cgroup and of each above it that has a limit.

    In a container the path that the process is told may be the host's; the folders that are there
    are then the container's, whose own is the uppermost.
    """
    for line in _lines(proc / "self" / "cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        files = V1 if controllers else V2
        top = cgroups / files.folder
        names = [each for each in path.split("/") if each not in ("", "..")]
        for depth in range(len(names), -1, -1):
            yield from _cgroup(top.joinpath(*names[:depth]), files)


def _cgroup(folder: Path, files: CgroupFiles) -> Iterator[HostMemory]:
    """The memory below a limit, if there is one. Caches of files not in use count as free."""
    limit, used = (_number(folder / each) for each in (files.limit, files.used))
    if limit is not None and limit < UNLIMITED and used is not None:
        cached = _table(folder / "memory.stat").get(files.cached, 0)
        yield HostMemory(limit - used + cached, limit)


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or a word such as "max"."""
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _table(path: Path) -> dict[str, int]:
    """The first number of each line, by the line's first word."""
    rows = [line.split() for line in _lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
