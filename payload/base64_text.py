"""Base64, decoded a slice at a time.

No call works on more than SLICE characters. CPython keeps its lock for the whole of a call into C,
and to read hundreds of megabytes takes one such call most of a second, in which no other thread
runs: not the one that answers /health, and not the engine's.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from io import BytesIO

# Characters, a multiple of 4; each call takes a millisecond or two.
SLICE = 2**20
WHITE_SPACE = b" \t\n\r\v\f"

# What clients send in place of a file. No base64 holds a colon or a full stop.
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.ASCII | re.IGNORECASE)
_FILE_NAME = re.compile(r"[^\0\r\n]{1,1000}\.[a-z0-9]{1,5}\s*", re.ASCII | re.IGNORECASE)
# A media type may have commas, as in `codecs="vp8, opus"`.
_HEADER = re.compile(r"\s*data:[^\n]{0,300}?;base64,", re.ASCII | re.IGNORECASE)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, eq=False, slots=True)
class Base64Text:
    """Base64 in the `characters` of a request's body, all of them ASCII: a text of which slices
    are made str when they are looked at, and never the whole.
    """

    characters: bytes | memoryview

    def __len__(self) -> int:
        """How many characters it has."""
        return len(self.characters)

    def __getitem__(self, part: slice) -> str:
        """A part of the text."""
        return str(self.characters[part], "ascii")


def base64_digits(text: str | Base64Text) -> bytearray:
    """The digits of `text` with their padding, which `text` may lack, without white space and a
    `data:*;base64,` header. Those of the URL-safe alphabet become those of the usual one.

    Raises UnicodeEncodeError for a character that is not ASCII.
    """
    digits = bytearray()
    for place in range(_after_header(text), len(text), SLICE):
        digits += text[place : place + SLICE].encode("ascii").translate(_URL_SAFE, WHITE_SPACE)
    if not digits.endswith(b"="):
        digits += b"=" * (-len(digits) % 4)
    return digits


def decode_digits(digits: bytearray) -> bytes:
    """What a multiple of 4 digits say. Raises binascii.Error unless they are strictly RFC 4648's,
    section 4.
    """
    decoded, view = BytesIO(), memoryview(digits)
    for place in range(0, len(digits), SLICE):
        part = view[place : place + SLICE]
        piece = binascii.a2b_base64(part, strict_mode=True)
        if len(piece) < len(part) * 3 // 4 and place + SLICE < len(digits):
            raise binascii.Error("padding before the end")
        decoded.write(piece)
    return decoded.getvalue()  # which takes no copy


def address_in(text: str | Base64Text) -> str | None:
    """Return "a URL" or "a file name" if that is what `text` holds in place of a file's base64."""
    start = text[:SLICE]
    if _URL.match(start):
        return "a URL"
    return "a file name" if _FILE_NAME.fullmatch(start) else None


def _after_header(text: str | Base64Text) -> int:
    start = 0
    while (blank := text[start : start + SLICE]) and _is_white(blank):
        start += SLICE
    header = _HEADER.match(text[start : start + 2 * SLICE])
    return start + header.end() if header else start


def _is_white(text: str) -> bool:
    """As `strip` would tell, in a tenth of its time."""
    return not text.encode("ascii", "replace").translate(None, WHITE_SPACE)
