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
- no environment, which holds the server's keys, and no core dump;
- system calls, files and other processes (`audio.confinement`), as far as the kernel can.

Parent and fork talk over a pair of sockets: a line of JSON, then as many bytes as the line says.
The parent unpickles nothing from a fork. Samples pass through the socket too, because shared memory
would need a descriptor for each recording. The parent waits for a fork in steps, so its thread may
serve others: a fork that computes for STEP_SECONDS pauses until the parent's next step, and a fork
that stands still holds no thread.

A second pair of sockets, the keeper, joins parent and template for each fork. When the parent
closes it, the template kills the fork. When the fork ends, the template says how: a process that
the machine ended is replaced once by a fresh fork, which repeats the steps.
"""

import atexit
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from importlib import import_module
from io import BufferedRWPair
from math import inf
from pathlib import Path
from subprocess import DEVNULL, Popen
from threading import RLock
from traceback import walk_tb
from typing import Any, NamedTuple

from whosaid.audio.confinement import LAYERS, confine, hide_memory
from whosaid.errors import AudioTooLong, InvalidAudio, Unavailable
from whosaid.scheduling.steps import give_way, run_steps

logger = logging.getLogger("endpoint")

# Seconds of processor time for the headers of a recording, before the function extends them.
# libavformat searches all names of a file's metadata before it adds a name: 150,000 take a minute.
HEADER_SECONDS = 2.0
# Bytes. The index of an honest mp4 takes 37 bytes a packet. Two hours of a film have 770,000
# packets, and the smallest packets (AMR, G.729) have at least 10 bytes.
FREE_MEMORY, MEMORY_PER_BYTE = 128 << 20, 7
# Recordings that a fork reads before a new fork replaces it, and idle forks that are kept, some 5
# MB each.
MOST_RECORDINGS, MOST_IDLE = 100, 4
# Seconds of a fork's processor time, and of the parent's waiting, after which others are served.
STEP_SECONDS = 0.25
# Seconds without a sign of life, after which a fork is killed. A working fork pauses after
# STEP_SECONDS of processor time, or HEADER_SECONDS within one call of libav.
MOST_SILENCE = 30.0
# Modules that the template imports before it forks.
PRELOADED = ("whosaid.audio.libav",)

_START = "import json, sys; sys.path = json.loads(sys.argv[1]); import {0}; {0}.serve(sys.argv[2:])"
_ERRORS = {error.code: error for error in (InvalidAudio, AudioTooLong)}
# Signals that end a process for no fault of its recording: the system sends SIGKILL when memory
# runs out.
_FOREIGN = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT}
_BLOCK = 1 << 18  # bytes a system call

# A confined function yields values for JSON, each with the bytes that follow it.
Work = Generator[tuple[Any, bytes | bytearray], None, tuple[Any, bytes | bytearray]]


class Step(NamedTuple):
    """Value and bytes that a confined function yields or, if it is the `last` step, returns."""

    value: Any
    content: bytes | bytearray
    last: bool


class _Lost(Exception):
    """The machine ended a process, or cannot start or run it."""


@dataclass(eq=False)
class _Fork:
    """A fork of `template`; the sockets to it and, to kill it, to the template. It has read so many
    `recordings`. `told` are the template's words about it: a space, and later the exit status.
    """

    template: Popen[bytes]
    stream: socket.socket
    keeper: socket.socket
    recordings: int = 0
    told: bytes = b""

    def close(self) -> None:
        self.stream.close()
        self.keeper.close()


class Confined:
    """The process of one recording, which computes a step at a time until it is closed.

    `function` is "module:name" of a generator function, called with `data` and `arguments`. It has
    to yield the same steps if it is called again.
    """

    def __init__(self, function: str, data: bytes, *arguments: Any) -> None:  # noqa: ANN401
        request = {"function": function, "arguments": arguments, "size": len(data)}
        line = json.dumps(request | {"seconds": HEADER_SECONDS})
        self._request, self._data = line.encode() + b"\n", data
        self._fork: _Fork | None = None
        self._received, self._finished, self._repeated = 0, False, False

    async def step(self) -> Step:
        """Run the function up to its next yield, or its end, and give way meanwhile. Raises its
        InvalidAudio or AudioTooLong; InvalidAudio if the process crashes or exceeds its processor
        time; Unavailable if the machine twice ends the process or cannot run it; else RuntimeError.
        """
        while True:
            try:
                if self._fork is None:
                    await self._begin()
                step = await self._next()
            except _Lost as lost:
                logger.warning("the process that reads audio was lost: %s", lost)
                self._abandon()
                if self._repeated:
                    told = "the process that reads audio was killed or cannot run"
                    raise Unavailable(f"{told}: send the request again") from None
                self._repeated = True
                continue
            self._received += 1
            self._finished = step.last
            return step

    def close(self) -> None:
        """End the process, or keep it for another recording if it finished this one."""
        fork, self._fork, self._data = self._fork, None, b""
        if fork is not None and self._finished:
            _template.keep(fork)
        elif fork is not None:
            fork.close()

    def _abandon(self) -> None:
        """Kill the process, and its template if that did not even take the request."""
        if fork := self._fork:
            with suppress(BlockingIOError):
                fork.told += fork.keeper.recv(_BLOCK)
            if not fork.told:
                _template.end(fork.template)
            fork.close()
            self._fork = None

    async def _begin(self) -> None:
        """Hand the recording to a process, and repeat the steps that were received before."""
        try:
            self._fork = _template.take(fresh=self._repeated)
        except OSError as error:
            raise _Lost(f"it cannot be started ({type(error).__name__})") from error
        with suppress(ConnectionError):  # `_next` says why
            await self._send(self._request)
            await self._send(self._data)
        for _ in range(self._received):
            await self._next()

    async def _next(self) -> Step:
        answer: dict[str, Any] = {"pauses": True}
        try:
            while answer.get("pauses"):
                await self._send(b"\n")
                answer, content = await self._receive()
                if answer.get("pauses"):
                    await give_way()
        except ConnectionError:
            await self._raise_end()
        if code := answer.get("code"):
            raise _ERRORS[code](answer["text"])
        if fault := answer.get("fault"):
            raise RuntimeError(f"the process that reads audio failed: {fault}")
        return Step(answer["value"], content, answer["last"])

    async def _raise_end(self) -> None:
        """Raise _Lost if the machine ended the process, else InvalidAudio."""
        assert self._fork is not None
        while told := await self._read(self._fork.keeper):
            self._fork.told += told
        status = self._fork.told.strip()
        if not status or int(status) in _FOREIGN:
            raise _Lost("it was killed or could not be started")
        text = "decoding it takes too long or crashes: convert it to FLAC at 16 kHz and send that"
        raise InvalidAudio(text)

    async def _send(self, data: bytes) -> None:
        assert self._fork is not None
        stream, rest = self._fork.stream, memoryview(data)
        while rest:
            await _wait(stream, select.POLLOUT)
            rest = rest[stream.send(rest[:_BLOCK]) :]

    async def _receive(self) -> tuple[dict[str, Any], bytearray]:
        """Return a line of JSON and the bytes behind it. Raises ConnectionError at the end."""
        assert self._fork is not None
        received, size, answer = bytearray(), inf, dict[str, Any]()
        while len(received) < size:
            if not (some := await self._read(self._fork.stream)):
                raise ConnectionResetError
            received += some
            if not answer and (end := received.find(b"\n")) >= 0:
                answer = json.loads(received[:end])
                size = answer["size"]
                del received[: end + 1]
        return answer, received

    @staticmethod
    async def _read(channel: socket.socket) -> bytes:
        await _wait(channel, select.POLLIN)
        return channel.recv(_BLOCK)


async def _wait(channel: socket.socket, event: int) -> None:
    """Give way until `channel` is ready. Raises _Lost after MOST_SILENCE."""
    poll, deadline = select.poll(), time.monotonic() + MOST_SILENCE
    poll.register(channel, event)
    while not poll.poll(1_000 * STEP_SECONDS):
        if time.monotonic() > deadline:
            raise _Lost(f"it showed no sign of life for {MOST_SILENCE:g} s")
        await give_way()


def run_confined(function: str, data: bytes, *arguments: Any) -> Any:  # noqa: ANN401
    """Return the value that `function` returns for `data`. Raises the errors of `Confined`."""

    async def run() -> Any:  # noqa: ANN401
        with closing(Confined(function, data, *arguments)) as process:
            while not (step := await process.step()).last:
                pass
            return step.value

    return run_steps(run())


class _Template:
    def __init__(self) -> None:
        self._lock = RLock()
        self._process: Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[_Fork] = []

    def take(self, fresh: bool) -> _Fork:
        """Return an idle fork unless `fresh`, or a new one. Raises OSError if none starts."""
        with self._lock:
            self.start()
            return self._idle.pop() if self._idle and not fresh else self._ask()

    def keep(self, fork: _Fork) -> None:
        fork.recordings += 1
        with self._lock:
            kept = fork.template is self._process and len(self._idle) < MOST_IDLE
            if kept and fork.recordings < MOST_RECORDINGS:
                self._idle.append(fork)
                return
        fork.close()

    def forget(self) -> None:
        while self._idle:
            self._idle.pop().close()
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
            with ExitStack() as resources:
                control, other_end = map(resources.enter_context, socket.socketpair())
                # A session of its own, because Ctrl+C is meant for the parent. One thread, because
                # numpy's threads would make forks unsafe.
                self._process = Popen(
                    command,
                    stdin=other_end.fileno(),
                    stdout=DEVNULL,
                    start_new_session=True,
                    env={"OPENBLAS_NUM_THREADS": "1"},
                )
                resources.pop_all()
                other_end.close()
            self._control = control
            self._idle.append(self._ask())

    def end(self, process: Popen[bytes] | None = None) -> None:
        """End the process, if it is still `process`."""
        with self._lock:
            if self._process is not None and process in (None, self._process):
                self.forget()
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._process = None

    def _ask(self) -> _Fork:
        """Return a new fork. Its sockets are at their end if the process has ended."""
        assert self._control is not None
        assert self._process is not None
        (stream, theirs), (keeper, other_end) = socket.socketpair(), socket.socketpair()
        for ours in (stream, keeper):
            ours.setblocking(False)
        with theirs, other_end, suppress(ConnectionError):
            socket.send_fds(self._control, [b"\n"], [theirs.fileno(), other_end.fileno()])
        return _Fork(self._process, stream, keeper)


def start() -> None:
    """Start the template, so that no recording waits for it, and hide this process's memory."""
    hide_memory()
    _template.start()


def log_layers() -> None:
    """Log which layers confine the forks, and which this system lacks."""
    with suppress(Unavailable):
        layers = run_confined(f"{__name__}:held_layers", b"")
        held = ", ".join(layers) or "limits alone"
        lacking = ", ".join(each for each in LAYERS if each not in layers) or "nothing"
        logger.info("audio is decoded under %s; this system lacks %s", held, lacking)


def held_layers(_: bytes) -> Work:
    yield from ()
    return _layers, b""


def serve(modules: list[str]) -> None:
    """Run the template's main loop: fork for each pair of sockets that arrives on the standard
    input, kill the forks whose keeper the parent closes, and tell the parent how forks ended.
    """
    for module in modules:
        import_module(module)
    hide_memory()
    gc.freeze()  # so that a collection in a fork copies no page
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes `poll`
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    control, keepers = socket.socket(fileno=sys.stdin.fileno()), dict[int, socket.socket]()
    while True:
        poll = select.poll()
        for each in (control, woken, *keepers.values()):
            if each.fileno() >= 0:
                poll.register(each, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if woken.fileno() in ready:
            woken.recv(_BLOCK)
        for pid, status in _ended():
            with keepers.pop(pid) as keeper, suppress(OSError):
                keeper.send(str(status).encode())
        for pid, keeper in keepers.items():
            if keeper.fileno() in ready:
                os.kill(pid, signal.SIGKILL)
                keeper.close()
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
            if not message:  # the parent has ended
                os.killpg(0, signal.SIGKILL)
            sockets = [socket.socket(fileno=each) for each in descriptors]
            _fork(sockets, keepers, (control, woken, wake))


def _ended() -> Iterator[tuple[int, int]]:
    """Yield the process ID and the exit status of each fork that has ended."""
    with suppress(ChildProcessError):  # there is no fork
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def _fork(
    sockets: Sequence[socket.socket],
    keepers: dict[int, socket.socket],
    others: Iterable[socket.socket],
) -> None:
    """Fork with the `sockets` to the parent, and add the keeper, the second, to `keepers`. If the
    system has no process or descriptor left, the parent finds both sockets closed.
    """
    with ExitStack() as resources:
        for each in sockets:
            resources.enter_context(each)
        with suppress(OSError, ValueError):
            connection, keeper = sockets
            keeper.send(b" ")  # the request has arrived
            if pid := os.fork():
                keepers[pid] = keeper
                resources.pop_all()
                connection.close()
                return
            try:
                signal.set_wakeup_fd(-1)
                for each in (keeper, *keepers.values(), *others):
                    each.close()
                os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
                _answer_all(connection.makefile("rwb"))
            finally:
                os._exit(0)


def limit_processor_time(seconds: float) -> None:
    """Let the kernel end this process once it has computed for `seconds` on its recording."""
    left = _started + seconds - time.process_time()
    signal.setitimer(signal.ITIMER_PROF, max(left, 1e-3))  # 0 would stop the timer


_started = 0.0  # processor time before the current recording
_layers: list[str] = []  # that hold in this fork


def _answer_all(stream: BufferedRWPair) -> None:
    """Run a fork's main loop: run the parent's functions until it closes the stream."""
    memory = _confine()

    def pause(*_: object) -> None:
        stream.write(b'{"size": 0, "pauses": true}\n')
        stream.flush()
        if not stream.readline():
            os._exit(0)

    signal.signal(signal.SIGVTALRM, pause)
    while line := stream.readline():
        request = json.loads(line)
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
        signal.setitimer(signal.ITIMER_VIRTUAL, STEP_SECONDS, STEP_SECONDS)
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
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        stream.write(json.dumps({"size": len(content), "last": last, **answer}).encode() + b"\n")
        stream.write(content)
        stream.flush()
    signal.setitimer(signal.ITIMER_PROF, 0)


def _confine() -> int | None:
    """Give up files, new descriptors, core dumps and system calls for good. Return the bytes of
    this process's address space; None without /proc, because such systems limit no address space
    either.
    """
    memory: int | None = None
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()[0]
        memory = int(pages) * resource.getpagesize()
    _layers.extend(confine())
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
