"""Decode untrusted bytes to samples, float32 at 16 kHz: one channel, or each of the file's.

Decoding is PyAV's, whose wheel contains ffmpeg's libraries. They run inside this process, and read
a large file first in another, as nothing interrupts them (`bounded_process.py`). There is no
program to install, no temporary file, and no pipe, in which an m4a with its index at the end could
not be read.

Nothing that a file says about itself is trusted. libavformat reads this memory and nothing else:
no protocol is open to it, and demuxers that open other files are left out. Length is measured over
packets before anything is decoded, and again over samples while decoding. Samples are placed on the
file's timeline (`timeline`), checked, downmixed and resampled a block at a time. Channels that are
kept apart count like as many recordings.
"""

from __future__ import annotations

import binascii
import ctypes
import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BytesIO
from itertools import groupby, islice
from math import ceil
from threading import Lock
from typing import IO, Any, NamedTuple

import av
import av.buffer
import av.logging
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec import Codec
from av.codec.codec import UnknownCodecError
from av.container import InputContainer
from av.format import ContainerFormat, formats_available
from av.packet import Packet
from av.stream import Discard, Disposition
from numpy.typing import NDArray

from audio.bounded_process import run_bounded
from audio.container_bombs import refuse_mp4_bomb, without_id3
from audio.filters import filtered
from audio.timeline import BARE, TOLERANCE, ByteClock, Timeline
from errors import AudioTooLong, InvalidAudio
from payload.encodings import Base64Text, address_in, base64_digits, decode_digits
from runtime.steps import give_way, run_steps
from runtime.versions import open_container
from timebase import SAMPLE_RATE

MIN_SECONDS = Fraction(1, 10)
MAX_AMPLITUDE = 1e4
MAX_CHANNELS = 8
NATIVE_RATES = range(4_000, 384_001)  # Hz
MAX_FORMAT_CHANGES = 100
MAX_READ_ERRORS = 100
# Packets read or seconds decoded between two steps.
STEP_PACKETS, STEP_SECONDS = 1_000, 30
# Names that differ keep libavformat busy for the square of their number, which is half a second for
# the most that fit into a file of so many bytes. Larger ones are first read in another process.
MAX_UNBOUNDED = 2**16
# Channels cancel each other out where their mean has less than this of the power that the loudest
# would leave in it beside silence; less than 6 dB below it they no longer do (hysteresis).
CANCELLED, RESTORED = 1 / 16, 1 / 4
# A mean of more than this share of the samples' deviation from it is an offset, which recorders add
# and nobody hears: Whisper base then changes what it writes, and word times move by up to 0.3 s.
# Of sixteen real recordings none has over 1/38, six seconds of one with rumble 1/15: they stay.
OFFSET = 1 / 10
# Packets may add up to this many times the file: an edit list may repeat a part of it.
MAX_REREADING = 4
# Seconds of CPU time that decoding may take: for any file, for each second of audio, for each MiB.
# FLAC of silence at 192 kHz in eight channels takes 0.01 s a second: 0.5 MiB are an hour.
DECODING_BUDGET, A_SECOND, A_MIB = 10.0, 0.002, 5.0

_LIBAV_MAX_BLOCK = 32 << 20  # bytes
_LIBAV_MAX_FRAME = 1 << 20  # samples a channel
_PACKET_SLACK = 1.0  # seconds; encoder padding is in the packets, and decoding trims it
_DECLARED_SLACK = 0.2  # seconds; headers are rounded, and include padding
_SILENCE_LEFT_OUT = ("libopus", "opus", "speex")  # by their encoders, which send no packets then
_UNSIZED_RIFF = (
    2_000_000_000  # bytes; writers to a pipe do not know the size and claim this or more
)


def _demuxers() -> Iterator[str]:
    """All that libavformat has, but those that open other files or devices, run a script (`sbg`) or
    read pictures.
    """
    refused = {"concat", "dash", "hls", "imf", "sbg", "sdp", "vobsub", "webm_dash_manifest"}
    for name in formats_available:
        try:
            known = ContainerFormat(name, "r")
        except ValueError:  # it can only be written
            continue
        if not (known.name in refused or known.no_file or known.name.endswith("pipe")):
            yield known.name


def _decoders() -> Iterator[str]:
    """All of libavcodec's for audio, but that which synthesizes instead of decoding."""
    for name in av.codecs_available:
        try:
            codec = Codec(name, "r")
        except UnknownCodecError:  # it can only be encoded
            continue
        if codec.type == "audio" and name != "wavesynth":
            yield name


_DECODERS = frozenset(_decoders())
_OPTIONS = {
    "format_whitelist": ",".join(sorted(set(_demuxers()))),
    "codec_whitelist": ",".join(sorted(_DECODERS)),
    "protocol_whitelist": "",
    "max_streams": "16",
}

# An mp4 of 561 bytes can claim an index of gigabytes. This limits single allocations of libavutil,
# in PyAV's copy only. A true index takes 24 bytes a packet: 32 MiB suffice for 8 hours of AAC.
ctypes.CDLL(av.buffer.__file__).av_max_alloc(ctypes.c_size_t(_LIBAV_MAX_BLOCK))

# libav's messages repeat what files say, and never reach a log.
logging.getLogger("libav").propagate = False
logging.getLogger("libav").addHandler(logging.NullHandler())
_log_level = Lock()


@dataclass(frozen=True)
class AudioLimits:
    """The limits of one request: `max_seconds` of audio, all channels that are heard together, and
    `max_bytes` after base64 decoding.
    """

    max_seconds: float
    max_bytes: int

    def less(self, size: int) -> AudioLimits:
        """What is left after `size` bytes."""
        return replace(self, max_bytes=max(0, self.max_bytes - size))


@dataclass(frozen=True, eq=False)
class Audio:
    """What is heard: `channels`, each (n,) samples at 16 kHz; the original's `duration` in seconds,
    and warnings.
    """

    channels: tuple[NDArray[np.float32], ...]
    duration: float
    warnings: tuple[str, ...]

    @property
    def samples(self) -> NDArray[np.float32]:
        """The only channel, (n,)."""
        (samples,) = self.channels
        return samples

    @property
    def seconds(self) -> float:
        """The seconds of all channels together."""
        return self.duration * len(self.channels)


class DecodingStep(NamedTuple):
    """How far decoding is: seconds `decoded`, and at least how many there will be, of all channels
    together.
    """

    decoded: float
    expected: float


@dataclass
class _Progress:
    """What is known of one file so far: seconds decoded of how many channels, how many of them
    channels cancelled each other out, undecodable packets, an incomplete one.
    """

    seconds: Fraction = Fraction(0)
    channels: int = 1
    cancelled: Fraction = Fraction(0)
    damaged: bool = False
    truncated: bool = False


class _Channel:
    """The samples of one channel, with the sums from which their mean and deviation follow."""

    def __init__(self, silence: int = 0) -> None:
        """It begins with so many bytes of silence."""
        self.samples = bytearray(silence)  # grows in place, so that the peak is one copy
        self._total = self._squares = 0.0

    def add(self, block: memoryview) -> None:
        """Append float32 samples."""
        self.samples += block
        samples = np.frombuffer(block, np.float32)
        self._total += float(samples.sum(dtype=np.float64))
        self._squares += float(np.square(samples, dtype=np.float64).sum())

    def take(self, length: int) -> NDArray[np.float32]:
        """At most `length` samples, without their mean where that is an offset."""
        samples = np.frombuffer(self.samples, np.float32)[:length]
        count = max(len(self.samples) // 4, 1)
        mean = self._total / count
        if mean**2 > OFFSET**2 * (self._squares / count - mean**2):
            samples -= np.float32(mean)
        return samples


def decode_base64(inputs: str | Base64Text | bytes, limits: AudioLimits) -> bytes:
    """The bytes of the audio file.

    Text must be base64 of RFC 4648, of the standard or the URL-safe alphabet, with or without
    padding. White space is allowed anywhere, and a `data:*;base64,` header in front. Bytes are
    returned unchanged. Raises InvalidAudio, AudioTooLong.
    """
    data = inputs if isinstance(inputs, bytes) else _decode_text(inputs, limits)
    if not data:
        raise InvalidAudio("the audio file is empty")
    _refuse_large(len(data), limits)
    return data


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
        raise InvalidAudio(
            "inputs is not base64: it holds other characters, or padding before its end"
        ) from None


def decode_audio(
    data: bytes, sampling_rate: int, limits: AudioLimits, separate: bool = False
) -> Audio:
    """Decode the best audio stream that libav has a decoder for, in any of its formats.

    Second 0 of the samples is the first moment of the file, of picture or sound; gaps are silent.
    Channels are averaged, where they cancel each other out the loudest is taken, with a warning; or
    they are kept `separate`: one that begins late or ends early is silent there.
    The audio is resampled to `sampling_rate` (Hz) and from there to 16 kHz, by libswresample, which
    Whisper's `load_audio` uses too; equal rates are not resampled. Raises InvalidAudio for less
    than 0.1 s of decodable audio, samples that are not finite or exceed 1e4, more than 8 channels,
    and rates outside 4-384 kHz. Raises AudioTooLong beyond `limits`: before decoding, or while
    decoding if the packets' durations are wrong.
    """
    return run_steps(decoding_steps(data, sampling_rate, limits, separate))


async def decoding_steps(
    data: bytes, sampling_rate: int, limits: AudioLimits, separate: bool = False
) -> Audio:
    """Decode as `decode_audio` does, in small steps, each of which reports a `DecodingStep`."""
    _refuse_large(len(data), limits)
    data = without_id3(data)
    expected = _measure(data, limits, separate)
    await give_way(DecodingStep(0.0, expected))
    progress, channels = _Progress(), [_Channel()]
    with _opened(data) as (container, stream):
        timeline = _timeline(container, stream, data)
        frames = _frames(container, stream, data, timeline, progress)
        pause, spent, started = STEP_SECONDS, 0.0, time.thread_time()
        for block in _blocks(frames, progress, sampling_rate, limits, separate):
            _append(channels, block)
            spent += time.thread_time() - started
            _check_budget(spent, float(progress.seconds), len(data))
            decoded = float(progress.seconds * progress.channels)
            if decoded >= pause:
                await give_way(DecodingStep(decoded, max(expected, decoded)))
                pause = int(decoded) + STEP_SECONDS
            started = time.thread_time()  # the caller may go on in another thread
        warnings = _warnings(data, container, stream, timeline, progress)
    if progress.seconds < MIN_SECONDS:
        raise InvalidAudio(
            f"it holds less than {float(MIN_SECONDS)} s of audio that can be decoded"
        )
    # The resampler may add a few samples at the end.
    length = ceil(progress.seconds * SAMPLE_RATE)
    each = tuple(channel.take(length) for channel in channels)
    return Audio(each, float(progress.seconds), warnings)


def _append(channels: list[_Channel], block: Sequence[memoryview]) -> None:
    """Append a block of each channel; of those that it lacks, and of new ones before it, silence.

    A file may change the number of its channels.
    """
    before = len(channels[0].samples)
    channels += [_Channel(before) for _ in range(len(block) - len(channels))]
    silence = memoryview(bytes(len(block[0]) if len(block) < len(channels) else 0))
    silent = [silence] * (len(channels) - len(block))
    for channel, samples in zip(channels, [*block, *silent], strict=True):
        channel.add(samples)


def check_container(data: bytes) -> None:
    """Raise the InvalidAudio that `decode_audio` raises of a file that is none of sound: its header
    is not that of a known container, or tells of no audio that can be decoded. Decodes nothing.
    """
    data = without_id3(data)
    refuse_mp4_bomb(data)
    with _opened(data):
        pass


def announced_seconds(file: IO[bytes]) -> float:
    """Seconds that a file's header announces, 0 if none; nothing is decoded but what probing takes.

    What headers ask for is not bounded here but for single allocations. Raises InvalidAudio.
    """
    try:
        with open_container(file, _OPTIONS) as container:
            stream = container.streams.best("audio")
            if stream is not None and stream.duration and stream.time_base:
                return float(stream.duration * stream.time_base)
            return (container.duration or 0) / av.time_base
    except av.FFmpegError as error:
        raise InvalidAudio("its header cannot be read") from error


def _refuse_large(size: int, limits: AudioLimits) -> None:
    if size > limits.max_bytes:
        raise AudioTooLong(f"the audio has {size} bytes, this endpoint accepts {limits.max_bytes}")


def _too_long(max_seconds: float, separate: bool) -> AudioTooLong:
    what = "audio, all channels together," if separate else "audio"
    return AudioTooLong(
        f"the {what} is longer than the {max_seconds:g} s that this endpoint accepts"
    )


def _check_budget(spent: float, seconds: float, size: int) -> None:
    if spent > DECODING_BUDGET + A_SECOND * seconds + A_MIB * size / 2**20:
        raise InvalidAudio("it takes too long to decode: send it with a lower sample rate")


def _check_format(rate: int, channels: int) -> None:
    if rate not in NATIVE_RATES:
        raise InvalidAudio(
            f"its sample rate is {rate} Hz, accepted are {NATIVE_RATES[0]} to {NATIVE_RATES[-1]} Hz"
        )
    if channels > MAX_CHANNELS:
        raise InvalidAudio(f"it has {channels} channels, at most {MAX_CHANNELS} are accepted")


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[InputContainer, AudioStream]]:
    """Open the container in `data`; libav's exceptions in the block become InvalidAudio."""
    try:
        with open_container(BytesIO(data), _OPTIONS) as container:
            yield container, _audio_stream(container)
    except av.FFmpegError as error:
        raise InvalidAudio(
            "no audio could be read: damaged, or not of a supported format"
        ) from error


def _audio_stream(container: InputContainer) -> AudioStream:
    """The best audio stream that can be decoded, with its decoder open; others are discarded."""
    best = container.streams.best("audio")
    streams = sorted(container.streams.audio, key=lambda stream: stream is not best)
    if not streams:
        raise InvalidAudio("no audio stream found")
    errors = []
    for stream in streams:
        try:
            _open_decoder(stream)
        except (InvalidAudio, av.FFmpegError) as error:
            errors.append(error)
            continue
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        return stream
    refused = [error for error in errors if isinstance(error, InvalidAudio)]
    if refused:
        raise refused[0]
    if best is None:  # of none are rate and channels known
        raise InvalidAudio("no audio stream found")
    raise errors[0]


def _open_decoder(stream: AudioStream) -> None:
    codec = stream.codec_context
    if codec is None or codec.name not in _DECODERS:
        raise InvalidAudio(f"its audio codec is not supported{_described_codec(stream)}")
    _check_format(codec.sample_rate, codec.channels)
    codec.thread_count = 1
    codec.options = {"max_samples": str(_LIBAV_MAX_FRAME)}
    codec.open()


def _described_codec(stream: AudioStream) -> str:
    """A colon and the name of a stream's codec, if libav has one.

    PyAV knows only codecs that it can decode; libav's description of the file names the others.
    """
    with _log_level:
        before = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            description = stream.container.dumps_format()
        finally:
            av.logging.set_level(before)
    line = rf"^ *Stream #0:{stream.index}\b.*?: Audio: (\w+)(?: \(([\w. ]+) / 0x)?"
    found = re.search(line, description, re.MULTILINE)
    name = found and (found[1] if found[1] != "none" else found[2])
    return f": {name}" if name else ""


def _measure(data: bytes, limits: AudioLimits, separate: bool) -> float:
    """The seconds that all packets last; a small file's are read in this process."""
    if len(data) > MAX_UNBOUNDED:
        return run_bounded("audio.decode:packet_seconds", data, limits.max_seconds, separate)
    *_, seconds = packet_seconds(data, limits.max_seconds, separate)
    return seconds


def packet_seconds(data: bytes, max_seconds: float, separate: bool) -> Iterator[float]:
    """The seconds that all packets last which are read so far, with the gaps between them, now and
    then and in the end, those of `separate` channels together.

    Refuses, without decoding, packets that last too long or are much larger than the file, and an
    index that would exhaust memory: to look for one takes a minute in 60 MB of empty boxes.
    """
    refuse_mp4_bomb(data)
    with _opened(data) as (container, stream):
        seconds, read = 0.0, 0
        timeline = _timeline(container, stream, data)
        channels = stream.codec_context.channels if separate else 1
        packets = timeline.steady(_packets(container, stream, _Progress()))
        for number, packet in enumerate(packets, 1):
            duration = (packet.duration or 0) * float(stream.time_base)
            gap = max(0.0, timeline.offset(timeline.seconds(packet)))
            timeline.position += gap + duration
            seconds += gap + duration
            read += max(packet.size, 1)
            if seconds * channels > max_seconds + _PACKET_SLACK:
                raise _too_long(max_seconds, separate)
            if read > MAX_REREADING * len(data):
                raise InvalidAudio("its index points at the same bytes over and over")
            if number % STEP_PACKETS == 0:
                yield seconds * channels
        yield seconds * channels


def _packets(
    container: InputContainer, stream: AudioStream, progress: _Progress
) -> Iterator[Packet[AudioStream]]:
    """The packets of `stream`; what cannot be read is skipped, and the file damaged."""
    for _ in range(MAX_READ_ERRORS):
        try:
            for packet in container.demux(stream):
                if packet.size:
                    progress.damaged |= progress.truncated  # it was not the last one
                    progress.truncated = packet.is_corrupt
                yield packet
        except av.FFmpegError:
            progress.damaged = True
        else:
            return


def _frames(
    container: InputContainer,
    stream: AudioStream,
    data: bytes,
    timeline: Timeline,
    progress: _Progress,
) -> Iterator[AudioFrame]:
    """Decoded frames on the file's timeline; packets that cannot be decoded are noted as damage."""
    clock = ByteClock(data) if container.format.name in BARE else None
    for packet in timeline.steady(_packets(container, stream, progress)):
        try:
            frames = packet.decode()
        except av.FFmpegError:
            progress.damaged = True
            continue
        start: float | None = clock.start(packet, frames) if clock else None
        for frame in frames:
            _check_format(frame.sample_rate, frame.layout.nb_channels)
            yield from timeline.place(frame, start if clock else timeline.seconds(frame))
            start = None


def _timeline(container: InputContainer, stream: AudioStream, data: bytes) -> Timeline:
    begin: float | None = None
    if container.start_time is not None:
        begin = container.start_time / av.time_base
    if len(container.streams) > 1 and not _has_index(container):
        known = [time for time in (begin, _first_moment(data)) if time is not None]
        begin = min(known, default=None)
    duration = None if container.duration is None else container.duration / av.time_base
    if duration is not None and _is_guessed(duration, stream, len(data)):
        duration = None
    return Timeline(container.format.name, stream, begin, duration)


def _has_index(container: InputContainer) -> bool:
    """Whether the format, mp4 and its kin, says beforehand when each packet is played."""
    return container.format.name.startswith("mov,")


def _first_moment(data: bytes) -> float | None:
    """The earliest timestamp among a file's first packets of picture and sound, in seconds; None
    without any. For streams that libavformat can describe by their headers alone it makes one up.
    """
    with open_container(BytesIO(data), _OPTIONS) as container:
        streams = [
            stream
            for stream in container.streams
            if stream.type in ("audio", "video")
            and not stream.disposition & Disposition.attached_pic
        ]
        times: dict[int, float] = {}
        with suppress(av.FFmpegError):
            for packet in islice(container.demux(streams), STEP_PACKETS):
                if packet.pts is not None:
                    times.setdefault(packet.stream_index, float(packet.pts * packet.time_base))
                if len(times) == len(streams):
                    break
        return min(times.values(), default=None)


def _frame_format(frame: AudioFrame) -> tuple[int, int, str, str]:
    return frame.sample_rate, frame.layout.nb_channels, frame.layout.name, frame.format.name


def _blocks(
    frames: Iterable[AudioFrame],
    progress: _Progress,
    sampling_rate: int,
    limits: AudioLimits,
    separate: bool,
) -> Iterator[list[memoryview]]:
    """Float32 samples at 16 kHz of each channel that is heard, as bytes.

    A stream may change its format: consecutive frames of one format are resampled together.
    """
    for change, ((_, channels, _, _), run) in enumerate(groupby(frames, _frame_format)):
        if change > MAX_FORMAT_CHANGES:
            raise InvalidAudio(f"its format changes more than {MAX_FORMAT_CHANGES} times")
        heard = filtered(run, ("aformat", "sample_fmts=flt"))
        if separate:
            progress.channels = max(progress.channels, channels)
        else:
            heard, channels = _mono(heard, channels, progress), 1
        resampling = ("aresample", str(sampling_rate)), ("aresample", str(SAMPLE_RATE))
        for block in filtered(_checked(heard, progress, limits), *resampling):
            # Packed, as PyAV cannot count eight planes.
            packed = np.frombuffer(block.planes[0], np.float32, block.samples * channels)
            each = np.ascontiguousarray(packed.reshape(-1, channels).T)
            yield [memoryview(samples).cast("B") for samples in each]


def _mono(blocks: Iterable[AudioFrame], channels: int, progress: _Progress) -> Iterator[AudioFrame]:
    """The mean of the channels of packed blocks, or where they cancel each other out the loudest.

    Two in opposite phase, as one with its wires swapped makes them, add up to nothing.
    """
    packed: deque[NDArray[np.float32]] = deque()

    def noted() -> Iterator[AudioFrame]:
        for block in blocks:
            packed.append(block.to_ndarray().astype(np.float32, copy=False))
            yield block

    mean = "+".join(f"{1 / channels}*c{channel}" for channel in range(channels))
    taken: int | None = None
    for mixed in filtered(noted(), ("aformat", "sample_fmts=fltp"), ("pan", f"mono|c0={mean}")):
        each = packed.popleft().reshape(-1, channels)
        taken = _instead_of_mean(each, mixed.to_ndarray(), taken)
        if taken is None:
            yield mixed
            continue
        progress.cancelled += Fraction(mixed.samples, mixed.sample_rate)
        loudest = AudioFrame.from_ndarray(
            np.ascontiguousarray(each[None, :, taken]), "fltp", "mono"
        )
        loudest.sample_rate, loudest.pts = mixed.sample_rate, mixed.pts
        yield loudest


def _instead_of_mean(
    samples: NDArray[np.float32], mean: NDArray[Any], taken: int | None
) -> int | None:
    """Which channel of `samples` (n, channels) stands for their `mean` (1, n), None if that does.

    `taken` is what was chosen before, and stays unless it is much softer than another.
    """
    power = np.square(samples, dtype=np.float64).sum(axis=0)
    left = np.square(mean, dtype=np.float64).sum()
    threshold = CANCELLED if taken is None else RESTORED
    if not left < threshold * power.max() / samples.shape[1] ** 2:
        return None
    if taken is not None and power[taken] >= RESTORED * power.max():
        return taken
    return int(np.argmax(power))


def _checked(
    blocks: Iterable[AudioFrame], progress: _Progress, limits: AudioLimits
) -> Iterator[AudioFrame]:
    """The blocks, while they are within the duration limit and their samples plausible."""
    for block in blocks:
        progress.seconds += Fraction(block.samples, block.sample_rate)
        if progress.seconds * progress.channels > limits.max_seconds:
            raise _too_long(limits.max_seconds, progress.channels > 1)
        peak = np.abs(block.to_ndarray()).max()
        if not peak <= MAX_AMPLITUDE:  # a NaN compares false
            raise InvalidAudio("it holds samples that are not finite or far out of range")
        yield block


def _warnings(
    data: bytes,
    container: InputContainer,
    stream: AudioStream,
    timeline: Timeline,
    progress: _Progress,
) -> tuple[str, ...]:
    warnings = []
    others = len(container.streams.audio) - 1
    if others:
        warnings.append(
            f"the file has {others + 1} audio streams: stream {stream.index} was decoded"
        )
    if progress.cancelled:
        warnings.append(
            f"the channels cancel each other out for {float(progress.cancelled):.2f} s:"
            " the loudest was taken there"
        )
    warnings += _timeline_warnings(container, stream, timeline)
    decoded = float(progress.seconds)
    declared = _declared_seconds(container, stream, timeline, len(data))
    if declared > progress.seconds + _DECLARED_SLACK:
        warnings.append(
            f"the audio ends at {decoded:.2f} s where the file announces {declared:.2f} s"
        )
    elif _cut_short(data, progress):
        warnings.append(f"the file is cut short: {decoded:.2f} s could be decoded")
    elif progress.damaged:
        warnings.append("parts of the file are damaged: silence stands in their place")
    return tuple(warnings)


def _timeline_warnings(
    container: InputContainer, stream: AudioStream, timeline: Timeline
) -> Iterator[str]:
    """What the timestamps tell that a listener would not know."""
    begin = timeline.begin or 0.0
    if _has_index(container) and begin > TOLERANCE:
        yield f"players may show {begin:.2f} s before the first sound: times count from that sound"
    # Encoders of Opus leave out what is silent, so that its gaps are no loss.
    missing = [] if stream.codec_context.name in _SILENCE_LEFT_OUT else timeline.gaps
    if missing:
        seconds = sum(seconds for _, seconds in missing)
        yield (
            f"the file has no sound for {seconds:.2f} s in all, first at {missing[0][0]:.2f} s:"
            " silence stands there"
        )
    if timeline.overlap:
        yield f"{timeline.overlap:.2f} s of sound that lie over what came before were left out"
    if timeline.jumps:
        place, seconds = timeline.jumps[0]
        yield (
            f"the file's timestamps jump by {seconds:.2f} s at {place:.2f} s, which is no gap:"
            " times are counted on without it"
        )


def _declared_seconds(
    container: InputContainer, stream: AudioStream, timeline: Timeline, size: int
) -> float:
    """The second of the timeline at which the sound ends by the file's headers; 0 if they do not
    tell, or if it is guessed from the file's size.
    """
    file = (container.duration or 0) / av.time_base
    seconds, own = file, len(container.streams) == 1
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
        # Streams without a duration have the file's; of ASF they all have the longest one's.
        own |= abs(seconds - file) > _DECLARED_SLACK and container.format.name != "asf"
    if not own or _is_guessed(seconds, stream, size):
        return 0.0
    # Some formats count from the file's begin, and some from 0 on its clock.
    return seconds - max(timeline.begin or 0.0, 0.0)


def _is_guessed(seconds: float, stream: AudioStream, size: int) -> bool:
    """Whether a duration is the file's size by its bit rate, as libavformat guesses it."""
    return abs(seconds * (stream.codec_context.bit_rate or 0) / 8 - size) < size / 50


def _cut_short(data: bytes, progress: _Progress) -> bool:
    """Whether the last packet or Ogg page lacks bytes that its header declares."""
    if data.startswith(b"OggS"):
        # RFC 3533: 26 bytes, the number of segments, then the length of each segment.
        page = data.rfind(b"OggS")
        lacing = data[page + 27 : page + 27 + data[page + 26]] if len(data) > page + 26 else b""
        return not lacing or page + 27 + len(lacing) + sum(lacing) > len(data)
    return progress.truncated and not _is_unsized_wav(data)


def _is_unsized_wav(data: bytes) -> bool:
    """Whether a WAV was written to a pipe, so that its header has no size of the samples."""
    place = 12
    while data.startswith(b"RIFF") and place + 8 <= len(data):
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        if data[place : place + 4] == b"data":
            return size == 0 or size >= _UNSIZED_RIFF
        place += 8 + size + size % 2
    return False
