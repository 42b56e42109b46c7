"""Reads from a recording's bytes whether some of them are missing or damaged."""

import re
from zlib import crc32

# A WAV, AVI or CAF that was written to a pipe, so that its header lacks the size of the sound: it
# has 0, or all ones, or in a RIFF 2 GB and more.
UNSIZED = re.compile(
    rb"RIFF(....WAVE.{,65536}?data(\0{4}|...[\x77-\xff])|(\0{4}|...[\x77-\xff])AVI )"
    rb"|caff.{,65536}?data\xff{8}",
    re.DOTALL,
)
# From a Matroska's or WebM's first bytes to the size of its segment.
MATROSKA = re.compile(rb"\x1a\x45\xdf\xa3.{,4096}?\x18\x53\x80\x67", re.DOTALL)
# Every byte with its bits reversed: Ogg's checksum is zlib's with the bits in the other order.
MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def ogg_pages(data: bytes) -> list[bool]:
    """Return for each page of an Ogg whether it is whole; libavformat skips the others."""
    pages: list[bool] = []
    page = 0 if data.startswith(b"OggS") else -1
    while page >= 0:
        # RFC 3533: 22 bytes, a checksum, the number of segments, then the length of each segment.
        lacing = page + 27 + sum(data[page + 26 : page + 27])
        end = lacing + sum(data[page + 27 : lacing])
        bits = (data[page : page + 22] + bytes(4) + data[page + 26 : end]).translate(MIRRORED)
        declared = int.from_bytes(data[page + 22 : page + 26].translate(MIRRORED))
        pages.append(crc32(bits, 0xFFFFFFFF) ^ 0xFFFFFFFF == declared)
        page = data.find(b"OggS", end if pages[-1] else page + 4)
    return pages


def is_cut_short(data: bytes, truncated: bool) -> bool:
    """Return whether headers declare more bytes; `truncated` if libavformat's last packet does."""
    if pages := ogg_pages(data):
        return not pages[-1]
    if UNSIZED.match(data):
        return False
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return len(data) < int.from_bytes(data[4:8], "little") + 8
    if head := MATROSKA.match(data):
        # The bits of an unknown size are all 1.
        width = 9 - data[head.end()].bit_length()
        size = int.from_bytes(data[head.end() : head.end() + width]) % (1 << 7 * width)
        return len(data) < head.end() + width + size and size + 1 < 1 << 7 * width
    return truncated
