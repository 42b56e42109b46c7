"""Containers whose headers alone take far more memory than the file: refused or defused before
libavformat sees them.

The few fields by which libavformat allocates are looked for wherever they stand, and the container
is not parsed: a parser of our own would have to fail in the same places as theirs. Each entry of an
index takes about 37 bytes there, and an mp4 of 6 KB may announce 1.4 million of them for each of 16
tracks: 780 MiB. Frames of an ID3 tag may be compressed a thousand times. Sources: mov.c
(mov_build_index, mov_read_trun, mov_read_cmov) and id3v2.c of ffmpeg.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import numpy as np

from errors import InvalidAudio

# Two hours of AAC and of film at 60 frames a second have 770,000; beyond, a packet has 8 bytes.
FREE_ENTRIES, BYTES_AN_ENTRY = 1_000_000, 8
# Of QuickTime's sound, whose samples last one tick, an entry is 160 samples or more of a chunk.
SAMPLES_AN_ENTRY = 160
SOUND, DATA_HANDLERS = b"soun", {b"alis", b"rsrc", b"url "}
ONE_TICK = [1, 1]  # entries of the table, and ticks that a sample lasts

# Times that tracks may add up to the headers; libavformat takes 16 tracks.
MAX_REREADING = 16
SLICE = 2**22  # bytes
NOTHING = memoryview(b"")
# More places to look at than any file has; each takes a microsecond.
MAX_PLACES = 1_000_000

_BOX = struct.Struct(">I4s")
MAX_CUTS = 1_000
_SYNC = b"\xff"  # the first byte of each frame of MPEG audio
_ID3_MAGIC, _ID3_HEADER = b"ID3", re.compile(rb"ID3[\2-\4].{2}([\0-\x7f]{4})", re.DOTALL)


def without_id3(data: bytes) -> bytes:
    """`data` without ID3 tags: frames of ID3v2.3 and 2.4 may be compressed, and one of ID3v2.2 that
    takes 13 bytes may be a picture, which takes 550.

    At the start they are cut off, and so they are between the frames of MPEG audio, where a picture
    would be taken for damaged sound. Elsewhere (chunks of WAV and AIFF) they lose their magic
    number, so that libavformat passes over them. Nothing here reads what they say.
    """
    start = 0
    while _ID3_HEADER.match(data, start):
        start = _id3_end(data, start)
    data = data[start:]
    places = [place for place in _places(data, _ID3_MAGIC) if _ID3_HEADER.match(data, place)]
    if not places:
        return data
    defused = bytearray(data)
    for place in places:
        defused[place] = 0
    if not data.startswith(_SYNC) or len(places) > MAX_CUTS:
        return bytes(defused)
    kept, start = [], 0
    for place in places:
        end = _id3_end(data, place)
        if place >= start and data.startswith(_SYNC, end):
            kept.append(memoryview(defused)[start:place])
            start = end
    return b"".join([*kept, memoryview(defused)[start:]])


def _id3_end(data: bytes, place: int) -> int:
    """Where the ID3 tag at `place` ends."""
    high = 0
    for seven_bits in data[place + 6 : place + 10]:
        high = high << 7 | seven_bits
    return place + 10 + high + (10 if data[place + 5] & 0x10 else 0)


def refuse_mp4_bomb(data: bytes) -> None:
    """Raise InvalidAudio where an mp4's index has too many entries for its size.

    Also where the index is itself compressed, which QuickTime 3 could write and nothing does today.
    """
    header, movie = _mp4_headers(data)
    if b"cmov" in header:
        raise InvalidAudio("its index is compressed, which is not supported")
    # These point at fragments, wherever they are.
    fragments = data if b"sidx" in header or b"tfra" in header else header
    entries = sum(_numbers(fragments, b"trun", 4)) + _samples(header)
    entries += sum(map(_chunk_entries, _tracks(header)))
    entries -= sum(map(_unindexed, _boxes(movie, 8)))
    if entries > FREE_ENTRIES + len(data) // BYTES_AN_ENTRY:
        raise InvalidAudio("its index announces more packets than a file of its size can hold")


def _mp4_headers(data: bytes) -> tuple[bytes, memoryview]:
    """The boxes of an mp4's top level but for `mdat`, in a row, and the first movie among them;
    nothing where the file is no mp4.
    """
    known = (b"moov", b"moof", b"mdat", b"ftyp", b"free", b"skip", b"wide", b"hoov")
    (size, kind), is_mp4 = (_number(data[:4]), data[4:8]), False
    if kind not in known and not 8 <= size <= len(data):
        return b"", NOTHING
    view, header, movie = memoryview(data), bytearray(), NOTHING
    kept = end = 0
    for count, (kind, start, end) in enumerate(_places_of_boxes(view, 0)):
        if count == MAX_PLACES:
            raise InvalidAudio("its boxes repeat themselves without end")
        is_mp4 |= kind in known
        if kind == b"moov":
            movie = movie or view[start:end]
        if kind == b"mdat":
            header += view[kept:start]
            kept = end
    header += view[kept:end]
    return (bytes(header), movie) if is_mp4 else (b"", NOTHING)


def _boxes(data: memoryview, place: int) -> Iterator[memoryview]:
    """The boxes in a row from `place` on, with their headers."""
    for _, start, end in _places_of_boxes(data, place):
        yield data[start:end]


def _places_of_boxes(data: memoryview, place: int) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and end of the boxes in a row from `place` on, as libavformat walks them.

    A box has its size, its type and, for a size of 1, a size of 64 bits; 0 is the rest.
    """
    while place + 8 <= len(data):
        size, kind = _BOX.unpack_from(data, place)
        head = 8
        if size == 1:
            size, head = _number(data[place + 8 : place + 16]), 16
        size = size or len(data) - place
        if size < head:
            return
        yield kind, place, place + size
        place += size


def _samples(data: bytes) -> int:
    """The samples that all tables of sizes announce."""
    return sum(_numbers(data, b"stsz", 8)) + sum(_numbers(data, b"stz2", 8))


def _tracks(header: bytes) -> Iterator[bytes]:
    """Whatever calls itself a track, wherever it stands: a title may hold the name, too."""
    read = 0
    for place in _places(header, b"trak"):
        track = header[place - 4 : place - 4 + _number(header[place - 4 : place])]
        read += len(track)
        if read > MAX_REREADING * len(header):
            raise InvalidAudio("its tracks lie within each other")
        yield track


def _chunk_entries(track: bytes) -> int:
    """The most entries that its chunks get, if its samples get none."""
    chunks = max([*_numbers(track, b"stco", 4), *_numbers(track, b"co64", 4)], default=0)
    return chunks * (1 + _largest_chunk(track) // SAMPLES_AN_ENTRY)


def _largest_chunk(track: bytes) -> int:
    """Samples of the largest chunk: the second of three numbers in each entry of `stsc`."""
    largest, end = 0, 0
    for place in _places(track, b"stsc"):
        start = place + 12
        if start < end:
            raise InvalidAudio("its tables overlap")
        count = min(_number(track[start - 4 : start]), max(len(track) - start, 0) // 12)
        table = np.frombuffer(track, ">u4", 3 * count, start if count else 0)
        largest, end = max(largest, int(table[1::3].max(initial=0))), start + 12 * count
    return largest


def _unindexed(box: memoryview) -> int:
    """How many of a track's samples get no entry of their own: QuickTime's sound has chunks.

    Only for a track with one table of each kind, so that there is no doubt which one is read.
    """
    track = bytes(box)
    kinds = set(_values(track, b"hdlr", 8))
    tables = [len(list(_places(track, kind))) for kind in (b"stts", b"stsz")]
    ticks = [*_numbers(track, b"stts", 4), *_numbers(track, b"stts", 12)]
    is_sound = track[4:8] == b"trak" and SOUND in kinds and kinds <= {SOUND, *DATA_HANDLERS}
    return _samples(track) if is_sound and tables == [1, 1] and ticks == ONE_TICK else 0


def _places(data: bytes, pattern: bytes) -> Iterator[int]:
    place = _find(data, pattern, 0)
    for _ in range(MAX_PLACES):
        if place < 0:
            return
        yield place
        place = _find(data, pattern, place + 1)
    raise InvalidAudio("its headers repeat themselves without end")


def _find(data: bytes, pattern: bytes, start: int) -> int:
    """`data.find`, a slice at a time, so that other threads may run meanwhile."""
    for place in range(start, len(data), SLICE):
        found = data.find(pattern, place, place + SLICE + len(pattern) - 1)
        if found >= 0:
            return found
    return -1


def _values(data: bytes, kind: bytes, offset: int) -> Iterator[bytes]:
    """The four bytes that stand `offset` behind the name of each box of this kind."""
    for place in _places(data, kind):
        yield data[place + 4 + offset : place + 8 + offset]


def _numbers(data: bytes, kind: bytes, offset: int) -> Iterator[int]:
    return map(_number, _values(data, kind, offset))


def _number(big_endian: bytes | memoryview) -> int:
    return int.from_bytes(big_endian, "big")
