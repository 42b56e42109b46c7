"""Audio files made from known signals, whole or broken, to compare what a decoder makes of them.

The ffmpeg program encodes, which is another build than the libraries with which the endpoint
decodes. AMR, which it cannot write, and broken WAV and MP4 are put together here byte by byte."""

import base64
import random
import struct
import subprocess
import tempfile
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config import REPOSITORY
from whosaid.audio.decode import AudioLimits, decode_audio

PCM, FLOAT = 1, 3
SAMPLE_KINDS = {"u8": (PCM, 8)}
SAMPLE_KINDS |= {f"s{bits}": (PCM, bits) for bits in (16, 24, 32)}
SAMPLE_KINDS |= {f"f{bits}": (FLOAT, bits) for bits in (32, 64)}

SPEECH = 3 * 16_000  # where the conversation's longest turn begins

# File name -> what ffmpeg is told beside the name.
FORMATS = {
    **dict.fromkeys(("a.wav", "a.flac", "a.m4a", "a.aac", "a.aiff", "a.au", "a.caf", "a.w64"), ""),
    **dict.fromkeys(("a.wma", "a.mp2", "a.ac3", "a.wv", "a.tta"), ""), "alac.m4a": "-c:a alac",
    "adpcm.wav": "-c:a adpcm_ms", "a.mp3": "-b:a 96k", "faststart.m4a": "-movflags +faststart",
    "fragmented.mp4": "-movflags frag_keyframe+empty_moov", "mulaw.wav": "-c:a pcm_mulaw",
    "opus.ogg": "-c:a libopus -b:a 64k", "vorbis.ogg": "-c:a libvorbis",
    "speex.ogg": "-c:a libspeex -ar 16000", "a.webm": "-c:a libopus -b:a 64k", "a.mka": "-c:a flac",
    "a.flv": "-ar 44100", "a.3gp": "-c:a aac",
}  # fmt: skip


def chirp(
    rate: int, seconds: float, lowest: float = 100, highest: float = 1_800
) -> NDArray[np.float64]:
    """A sine of amplitude 0.5 that rises evenly from `lowest` to `highest` Hz; `rate` in Hz."""
    time = np.arange(round(rate * seconds)) / rate
    return 0.5 * np.sin(2 * np.pi * (lowest * time + (highest - lowest) * time**2 / (2 * seconds)))


def tone(rate: int, seconds: float, frequency: float) -> NDArray[np.float64]:
    return chirp(rate, seconds, frequency, frequency)


def pitch(samples: NDArray[np.float32], rate: int = 16_000) -> float:
    """The frequency in Hz where the spectrum is highest."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return int(np.argmax(spectrum)) * rate / len(samples)


def wav_file(samples: NDArray[np.floating[Any]], rate: int, kind: str = "s16") -> bytes:
    """A WAV file of `samples` in -1 to 1, (n,) or (n, channels)."""
    form, bits = SAMPLE_KINDS[kind]
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    return raw_wav(_stored(samples.ravel(), form, bits), rate, channels, bits, form)


def _stored(samples: NDArray[np.floating[Any]], form: int, bits: int) -> bytes:
    if form == FLOAT:
        return samples.astype(f"<f{bits // 8}").tobytes()
    most = 2.0 ** (bits - 1)
    integers = np.clip(np.rint(samples * most), -most, most - 1)
    if bits == 8:
        return (integers + 128).astype(np.uint8).tobytes()
    return integers.astype("<i4").view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()


def raw_wav(body: bytes, rate: int, channels: int = 1, bits: int = 16, form: int = PCM) -> bytes:
    """A WAV file with any header."""
    frame = (channels * bits // 8) & 0xFFFF
    fields = struct.pack("<HHIIHH", form, channels, rate, min(rate * frame, 2**32 - 1), frame, bits)
    header = struct.pack("<4sI8sI", b"RIFF", len(body) + 36, b"WAVEfmt ", 16) + fields
    return header + b"data" + struct.pack("<I", len(body)) + body


def amr_file(frames: int) -> bytes:
    """AMR narrow band at 12.2 kbit/s with random bits, 20 ms a frame."""
    chance = random.Random(0)
    return b"#!AMR\n" + b"".join(b"\x3c" + chance.randbytes(31) for _ in range(frames))


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def table(kind: bytes, *numbers: int) -> bytes:
    return box(kind, struct.pack(f">{1 + len(numbers)}I", 0, *numbers))


def track(
    samples: int, ticks: int = 2, chunk: int = 1, extra: bytes = b"", edits: int = 0
) -> bytes:
    """A track of `samples` one-byte samples of so many ticks, in one chunk of `chunk` samples; it
    is edited so many times."""
    entry = struct.pack(">I4s6xH8xHHHHI", 36, b"sowt", 1, 1, 16, 0, 0, 44_100 << 16)
    tables = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), entry),
        table(b"stts", 1, samples, ticks),
        extra,
        table(b"stsc", 1, 1, chunk, 1),
        table(b"stsz", 1, samples),
        table(b"stco", 1, 40),
    )
    header = table(b"mdhd", 0, 0, 44_100, 2**20, 0)
    handler = box(b"hdlr", b"\0" * 8 + b"soun" + b"\0" * 13)
    media = box(b"mdia", header, handler, box(b"minf", box(b"smhd", b"\0" * 8), tables))
    edit = b"".join(struct.pack(">IIHH", samples * 2, number % 3, 1, 0) for number in range(edits))
    edited = box(b"edts", box(b"elst", struct.pack(">II", 0, edits), edit)) if edits else b""
    return box(b"trak", box(b"tkhd", struct.pack(">5I", 0, 0, 0, 1, 0) + b"\0" * 68), edited, media)


def mp4(moov: bytes, *after: bytes) -> bytes:
    """An mp4 of 64 bytes of sound, whose tracks in `moov` announce what they like."""
    start = box(b"ftyp", b"isom\0\0\2\0isom") + box(b"mdat", bytes(64))
    header = box(b"mvhd", struct.pack(">5I", 0, 0, 0, 44_100, 2**20) + bytes(80))
    return start + box(b"moov", header, moov) + b"".join(after)


def silent_flac(hours: int, announced: bool) -> bytes:
    """Silence of 8 kHz, 7 KB an hour. `announced` writes the length into the header, which ffmpeg
    cannot do when it writes to a pipe."""
    silence = ["-f", "lavfi", "-i", "anullsrc=r=8000:cl=mono", "-t", "3600"]
    hour = ffmpeg(*silence, "-c:a", "flac", "-frame_size", "65535", "-f", "flac", "-")
    start = hour.index(b"\xff\xf8")
    header = bytearray(hour[:start])
    if announced:  # STREAMINFO's total: 36 bits from the middle of byte 21 on
        header[21:26] = (
            int.from_bytes(header[21:26], "big") & ~(2**36 - 1) | hours * 3600 * 8000
        ).to_bytes(5, "big")
    return bytes(header) + hour[start:] * hours


def ffmpeg(*arguments: str, source: bytes = b"") -> bytes:
    """Return the standard output of the ffmpeg program, given `source` on its input."""
    quiet = ["ffmpeg", "-v", "error"]
    command = [*quiet, *arguments] if source else [*quiet, "-nostdin", *arguments]
    return subprocess.run(command, input=source, capture_output=True, check=True, timeout=60).stdout


def encoded(source: bytes, name: str, *options: str) -> bytes:
    """The WAV file `source` in the format of `name`, via a real file, which some formats need."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        ffmpeg("-i", "-", *(options or FORMATS[name].split()), "-y", str(path), source=source)
        return path.read_bytes()


def request_body(file: bytes, **parameters: Any) -> dict[str, Any]:
    """The endpoint's JSON body, with an audio file in base64."""
    return {"inputs": base64.b64encode(file).decode(), "parameters": parameters}


@cache
def conversation() -> NDArray[np.float32]:
    """The demo's conversation, mono at 16 kHz."""
    file = REPOSITORY / "demo" / "conversation.ogg"
    limits = AudioLimits(max_seconds=600, max_bytes=2**28)
    return decode_audio(file.read_bytes(), 16_000, limits).samples


def speech(seconds: float) -> NDArray[np.float64]:
    """The beginning of that conversation's longest turn, mono at 16 kHz."""
    return conversation()[SPEECH : SPEECH + round(seconds * 16_000)].astype(np.float64)


@cache
def two_seconds() -> bytes:
    """The chirp that the formats hold."""
    return wav_file(chirp(44_100, 2.0), 44_100)


@cache
def every_format() -> dict[str, bytes]:
    """That chirp in each of FORMATS, by file name; ffmpeg starts once for all."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / name for name in FORMATS}
        outputs = [(*FORMATS[name].split(), str(path)) for name, path in paths.items()]
        ffmpeg("-i", "-", *chain.from_iterable(outputs), source=two_seconds())
        return {name: path.read_bytes() for name, path in paths.items()}


def with_video(source: bytes, name: str, *options: str) -> bytes:
    """A film of two seconds of moving bars with `source` as its sound."""
    bars = "testsrc=size=64x48:rate=10:duration=2"
    return encoded(source, name, "-f", "lavfi", "-i", bars, "-map", "0:a", "-map", "1:v", *options)


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """`data` cut, flipped, overwritten, repeated or joined with another, mostly near its start."""
    broken = bytearray(data)

    def place() -> int:
        return chance.randrange(min(len(broken), chance.choice([64, 512, 4096, len(broken)])))

    match chance.randrange(7):
        case 0:
            return data[: chance.randrange(len(data))]
        case 1:
            for _ in range(chance.choice([1, 4, 30])):
                broken[place()] ^= 1 << chance.randrange(8)
        case 2:
            extreme = chance.choice(
                [b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\1"]
            )
            start = place()
            broken[start : start + 4] = extreme
        case 3:
            start = place()
            del broken[start : start + chance.choice([1, 4, 100, 1000])]
        case 4:
            start = place()
            broken[start:start] = chance.randbytes(chance.choice([1, 4, 100]))
        case 5:
            start, end = place(), chance.randrange(len(broken))
            broken[start:start] = broken[end : end + chance.choice([16, 500, 5000])]
        case _:
            other = chance.choice(others)
            broken[place() :] = other[chance.randrange(len(other)) :]
    return bytes(broken)
