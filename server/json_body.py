"""The JSON of large bodies, read so that other threads run meanwhile.

The one decision: the value of `inputs` is cut out before the rest is parsed. CPython keeps its lock
while its parser is in one text, half a second for 400 MB, and /health waits. A cut is made only
where it cannot change what the parser finds; where that is not plain, the parser gets the body. It
is json's own, in Python, as that in C keeps the lock for the whole of a body.
"""

from __future__ import annotations

import json
import json.scanner
import re
import secrets
from io import BytesIO
from typing import Any

from base64_text import SLICE, Base64Text

# Bytes; json.loads takes few milliseconds for so many.
SMALL = 2**20
# How many keys are looked at: of the small texts that come first, most are parameters.
MOST_KEYS = 8
PRINTABLE = bytes(range(0x20, 0x7F))

ESCAPE = 6  # characters of the longest, of which two may be one character

_OPENING = re.compile(rb"[ \t\n\r]{0,99}\{")
_KEY = re.compile(rb'"inputs"[ \t\n\r]{0,9}:[ \t\n\r]{0,9}"')
_LONGEST_KEY = 27


class _InTurns(json.JSONDecoder):
    """json's decoder without its C scanner: the lock is free again after every value."""

    def __init__(self) -> None:
        super().__init__()
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401
    """What json.loads makes of `body`, save that a long `inputs` is a Base64Text with that text.

    Raises what json.loads raises: UnicodeDecodeError, another ValueError, or RecursionError, which
    in large bodies comes of less depth.
    """
    if isinstance(body, str) or len(body) <= SMALL:
        return json.loads(body)
    if found := _find_inputs(body):
        start, end = found
        mark = secrets.token_hex(16)  # nobody can send it
        value = _parse(b"%b%b%b" % (body[:start], mark.encode(), body[end:]))
        text = _unescaped(memoryview(body)[start:end])
        if text is not None and isinstance(value, dict) and value.get("inputs") == mark:
            value["inputs"] = Base64Text(text)
            return value
    return _parse(body)


def _parse(text: bytes) -> Any:  # noqa: ANN401
    return json.loads(text, cls=None if len(text) <= SMALL else _InTurns)


def _find_inputs(body: bytes) -> tuple[int, int] | None:
    """Where the first long text after a key `inputs` begins and ends; None where there is no such.

    Either a parser that has come to the first is within a string, or it has failed before: where
    the key's first quotation mark ends a string, a bare i follows. So any other printable text
    there parses or fails alike.
    """
    if not _OPENING.match(body) or b"\0" in body[:4]:  # then it is not in UTF-8
        return None
    start = 0
    for _ in range(MOST_KEYS):
        key = _find_key(body, start)
        if key is None:
            return None
        start, end = key, _closing_quote(body, key)
        if end is not None and end - start > SMALL // 2:
            return start, end
    return None


def _find_key(body: bytes, start: int) -> int | None:
    for place in range(start, len(body), SLICE):
        if found := _KEY.search(body, place, place + SLICE + _LONGEST_KEY):
            return found.end()
    return None


def _closing_quote(body: bytes, start: int) -> int | None:
    """The end of a text of printable ASCII without escaped quotation marks."""
    for place in range(start, len(body), SLICE):
        piece, quote, _ = body[place : place + SLICE].partition(b'"')
        if piece.translate(None, PRINTABLE):
            return None
        if quote:
            end = place + len(piece)
            return None if body[end - 1 : end] == b"\\" else end
    return None


def _unescaped(text: memoryview) -> bytes | memoryview | None:
    """What is between the quotation marks of a JSON string, in ASCII; None where that is not said
    in ASCII, or in nothing but escapes.

    `text` itself where nothing is escaped. Raises ValueError for what no JSON string holds.
    """
    slices = range(0, len(text), SLICE)
    if not any(b"\\" in bytes(text[place : place + SLICE]) for place in slices):
        return text
    read, place = BytesIO(), 0
    while place < len(text):
        piece = bytes(text[place : place + SLICE])
        if place + len(piece) < len(text):
            piece = _with_whole_escapes(piece)
        if not piece:
            return None
        try:
            read.write(json.loads(b'"%b"' % piece).encode("ascii"))
        except UnicodeEncodeError:
            return None
        place += len(piece)
    return read.getvalue()


def _with_whole_escapes(piece: bytes) -> bytes:
    """The piece up to where no escape is open, nor two that are one character."""
    end = len(piece)
    while (escape := piece.rfind(b"\\", max(0, end - ESCAPE), end)) >= 0:
        end = escape
    return piece[:end]
