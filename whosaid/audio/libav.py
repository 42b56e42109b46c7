"""Reads a recording with ffmpeg's libraries, in the confined process (`audio.sandbox`).

`decode` places samples on the file's timeline (`audio.timeline`), and checks, downmixes and
resamples them a block at a time. Each separate channel counts as a recording.

Nothing that a file says about itself is trusted. libavformat reads only this memory: no protocol is
open to it, and demuxers that open other files are left out.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from io import BytesIO
from itertools import groupby, islice
from math import ceil, inf
from operator import attrgetter
from typing import IO, Any

import av
import av.logging
import av.subtitles.codeccontext  # PyAV imports both with the first file, too late in a fork
import av.subtitles.stream
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

from whosaid.audio.downmix import STRETCH_SECONDS, instead_of_mean, voice_instead_of_mean
from whosaid.audio.filters import filtered
from whosaid.audio.headers import UNSIZED, is_cut_short, ogg_pages
from whosaid.audio.sandbox import Work, limit_processor_time
from whosaid.audio.timeline import BARE, TOLERANCE, ByteClock, Timeline
from whosaid.errors import AudioTooLong, InvalidAudio
from whosaid.runtime.versions import opening_arguments
from whosaid.timebase import SAMPLE_RATE

MIN_SECONDS = Fraction(1, 10)
MAX_AMPLITUDE = 1e4
MAX_CHANNELS = 8
NATIVE_RATES = range(4_000, 384_001)  # Hz
MAX_FORMAT_CHANGES = 100
MAX_READ_ERRORS = 100
STEP_PACKETS = 1_000  # between two extensions of processor time
# Packets that may hold no sound, for damaged files, and packets a second: a hundred times as many
# as the shortest packets of Opus, 2.5 ms.
FREE_PACKETS, PACKETS_PER_SECOND = 200_000, 40_000
# Packets may add up to this many times the file, because an edit list may repeat parts of it.
MAX_REREADING = 4

_MAX_FRAME = 1 << 20  # samples a channel
_PACKET_SLACK = 1.0  # seconds; packets include encoder padding, which decoding trims
_DECLARED_SLACK = 0.2  # seconds; headers are rounded, and include padding
# Codecs whose damage would be heard as noise, unless their checksums are verified.
_CHECKED = {name: {"err_detect": "crccheck+explode"} for name in ("flac", "tta", "wavpack")}
_SILENCE_LEFT_OUT = ("libopus", "opus", "speex")  # their encoders send no packets for silence
_FORMAT = attrgetter("sample_rate", "layout.nb_channels", "layout.name", "format.name")
# The magic number of an ID3v2 tag, whose size has seven bits a byte; tags may hold others.
_ID3 = re.compile(rb"ID3(?=[\2-\4].(.)([\0-\x7f]{4}))", re.DOTALL)
_MPEG_AUDIO = b"\xff"  # the first byte of each frame


def _demuxers() -> Iterator[str]:
    """Yield libavformat's demuxers that read neither other files, devices, scripts nor pictures."""
    refused = {"concat", "dash", "hls", "imf", "sbg", "sdp", "vobsub", "webm_dash_manifest"}
    for name in formats_available:
        try:
            known = ContainerFormat(name, "r")
        except ValueError:  # it can only be written
            continue
        if not (known.name in refused or known.no_file or known.name.endswith("pipe")):
            yield known.name


def _decoders() -> Iterator[str]:
    """Yield libavcodec's audio decoders, except the decoder that synthesizes."""
    for name in av.codecs_available:
        try:
            codec = Codec(name, "r")
        except UnknownCodecError:  # it can only be encoded
            continue
        if codec.type == "audio" and name != "wavesynth":
            yield name


_DECODERS = frozenset(_decoders())
OPTIONS = {
    "format_whitelist": ",".join(sorted(set(_demuxers()))),
    "codec_whitelist": ",".join(sorted(_DECODERS)),
    "protocol_whitelist": "",
    "max_streams": "16",
}
_OPENING: dict[str, Any] = opening_arguments()

# libav's messages repeat texts of files, so they are not logged.
logging.getLogger("libav").propagate = False
logging.getLogger("libav").addHandler(logging.NullHandler())


def decode(
    data: bytes,
    sampling_rate: int,
    max_seconds: float,
    separate: bool,
    step_seconds: int,
    budget: Sequence[float],
) -> Work:
    """Yield (seconds decoded, seconds expected, channels) with the new samples of each channel in
    turn; a step decodes `step_seconds` of all channels together. Return the result for
    `audio.decode`, with the last samples.

    The expected seconds follow from the share of the file that is decoded. If they exceed
    `max_seconds`, the packets are counted before more is decoded. `budget` is seconds of processor
    time: for any recording, for each MiB, for each second. Raises InvalidAudio, AudioTooLong,
    MemoryError.
    """
    data = without_id3(data)

    def allow_time(seconds: float) -> None:
        limit_processor_time(budget[0] + budget[1] * len(data) / 2**20 + budget[2] * seconds)

    def count() -> float:
        with _opened(data, max_seconds, separate) as recording:
            for seconds in recording.packet_seconds():
                allow_time(seconds)
        return seconds

    blocks, pause, counted = list[Sequence[NDArray[np.float32]]](), step_seconds, 0.0
    with _opened(data, max_seconds, separate) as recording:
        allow_time(0)
        for block in recording.blocks(sampling_rate):
            blocks.append(block)
            decoded = float(recording.seconds * recording.channels)
            if decoded >= pause:
                allow_time(float(recording.seconds))
                channels = recording.channels
                # Filters and the downmix hold some of what the file's share was decoded to.
                expected = counted or recording.timeline.position * channels / recording.share
                if expected > max_seconds and not counted:
                    expected = counted = count()
                yield (decoded, max(decoded, expected), channels), _joined(blocks, channels)
                blocks, pause = [], int(decoded) + step_seconds
        warnings = recording.warnings()
    if recording.seconds < MIN_SECONDS:
        text = f"it holds less than {float(MIN_SECONDS)} s of audio that can be decoded"
        raise InvalidAudio(text)
    result = {
        "seconds": float(recording.seconds),
        # The resampler may add a few samples at the end.
        "length": ceil(recording.seconds * SAMPLE_RATE),
        "channels": recording.channels,
        "warnings": warnings,
    }
    return result, _joined(blocks, recording.channels)


def check(data: bytes) -> Work:
    """Raise InvalidAudio unless the header describes decodable audio. Decodes nothing."""
    with _opened(without_id3(data)):
        yield from ()
    return None, b""


def without_id3(data: bytes) -> bytes:
    """Return `data` without ID3 tags, because tags may be compressed a thousand times. Tags at the
    start and between the frames of MPEG audio, where libav takes a picture for damaged sound, are
    cut off; elsewhere (chunks of WAV and AIFF) they lose their magic number.
    """
    start = 0
    while tag := _ID3.match(data, start):
        start = _id3_end(tag)
    data = data[start:]
    tags = list(_ID3.finditer(data))
    if not tags:
        return data
    defused = bytearray(data)
    for tag in tags:
        defused[tag.start()] = 0
    if not data.startswith(_MPEG_AUDIO):
        return bytes(defused)
    kept, start = [], 0
    for tag in tags:
        if tag.start() >= start and data.startswith(_MPEG_AUDIO, _id3_end(tag)):
            kept.append(memoryview(defused)[start : tag.start()])
            start = _id3_end(tag)
    return b"".join([*kept, memoryview(defused)[start:]])


def _id3_end(tag: re.Match[bytes]) -> int:
    size: int = sum(bits << shift for bits, shift in zip(tag[2], (21, 14, 7, 0), strict=True))
    return tag.start() + 10 + size + (10 if tag[1][0] & 0x10 else 0)


def _joined(blocks: Sequence[Sequence[NDArray[np.float32]]], channels: int) -> bytes:
    """Return the samples of each channel in turn. A block of fewer channels is silent in others."""
    return b"".join(
        (block[channel] if channel < len(block) else np.zeros_like(block[0])).tobytes()
        for channel in range(channels)
        for block in blocks
    )


def _check_format(rate: int, channels: int) -> None:
    if rate not in NATIVE_RATES:
        raise InvalidAudio(
            f"its sample rate is {rate} Hz, accepted are {NATIVE_RATES[0]} to {NATIVE_RATES[-1]} Hz"
        )
    if channels > MAX_CHANNELS:
        raise InvalidAudio(f"it has {channels} channels, at most {MAX_CHANNELS} are accepted")


def open_container(file: IO[bytes]) -> InputContainer:
    """Open `file` with libavformat, which may open nothing else."""
    container: InputContainer = av.open(file, mode="r", options=OPTIONS, **_OPENING)
    return container


@contextmanager
def _opened(data: bytes, max_seconds: float = inf, separate: bool = False) -> Iterator[_Recording]:
    """Open the container in `data`. Exceptions of libav in the block become InvalidAudio."""
    try:
        with open_container(BytesIO(data)) as container:
            stream = _audio_stream(container)
            yield _Recording(data, container, stream, max_seconds, separate)
    except MemoryError:
        raise
    except av.FFmpegError as error:
        text = "no audio could be read: damaged, or not of a supported format"
        raise InvalidAudio(text) from error


def _audio_stream(container: InputContainer) -> AudioStream:
    """Return the best decodable audio stream with its decoder open; discard all other streams."""
    best = container.streams.best("audio")
    streams = sorted(container.streams.audio, key=lambda stream: stream is not best)
    errors: list[Exception] = []
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
    if best is None:  # no stream has a known rate and channels
        errors.append(InvalidAudio("no audio stream found"))
    raise next((error for error in errors if isinstance(error, InvalidAudio)), errors[0])


def _open_decoder(stream: AudioStream) -> None:
    codec = stream.codec_context
    if codec is None or codec.name not in _DECODERS:
        raise InvalidAudio(f"its audio codec is not supported{_described_codec(stream)}")
    _check_format(codec.sample_rate, codec.channels)
    codec.thread_count = 1
    codec.options = {"max_samples": str(_MAX_FRAME)} | _CHECKED.get(codec.name, {})
    codec.open()


def _described_codec(stream: AudioStream) -> str:
    """Return a colon and the name of a stream's codec; "" if libav has no name. PyAV knows only
    codecs that it can decode; libav's description of the file names the others.
    """
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


@dataclass(eq=False)
class _Recording:
    """An open recording and the progress of its decoding. Packets are decoded from the byte `first`
    of the file up to `place`.

    `seconds` were decoded of each of `channels`, which `cancelled` each other out for so many
    seconds. If they are `separate`, `max_seconds` limits their sum. `damaged`: packets are damaged.
    `truncated`: the last packet is incomplete.
    """

    data: bytes
    container: InputContainer
    stream: AudioStream
    max_seconds: float
    separate: bool
    first: int = 0
    place: int = 0
    seconds: Fraction = Fraction(0)
    channels: int = 1
    cancelled: Fraction = Fraction(0)
    damaged: bool = False
    truncated: bool = False

    @cached_property
    def timeline(self) -> Timeline:
        container, begin = self.container, None
        if container.start_time is not None:
            begin = container.start_time / av.time_base
        if len(container.streams) > 1 and not self._has_index():
            known = [time for time in (begin, _first_moment(self.data)) if time is not None]
            begin = min(known, default=None)
        duration = None if container.duration is None else container.duration / av.time_base
        if duration is not None and self._is_guessed(duration):
            duration = None
        return Timeline(container.format.name, self.stream, begin, duration)

    @property
    def share(self) -> float:
        """Return the share of the file, from the first packet on, that is decoded."""
        return max(1, self.place - self.first) / max(1, len(self.data) - self.first)

    def packet_seconds(self) -> Iterator[float]:
        """Yield the seconds of the packets read so far with the gaps between them, now and then and
        at the end. `separate` channels are added up. Decodes nothing. Raises AudioTooLong.
        """
        timeline = self.timeline
        if self.separate:
            self.channels = self.stream.codec_context.channels
        for number, packet in enumerate(timeline.steady(self._packets()), 1):
            duration = (packet.duration or 0) * float(self.stream.time_base)
            gap = max(0.0, timeline.offset(timeline.seconds(packet)))
            timeline.position += gap + duration
            self._require_length(timeline.position, _PACKET_SLACK)
            if number % STEP_PACKETS == 0:
                yield timeline.position * self.channels
        yield timeline.position * self.channels

    def blocks(self, sampling_rate: int) -> Iterator[Sequence[NDArray[np.float32]]]:
        """Yield float32 samples at 16 kHz, (n,) of each channel, one format after another."""
        for change, ((_, channels, _, _), run) in enumerate(groupby(self._frames(), _FORMAT)):
            if change > MAX_FORMAT_CHANGES:
                raise InvalidAudio(f"its format changes more than {MAX_FORMAT_CHANGES} times")
            floats = filtered(run, ("aformat", "sample_fmts=flt"))
            if self.separate:
                self.channels = max(self.channels, channels)
            else:
                floats, channels = self._mono(floats, channels), 1
            resampling = ("aresample", str(sampling_rate)), ("aresample", str(SAMPLE_RATE))
            for block in filtered(self._checked(floats), *resampling):
                # Packed, because PyAV cannot count eight planes.
                packed = np.frombuffer(block.planes[0], np.float32, block.samples * channels)
                yield list(np.ascontiguousarray(packed.reshape(-1, channels).T))

    def warnings(self) -> list[str]:
        warnings = []
        if others := len(self.container.streams.audio) - 1:
            warnings.append(
                f"the file has {others + 1} audio streams: stream {self.stream.index} was decoded"
            )
        if self.cancelled:
            warnings.append(
                f"the channels cancel each other out for {float(self.cancelled):.2f} s:"
                " the loudest was taken there"
            )
        warnings += self._timeline_warnings()
        decoded, declared = float(self.seconds), self._declared_seconds()
        if declared > self.seconds + _DECLARED_SLACK:
            warnings.append(
                f"the audio ends at {decoded:.2f} s where the file announces {declared:.2f} s"
            )
        elif is_cut_short(self.data, self.truncated):
            warnings.append(f"the file is cut short: {decoded:.2f} s could be decoded")
        elif self.damaged or not all(ogg_pages(self.data)):
            warnings.append("parts of the file are damaged, and replaced by silence")
        return warnings

    def _packets(self) -> Iterator[Packet[AudioStream]]:
        """Yield the packets of the stream. Unreadable parts are skipped as damage.

        Raises InvalidAudio if packets add up to far more than the file, or hold far less sound than
        packets do.
        """
        read = count = 0
        for _ in range(MAX_READ_ERRORS):
            try:
                for packet in self.container.demux(self.stream):
                    read += max(packet.size, 1)
                    if read > MAX_REREADING * len(self.data):
                        raise InvalidAudio("its index points to the same bytes repeatedly")
                    count += 1
                    if count > FREE_PACKETS + PACKETS_PER_SECOND * self.timeline.position:
                        raise InvalidAudio("its packets are far shorter than those of any codec")
                    if packet.size:
                        # A truncated packet that sound follows was not the last.
                        self.damaged |= self.truncated and not packet.is_corrupt
                        self.truncated = packet.is_corrupt
                    yield packet
            except MemoryError:
                raise
            except av.FFmpegError:
                self.damaged = True
            else:
                return

    def _frames(self) -> Iterator[AudioFrame]:
        """Yield decoded frames on the file's timeline; skip undecodable packets as damage."""
        timeline = self.timeline
        clock = ByteClock(self.data) if self.container.format.name in BARE else None
        for packet in timeline.steady(self._packets()):
            try:
                frames = packet.decode()
            except MemoryError:
                raise
            except av.FFmpegError:
                self.damaged = True
                continue
            self.place = packet.pos or self.place
            self.first = self.first or self.place
            start: float | None = clock.start(packet, frames) if clock else None
            for frame in frames:
                _check_format(frame.sample_rate, frame.layout.nb_channels)
                yield from timeline.place(frame, start if clock else timeline.seconds(frame))
                start = None

    def _mono(self, blocks: Iterable[AudioFrame], channels: int) -> Iterator[AudioFrame]:
        """Yield the mean of the channels of packed blocks, or the loudest channel while they cancel
        each other out (`audio.downmix`).
        """
        packed: deque[NDArray[np.float32]] = deque()

        def noted() -> Iterator[AudioFrame]:
            for block in blocks:
                packed.append(block.to_ndarray().astype(np.float32, copy=False))
                yield block

        mean = "+".join(f"{1 / channels}*c{channel}" for channel in range(channels))
        mix = ("aformat", "sample_fmts=fltp"), ("pan", f"mono|c0={mean}")
        if channels == 1:  # of which no block is noted: an hour would not fit
            yield from filtered(blocks, *mix)
            return
        mixed = filtered(noted(), *mix)
        voiced = taken = None
        for stretch in _stretches(mixed):
            each = [packed.popleft().reshape(-1, channels) for _ in stretch]
            whole = np.concatenate([block.to_ndarray() for block in stretch], axis=1)
            rate = stretch[0].sample_rate
            voiced = voice_instead_of_mean(np.concatenate(each), whole, rate, voiced)
            for block, samples in zip(stretch, each, strict=True):
                taken = instead_of_mean(samples, block.to_ndarray(), taken)
                if (chosen := taken if voiced is None else voiced) is None:
                    yield block
                    continue
                self.cancelled += Fraction(block.samples, rate)
                loudest = AudioFrame.from_ndarray(
                    np.ascontiguousarray(samples[None, :, chosen]), "fltp", "mono"
                )
                loudest.sample_rate, loudest.pts = rate, block.pts
                yield loudest

    def _checked(self, blocks: Iterable[AudioFrame]) -> Iterator[AudioFrame]:
        for block in blocks:
            self.seconds += Fraction(block.samples, block.sample_rate)
            self._require_length(self.seconds)
            peak = np.abs(block.to_ndarray()).max()
            if not peak <= MAX_AMPLITUDE:  # a NaN compares false
                raise InvalidAudio("it holds samples that are not finite or far out of range")
            yield block

    def _require_length(self, seconds: float | Fraction, slack: float = 0.0) -> None:
        if seconds * self.channels > self.max_seconds + slack:
            what = "audio, all channels together," if self.channels > 1 else "audio"
            raise AudioTooLong(
                f"the {what} is longer than the {self.max_seconds:g} s that this endpoint accepts"
            )

    def _timeline_warnings(self) -> Iterator[str]:
        timeline, begin = self.timeline, self.timeline.begin or 0.0
        if self._has_index() and begin > TOLERANCE:
            yield (
                f"players may show {begin:.2f} s before the first sound:"
                " times count from that sound"
            )
        # Encoders of Opus and Speex leave out silence, so their gaps are no loss.
        missing = [] if self.stream.codec_context.name in _SILENCE_LEFT_OUT else timeline.gaps
        if missing:
            seconds = sum(seconds for _, seconds in missing)
            yield (
                f"the file has no sound for {seconds:.2f} s in all, first at"
                f" {missing[0][0]:.2f} s: silence stands there"
            )
        if timeline.overlap:
            yield f"{timeline.overlap:.2f} s of sound that lie over what came before were left out"
        if timeline.jumps:
            place, seconds = timeline.jumps[0]
            yield (
                f"the file's timestamps jump by {seconds:.2f} s at {place:.2f} s, which is no gap:"
                " times are counted on without it"
            )

    def _has_index(self) -> bool:
        """Return whether the format (mp4 and its kin) has an index of the packets' times."""
        return self.container.format.name.startswith("mov,")

    def _declared_seconds(self) -> float:
        """Return the end of the sound on the timeline by the headers; 0 if unknown or guessed."""
        container, stream = self.container, self.stream
        file = (container.duration or 0) / av.time_base
        seconds, own = file, len(container.streams) == 1
        if stream.duration and stream.time_base:
            seconds = float(stream.duration * stream.time_base)
            # A stream without a duration has the file's. In ASF all streams have the longest
            # stream's.
            own |= abs(seconds - file) > _DECLARED_SLACK and container.format.name != "asf"
        if not own or self._is_guessed(seconds) or UNSIZED.match(self.data):
            return 0.0
        # Some formats count from the file's first moment, others from 0 on its clock.
        return seconds - max(self.timeline.begin or 0.0, 0.0)

    def _is_guessed(self, seconds: float) -> bool:
        """Return whether a duration is libavformat's guess, the size by the bit rate."""
        size = len(self.data)
        return abs(seconds * (self.stream.codec_context.bit_rate or 0) / 8 - size) < size / 50


def _first_moment(data: bytes) -> float | None:
    """Return the earliest timestamp, in seconds, among a file's first packets of picture and sound;
    None without any. libavformat makes up its own value for streams that headers alone describe.
    """
    with open_container(BytesIO(data)) as container:
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


def _stretches(blocks: Iterable[AudioFrame]) -> Iterator[list[AudioFrame]]:
    """Yield the blocks by STRETCH_SECONDS."""
    stretch: list[AudioFrame] = []
    for block in blocks:
        stretch.append(block)
        if sum(each.samples for each in stretch) >= STRETCH_SECONDS * block.sample_rate:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
