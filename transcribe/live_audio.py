"""Where live audio comes from: a microphone, standard input, or a file that is played.

All give signed 16-bit little endian samples, mono, in pieces of at most BLOCK_SECONDS. A microphone
is the ffmpeg program's business, which knows every system's; it is not needed for anything else.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from errors import EndpointError
from timebase import SAMPLE_RATE
from transcribe.client import Failed, Unusable
from transcribe.options import STANDARD_INPUT

BLOCK_SECONDS = 0.1
BYTES_PER_SAMPLE = 2
WIRE_RATES = (16_000, 24_000)  # Hz
# What a file of sound begins with, for standard input holds samples or WAV alone.
CONTAINERS = (b"OggS", b"fLaC", b"ID3", b"\x1aE\xdf\xa3", b"FORM", b"caff")
CONVERT = "ffmpeg -i FILE -f s16le -ar 16000 -ac 1 - | scripts/transcribe --live -"
MOST_SECONDS, MOST_BYTES = 24 * 3600.0, 2**31  # of a file


class Source(Protocol):
    """Audio that is read once. Its methods raise Failed and OSError.

    `waits` is whether nothing is lost of it while nobody reads.
    """

    waits: bool

    def open(self) -> int:
        """Begin; the samples a second."""

    def read(self) -> bytes:
        """The next samples, whole or not; none at the end."""

    def close(self) -> None:
        """End it from any thread; what is being read may still come."""


def choose_source(recordings: list[Path], microphone: str | None, realtime: bool) -> Source:
    """What a command line asks for. Raises Unusable where it cannot be had."""
    if not recordings:
        return Microphone(microphone)
    if recordings == [STANDARD_INPUT]:
        return Pipe(sys.stdin.fileno())
    return Played(recordings[0], realtime)


class Microphone:
    """What ffmpeg records, until it is told to end."""

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
        """Start ffmpeg in a group of its own, so that Ctrl+C is not for it."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return SAMPLE_RATE

    def read(self) -> bytes:
        """What was recorded since. Raises Failed where ffmpeg ends by itself."""
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
        """End ffmpeg, which first gives what it has."""
        self._closed = True
        if self._process is not None:
            self._process.terminate()


# Each packet is written at once: ffmpeg would keep a second of audio.
QUIET = ("-hide_banner", "-loglevel", "error", "-nostdin")
SAMPLES = ("-f", "s16le", "-ar", str(SAMPLE_RATE), "-ac", "1", "-flush_packets", "1")


def input_options(platform: str, name: str | None) -> list[str]:
    """How ffmpeg is told of a microphone; one that is not named is the system's default."""
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
    """Samples at 16 kHz from a file descriptor that cannot be sought, or a WAV file with a rate of
    the wire's.

    Python's own buffer has a lock, which the thread that waits in a read would hold to the end: an
    interpreter that ends then aborts (python/cpython#86883).
    """

    waits = True  # as its writer does

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rate = SAMPLE_RATE
        self._begun = b""

    def open(self) -> int:
        """Wait for the first bytes. Raises Failed where they are of a file that is not WAV."""
        head = self._exactly(12)
        if head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:] == b"WAVE":
            self._rate = self._wav_rate()
        elif head.startswith(CONTAINERS) or head[4:8] == b"ftyp":
            raise Failed(
                f"standard input is neither samples nor WAV; this makes samples: {CONVERT}"
            )
        else:
            self._begun = head
        return self._rate

    def read(self) -> bytes:
        """What has come."""
        if begun := self._begun:
            self._begun = b""
            return begun
        return os.read(self._descriptor, _block_bytes(self._rate))

    def close(self) -> None:
        """Nothing: a read that waits cannot be ended."""

    def _wav_rate(self) -> int:
        """The rate of a WAV file whose samples come next."""
        rate = 0
        while True:
            name, size = struct.unpack("<4sI", self._exactly(8).ljust(8, b"\0"))
            if name == b"data" and rate:
                return rate
            if name == b"\0\0\0\0" or size > 2**16:
                raise Failed("standard input is a WAV file that ends in its header")
            content = self._exactly(size + size % 2)
            if name == b"fmt ":
                form, channels, rate, _, _, bits = struct.unpack("<HHIIHH", content[:16].ljust(16))
                if (form, channels, bits) != (1, 1, 16) or rate not in WIRE_RATES:
                    raise Failed(
                        f"a WAV file on standard input should be mono, with 16 bits and"
                        f" {' or '.join(map(str, WIRE_RATES))} Hz; this makes samples: {CONVERT}"
                    )

    def _exactly(self, count: int) -> bytes:
        """So many bytes, fewer where the stream ends."""
        data = b""
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
        """Decode it. Raises Failed."""
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
        """The next block, in real time when it has been spoken."""
        block = b"" if self._closed else self._samples.read(_block_bytes(SAMPLE_RATE))
        if self._realtime and block:
            spoken = self._samples.tell() / BYTES_PER_SAMPLE / SAMPLE_RATE
            time.sleep(max(0.0, self._began + spoken - time.monotonic()))
        return block

    def close(self) -> None:
        """Play no more of it."""
        self._closed = True


def _block_bytes(rate: int) -> int:
    return int(rate * BLOCK_SECONDS) * BYTES_PER_SAMPLE
