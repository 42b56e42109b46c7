"""Forms as the SDK, curl and other clients write them."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from starlette.requests import Request

from whosaid.errors import InvalidParameter, InvalidRequest
from whosaid.server.errors import Refusal
from whosaid.server.openai_api import form
from whosaid.server.openai_api.form import MAX_FIELDS, MAX_FILES
from whosaid.server.request_body import multipart_form

SOUND = ("file", ("upload", b"sound", "application/octet-stream"))


def read(parts, content_type=None, body=None):
    sent = httpx2.Request("POST", "http://server/", files=parts) if parts else None
    content = sent.read() if body is None else body
    headers = [(b"content-type", (content_type or sent.headers["content-type"]).encode())]

    async def receive():
        return {"type": "http.request", "body": content, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}

    async def split():
        async with multipart_form(Request(scope, receive), MAX_FILES, MAX_FIELDS) as sent_form:
            return form._split(sent_form)

    return asyncio.run(split())


def text(name, value):
    return (name, (None, value))


def test_names_count_without_their_brackets():
    found = read(
        [
            SOUND,
            text("include[]", "a"),
            text("include[1]", "b"),
            text("include", "c"),
            text("chunking_strategy[type]", "server_vad"),
        ]
    )
    file, fields = found
    assert file == b"sound"
    assert fields == {"include": ("a", "b", "c"), "chunking_strategy[type]": ("server_vad",)}


@pytest.mark.parametrize(
    "parts", [[text("model", "m")], [SOUND, SOUND], [text("file", "x")], [SOUND, text("file", "x")]]
)
def test_there_is_one_file(parts):
    with pytest.raises(InvalidParameter, match="file"):
        read(parts)


@pytest.mark.parametrize("data", [b"\x1aE\xdf\xa3", bytes(3_000), b"x" * 3_000], ids=len)
def test_a_file_needs_no_name_of_its_own(data):
    """As forms of Go and Node write it."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    found = read(None, "multipart/form-data; boundary=x", head + data + b"\r\n--x--\r\n")
    assert found[0] == data


def test_the_name_of_a_file_is_no_file():
    with pytest.raises(InvalidParameter, match=r"file: is text; curl sends a file by -F file=@"):
        read([text("file", "talk.mp3")])


def test_texts_beside_clips_have_a_bound(monkeypatch):
    monkeypatch.setattr(form, "MAX_CHARACTERS", 200)
    clip = text("known_speaker_references[]", "x" * 1_000)
    assert read([SOUND, clip, text("prompt", "x" * 100)])[1]["prompt"] == ("x" * 100,)
    for much in ([text("prompt", "x" * 200)], [text("x" * 10, "")] * 21, [text("[" * 300, "")]):
        with pytest.raises(Refusal, match="BODY_TOO_LARGE"):
            read([SOUND, *much])


def test_another_part_is_no_file():
    with pytest.raises(InvalidParameter, match="prompt"):
        read([SOUND, ("prompt", ("prompt.txt", b"text", "text/plain"))])


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b"no part"),
        (
            "multipart/form-data; boundary=x",
            b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--",
        ),
    ],
)
def test_a_broken_form_is_refused(content_type, body):
    with pytest.raises(InvalidRequest):
        read(None, content_type, body)
