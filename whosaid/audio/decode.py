"""Decodes untrusted bytes to samples, float32 at 16 kHz: one channel, or each of the file's.

PyAV decodes; its wheel contains ffmpeg's libraries. They run in a confined process
(`audio.sandbox`, `audio.libav`), which sends samples a step at a time. No program has to be
installed, and no temporary file is written.
"""

from __future__ import annotations

import binascii
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whosaid.audio.sandbox import Confined, run_confined
from whosaid.errors import AudioTooLong, InvalidAudio
from whosaid.payload.encodings import Base64Text, address_in, base64_digits, decode_digits
from whosaid.scheduling.steps import give_way, run_steps
from whosaid.timebase import SAMPLE_RATE

STEP_SECONDS = 30  # of audio decoded in one step
# Seconds of processor time that decoding may take: for any recording, for each MiB, and for each
# second of audio. A second of silence in FLAC at 192 kHz and eight channels takes 0.01 s; an hour
# of it has 0.5 MiB.
BUDGET = 10.0, 5.0, 0.002
# A mean above this share of the samples' standard deviation is a DC offset, inaudible but added by
# some recorders. It changes Whisper base's text, and moves word times by up to 0.3 s. Sixteen real
# recordings have at most 1/38, and six seconds of a recording with rumble have 1/15: such means are
# kept.
OFFSET = 1 / 10


@dataclass(frozen=True)
class AudioLimits:
    """Limits of a request: `max_seconds` of all channels, `max_bytes` after base64 decoding."""

    max_seconds: float
    max_bytes: int

    def less(self, size: int) -> AudioLimits:
        return replace(self, max_bytes=max(0, self.max_bytes - size))


@dataclass(frozen=True, eq=False)
class Audio:
    """Decoded `channels`, each (n,) at 16 kHz; `duration` of the original in seconds; warnings."""

    channels: tuple[NDArray[np.float32], ...]
    duration: float
    warnings: tuple[str, ...]

    @property
    def samples(self) -> NDArray[np.float32]:
        """The only channel, (n,). Raises ValueError if there are several."""
        (samples,) = self.channels
        return samples

    @property
    def seconds(self) -> float:
        return self.duration * len(self.channels)


# Takes the samples so far and the seconds expected in all; returns whether it uses the samples.
Hear = Callable[[NDArray[np.float32], float], Awaitable[bool]]


def decode_base64(inputs: str | Base64Text | bytes, limits: AudioLimits) -> bytes:
    """Return the audio file's bytes: base64 of RFC 4648, standard or URL-safe, with or without
    padding, white space and a `data:*;base64,` header, or bytes as they are. Raises InvalidAudio,
    AudioTooLong.
    """
    data = inputs if isinstance(inputs, bytes) else _decode_text(inputs, limits)
    if not data:
        raise InvalidAudio("the audio file is empty")
    _refuse_large(len(data), limits)
    return data


def decode_files(files: Sequence[str | Base64Text | bytes], limits: AudioLimits) -> list[bytes]:
    """Return the bytes of files that keep `limits` together. Raises InvalidAudio, AudioTooLong."""
    decoded: list[bytes] = []
    for each in files:
        decoded.append(decode_base64(each, limits.less(sum(map(len, decoded)))))
    return decoded


def decode_audio(
    data: bytes, sampling_rate: int, limits: AudioLimits, separate: bool = False
) -> Audio:
    """Decode the best audio stream that libav has a decoder for. Second 0 of the samples is the
    first moment of the file, of picture or sound; gaps are silent. Channels are averaged or, while
    they cancel each other out, the loudest is taken, with a warning; all are kept if `separate`.

    libswresample, which Whisper's `load_audio` uses too, resamples to `sampling_rate` (Hz) and from
    there to 16 kHz. Raises AudioTooLong beyond `limits`, and InvalidAudio for less than 0.1 s of
    audio, samples that are not finite or exceed 1e4, more than 8 channels, rates outside 4-384 kHz,
    and bytes that crash the decoder or take far more memory or processor time than audio does.
    """
    return run_steps(decoding_steps(data, sampling_rate, limits, separate))


async def decoding_steps(
    data: bytes,
    sampling_rate: int,
    limits: AudioLimits,
    separate: bool = False,
    hear: Hear | None = None,
    held: float = 0.0,
) -> Audio:
    """Decode like `decode_audio`, in steps that report seconds of all channels together, decoded
    and expected, those of other files that are `held` included; the last reports the whole. After
    each step `hear` is awaited with the mixed samples so far, and the seconds expected in all. Once
    it returns True, these samples no longer change, so an offset is kept.
    """
    _refuse_large(len(data), limits)
    arguments = sampling_rate, limits.max_seconds, separate, STEP_SECONDS, BUDGET
    samples, heard = _Samples(), False
    with closing(Confined("whosaid.audio.libav:decode", data, *arguments)) as process:
        del data  # `process` keeps it
        while not (step := await process.step()).last:
            decoded, expected, count = step.value
            samples.append(step.content, count, expected)
            await give_way((held + decoded, held + expected))
            if hear is not None:
                heard = await hear(samples.channels[0], expected)
    found = step.value
    samples.append(step.content, found["channels"], found["seconds"])
    for channel in [] if heard else samples.channels:
        if offset := find_offset(channel):
            channel -= np.float32(offset)
    each = tuple(channel[: found["length"]] for channel in samples.channels)
    audio = Audio(each, found["seconds"], tuple(found["warnings"]))
    await give_way((held + audio.seconds, held + audio.seconds))
    return audio


class _Samples:
    """Samples of each channel, in memory that is reserved for all that are expected."""

    def __init__(self) -> None:
        self._room = np.zeros((1, 0), np.float32)
        self._length = 0

    @property
    def channels(self) -> list[NDArray[np.float32]]:
        return [*self._room[:, : self._length]]

    def append(self, content: bytes | bytearray, count: int, seconds: float) -> None:
        """Append samples of `count` channels, of `seconds` in all; new channels were silent."""
        new = np.frombuffer(content, np.float32).reshape(count, -1)
        before, length = self._length, self._length + new.shape[1]
        if count > len(self._room) or length > self._room.shape[1]:
            # Pages take memory when they are written. The estimate may be too short.
            expected = round(1.1 * seconds / count * SAMPLE_RATE) + SAMPLE_RATE
            room = np.zeros((count, max(length + before // 2, expected)), np.float32)
            room[: len(self._room), :before] = self._room[:, :before]
            self._room = room
        self._room[:, before:length] = new
        self._length = length


def find_offset(samples: NDArray[np.float32]) -> float:
    """Return the mean of `samples` (n,) if it is an offset, else 0."""
    mean = float(samples.mean(dtype=np.float64)) if len(samples) else 0.0
    variance = float(np.vdot(samples, samples)) / max(len(samples), 1) - mean**2
    return mean if mean**2 > OFFSET**2 * variance else 0.0


def check_container(data: bytes) -> None:
    """Raise InvalidAudio unless the header describes decodable audio; decode nothing."""
    run_confined("whosaid.audio.libav:check", data)


def _decode_text(text: str | Base64Text, limits: AudioLimits) -> bytes:
    if address := address_in(text):
        raise InvalidAudio(f"inputs is {address}; send the file itself as base64")
    try:
        digits = base64_digits(text)
    except UnicodeEncodeError:
        raise InvalidAudio("inputs is not base64: it holds a character that is not ASCII") from None
    _refuse_large(len(digits) * 3 // 4 - digits[-2:].count(b"="), limits)
    if len(digits) % 4 or digits.endswith(b"==="):
        raise InvalidAudio("inputs is not base64: its length or its padding is wrong")
    try:
        return decode_digits(digits)
    except binascii.Error:
        told = "inputs is not base64: it holds other characters, or padding before its end"
        raise InvalidAudio(told) from None


def _refuse_large(size: int, limits: AudioLimits) -> None:
    if size > limits.max_bytes:
        raise AudioTooLong(f"the audio has {size} bytes, this endpoint accepts {limits.max_bytes}")
