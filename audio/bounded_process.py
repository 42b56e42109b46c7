"""A function over untrusted bytes, run in a process of its own, which the kernel ends when it has
computed for too long.

libavformat cannot be interrupted: it searches all names of a file's metadata before it adds one, so
that 150,000 names keep it busy for a minute, in any of ten formats. The budget is of CPU time and
kept by the process's own timer. So a busy machine refuses no file, nobody has to watch the clock,
and a process whose parent was killed ends by itself, whatever it is doing.

Processes are started when needed, and kept. They import this module and the function's, get bytes
on their standard input, and end when that is closed. Answers are JSON: a process that reads what
strangers send is not trusted either.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, Popen
from threading import BoundedSemaphore
from typing import IO, Any

from errors import AudioTooLong, ClientError, InvalidAudio

# Seconds of CPU time: for a file's headers, and several times what an honest file takes more, for
# each step of a thousand packets and for each second of audio, whichever is less.
BUDGET, A_STEP, A_SECOND = 2.0, 0.01, 0.004
# At most so many at once: each takes 60 MB and what it reads.
PROCESSES = 4

_ERRORS: dict[str, type[ClientError]] = {
    error.code: error for error in (InvalidAudio, AudioTooLong)
}
_START = "import json, sys; sys.path = json.loads(sys.argv[1]); import {0}; {0}.serve()"


def run_bounded(function: str, data: bytes, *arguments: float) -> float:
    """The last number that `function`, as in "module:name", yields for `data` and `arguments`.

    Those are seconds of audio, one for each step, of all that is read so far. Raises the
    InvalidAudio or AudioTooLong that it raises, and InvalidAudio where it takes too long or crashes
    twice. Raises OSError or RuntimeError where no process can be started.
    """
    request = {
        "function": function,
        "arguments": arguments,
        "size": len(data),
        "budget": BUDGET,
    }
    with _places:
        # An idle process may have been killed, which is no fault of these bytes.
        answer = _ask(_take(), request, data) or _ask(_Process(), request, data)
    if answer is None:
        raise InvalidAudio("it crashes what reads its headers")
    if "code" in answer:
        raise _ERRORS[answer["code"]](answer["text"])
    return float(answer["seconds"])


def serve() -> None:
    """Answer requests until the standard input ends: what a process does."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with suppress(BrokenPipeError):  # the parent was killed
        while _serve_one(sys.stdin.buffer, sys.stdout.buffer):
            pass


def _serve_one(requests: IO[bytes], answers: IO[bytes]) -> bool:
    """Answer the next request, if there is one. Nothing of it is kept."""
    line = requests.readline()
    if not line:
        return False
    request = json.loads(line)
    data = requests.read(request["size"])
    if len(data) < request["size"]:
        return False
    module, _, name = request["function"].partition(":")
    function = getattr(import_module(module), name)
    answer = _run(function(data, *request["arguments"]), request["budget"])
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()
    return True


def _run(progress: Iterator[float], budget: float) -> dict[str, Any]:
    """The answer, if the timer does not end this process before: it counts CPU time.

    It is set by the clock, as it is rounded up whenever it is set.
    """
    seconds, end = 0.0, time.process_time() + budget
    signal.setitimer(signal.ITIMER_PROF, budget)
    try:
        for now in progress:
            end += min(A_STEP, A_SECOND * (now - seconds))
            left = end - time.process_time()
            if left <= 0:
                signal.raise_signal(signal.SIGPROF)
            signal.setitimer(signal.ITIMER_PROF, left)
            seconds = now
    except (InvalidAudio, AudioTooLong) as error:
        return {"code": error.code, "text": str(error).removeprefix(f"{error.code}: ")}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"seconds": seconds}


class _Process:
    """One process and the two pipes to it."""

    def __init__(self) -> None:
        path = [str(Path(__file__).parent.parent), *sys.path]
        command = [sys.executable, "-c", _START.format(__name__), json.dumps(path)]
        # In a session of its own, as Ctrl+C is for its parent, and without an environment, which
        # holds the server's keys.
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True, env={})

    def ask(self, request: dict[str, Any], data: bytes) -> dict[str, Any] | None:
        """Its answer; None where it ended instead."""
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        with suppress(BrokenPipeError):
            pipe.write(json.dumps(request).encode() + b"\n")
            pipe.write(data)
            pipe.flush()
        line = answers.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self.end()

    def end(self) -> int:
        """Let it end, which it does when it waits for a request; its status."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # of what could not be written
                pipe.close()
        return self._process.wait()


def _ask(process: _Process, request: dict[str, Any], data: bytes) -> dict[str, Any] | None:
    """The process's answer; None where it was killed, and not by its own timer."""
    try:
        answer = process.ask(request, data)
    except BaseException:
        process.kill()
        raise
    if answer is not None:
        _idle.append(process)
        return answer
    status = process.end()
    if status == -signal.SIGPROF:
        raise InvalidAudio("its headers and packets take too long to read")
    if status >= 0:
        raise RuntimeError(f"the process that reads headers ended with status {status}")
    return None


def _take() -> _Process:
    try:
        return _idle.pop()
    except IndexError:
        return _Process()


_places = BoundedSemaphore(PROCESSES)
_idle: deque[_Process] = deque()


def _forget() -> None:
    """In a fork: the processes are the parent's, and so are the threads that hold places."""
    global _places
    _places = BoundedSemaphore(PROCESSES)
    _idle.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()
