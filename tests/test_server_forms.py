"""Forms of any size, from any sender: the SDK, curl and other clients."""

import asyncio
import tempfile

import httpx2
import pytest
from starlette.requests import Request

from tests.helpers.refusals import refused
from whosaid.errors import InvalidParameter
from whosaid.server.openai_api import form
from whosaid.server.openai_api.form import MAX_FIELDS, MAX_FILES
from whosaid.server.request_body import MAX_FIELD_BYTES, content, multipart_form

LARGE = bytes(range(256)) * (3 << 12)  # 3 MiB
SOUND = ("file", ("upload", b"sound", "application/octet-stream"))


def parsed(body, content_type, read, max_files=1, max_fields=2):
    """Return the result of `read` for the form in a body."""
    headers = [(b"content-type", content_type.encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def parse():
        async with multipart_form(Request(scope, receive), max_files, max_fields) as found:
            return read(found)

    return asyncio.run(parse())


def parts_of(found):
    return [
        (name, each if isinstance(each, str) else content(each.file))
        for name, each in found.multi_items()
    ]


def read(files, data=None, charset=""):
    """Return all parts of a form that httpx sends."""
    sent = httpx2.Request("POST", "http://server/", files=files, data=data)
    return parsed(sent.read(), sent.headers["content-type"] + charset, parts_of)


def split(parts, content_type=None, body=None):
    """A file and fields, as OpenAI's routes take them from a form."""
    sent = httpx2.Request("POST", "http://server/", files=parts) if parts else None
    body = sent.read() if body is None else body
    content_type = content_type or sent.headers["content-type"]
    return parsed(body, content_type, form._split, MAX_FILES, MAX_FIELDS)


def test_nothing_touches_the_disk(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a file was made")

    monkeypatch.setattr(tempfile, "_TemporaryFileWrapper", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert read({"file": ("a.wav", LARGE)}) == [("file", LARGE)]


def test_a_file_needs_no_name_of_its_own():
    """Without a name it is still not limited or decoded like a text."""
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
    with refused("INVALID_REQUEST"):
        read(files, data)


def test_a_charset_from_the_client_is_ignored():
    """Python's punycode, for one, takes time by the square of the text."""
    text = "a\u00e9-" * 9
    assert read({"text": (None, text)}, charset="; charset=punycode") == [("text", text)]


def text(name, value):
    return (name, (None, value))


def test_names_count_without_their_brackets():
    texts = [text("include[]", "a"), text("include[1]", "b"), text("include", "c")]
    file, fields = split([SOUND, *texts, text("chunking_strategy[type]", "server_vad")])
    assert file == b"sound"
    assert fields == {"include": ("a", "b", "c"), "chunking_strategy[type]": ("server_vad",)}


@pytest.mark.parametrize(
    "parts", [[text("model", "m")], [SOUND, SOUND], [text("file", "x")], [SOUND, text("file", "x")]]
)
def test_there_is_one_file(parts):
    with refused("INVALID_PARAMETER", "file"):
        split(parts)


def test_the_name_of_a_file_is_no_file():
    with pytest.raises(InvalidParameter, match=r"file: is text; curl sends a file by -F file=@"):
        split([text("file", "talk.mp3")])


def test_texts_beside_clips_have_a_bound(monkeypatch):
    monkeypatch.setattr(form, "MAX_CHARACTERS", 200)
    clip = text("known_speaker_references[]", "x" * 1_000)
    assert split([SOUND, clip, text("prompt", "x" * 100)])[1]["prompt"] == ("x" * 100,)
    for much in ([text("prompt", "x" * 200)], [text("x" * 10, "")] * 21, [text("[" * 300, "")]):
        with refused("BODY_TOO_LARGE"):
            split([SOUND, *much])


def test_another_part_is_no_file():
    with refused("INVALID_PARAMETER", "prompt"):
        split([SOUND, ("prompt", ("prompt.txt", b"text", "text/plain"))])
