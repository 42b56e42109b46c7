"""Forms of any size, by what the sender put into them."""

from __future__ import annotations

import asyncio
import tempfile

import httpx2
import pytest
from starlette.requests import Request

from whosaid.errors import InvalidRequest
from whosaid.server.request_body import MAX_FIELD_BYTES, content, multipart_form

LARGE = bytes(range(256)) * (3 << 12)  # 3 MiB


def read(files, data=None, max_files=1, max_fields=2):
    sent = httpx2.Request("POST", "http://server/", files=files, data=data)
    body = sent.read()
    headers = [(b"content-type", sent.headers["content-type"].encode())]

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def all_of_it():
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        async with multipart_form(Request(scope, receive), max_files, max_fields) as form:
            parts = form.multi_items()
            return [(name, v if isinstance(v, str) else content(v.file)) for name, v in parts]

    return asyncio.run(all_of_it())


def test_nothing_touches_the_disk(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "_TemporaryFileWrapper", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert read({"file": ("a.wav", LARGE)}) == [("file", LARGE)]


def test_a_file_needs_no_name_of_its_own():
    """Nor is it bounded as texts are, or decoded as one."""
    sound = bytes(range(256)) * (MAX_FIELD_BYTES // 256 + 1)
    assert read({"file": (None, sound)}) == [("file", sound)]


def test_texts_may_be_as_long_as_clips():
    voice = "x" * (3 << 20)
    assert read({"file": b"sound"}, {"voice": voice})[0] == ("voice", voice)


@pytest.mark.parametrize(
    ("files", "data"),
    [
        ([("a", b"1"), ("b", b"2")], None),
        ({"file": b""}, {"a": "1", "b": "2", "c": "3"}),
        ({"file": b""}, {"voice": "x" * (MAX_FIELD_BYTES + 1)}),
    ],
)
def test_too_much_is_refused(files, data):
    with pytest.raises(InvalidRequest, match="the form cannot be read"):
        read(files, data)


def test_a_charset_of_the_senders_choice_is_not_believed():
    """Python's punycode, for one, takes time by the square of the text."""
    sent = httpx2.Request("POST", "http://server/", files={"text": (None, "a\u00e9-" * 9)})
    body, kind = sent.read(), sent.headers["content-type"]

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def text():
        headers = [(b"content-type", f"{kind}; charset=punycode".encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        async with multipart_form(Request(scope, receive), 1, 1) as form:
            return form["text"]

    assert asyncio.run(text()) == "a\u00e9-" * 9
