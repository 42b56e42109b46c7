"""Audio files of many tags, whose names all differ, in each way in which containers write them.

The ffmpeg program would take hours to write as many, so that tags are put into files byte by byte.
"""

import struct
import zlib
from collections.abc import Callable
from itertools import product
from string import ascii_lowercase, digits

from tests.support.audio_files import box, every_format, two_seconds

# None is that of a box of mp4, which libavformat would look for.
NAMES = ["".join(name).encode() for name in product(digits, *[ascii_lowercase] * 3)]
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def comments(count: int) -> bytes:
    parts = [struct.pack("<I", 6) + name + b"=1" for name in NAMES[:count]]
    return struct.pack("<II", 0, count) + b"".join(parts)


def flac(count: int) -> bytes:
    """Put a comment block before the last block of metadata."""
    data, tags = every_format()["a.flac"], comments(count)
    after = 4 + 4 + 34  # the magic number, and the first block
    return data[:after] + b"\4" + len(tags).to_bytes(3, "big") + tags + data[after:]


def ogg(count: int) -> bytes:
    """Put comments into the second packet, which gets pages of its own."""
    data = every_format()["opus.ogg"]
    second = data.index(b"OggS", 1)
    third = data.index(b"OggS", second + 1)
    packet, pages = b"OpusTags" + comments(count), []
    most = 255 * 255
    for number, at in enumerate(range(0, len(packet), most)):
        part = packet[at : at + most]
        lacing = bytes([255]) * (len(part) // 255)
        if len(part) < most:
            lacing += bytes([len(part) % 255])
        head = b"OggS\0" + bytes([number > 0]) + bytes(8) + data[second + 14 : second + 18]
        head += struct.pack("<I", number + 1)
        pages.append(page(head, bytes([len(lacing)]) + lacing + part))
    return data[:second] + b"".join(pages) + data[third:]


def page(head: bytes, rest: bytes) -> bytes:
    """A page of Ogg: its checksum is zlib's, bit by bit in the other direction, begun with 0."""
    whole = (head + bytes(4) + rest).translate(REVERSED)
    checksum = zlib.crc32(whole, 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    return head + struct.pack(">I", checksum).translate(REVERSED) + rest


def element(kind: str, body: bytes) -> bytes:
    """An element of Matroska, with a size of eight bytes."""
    return bytes.fromhex(kind) + (1 << 56 | len(body)).to_bytes(8, "big") + body


def matroska(count: int, size: int = 32_000) -> bytes:
    """Return one tag of many simple tags, and a second of sound in blocks of `size` bytes."""
    tags = [element("67c8", element("45a3", it) + element("4487", b"1")) for it in NAMES[:count]]
    rate = element("b5", struct.pack(">f", 16_000)) + element("6264", b"\x10")
    track = element("d7", b"\1") + element("73c5", b"\1") + element("83", b"\2")
    track += element("86", b"A_PCM/INT/LIT") + element("e1", rate)
    sound = two_seconds()[-32_000:]
    cut = [(start // 32, sound[start : start + size]) for start in range(0, len(sound), size)]
    blocks = [element("a3", struct.pack(">BhB", 0x81, at, 0x80) + part) for at, part in cut]
    parts = [
        element("1549a966", element("2ad7b1", (1_000_000).to_bytes(3, "big"))),
        element("1654ae6b", element("ae", track)),
        element("1254c367", element("7373", element("63c0", b"") + b"".join(tags))),
        element("1f43b675", element("e7", b"\0") + b"".join(blocks)),
    ]
    return element("1a45dfa3", element("4282", b"matroska")) + element("18538067", b"".join(parts))


def mp4(count: int) -> bytes:
    """Put keys and values at the end of the movie, which is the end of the file."""
    data = every_format()["a.m4a"]
    movie = data.rindex(b"moov") - 4
    keys = [box(b"mdta", name) for name in NAMES[:count]]
    text = box(b"data", struct.pack(">II", 1, 0), b"1")
    values = [box(struct.pack(">I", number), text) for number in range(1, count + 1)]
    meta = box(
        b"meta",
        box(b"hdlr", bytes(8), b"mdta", bytes(13)),
        box(b"keys", struct.pack(">II", 0, count), *keys),
        box(b"ilst", *values),
    )
    return data[:movie] + box(b"moov", data[movie + 8 :], meta)


def wav(count: int) -> bytes:
    """Append a list of information after the samples."""
    tags = [name + struct.pack("<I", 2) + b"1\0" for name in NAMES[:count]]
    info = b"INFO" + b"".join(tags)
    data = two_seconds() + b"LIST" + struct.pack("<I", len(info)) + info
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def caf(count: int) -> bytes:
    """Put strings into a chunk before all others but the first."""
    data = every_format()["a.caf"]
    info = struct.pack(">I", count) + b"".join(name + b"\x001\0" for name in NAMES[:count])
    after = 8 + 12 + 32  # the file's header, and its description
    return data[:after] + b"info" + struct.pack(">Q", len(info)) + info + data[after:]


def asf(count: int) -> bytes:
    """Put objects of extended content into the header, as each counts its entries in 16 bits."""
    data = every_format()["a.wma"]
    guid = bytes.fromhex("40a4d0d207e3d21197f000a0c95ea850")
    objects = []
    for at in range(0, count, 60_000):
        names = [it.decode().encode("utf-16-le") + b"\0\0" for it in NAMES[:count][at:][:60_000]]
        tags = [struct.pack("<H", len(it)) + it + struct.pack("<HHI", 3, 4, 1) for it in names]
        body = struct.pack("<H", len(tags)) + b"".join(tags)
        objects.append(guid + struct.pack("<Q", 24 + len(body)) + body)
    size, number = struct.unpack_from("<QI", data, 16)
    added = b"".join(objects)
    head = data[:16] + struct.pack("<QI", size + len(added), number + len(objects))
    return head + data[28:30] + added + data[30:]


def flv(count: int) -> bytes:
    """Put booleans into a script before all other tags."""
    data = every_format()["a.flv"]
    truths = [struct.pack(">H", 4) + name + b"\1\1" for name in NAMES[:count]]
    body = b"\2" + struct.pack(">H", 10) + b"onMetaData\x08" + struct.pack(">I", count)
    body += b"".join(truths) + b"\0\0\x09"
    tag = b"\x12" + len(body).to_bytes(3, "big") + bytes(7) + body
    return data[:13] + tag + struct.pack(">I", len(tag)) + data[13:]


TAGGED: dict[str, Callable[[int], bytes]] = {
    "flac": flac, "ogg": ogg, "matroska": matroska, "mp4": mp4, "wav": wav, "caf": caf, "asf": asf,
    "flv": flv,
}  # fmt: skip
