"""Runs a function over untrusted bytes in a process that may do nothing else.

`confined` starts one process for each recording. The process is a fork of a template, which has
imported what the function needs and reads no recording itself. The template starts once, by `start`
or with the first recording, and again if somebody kills it. A fork takes milliseconds, shares its
memory with the template, and leaves nothing behind for the next recording.

The system limits what a fork may use:

- address space: what the template has, FREE_MEMORY, and MEMORY_PER_BYTE of the recording;
- processor time, which the function extends while it gets on (`limit_processor_time`). The kernel
  ends the process when a timer of its own runs out. A busy machine refuses no recording;
- no descriptor beyond the socket to its parent: it can open no file and no connection;
- no environment, which holds the server's keys, and no core dump.

macOS enforces no limit of address space. Linux does all of it without privileges. System calls are
not filtered: no well-kept package on PyPI does that.

Parent and fork talk over a pair of sockets: a line of JSON, then as many bytes as the line says.
The parent unpickles nothing that a fork writes. Samples pass through the socket too: one hour takes
0.27 s, and 0.25 s through a shared mapping, which would need a descriptor for each recording.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Generator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, Popen
from threading import Lock
from typing import IO, Any, NamedTuple

from errors import AudioTooLong, ClientError, InvalidAudio

# Seconds of processor time before the function extends them: for the headers of a recording.
# libavformat searches all names of a file's metadata before it adds one: 150,000 take a minute.
HEADER_SECONDS = 2.0
# Bytes. The index of an honest mp4 takes 37 for each packet: two hours of a film have 770,000, and
# the smallest packets (AMR, G.729) have 10 bytes and more.
FREE_MEMORY, MEMORY_PER_BYTE = 128 << 20, 6
# What the template imports before it forks.
PRELOADED = ("audio.libav",)

_START = "import json, sys; sys.path = json.loads(sys.argv[1]); import {0}; {0}.serve(sys.argv[2:])"
_ERRORS: dict[str, type[ClientError]] = {
    error.code: error for error in (InvalidAudio, AudioTooLong)
}

# A confined function yields values for JSON, each with the bytes that follow it.
Work = Generator[tuple[Any, bytes | bytearray], None, tuple[Any, bytes | bytearray]]


class Step(NamedTuple):
    """What a confined function yields or, if it is the `last` step, returns."""

    value: Any
    content: bytes
    last: bool


class Confined:
    """The process of one recording, which computes one step at a time, until it is closed.

    `function` is "module:name" of a generator function, called with `data` and `arguments`. Raises
    RuntimeError if no process can be started.
    """

    def __init__(self, function: str, data: bytes, *arguments: Any) -> None:  # noqa: ANN401
        self._socket = _template.fork()
        self._stream = self._socket.makefile("rwb")
        request = {
            "function": function,
            "arguments": arguments,
            "size": len(data),
            "seconds": HEADER_SECONDS,
        }
        with suppress(ConnectionError):  # `step` says so
            self._stream.write(json.dumps(request).encode() + b"\n")
            self._stream.write(data)
            self._stream.flush()

    def step(self) -> Step:
        """Let the function go on to what it yields next.

        Raises the InvalidAudio or AudioTooLong that the function raises; InvalidAudio if the
        process crashes or exceeds its processor time; RuntimeError for a fault of ours.
        """
        line = b""
        with suppress(ConnectionError):
            self._stream.write(b"\n")
            self._stream.flush()
            line = self._stream.readline()
        answer = json.loads(line) if line.endswith(b"\n") else {"size": 1}
        content = self._stream.read(answer["size"])
        if len(content) < answer["size"]:
            raise InvalidAudio("reading it takes too long or crashes the decoder: is it damaged?")
        if code := answer.get("code"):
            raise _ERRORS[code](answer["text"])
        if fault := answer.get("fault"):
            raise RuntimeError(f"the process that reads audio failed: {fault}")
        return Step(answer["value"], content, answer["last"])

    def close(self) -> None:
        """End the process, which waits for the next step."""
        with suppress(ConnectionError):
            self._stream.close()
        self._socket.close()


def run_confined(function: str, data: bytes, *arguments: Any) -> Any:  # noqa: ANN401
    """Return the value that `function` returns for `data`. Raises what `Confined` raises."""
    with closing(Confined(function, data, *arguments)) as process:
        while not (step := process.step()).last:
            pass
        return step.value


class _Template:
    """The process that is forked for each recording, and the socket on which it is asked to."""

    _control: socket.socket
    _next: socket.socket

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless it runs."""
        with self._lock:
            if self._process is None:
                self._start()

    def fork(self) -> socket.socket:
        """Return a socket to a new process, and let the template make another one for the next
        recording. Start the template again if it was killed.
        """
        for _ in range(2):
            with self._lock:
                if self._process is None:
                    self._start()
                process, forked, self._next = self._process, self._next, self._ask()
            with suppress(ConnectionError):
                if forked.recv(1):
                    return forked
            forked.close()
            self.end(process)
        raise RuntimeError("the process that reads audio cannot be started")

    def end(self, only: Popen[bytes] | None = None) -> None:
        """End the process and its forks, if it is `only`, or any."""
        with self._lock:
            if self._process is not None and only in (None, self._process):
                self.forget()
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._process = None

    def forget(self) -> None:
        """Close the sockets."""
        if self._process is not None:
            self._control.close()
            self._next.close()

    def _start(self) -> None:
        path = [str(Path(__file__).parent.parent), *sys.path]
        command = [sys.executable, "-c", _START.format(__name__), json.dumps(path), *PRELOADED]
        self._control, other_end = socket.socketpair()
        with other_end:
            # In a session of its own, as Ctrl+C is for its parent. numpy's threads would make
            # forks unsafe.
            self._process = Popen(
                command,
                stdin=other_end,
                stdout=DEVNULL,
                start_new_session=True,
                env={"OPENBLAS_NUM_THREADS": "1"},
            )
        self._next = self._ask()

    def _ask(self) -> socket.socket:
        """Return a socket to a process that will answer soon; closed if the template has ended."""
        ours, theirs = socket.socketpair()
        with theirs, suppress(ConnectionError):
            socket.send_fds(self._control, [b"\n"], [theirs.fileno()])
        return ours


def start() -> None:
    """Start the template now, so that no recording waits for it."""
    _template.start()


def serve(modules: list[str]) -> None:
    """Fork for each socket that arrives on the standard input: the template's main loop."""
    for module in modules:
        import_module(module)
    gc.freeze()  # so that a collection in a fork copies no page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    control = socket.socket(fileno=sys.stdin.fileno())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:  # the parent has ended
            os.killpg(0, signal.SIGKILL)
        if not os.fork():
            control.close()
            os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
            with suppress(BaseException), socket.socket(fileno=descriptors[0]) as connection:
                _answer(connection)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def limit_processor_time(seconds: float) -> None:
    """Let the kernel end this process once it has computed for `seconds` in all."""
    left = seconds - time.process_time()
    signal.setitimer(signal.ITIMER_PROF, max(left, 1e-3))  # 0 would stop the timer


def _answer(connection: socket.socket) -> None:
    """Run the function that the parent asks for, one step for each line from the parent."""
    connection.sendall(b"\n")
    stream = connection.makefile("rwb")
    request = json.loads(stream.readline())
    data = stream.read(request["size"])
    module, _, name = request["function"].partition(":")
    function = getattr(import_module(module), name)
    _confine(request["size"], request["seconds"])
    work: Work = function(data, *request["arguments"])
    del data
    while stream.readline():
        _answer_step(work, stream)


def _answer_step(work: Work, stream: IO[bytes]) -> None:
    content: bytes | bytearray = b""
    try:
        value, content = next(work)
        answer: dict[str, Any] = {"value": value, "last": False}
    except StopIteration as end:
        value, content = end.value
        answer = {"value": value, "last": True}
    except (InvalidAudio, AudioTooLong) as error:
        answer = {"code": error.code, "text": str(error).removeprefix(f"{error.code}: ")}
    except MemoryError:
        answer = {"code": InvalidAudio.code, "text": "it takes far more memory than its size"}
    except Exception as error:  # of which the text may repeat what the recording says
        answer = {"fault": _described(error)}
    stream.write(json.dumps({"size": len(content), **answer}).encode() + b"\n")
    stream.write(content)
    stream.flush()


def _described(error: Exception) -> str:
    """Return the type of `error` and where it was raised."""
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    name = type(error).__name__
    return f"{name}, {place.tb_frame.f_code.co_name}:{place.tb_lineno}" if place else name


def _confine(size: int, seconds: float) -> None:
    """Give up what reading a recording of `size` bytes does not need."""
    with suppress(OSError):  # where the system has no /proc, it enforces no such limit either
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
        _limit(resource.RLIMIT_AS, used + FREE_MEMORY + MEMORY_PER_BYTE * size)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, 0)  # open ones stay open
    limit_processor_time(seconds)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _forget() -> None:
    """Leave the template to the parent of this fork, a thread of which may hold the lock."""
    global _template
    _template.forget()
    _template = _Template()


_template = _Template()
atexit.register(lambda: _template.end())
os.register_at_fork(after_in_child=_forget)
