"""JSON from clients, parsed in time and memory that do not grow with what is sent.

A parser turns the two characters of `[]` into 64 bytes, and CPython keeps its lock while its parser
is in one text. So it gets at most MOST_JSON characters. What may be longer is the base64 of audio:
every long text is cut out first, and a number stands for it that no client can know. What then is
left beyond the bound is refused unparsed. A cut is made only where it cannot change what the parser
finds: of a value, in printable ASCII, without escaped quotation marks.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from payload.base64_text import SLICE, Base64Text

# Characters beside the long texts, of which json.loads makes at most 30 MB, in milliseconds.
MOST_JSON = 2**20
# Characters; shorter texts stay where they are. Clips of known speakers that are shorter all fit.
LONG = 2**14
PRINTABLE = bytes(range(0x20, 0x7F))

ESCAPE = 6  # characters of the longest
# Texts so short that a loop over them would take longer than the bound allows.
_SHORT = re.compile(rb'(?:[^"]*+"[^"\\]{0,15}+")++')
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NO_ASCII = re.compile(rb"\\u(?!00[0-7])")
_END_OF_VALUE = re.compile(rb'"[ \t\n\r]{0,99}[,}\]]')


class TooMuchJson(ValueError):
    """Beside long texts there are more than MOST_JSON characters."""


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401
    """What json.loads makes of `body`, save that a text of more than LONG characters of ASCII, if
    it is a value, is a Base64Text with that text.

    Raises TooMuchJson, UnicodeDecodeError (also for more than MOST_JSON bytes of UTF-16 or UTF-32),
    or what json.loads raises: another ValueError, or RecursionError.
    """
    if isinstance(body, str):
        body = body.encode()
    if len(body) <= LONG:
        return json.loads(body)
    if b"\0" in body[:4] or body[:2] in (b"\xfe\xff", b"\xff\xfe"):  # not in UTF-8
        if len(body) > MOST_JSON:
            raise UnicodeDecodeError("utf-8", body[:4], 0, 4, "UTF-16 or UTF-32")
        return json.loads(body)
    rest, texts = _cut(body)
    return json.loads(rest, parse_float=_float_or_text(texts))


def _float_or_text(texts: Mapping[str, memoryview]) -> Callable[[str], float | Base64Text]:
    """How numbers are read: those that stand for a text as that text."""

    def read(number: str) -> float | Base64Text:
        text = texts.get(number)
        return float(number) if text is None else Base64Text(_unescaped(text))

    return read


def _cut(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """The JSON with a number in place of each long text, and the texts by their numbers."""
    mark = 1 + secrets.randbelow(10**30)
    view, texts = memoryview(body), dict[str, memoryview]()
    rest, place = bytearray(), 0
    while (quote := _find_quote(body, place)) < len(body):
        if short := _SHORT.match(body, place, place + MOST_JSON - len(rest)):
            _append(rest, view[place : short.end()])
            place = short.end()
            continue
        start = quote + 1
        _append(rest, view[place:start])
        end = _end_of_text(body, start, MOST_JSON - len(rest))
        place = end + 1
        if end - start > LONG and _may_be_cut(body, start, end):
            number = f"{mark}.{len(texts)}"
            texts[number] = view[start:end]
            rest[-1:] = b" %b " % number.encode()
        else:
            _append(rest, view[start:place])
    _append(rest, view[place:])
    return bytes(rest), texts


def _append(rest: bytearray, part: memoryview) -> None:
    if len(rest) + len(part) > MOST_JSON:
        raise TooMuchJson
    rest += part


def _find_quote(body: bytes, start: int) -> int:
    """Where the next quotation mark is; the body's end where there is none."""
    for place in range(start, len(body), SLICE):
        found = body.find(b'"', place, place + SLICE)
        if found >= 0:
            return found
    return len(body)


def _end_of_text(body: bytes, start: int, most: int) -> int:
    """Where the quotation mark is that ends a text; one with escaped ones has at most `most`
    characters.
    """
    end = _find_quote(body, start)
    if end in (start, len(body)) or body[end - 1] != ord("\\"):
        return end
    text = _TEXT.match(body, start, start + most + 1)
    end = text.end() if text else start
    if body[end : end + 1] == b'"':
        return end
    if start + most < len(body):
        raise TooMuchJson
    return len(body)


def _may_be_cut(body: bytes, start: int, end: int) -> bool:
    """Whether a text is a value, and says nothing but ASCII."""
    if not _END_OF_VALUE.match(body, end):
        return False
    for place in range(start, end, SLICE):
        piece = body[place : min(end, place + SLICE + ESCAPE)]
        if piece.translate(None, PRINTABLE) or _NO_ASCII.search(piece):
            return False
    return True


def _unescaped(text: memoryview) -> bytes | memoryview:
    """What is between the quotation marks of a JSON string, in ASCII; `text` itself where nothing
    is escaped. Raises ValueError for what no JSON string holds.
    """
    slices = range(0, len(text), SLICE)
    if not any(b"\\" in bytes(text[place : place + SLICE]) for place in slices):
        return text
    read, place = BytesIO(), 0
    while place < len(text):
        piece = bytes(text[place : place + SLICE])
        if place + len(piece) < len(text):
            piece = _with_whole_escapes(piece)
        read.write(json.loads(b'"%b"' % piece).encode("ascii"))
        place += len(piece)
    return read.getvalue()


def _with_whole_escapes(piece: bytes) -> bytes:
    """The piece without an escape at its end that may go on after it."""
    last = piece.rfind(b"\\", len(piece) - ESCAPE + 1) + 1
    slashes = last - len(piece[:last].rstrip(b"\\"))
    return piece[: last - 1] if slashes % 2 else piece
