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
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, Popen
from threading import Lock
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

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
    """The process of one recording, which computes one step at a time. A context manager, which
    ends the process.

    `function` is "module:name" of a generator function, called with `data` and `arguments`.
    """

    def __init__(self, function: str, data: bytes, *arguments: Any) -> None:  # noqa: ANN401
        self._socket = _fork()
        self._stream = self._socket.makefile("rwb")
        request = {
            "function": function,
            "arguments": arguments,
            "size": len(data),
            "seconds": HEADER_SECONDS,
        }
        with suppress(BrokenPipeError):  # `step` says so
            self._stream.write(json.dumps(request).encode() + b"\n")
            self._stream.write(data)
            self._stream.flush()

    def step(self) -> Step:
        """Let the function go on to what it yields next.

        Raises the InvalidAudio or AudioTooLong that the function raises; InvalidAudio if the
        process crashes or exceeds its processor time; RuntimeError for a fault of ours.
        """
        line = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stream.write(b"\n")
            self._stream.flush()
            line = self._stream.readline()
        if not line.endswith(b"\n"):
            raise InvalidAudio("reading it takes too long or crashes the decoder: is it damaged?")
        answer = json.loads(line)
        if code := answer.get("code"):
            raise _ERRORS[code](answer["text"])
        if fault := answer.get("fault"):
            raise RuntimeError(f"the process that reads audio failed: {fault}")
        content = self._stream.read(answer["size"])
        if len(content) < answer["size"]:
            raise InvalidAudio("reading it crashes the decoder: is it damaged?")
        return Step(answer["value"], content, answer["last"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the socket: the process ends at once, as it waits for the next step."""
        with suppress(BrokenPipeError):
            self._stream.close()
        self._socket.close()


def run_confined(function: str, data: bytes, *arguments: Any) -> Any:  # noqa: ANN401
    """The value that `function` returns for `data`. Raises what `Confined.step` raises."""
    with Confined(function, data, *arguments) as process:
        while not (step := process.step()).last:
            pass
        return step.value


class _Template:
    """The process that is forked for each recording, and the socket on which it is asked to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._next: socket.socket | None = None
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

    def fork(self) -> socket.socket | None:
        """Return a socket to a new process, and let another one be made for the next recording;
        None if the template has ended.
        """
        with self._lock:
            forked, self._next = self._next, None
            if forked is None:
                forked = self._ask()
            self._next = self._ask()
        if forked is not None and not _is_ready(forked):
            forked.close()
            return None
        return forked

    def _ask(self) -> socket.socket | None:
        """Return a socket to a process that will be there soon."""
        ours, theirs = socket.socketpair()
        with theirs, suppress(ConnectionError):
            socket.send_fds(self._control, [b"\n"], [theirs.fileno()])
            return ours
        ours.close()
        return None

    def close(self) -> None:
        """Close the sockets."""
        self._control.close()
        if self._next is not None:
            self._next.close()

    def end(self) -> None:
        """End the process and its forks."""
        self.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _is_ready(connection: socket.socket) -> bool:
    """Return whether a process answers at the other end, as soon as it is known."""
    with suppress(ConnectionError):
        return bool(connection.recv(1))
    return False


def start() -> None:
    """Start the template now, so that no recording waits for it."""
    _current_template()


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


_lock = Lock()
_template: _Template | None = None


def _current_template() -> _Template:
    global _template
    with _lock:
        if _template is None:
            _template = _Template()
        return _template


def _fork() -> socket.socket:
    """A socket to a new fork of the template; of another one, if the template was killed."""
    for _ in range(2):
        template = _current_template()
        if forked := template.fork():
            return forked
        _replace(template)
    raise RuntimeError("the process that reads audio cannot be started")


def _replace(ended: _Template) -> None:
    global _template
    with _lock:
        if _template is ended:
            _template = None
            ended.end()


def _forget() -> None:
    """In a fork of the parent: the template is the parent's, which may hold the lock."""
    global _lock, _template
    if _template is not None:
        _template.close()
    _lock, _template = Lock(), None


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    if _template is not None:
        _replace(_template)
