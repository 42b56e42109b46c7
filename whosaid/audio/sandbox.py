"""Runs a function on untrusted bytes in a confined process.

Each recording has a process for itself while it is read: a fork of a template, which has imported
the function's modules and reads no recording. The template starts with `start` or the first
recording, and again if somebody kills it. A fork that has finished a recording takes the next one,
MOST_RECORDINGS in all. A fork that refused a recording, crashed or was left in the middle ends.

The system limits a fork:

- address space: the template's, FREE_MEMORY, and MEMORY_PER_BYTE of the recording;
- processor time, which the function extends while it makes progress (`limit_processor_time`). The
  kernel's timer counts only the fork's own time, so a busy machine refuses no recording;
- no descriptor but the socket to the parent, so it can open no file and no connection;
- no environment, which holds the server's keys, and no core dump.

macOS limits no address space. System calls are not filtered: no well-maintained package for that
was found.

Parent and fork talk over a pair of sockets: a line of JSON, then as many bytes as the line says.
The parent unpickles nothing from a fork. Samples pass through the socket too, because shared memory
would need a descriptor for each recording.
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
from io import BufferedRWPair
from pathlib import Path
from subprocess import DEVNULL, Popen
from threading import RLock
from traceback import walk_tb
from typing import Any, NamedTuple

from whosaid.errors import AudioTooLong, ClientError, InvalidAudio

# Seconds of processor time for the headers of a recording, before the function extends them.
# libavformat searches all names of a file's metadata before it adds a name: 150,000 take a minute.
HEADER_SECONDS = 2.0
# Bytes. The index of an honest mp4 takes 37 bytes a packet. Two hours of a film have 770,000
# packets, and the smallest packets (AMR, G.729) have at least 10 bytes.
FREE_MEMORY, MEMORY_PER_BYTE = 128 << 20, 7
# Recordings that a fork reads before a new fork replaces it, and idle forks that are kept, some 5
# MB each.
MOST_RECORDINGS, MOST_IDLE = 100, 4
# Modules that the template imports before it forks.
PRELOADED = ("whosaid.audio.libav",)

_START = "import json, sys; sys.path = json.loads(sys.argv[1]); import {0}; {0}.serve(sys.argv[2:])"
_ERRORS: dict[str, type[ClientError]] = {
    error.code: error for error in (InvalidAudio, AudioTooLong)
}

# A confined function yields values for JSON, each with the bytes that follow it.
Work = Generator[tuple[Any, bytes | bytearray], None, tuple[Any, bytes | bytearray]]


class Step(NamedTuple):
    """Value and bytes that a confined function yields or, if it is the `last` step, returns."""

    value: Any
    content: bytes
    last: bool


class Confined:
    """The process of one recording, which computes a step at a time until it is closed.

    `function` is "module:name" of a generator function, called with `data` and `arguments`. Raises
    RuntimeError if no process can be started.
    """

    def __init__(self, function: str, data: bytes, *arguments: Any) -> None:  # noqa: ANN401
        self._stream, self._finished = _template.take(), False
        request = {
            "function": function,
            "arguments": arguments,
            "size": len(data),
            "seconds": HEADER_SECONDS,
        }
        with suppress(ConnectionError):  # `step` raises the error
            self._stream.write(json.dumps(request).encode() + b"\n")
            self._stream.write(data)
            self._stream.flush()

    def step(self) -> Step:
        """Run the function up to its next yield, or its end.

        Raises the function's InvalidAudio or AudioTooLong; InvalidAudio if the process crashes or
        exceeds its processor time; RuntimeError for any other exception in the process.
        """
        answer: dict[str, Any] = {"size": 1}
        content = b""
        with suppress(ConnectionError):
            self._stream.write(b"\n")
            self._stream.flush()
            if (line := self._stream.readline()).endswith(b"\n"):
                answer = json.loads(line)
                content = self._stream.read(answer["size"])
        if len(content) < answer["size"]:
            raise InvalidAudio(
                "decoding it takes too long or crashes: convert it to FLAC at 16 kHz and send that"
            )
        if code := answer.get("code"):
            raise _ERRORS[code](answer["text"])
        if fault := answer.get("fault"):
            raise RuntimeError(f"the process that reads audio failed: {fault}")
        self._finished = answer["last"]
        return Step(answer["value"], content, answer["last"])

    def close(self) -> None:
        """End the process, or keep it for another recording if it finished this one."""
        if self._finished:
            _template.keep(self._stream)
        else:
            _close(self._stream)


def run_confined(function: str, data: bytes, *arguments: Any) -> Any:  # noqa: ANN401
    """Return the value that `function` returns for `data`. Raises the errors of `Confined`."""
    with closing(Confined(function, data, *arguments)) as process:
        while not (step := process.step()).last:
            pass
        return step.value


class _Template:
    def __init__(self) -> None:
        self._lock = RLock()
        self._process: Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[BufferedRWPair] = []

    def take(self) -> BufferedRWPair:
        """Return a stream to an idle fork, else to a new fork. Start the process again if it was
        killed. Raises RuntimeError if it cannot be started.
        """
        new = 0
        while new < 2:
            with self._lock:
                self.start()
                new += not self._idle
                stream = self._idle.pop() if self._idle else self._ask()
            with suppress(ConnectionError):
                stream.write(b"\n")
                stream.flush()
                if stream.readline():  # the fork is alive
                    return stream
            _close(stream)
        raise RuntimeError("the process that reads audio cannot be started")

    def keep(self, stream: BufferedRWPair) -> None:
        with self._lock:
            if self._process is not None and len(self._idle) < MOST_IDLE:
                self._idle.append(stream)
                return
        _close(stream)

    def forget(self) -> None:
        while self._idle:
            _close(self._idle.pop())
        if self._control is not None:
            self._control.close()

    def start(self) -> None:
        """Start the process and a fork of it, unless the process runs."""
        with self._lock:
            if self._process is not None:
                if self._process.poll() is None:
                    return
                self.end()  # somebody killed it
            path = [str(Path(__file__).parents[2]), *sys.path]
            command = [sys.executable, "-c", _START.format(__name__), json.dumps(path), *PRELOADED]
            self._control, other_end = socket.socketpair()
            with other_end:
                # A session of its own, because Ctrl+C is meant for the parent. One thread, because
                # numpy's threads would make forks unsafe.
                self._process = Popen(
                    command,
                    stdin=other_end.fileno(),
                    stdout=DEVNULL,
                    start_new_session=True,
                    env={"OPENBLAS_NUM_THREADS": "1"},
                )
            self._idle.append(self._ask())

    def end(self) -> None:
        with self._lock:
            if self._process is not None:
                self.forget()
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._process = None

    def _ask(self) -> BufferedRWPair:
        """Return a stream to a new fork. The stream is at its end if the process has ended."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs, suppress(ConnectionError):
            socket.send_fds(self._control, [b"\n"], [theirs.fileno()])
        with ours:
            return ours.makefile("rwb")


def _close(stream: BufferedRWPair) -> None:
    with suppress(ConnectionError):  # closing flushes, which may fail
        stream.close()


def start() -> None:
    """Start the template now, so that no recording waits for it."""
    _template.start()


def serve(modules: list[str]) -> None:
    """Run the template's main loop: fork for each socket that arrives on the standard input."""
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
                _answer_all(connection.makefile("rwb"))
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def limit_processor_time(seconds: float) -> None:
    """Let the kernel end this process once it has computed for `seconds` on its recording."""
    left = _started + seconds - time.process_time()
    signal.setitimer(signal.ITIMER_PROF, max(left, 1e-3))  # 0 would stop the timer


_started = 0.0  # processor time before the current recording


def _answer_all(stream: BufferedRWPair) -> None:
    """Run a fork's main loop: run the parent's functions until it closes the stream."""
    memory = _confine()
    for _ in range(MOST_RECORDINGS):
        stream.write(stream.readline())
        stream.flush()
        request = json.loads(stream.readline())
        size, (module, _, name) = request["size"], request["function"].partition(":")
        function = getattr(sys.modules[module], name)
        work = function(stream.read(size), *request["arguments"])
        if memory is not None:
            _limit_memory(memory + FREE_MEMORY + MEMORY_PER_BYTE * size)
        _answer(work, stream, request["seconds"])
        del work
        _limit_memory(None)


def _answer(work: Work, stream: BufferedRWPair, seconds: float) -> None:
    """Send the function's next value, result or error for each line of the parent."""
    global _started
    _started, last = time.process_time(), False
    limit_processor_time(seconds)
    while not last and stream.readline():
        content: bytes | bytearray = b""
        answer: dict[str, Any] = {}
        last = True
        try:
            answer["value"], content = next(work)
            last = False
        except StopIteration as end:
            answer["value"], content = end.value
        except (InvalidAudio, AudioTooLong) as error:
            answer = {"code": error.code, "text": error.text}
        except MemoryError:
            answer = {"code": InvalidAudio.code, "text": "it takes far more memory than its size"}
        except Exception as error:  # its text may quote the recording
            *_, (frame, line) = walk_tb(error.__traceback__)
            answer["fault"] = f"{type(error).__name__}, {frame.f_code.co_name}:{line}"
        stream.write(json.dumps({"size": len(content), "last": last, **answer}).encode() + b"\n")
        stream.write(content)
        stream.flush()
    signal.setitimer(signal.ITIMER_PROF, 0)


def _confine() -> int | None:
    """Give up files, new descriptors and core dumps for good. Return the bytes of this process's
    address space; None without /proc, because such systems limit no address space either.
    """
    memory: int | None = None
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()[0]
        memory = int(pages) * resource.getpagesize()
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(kind, (0, 0))  # open descriptors stay open
    return memory


def _limit_memory(value: int | None) -> None:
    """Lower the soft limit of the address space to `value` bytes; None lifts it."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if value is None or 0 <= hard < value:  # infinity is -1
        value = hard
    resource.setrlimit(resource.RLIMIT_AS, (value, hard))


def _forget() -> None:
    """Leave the template to the parent process, a thread of which may hold the lock."""
    global _template
    _template.forget()
    _template = _Template()


_template = _Template()
atexit.register(lambda: _template.end())
os.register_at_fork(after_in_child=_forget)
