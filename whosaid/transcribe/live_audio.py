"""Sources of live audio: a microphone, standard input, or a file that is played.

Sources give signed 16-bit little endian samples, mono, in pieces of at most BLOCK_SECONDS. The
ffmpeg program records microphones, because it knows those of every system.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

from whosaid.errors import EndpointError
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcribe.client import Failed, Unusable
from whosaid.transcribe.options import STANDARD_INPUT

BLOCK_SECONDS = 0.1
BYTES_PER_SAMPLE = 2
WIRE_RATES = (16_000, 24_000)  # Hz
# Seconds ahead of real time that a session gets, like a server's default.
MOST_AHEAD_SECONDS = 60.0
# Blocks of a microphone buffered while no session reads: an hour, 115 MB.
MOST_BLOCKS = 36_000
# First bytes of audio files other than WAV.
RIFF = (b"RF64", b"RIFF", b"RIFX")
CONTAINERS = (*RIFF, b"OggS", b"fLaC", b"ID3", b"\x1aE\xdf\xa3", b"FORM", b"caff")
# First bytes of frames of MP3 and AAC, bits that a file's headers share, and bytes to find them in.
FRAMES = tuple(b"\xff%c" % each for each in b"\xfb\xfa\xf3\xf2\xe3\xe2\xf1\xf0\xf9\xf8")
SHARED_BITS, MPEG_BYTES = 0xFFFF0CCF, 3200
CONVERT = "ffmpeg -i FILE -f s16le -ar 16000 -ac 1 - | scripts/transcribe --live -"
MOST_SECONDS, MOST_BYTES = 24 * 3600.0, 2**31  # of a file
QUIET = ("-hide_banner", "-loglevel", "error", "-nostdin")
# Write each packet at once, because ffmpeg would buffer a second of audio.
PROBE = ("-t", "0.1", "-f", "null", "-")
# A microphone in ffmpeg's list: behind its number on macOS, before its description elsewhere.
APPLE_DEVICE = re.compile(r"\[\d+\] (.+)")
DEVICE = re.compile(r"^[ *] (\S+) \[", re.MULTILINE)
SAMPLES = ("-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-flush_packets", "1")


@dataclass(frozen=True)
class Source:
    """Audio that can be read once: `parts` yields the samples per second, then bytes of samples,
    and raises Failed and OSError.

    `waits`: no audio is lost while it is not read. `check` raises Failed if the audio cannot begin.
    `close` ends the audio, from any thread, or does nothing.
    """

    parts: Iterator[int | bytes]
    waits: bool = True
    check: Callable[[], object] = bool
    close: Callable[[], object] = bool


def choose_source(recordings: list[Path], name: str | None, realtime: bool) -> Source:
    """Return the source of a command line; `name` is a microphone. Raises Unusable."""
    if not recordings:
        return microphone(name)
    if recordings == [STANDARD_INPUT]:
        return Source(piped(sys.stdin.fileno()))
    closed = threading.Event()
    return Source(played(recordings[0], realtime, closed), close=closed.set)


def microphone(name: str | None) -> Source:
    """Return the recording of an ffmpeg process. Raises Unusable without ffmpeg."""
    ffmpeg = [_ffmpeg(), *QUIET, *input_options(sys.platform, name)]
    processes: list[subprocess.Popen[bytes]] = []

    def check() -> None:
        tried = subprocess.run([*ffmpeg, *PROBE], stdin=subprocess.DEVNULL, capture_output=True)
        if tried.returncode:
            raise _no_microphone(tried.stderr)

    def record() -> Iterator[int | bytes]:
        with subprocess.Popen(
            [*ffmpeg, *SAMPLES, "-"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C does not reach it
        ) as process:
            processes.append(process)
            assert process.stdout is not None
            yield SAMPLE_RATE
            yield from _blocks(process.stdout.fileno(), SAMPLE_RATE)
            _, told = process.communicate()
        if processes:
            raise _no_microphone(told)

    def close() -> None:  # ffmpeg first writes the rest of its recording
        while processes:
            processes.pop().terminate()

    return Source(record(), waits=False, check=check, close=close)


def _ffmpeg() -> str:
    if program := shutil.which("ffmpeg"):
        return program
    raise Unusable(
        "the microphone needs the ffmpeg program, which is not installed; another program can"
        " pipe samples to scripts/transcribe --live -"
    )


def _no_microphone(errors: bytes) -> Failed:
    lines = errors.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it ended")
    choose = "--list-microphones has the names for --microphone"
    return Failed(f"ffmpeg finds no microphone: {last}; {choose}")


def microphones() -> list[str]:
    """Return ffmpeg's names of the microphones. Raises Unusable without ffmpeg."""
    system = input_options(sys.platform, None)[1]
    if system == "avfoundation":
        listing, pattern = ["-f", system, "-list_devices", "true", "-i", ""], APPLE_DEVICE
    else:
        listing, pattern = ["-sources", system], DEVICE
    command = [_ffmpeg(), "-hide_banner", *listing]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    text = (said.stdout + said.stderr).decode("utf-8", "replace")
    return pattern.findall(text.rpartition("audio devices:")[2])


def input_options(platform: str, name: str | None) -> list[str]:
    if platform == "darwin":
        return ["-f", "avfoundation", "-i", f":{name or 'default'}"]
    # PipeWire has this socket too; without it, use ALSA.
    pulse = Path(f"/run/user/{os.getuid()}/pulse/native").exists()
    return ["-f", "pulse" if pulse else "alsa", "-i", name or "default"]


def piped(descriptor: int) -> Iterator[int | bytes]:
    """Read samples at 16 kHz, or a WAV file with a rate in WIRE_RATES, without Python's reader,
    whose lock would abort the interpreter at exit (python/cpython#86883). Raises Failed.
    """
    head = _exactly(descriptor, 12)
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        rate = _wav_rate(descriptor)
        yield rate
        yield from _blocks(descriptor, rate)
        return
    if head.startswith(FRAMES):
        head += _exactly(descriptor, MPEG_BYTES - len(head))
    if head.startswith(CONTAINERS) or head[4:8] == b"ftyp" or _is_mpeg(head):
        raise Failed(f"standard input is neither samples nor WAV; this makes samples: {CONVERT}")
    yield SAMPLE_RATE
    yield head
    yield from _blocks(descriptor, SAMPLE_RATE)


def _is_mpeg(head: bytes) -> bool:
    """Return whether frames begin here: their headers recur, but less than a constant does."""
    bits = [int.from_bytes(head[at : at + 4]) & SHARED_BITS for at in range(len(head))]
    return head.startswith(FRAMES) and 3 <= bits.count(bits[0]) <= 200


def _wav_rate(descriptor: int) -> int:
    """Read the header of a WAV file from its 13th byte on, up to its samples."""
    begun = [b"RIFF", b"\xff\xff\xff\xff", b"WAVE"]  # a stream's size is often wrong

    def read(count: int) -> bytes:
        return begun.pop(0) if begun else _exactly(descriptor, count)

    try:
        with wave.open(cast("IO[bytes]", SimpleNamespace(read=read))) as header:
            form, rate = (header.getnchannels(), header.getsampwidth()), int(header.getframerate())
    except (wave.Error, EOFError) as error:
        raise Failed(f"standard input is a WAV file with a wrong header: {error}") from error
    if form != (1, BYTES_PER_SAMPLE) or rate not in WIRE_RATES:
        raise Failed(
            "a WAV file on standard input should be mono, with 16 bits and"
            f" {' or '.join(map(str, WIRE_RATES))} Hz; this makes samples: {CONVERT}"
        )
    return rate


def _exactly(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := os.read(descriptor, count - len(data))):
        data += more
    return data


def _blocks(descriptor: int, rate: int) -> Iterator[bytes]:
    while data := os.read(descriptor, int(rate * BLOCK_SECONDS) * BYTES_PER_SAMPLE):
        yield data


def played(path: Path, realtime: bool, closed: threading.Event) -> Iterator[int | bytes]:
    """Yield a file's blocks until `closed`, in `realtime` no faster than played. Raises Failed."""
    import numpy as np

    from whosaid.audio.decode import AudioLimits, decode_audio

    try:
        limits = AudioLimits(MOST_SECONDS, MOST_BYTES)
        samples = decode_audio(path.read_bytes(), SAMPLE_RATE, limits).samples
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from error
    except EndpointError as error:
        raise Failed(f"{path}: {error}") from error
    scaled = np.round(samples * 32_768).clip(-32_768, 32_767).astype("<i2")
    began, block = time.monotonic(), int(SAMPLE_RATE * BLOCK_SECONDS)
    yield SAMPLE_RATE
    for start in range(0, len(scaled), block):
        data = scaled[start : start + block]
        if realtime:
            spoken = (start + len(data)) / SAMPLE_RATE
            time.sleep(max(0.0, began + spoken - time.monotonic()))
        if closed.is_set():
            return
        yield data.tobytes()


class SourceAudio:
    """A source's audio, read by a daemon thread, at most one block ahead if the source waits."""

    def __init__(self, source: Source) -> None:
        self.rate = 0  # samples per second
        self._taken = 0  # bytes
        self.failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[int | bytes | Exception] = asyncio.Queue(
            1 if source.waits else MOST_BLOCKS
        )
        self._next: bytes | None = None
        self._ended = False
        threading.Thread(target=self._read_all, args=(source,), daemon=True).start()

    @property
    def seconds(self) -> float:
        return self._taken / BYTES_PER_SAMPLE / self.rate if self.rate else 0.0

    async def begin(self) -> None:
        """Wait for the rate. Raises Failed, OSError."""
        rate = await self._parts.get()
        if isinstance(rate, Exception):
            raise rate
        assert isinstance(rate, int)
        self.rate = rate

    async def more(self) -> bool:
        """Wait until there is more audio; return False at the end or after a `failure`."""
        if self._next is None:
            part = b"" if self._ended and self._parts.empty() else await self._parts.get()
            if isinstance(part, Exception):
                self.failure, part = part, b""
            assert isinstance(part, bytes)
            self._next = part
        return bool(self._next)

    async def take(self) -> bytes:
        """Return the next whole samples; none at the end."""
        if not await self.more():
            return b""
        data, self._next = self._next or b"", None
        self._taken += len(data)
        return data

    def put_back(self, data: bytes) -> None:
        """Let the next `take` return `data`, which the last one returned."""
        self._next = data
        self._taken -= len(data)

    def end(self) -> None:
        """End the audio after the part read so far, even if the source does not end."""
        self._ended = True
        with suppress(asyncio.QueueFull):
            self._parts.put_nowait(b"")

    def _read_all(self, source: Source) -> None:
        for part in _parts(source):
            putting = self._parts.put(part)
            try:
                asyncio.run_coroutine_threadsafe(putting, self._loop).result()
            except (CancelledError, RuntimeError):  # the event loop has ended
                putting.close()
                return
            if self._ended:
                return


def _parts(source: Source) -> Iterator[int | bytes | Exception]:
    """Yield the rate, whole samples and an empty end, or the exception that ends the source."""
    try:
        odd = b""
        for part in source.parts:
            if isinstance(part, bytes):
                data = odd + part
                whole = len(data) - len(data) % BYTES_PER_SAMPLE
                odd, part = data[whole:], data[:whole]
            if part:
                yield part
        yield b""
    except Exception as error:
        yield error
