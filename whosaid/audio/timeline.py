"""Places decoded frames at the seconds at which their file plays them.

Second 0 is the first moment of the file, of picture or sound. A gap between frames becomes silence,
and a frame that lies over an earlier one is left out, like in ffmpeg's
`aresample=async=1:first_pts=0`. Timestamps are not trusted: a jump beyond the end of the file is no
gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat

from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.packet import Packet

from whosaid.audio.filters import filtered

# Seconds between two frames that are no gap, because timestamps are rounded and encoders' padding
# is cut off. ffmpeg's aresample tolerates as much.
TOLERANCE = 0.1
# The same for formats that count samples, in which each lost frame shows.
_COUNTED, _COUNTED_TOLERANCE = ("flac", "tta", "wv"), 0.001
# A clock that goes back further starts anew, as in joined files. ffmpeg does the same.
LONGEST_OVERLAP = 10.0  # seconds
# In a broadcast a longer gap means another clock, for example of advertisements within a film.
LONGEST_LOSS = 60.0  # seconds
# Packets after a gap that have to confirm it, and how many times slower than before they may follow
# each other, because some codecs have long and short packets.
LOOKAHEAD, SLOWEST = 64, 10
MAX_STEP = 0.35  # seconds between consecutive packets
_ROUNDED = 1.0  # seconds by which a file's duration may be too short

_BROADCASTS = ("mpeg", "mpegts")
# Formats with the times of packets. In others libavformat counts what it has read, and is often
# wrong in AVI.
_CLOCKED = {
    *("asf", "flac", "flv", "live_flv", "matroska,webm", "mov,mp4,m4a,3gp,3g2,mj2", "mpeg"),
    *("mpegts", "nut", "ogg", "rm", "tta", "wtv", "wv"),
}
# Formats of bare packets in a row. libavformat skips bytes between packets.
BARE = {"aac", "ac3", "dts", "dtshd", "eac3", "loas", "mlp", "mp3", "truehd"}


class Timeline:
    """The timeline of one stream, on which its frames are placed.

    `position` is the end of the last placed frame, in seconds. `gaps` lists the silences inserted
    after the first frame as (begin, seconds). `overlap` counts the seconds left out. `jumps` lists
    the ignored jumps of the clock as (position, seconds).
    """

    def __init__(
        self, format_name: str, stream: AudioStream, begin: float | None, duration: float | None
    ) -> None:
        """`begin` is the file's first moment on its clock, `duration` in seconds; None: unknown."""
        self.position = self.overlap = 0.0
        self.gaps: list[tuple[float, float]] = []
        self.jumps: list[tuple[float, float]] = []
        self.has_clock = format_name in _CLOCKED
        self._tick = float(stream.time_base or 0)
        self._tolerance = _COUNTED_TOLERANCE if format_name in _COUNTED else TOLERANCE
        self.begin = begin
        self._origin = self.begin if self.has_clock else 0.0
        self._first: float | None = None
        self._last = float("inf")
        if duration is not None and self.has_clock:
            self._last = (begin or 0.0) + duration + _ROUNDED
        self._longest_gap = LONGEST_LOSS if format_name in _BROADCASTS else float("inf")

    def seconds(self, timed: Packet[AudioStream] | AudioFrame) -> float | None:
        """Return the second of a packet or frame on the file's clock; None if it has none."""
        return timed.pts * self._tick if self.has_clock and timed.pts is not None else None

    def offset(self, start: float | None) -> float:
        """Return the seconds of silence before a frame at `start`; negative for overlap."""
        if start is None:
            return 0.0
        if self._origin is None:
            self._origin = self.begin = start
        offset = start - self._origin - self.position
        if self._first is None:
            self._first = start
        if abs(offset) <= self._tolerance:
            return 0.0
        if offset > 0:
            believed = start <= self._last and offset <= self._longest_gap
        else:
            believed = -offset <= LONGEST_OVERLAP and start > self._first + TOLERANCE
        if believed:
            return offset
        if offset > 0:
            self.jumps.append((self.position, offset))
        self._origin, self._first = start - self.position, start
        return 0.0

    def steady(self, packets: Iterable[Packet[AudioStream]]) -> Iterator[Packet[AudioStream]]:
        """Yield the packets without timestamps of jumps that are taken back, or stop the clock."""
        ahead: deque[Packet[AudioStream]] = deque()
        pace = _Pace()
        for packet in chain(packets, repeat(None, LOOKAHEAD)):
            if packet is not None:
                ahead.append(packet)
                if len(ahead) <= LOOKAHEAD:
                    continue
            if not ahead:
                return
            following = ahead.popleft()
            start = self.seconds(following)
            later = (time for each in ahead if (time := self.seconds(each)) is not None)
            if start is not None and not pace.goes_on(start, later):
                following.pts = following.dts = None
            yield following

    def place(self, frame: AudioFrame, start: float | None) -> Iterator[AudioFrame]:
        """Yield silence for the gap before a frame, and the frame without its overlap."""
        offset = self.offset(start)
        if offset > 0:
            if self.position:
                self.gaps.append((self.position, offset))
            # By filters, because PyAV cannot write frames of eight planes.
            count = round(offset * frame.sample_rate)
            yield from filtered((frame,), ("atrim", "end_sample=0"), ("apad", f"whole_len={count}"))
            self.position += offset
        elif offset < 0:
            left_out = min(round(-offset * frame.sample_rate), frame.samples)
            self.overlap += left_out / frame.sample_rate
            if left_out == frame.samples:
                return
            self.position += (frame.samples - left_out) / frame.sample_rate
            yield from filtered((frame,), ("atrim", f"start_sample={left_out}"))
            return
        self.position += frame.samples / frame.sample_rate
        yield frame


class ByteClock:
    """Times the packets of a file without timestamps by the bytes that were skipped before them.
    Skipped bytes count as long as decoded bytes, which is exact at a constant bit rate.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, -1
        self._bytes, self._seconds, self._lost = 0, 0.0, 0.0

    def start(self, packet: Packet[AudioStream], frames: Sequence[AudioFrame]) -> float:
        """Return the second at which a packet begins, which was decoded to `frames`."""
        content = bytes(packet)
        place = self._data.find(content, max(self._place, 0)) if content else -1
        if place < 0:  # at the end, or not found unchanged in the file
            self._data = b""
        else:
            if self._bytes and place > self._place:
                self._lost += (place - self._place) * self._seconds / self._bytes
            self._place = place + len(content)
        start = self._seconds + self._lost
        self._bytes += len(content)
        self._seconds += sum(frame.samples / frame.sample_rate for frame in frames)
        return start


class _Pace:
    """The pace of packets, which distinguishes a gap from a wrong timestamp."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._seconds, self._steps = 0.0, 0
        self._distrusted = False

    def goes_on(self, start: float, later: Iterable[float]) -> bool:
        """Return whether the packets `later` confirm that a packet is played at `start`."""
        step = 0.0 if self._last is None else start - self._last
        if not -TOLERANCE <= step <= MAX_STEP:
            follows = self._is_followed if step > 0 else self._is_no_slip
            self._distrusted = not follows(start, list(later))
            if self._distrusted:
                return False
        elif step > 0:
            self._seconds += step
            self._steps += 1
        self._last = start
        return True

    def _is_followed(self, start: float, later: list[float]) -> bool:
        """Return whether the clock runs on at its pace after a jump ahead, without going back."""
        if not later:
            return not self._distrusted
        usual = len(later) * self._seconds / max(self._steps, 1)
        return min(later) >= start - TOLERANCE and later[-1] - start >= usual / SLOWEST

    def _is_no_slip(self, start: float, later: list[float]) -> bool:
        """Return whether a jump back is real: no later jump returns to the earlier clock."""
        return not any(
            after - before > MAX_STEP and after >= (self._last or 0.0)
            for before, after in pairwise([start, *later])
        )
