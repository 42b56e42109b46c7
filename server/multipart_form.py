"""Reads multipart forms: a `file` with `parameters`, and those of OpenAI's SDK.

Nothing of a form touches the disk. The framework's own reader writes files beyond a MiB there, and
refuses longer texts, which clips of known speakers are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import BinaryIO

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from errors import InvalidRequest
from payload.encodings import SLICE

# A clip of a known speaker, 30 s of 48 kHz stereo as a data URL, fits twice.
MAX_FIELD_BYTES = 16 * 2**20
LONGEST_LINE = 2000  # bytes


class _InMemoryParser(MultiPartParser):
    """Holds files in memory, because the size of the whole body is limited before it is parsed. A
    part called `file` is a file, too, if it has no file name.
    """

    spool_max_size = 2**62

    def on_headers_finished(self) -> None:
        """Read the head of a part."""
        part = self._current_part
        _, options = parse_options_header(part.content_disposition)
        if options.get(b"name") == b"file" and b"filename" not in options:
            assert part.content_disposition is not None
            part.content_disposition += b'; filename=""'
        super().on_headers_finished()


@asynccontextmanager
async def multipart_form(
    request: Request, max_files: int, max_fields: int
) -> AsyncIterator[FormData]:
    """The form in a request's body. Raises InvalidRequest for what is none or has too much."""
    parser = _InMemoryParser(
        _in_utf8(request.headers),
        request.stream(),
        max_files=max_files,
        max_fields=max_fields,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the form cannot be read: {error.message}") from error
    try:
        yield form
    finally:
        await form.close()


def _in_utf8(headers: Headers) -> Headers:
    """The type without a charset, which RFC 7578 does not know: Python's slowest takes minutes."""
    kind, parameters = parse_options_header(headers.get("content-type"))
    boundary = parameters.get(b"boundary")
    said = b'%b; boundary="%b"' % (kind, boundary) if boundary is not None else kind
    return Headers(raw=[(b"content-type", said)])


def is_text(part: UploadFile, data: bytes) -> bool:
    """Whether the `data` of a part called `file` are a line of text, as of curl's
    `-F file=talk.mp3`, which lacks the at sign.
    """
    if part.filename or len(data) > LONGEST_LINE:
        return False
    try:
        return data.decode().strip().isprintable()
    except UnicodeDecodeError:
        return False


def content(file: BinaryIO) -> bytes:
    """The bytes of a file, of which no call copies more than a slice."""
    read = BytesIO()
    while part := file.read(SLICE):
        read.write(part)
    return read.getvalue()
