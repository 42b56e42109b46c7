"""The host's free memory: of the machine, by cgroups, and after memory was freed."""

import platform
import sys
from pathlib import Path

import psutil
import pytest
import torch

import whosaid.runtime.host_memory
from tests.helpers.programs import run_python
from whosaid.runtime.host_memory import HostMemory, host_memory, return_freed, use_large_pages

GIB = 1 << 30
linux = pytest.mark.skipif(sys.platform != "linux", reason="it is read in /proc")
is_glibc = platform.libc_ver()[0] == "glibc"
glibc = pytest.mark.skipif(not is_glibc, reason="other allocators do as they like")
MEMINFO = ("MemTotal", "MemFree", "Buffers", "Cached", "Shmem", "Active", "Inactive")
REPOSITORY = Path(__file__).resolve().parent.parent
# Pages that come with the same blocks of 12 MiB again and again, after the first time.
PAGES = """
import resource
from whosaid.runtime.host_memory import keep_freed

def written():
    for _ in range(10):
        blocks = [bytearray(b"1") * (12 << 20) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

{prepare}
before = written()
print(written() - before)
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Writes files of a host whose machine has 16 GiB, 10 of them free, and reads what is left."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    monkeypatch.setattr(whosaid.runtime.host_memory, "OWN_CGROUPS", tmp_path / "proc/self/cgroup")
    monkeypatch.setattr(whosaid.runtime.host_memory, "CGROUPS", tmp_path / "cgroup")

    def read(own_cgroup, files):
        meminfo = dict.fromkeys(MEMINFO, 0) | {"MemTotal": 16, "MemFree": 2, "MemAvailable": 10}
        lines = [f"{name}: {size << 20:>12} kB" for name, size in meminfo.items()]
        files = files | {"proc/meminfo": "\n".join(lines), "proc/self/cgroup": own_cgroup}
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return host_memory()

    return read


def v2(folder, limit, used, cached):
    stat = f"anon 5\nactive_file 7\ninactive_file {cached}\ntotal_inactive_file 1"
    files = {"memory.max": limit, "memory.current": used, "memory.stat": stat}
    return {f"cgroup{folder}/{name}": text for name, text in files.items()}


def v1(folder, limit, used, cached):
    stat = f"inactive_file 1\ntotal_inactive_file {cached}"
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}
    return {f"cgroup/memory{folder}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize("own_cgroup", ["", "4:cpuset:/", "0::/"])
def test_unlimited_memory_is_the_machines(host, own_cgroup):
    assert host(own_cgroup, {}) == HostMemory(10 * GIB, 16 * GIB)


# The path that the process is told, and the folder in which its files are: a container that sees
# its own cgroup alone, one that is told the host's path, and a service of a host.
PLACES = [("/", ""), ("/docker/5c1a", ""), ("/../other", ""), ("/a/b.service", "/a/b.service")]


@pytest.mark.parametrize(("told", "folder"), PLACES)
@pytest.mark.parametrize("version", [v1, v2])
def test_the_limit_of_a_cgroup_less_what_is_in_use(host, version, told, folder):
    """Caches of unused files do not count."""
    line = {v1: f"5:cpu,memory:{told}\n0::/", v2: f"0::{told}"}[version]
    files = version(folder, limit=4 * GIB, used=3 * GIB, cached=GIB // 2)
    assert host(line, files) == HostMemory(3 * GIB // 2, 4 * GIB)


@pytest.mark.parametrize("version", [v1, v2])
def test_tightest_of_nested_cgroups_counts(host, version):
    line = {v1: "5:memory:/a/b/c", v2: "0::/a/b/c"}[version]
    unlimited = {v1: 9223372036854771712, v2: "max"}[version]
    files = version("/a/b/c", unlimited, used=GIB, cached=0)
    files |= version("/a/b", 3 * GIB, used=GIB, cached=0)
    files |= version("/a", 8 * GIB, used=7 * GIB, cached=0)
    assert host(line, files) == HostMemory(GIB, 3 * GIB)


def test_cgroups_without_effect_are_ignored_and_overuse_leaves_nothing(host):
    assert host("0::/", v2("", 32 * GIB, used=GIB, cached=0)) == HostMemory(10 * GIB, 16 * GIB)
    assert host("0::/", v2("", GIB, used=2 * GIB, cached=0)) == HostMemory(0, GIB)
    other = v1("/mine", 4 * GIB, used=GIB, cached=0)
    assert host("4:cpuset:/mine\n5:memory:/", other) == HostMemory(10 * GIB, 16 * GIB)


@glibc
@pytest.mark.parametrize(("prepare", "kept"), [("keep_freed()", True), ("", False)])
def test_keep_freed_reuses_freed_memory(prepare, kept):
    done = run_python("-c", PAGES.format(prepare=prepare), check=True)
    assert (int(done.stdout) < 100) is kept


@glibc
def test_freed_blocks_between_used_ones_are_returned():
    """Blocks of 1 MiB come from a heap once a larger one was freed."""
    torch.ones(20 << 18)
    held, blocks = [], []
    for _ in range(100):
        blocks.append(torch.ones(1 << 18))
        held.append(torch.ones(1 << 8))
    before = resident()
    blocks.clear()
    return_freed()
    assert before - resident() > 90 << 20
    assert len(held) == 100


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.parametrize("written", [True, False])
def test_large_pages_change_no_byte(written):
    values = torch.arange(3 << 20, dtype=torch.int32)
    use_large_pages(values.data_ptr(), values.nbytes, written)
    assert torch.equal(values, torch.arange(3 << 20, dtype=torch.int32))
