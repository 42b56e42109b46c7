"""Where live audio comes from: a microphone, standard input, or a file that is played.

Sources give signed 16-bit little endian samples, mono, in pieces of at most BLOCK_SECONDS. The
ffmpeg program records microphones, because it knows those of every system.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from errors import EndpointError
from timebase import SAMPLE_RATE
from transcribe.client import Failed, Unusable
from transcribe.options import STANDARD_INPUT

BLOCK_SECONDS = 0.1
BYTES_PER_SAMPLE = 2
WIRE_RATES = (16_000, 24_000)  # Hz
# Blocks of a microphone that wait while a session takes none: an hour, 115 MB.
MOST_BLOCKS = 36_000
# First bytes of audio files other than WAV.
CONTAINERS = (b"OggS", b"fLaC", b"ID3", b"\x1aE\xdf\xa3", b"FORM", b"caff", b"RF64", b"RIFX")
CONVERT = "ffmpeg -i FILE -f s16le -ar 16000 -ac 1 - | scripts/transcribe --live -"
MOST_SECONDS, MOST_BYTES = 24 * 3600.0, 2**31  # of a file
QUIET = ("-hide_banner", "-loglevel", "error", "-nostdin")
# Each packet is written at once: ffmpeg would keep a second of audio.
SAMPLES = ("-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-flush_packets", "1")


class Source(Protocol):
    """Audio that is read once. Its methods raise Failed and OSError.

    `waits` is whether nothing is lost while nobody reads.
    """

    waits: bool

    def open(self) -> int:
        """Begin, and return the samples per second."""

    def read(self) -> bytes:
        """Return the next bytes; none at the end."""

    def close(self) -> None:
        """End the source, from any thread; a read that has begun may still return bytes."""


def choose_source(recordings: list[Path], microphone: str | None, realtime: bool) -> Source:
    """Return the source of a command line. Raises Unusable without ffmpeg for a microphone."""
    if not recordings:
        return Microphone(microphone)
    if recordings == [STANDARD_INPUT]:
        return Pipe(sys.stdin.fileno())
    return Played(recordings[0], realtime)


class Microphone:
    """The recording of an ffmpeg process."""

    waits = False

    def __init__(self, name: str | None) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise Unusable(
                "the microphone is read by the ffmpeg program, which is not installed; samples of"
                " another can be sent to scripts/transcribe --live -"
            )
        self._command = [program, *QUIET, *input_options(sys.platform, name), *SAMPLES, "-"]
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def open(self) -> int:
        """Start ffmpeg in a process group of its own, which Ctrl+C does not reach."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return SAMPLE_RATE

    def read(self) -> bytes:
        """Return what was recorded. Raises Failed if ffmpeg ends by itself."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if data := os.read(process.stdout.fileno(), _block_bytes(SAMPLE_RATE)):
            return data
        _, told = process.communicate()
        if not self._closed:
            lines = told.decode("utf-8", "replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it ended")
            raise Failed(f"ffmpeg hears no microphone: {last}; --microphone NAME names another")
        return b""

    def close(self) -> None:
        """End ffmpeg, which first writes what it has recorded."""
        self._closed = True
        if self._process is not None:
            self._process.terminate()


def input_options(platform: str, name: str | None) -> list[str]:
    """Return ffmpeg's options for a microphone, by default the system's."""
    if platform == "darwin":
        return ["-f", "avfoundation", "-i", f":{name or 'default'}"]
    if platform in ("win32", "cygwin"):
        if name is None:
            raise Unusable(
                "--microphone: is needed on Windows; ffmpeg -list_devices true -f dshow -i dummy"
                " lists the names"
            )
        return ["-f", "dshow", "-i", f"audio={name}"]
    # PipeWire has the socket too; without either, ALSA itself.
    pulse = Path(f"/run/user/{os.getuid()}/pulse/native").exists()
    return ["-f", "pulse" if pulse else "alsa", "-i", name or "default"]


class Pipe:
    """Samples at 16 kHz, or a WAV file with a rate of the wire's, from a file descriptor.

    Python's buffered reader is not used: the thread that waits in a read would hold its lock, and
    an interpreter that ends then aborts (python/cpython#86883).
    """

    waits = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rate = SAMPLE_RATE
        self._begun = b""

    def open(self) -> int:
        """Wait for the first bytes. Raises Failed for a file that is not WAV."""
        self._begun = head = self._exactly(12)
        if head[:4] == b"RIFF" and head[8:] == b"WAVE":
            self._begun = b"RIFF\xff\xff\xff\xffWAVE"  # a stream's size is often wrong
            self._rate = self._wav_rate()
        elif head.startswith(CONTAINERS) or head[4:8] == b"ftyp":
            raise Failed(
                f"standard input is neither samples nor WAV; this makes samples: {CONVERT}"
            )
        return self._rate

    def read(self) -> bytes:
        begun, self._begun = self._begun, b""
        return begun or os.read(self._descriptor, _block_bytes(self._rate))

    def close(self) -> None:
        """Do nothing: a read that waits cannot be ended."""

    def _wav_rate(self) -> int:
        """Read the header of a WAV file, up to its samples."""
        try:
            with wave.open(cast("Any", SimpleNamespace(read=self._exactly))) as header:
                form, rate = (header.getnchannels(), header.getsampwidth()), header.getframerate()
        except (wave.Error, EOFError) as error:
            raise Failed(f"standard input is a WAV file with a wrong header: {error}") from error
        if form != (1, BYTES_PER_SAMPLE) or rate not in WIRE_RATES:
            raise Failed(
                "a WAV file on standard input should be mono, with 16 bits and"
                f" {' or '.join(map(str, WIRE_RATES))} Hz; this makes samples: {CONVERT}"
            )
        return rate

    def _exactly(self, count: int) -> bytes:
        """Read `count` bytes, fewer if the stream ends."""
        data, self._begun = self._begun[:count], self._begun[count:]
        while len(data) < count and (more := os.read(self._descriptor, count - len(data))):
            data += more
        return data


class Played:
    """A file's audio, as fast as it is taken, or in `realtime`."""

    waits = True

    def __init__(self, path: Path, realtime: bool) -> None:
        self._path, self._realtime = path, realtime
        self._samples = io.BytesIO()
        self._began = 0.0
        self._closed = False

    def open(self) -> int:
        """Decode the file. Raises Failed."""
        import numpy as np

        from audio.decode import AudioLimits, decode_audio

        try:
            data = self._path.read_bytes()
            found = decode_audio(data, SAMPLE_RATE, AudioLimits(MOST_SECONDS, MOST_BYTES))
        except OSError as error:
            raise Failed(f"{self._path}: {error.strerror}") from error
        except EndpointError as error:
            raise Failed(f"{self._path}: {error}") from error
        scaled = np.round(found.samples * 32_768).clip(-32_768, 32_767)
        self._samples = io.BytesIO(scaled.astype("<i2").tobytes())
        self._began = time.monotonic()
        return SAMPLE_RATE

    def read(self) -> bytes:
        """Return the next block, in real time once it would have been spoken."""
        block = b"" if self._closed else self._samples.read(_block_bytes(SAMPLE_RATE))
        if self._realtime and block:
            spoken = self._samples.tell() / BYTES_PER_SAMPLE / SAMPLE_RATE
            time.sleep(max(0.0, self._began + spoken - time.monotonic()))
        return block

    def close(self) -> None:
        self._closed = True


class Audio:
    """A source's audio. A thread reads it that nothing waits for, because standard input may never
    end: a block ahead of a source that waits, and all of any other.
    """

    def __init__(self, source: Source) -> None:
        self.rate = 0  # samples per second
        self._taken = 0  # bytes
        self.failure: Exception | None = None
        self.waits = source.waits
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[int | bytes | Exception] = asyncio.Queue(
            1 if source.waits else MOST_BLOCKS
        )
        self._next: bytes | None = None
        self._ended = False
        threading.Thread(target=self._read_all, args=(source,), daemon=True).start()

    @property
    def seconds(self) -> float:
        """Seconds of audio that were taken."""
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

    def end(self) -> None:
        """End the audio after what was read, also if the source does not end."""
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
    """Yield the rate, whole samples and an empty end, or what keeps the source from going on."""
    try:
        yield source.open()
        odd = b""
        while data := source.read():
            data = odd + data
            whole = len(data) - len(data) % BYTES_PER_SAMPLE
            odd = data[whole:]
            if whole:
                yield data[:whole]
        yield b""
    except Exception as error:
        yield error


def _block_bytes(rate: int) -> int:
    return int(rate * BLOCK_SECONDS) * BYTES_PER_SAMPLE
