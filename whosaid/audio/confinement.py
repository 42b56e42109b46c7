"""Takes from a process for good what decoding does not need: files, other processes, connections.

Linux alone has the layers, and a kernel or container may lack each of them. The system calls are
made by ctypes, because no well-maintained package for them was found.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_NO_NEW_PRIVS, _LANDLOCK, _SECCOMP = LAYERS = "no_new_privs", "landlock", "seccomp"

# <linux/prctl.h>, <linux/landlock.h>: the system calls have these numbers on all architectures.
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CREATE_RULESET, _RESTRICT_SELF, _GET_ABI = 444, 446, 1
# Rights on files that each version of landlock knows; all later versions know 16.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
# <linux/audit.h>: column of _ALLOWED, and the architecture as a filter sees it.
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# System calls with their numbers on x86-64 and aarch64, -1 if there is none.
_ALLOWED = """
read 0 63, write 1 64, recvfrom 45 207, sendto 44 206, close 3 57, poll 7 -1, ppoll 271 73,
mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, brk 12 214,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, restart_syscall 219 128,
setitimer 38 103, getitimer 36 102, clock_gettime 228 113, gettimeofday 96 169, times 100 153,
clock_nanosleep 230 115, nanosleep 35 101, futex 202 98, sched_yield 24 124, sysinfo 99 179,
sched_getaffinity 204 123, getpid 39 172, gettid 186 178, getrusage 98 165, getrlimit 97 163,
setrlimit 160 164, getrandom 318 278, exit 60 93, exit_group 231 94
"""
# System calls whose first argument is a process, and may be this one alone.
_ALLOWED_ON_SELF = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}

# Instructions of <linux/filter.h>, and their results in <linux/seccomp.h>. Fields of struct
# seccomp_data: number of the call at 0, architecture at 4, first argument at 16.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def hide_memory() -> None:
    """Keep processes of the same user from reading this process's memory, and allow no core dump.

    Debuggers then need root. A process that this one executes is not hidden.
    """
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine() -> list[str]:
    """Confine this process for good. Return the LAYERS that hold."""
    if sys.platform != "linux":
        return []
    layers = (_give_up_privileges, _deny_files, _deny_system_calls)
    return [name for name, apply in zip(LAYERS, layers, strict=True) if apply(_libc())]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _give_up_privileges(libc: ctypes.CDLL) -> bool:
    return bool(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def _deny_files(libc: ctypes.CDLL) -> bool:
    """Deny all files, TCP, and signals and access to processes outside, as far as landlock can."""
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_ABI)
    if version < 1:
        return False
    rights = [(1 << _FILE_RIGHTS.get(version, 16)) - 1]
    rights += [3] if version >= 4 else []  # bind and connect
    rights += [3] if version >= 6 else []  # abstract sockets and signals
    attributes = struct.pack(f"={len(rights)}Q", *rights)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    held = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return bool(held)


def _deny_system_calls(libc: ctypes.CDLL) -> bool:
    """Let all other system calls fail with EPERM; return False on an unknown architecture."""
    if platform.machine() not in _ARCHITECTURES or sys.maxsize < 2**32:
        return False
    column, architecture = _ARCHITECTURES[platform.machine()]
    code = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE)]
    code += [(_LOAD, 0, 0, 0)]
    for each in _ALLOWED.split(","):
        if (number := int(each.split()[1 + column])) >= 0:
            code += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for name, numbers in _ALLOWED_ON_SELF.items():
        own = 0 if name == "prlimit64" else os.getpid()
        code += [(_JUMP_IF_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, 16)]
        code += [(_JUMP_IF_EQUAL, 0, 1, own), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    code += [(_RETURN, 0, 0, _REFUSE)]
    code_bytes = b"".join(struct.pack("=HBBI", *each) for each in code)
    instructions = ctypes.create_string_buffer(code_bytes)
    program = struct.pack("@HP", len(code), ctypes.addressof(instructions))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0)
