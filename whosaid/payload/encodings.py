"""Decodes JSON and base64 from clients, in bounded memory and without holding the GIL for long.

CPython holds the GIL for the whole of a call into C, and one call on hundreds of megabytes takes
most of a second. So no call here works on more than SLICE characters.

A JSON parser turns the two characters of `[]` into 64 bytes, so it gets at most MOST_JSON
characters. Only the base64 of audio may be longer: `parse_json` first cuts out every long string,
if it is a value in printable ASCII without escaped quotation marks, and puts a number that no
client can guess in its place.
"""

import binascii
import json
import re
import secrets
from dataclasses import dataclass
from io import BytesIO
from typing import Any

# Characters, a multiple of 4; a call on this many takes a millisecond or two.
SLICE = 2**20
# Characters besides the long strings. json.loads makes at most 30 MB of them, in milliseconds.
MOST_JSON = 2**20
# Characters; shorter strings are not cut out. MAX_CLIPS references of this length fit.
LONG = 2**14
PRINTABLE = bytes(range(0x20, 0x7F))
WHITE_SPACE = b" \t\n\r\v\f"
LONGEST_ESCAPE = 6  # characters, as in \u00e4

# Runs of short strings, of which a body may have too many for a Python loop.
_SHORT_STRINGS = re.compile(rb'(?:[^"]*+"[^"\\]{0,15}+")++')
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_ESCAPED_NON_ASCII = re.compile(rb"\\u(?!00[0-7])")
_END_OF_VALUE = re.compile(rb'"[ \t\n\r]{0,99}[,}\]]')

# Clients send URLs and file names by mistake. Base64 has no colon and no full stop.
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.ASCII | re.IGNORECASE)
_FILE_NAME = re.compile(r"[^\0\r\n]{1,1000}\.[a-z0-9]{1,5}\s*", re.ASCII | re.IGNORECASE)
# A media type may have commas, as in `codecs="vp8, opus"`.
_DATA_HEADER = re.compile(r"\s*data:[^\n]{0,300}?;base64,", re.ASCII | re.IGNORECASE)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class TooMuchJson(ValueError):
    """A body has more than MOST_JSON characters besides long strings."""


@dataclass(frozen=True, eq=False, slots=True)
class Base64Text:
    """A long ASCII string from a request's body; only slices of it become str, never the whole."""

    characters: bytes | memoryview

    def __len__(self) -> int:
        return len(self.characters)

    def __getitem__(self, part: slice) -> str:
        return str(self.characters[part], "ascii")


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401
    """Parse JSON as json.loads does, but return ASCII values of over LONG characters as Base64Text.

    Raises TooMuchJson, UnicodeDecodeError (also for more than MOST_JSON bytes of UTF-16 or UTF-32),
    another ValueError, or RecursionError.
    """
    if isinstance(body, str):
        body = body.encode()
    if len(body) <= LONG:
        return json.loads(body)
    if b"\0" in body[:4] or body[:2] in (b"\xfe\xff", b"\xff\xfe"):  # not UTF-8
        if len(body) > MOST_JSON:
            raise UnicodeDecodeError("utf-8", body[:4], 0, 4, "UTF-16 or UTF-32")
        return json.loads(body)
    rest, strings = _cut(body)

    def read(number: str) -> float | Base64Text:
        string = strings.get(number)
        return float(number) if string is None else Base64Text(_unescaped(string))

    return json.loads(rest, parse_float=read)


def _cut(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """Return the JSON with a number in place of each long string, and the strings by number."""
    mark = 1 + secrets.randbelow(10**30)
    view, strings = memoryview(body), dict[str, memoryview]()
    rest, position = bytearray(), 0
    while (quote := _find_quote(body, position)) < len(body):
        if short := _SHORT_STRINGS.match(body, position, position + MOST_JSON - len(rest)):
            _append(rest, view[position : short.end()])
            position = short.end()
            continue
        start = quote + 1
        _append(rest, view[position:start])
        end = _end_of_string(body, start, MOST_JSON - len(rest))
        position = end + 1
        if end - start > LONG and _may_be_cut(body, start, end):
            number = f"{mark}.{len(strings)}"
            strings[number] = view[start:end]
            rest[-1:] = b" %b " % number.encode()
        else:
            _append(rest, view[start:position])
    _append(rest, view[position:])
    return bytes(rest), strings


def _append(rest: bytearray, part: memoryview) -> None:
    if len(rest) + len(part) > MOST_JSON:
        raise TooMuchJson
    rest += part


def _find_quote(body: bytes, start: int) -> int:
    """Return the position of the next quotation mark, or the length of `body`."""
    for position in range(start, len(body), SLICE):
        found = body.find(b'"', position, position + SLICE)
        if found >= 0:
            return found
    return len(body)


def _end_of_string(body: bytes, start: int, most: int) -> int:
    """Return the place of a string's closing quotation mark. Raises TooMuchJson over `most`."""
    end = _find_quote(body, start)
    if end in (start, len(body)) or body[end - 1] != ord("\\"):
        return end
    string = _STRING.match(body, start, start + most + 1)
    end = string.end() if string else start
    if body[end : end + 1] == b'"':
        return end
    if start + most < len(body):
        raise TooMuchJson
    return len(body)


def _may_be_cut(body: bytes, start: int, end: int) -> bool:
    """Return whether a string is a value and decodes to ASCII."""
    if not _END_OF_VALUE.match(body, end):
        return False
    for position in range(start, end, SLICE):
        piece = body[position : min(end, position + SLICE + LONGEST_ESCAPE)]
        if piece.translate(None, PRINTABLE) or _ESCAPED_NON_ASCII.search(piece):
            return False
    return True


def _unescaped(string: memoryview) -> bytes | memoryview:
    """Decode a JSON string's characters to ASCII. Raises ValueError for an invalid escape."""
    slices = range(0, len(string), SLICE)
    if not any(b"\\" in bytes(string[position : position + SLICE]) for position in slices):
        return string
    decoded, position = BytesIO(), 0
    while position < len(string):
        piece = bytes(string[position : position + SLICE])
        if position + len(piece) < len(string):
            piece = _with_whole_escapes(piece)
        decoded.write(json.loads(b'"%b"' % piece).encode("ascii"))
        position += len(piece)
    return decoded.getvalue()


def _with_whole_escapes(piece: bytes) -> bytes:
    """Return the piece without an escape at its end that may be unfinished."""
    last = piece.rfind(b"\\", len(piece) - LONGEST_ESCAPE + 1) + 1
    slashes = last - len(piece[:last].rstrip(b"\\"))
    return piece[: last - 1] if slashes % 2 else piece


def base64_digits(text: str | Base64Text) -> bytearray:
    """Return the base64 digits of `text`, padded, in the standard alphabet, without white space and
    a header `data:*;base64,`. Raises UnicodeEncodeError unless it is ASCII.
    """
    digits = bytearray()
    for position in range(_after_header(text), len(text), SLICE):
        part = text[position : position + SLICE].encode("ascii")
        digits += part.translate(_URL_SAFE, WHITE_SPACE)
    if not digits.endswith(b"="):
        digits += b"=" * (-len(digits) % 4)
    return digits


def decode_digits(digits: bytearray) -> bytes:
    """Decode a multiple of 4 digits; raise binascii.Error unless they are strict RFC 4648."""
    decoded, view = BytesIO(), memoryview(digits)
    for position in range(0, len(digits), SLICE):
        part = view[position : position + SLICE]
        piece = binascii.a2b_base64(part, strict_mode=True)
        if len(piece) < len(part) * 3 // 4 and position + SLICE < len(digits):
            raise binascii.Error("padding before the end")
        decoded.write(piece)
    return decoded.getvalue()  # copies nothing


def address_in(text: str | Base64Text) -> str | None:
    """Return "a URL" or "a file name" if `text` is one; None if it may be base64."""
    start = text[:SLICE]
    if _URL.match(start):
        return "a URL"
    return "a file name" if _FILE_NAME.fullmatch(start) else None


def _after_header(text: str | Base64Text) -> int:
    start = 0
    while (blank := text[start : start + SLICE]) and _is_white(blank):
        start += SLICE
    header = _DATA_HEADER.match(text[start : start + 2 * SLICE])
    return start + header.end() if header else start


def _is_white(text: str) -> bool:
    """Return `not text.strip()`, in a tenth of the time."""
    return not text.encode("ascii", "replace").translate(None, WHITE_SPACE)
