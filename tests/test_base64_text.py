"""Base64 in slices against the library's decoder on the whole, and that nothing takes the whole."""

import base64
import binascii
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.calls import calls_of
from whosaid.payload import encodings
from whosaid.payload.encodings import Base64Text, base64_digits, decode_digits

SLICE = 12
HEADER = re.compile(r"\s*data:[^\n]{0,300}?;base64,", re.ASCII | re.IGNORECASE)
# What may stand in a text, right and wrong.
PARTS = ["QUJD", "QQ==", "QUI=", "=", "Q", " ", "\n", "\x1c", "data:a;base64,", "-_", "\u00e9", ","]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(encodings, "SLICE", SLICE)


def whole(text: str) -> bytes | type[Exception]:
    """Return the text's content, with one call for each of the steps."""
    header = HEADER.match(text)
    try:
        digits = text[header.end() if header else 0 :].encode("ascii")
        digits = digits.translate(bytes.maketrans(b"-_", b"+/"), b" \t\n\r\v\f")
        digits += b"" if digits.endswith(b"=") else b"=" * (-len(digits) % 4)
        return binascii.a2b_base64(digits, strict_mode=True) if len(digits) % 4 == 0 else ValueError
    except ValueError as error:
        return type(error)


def in_slices(text: str | Base64Text) -> bytes | type[Exception]:
    try:
        digits = base64_digits(text)
        return decode_digits(digits) if len(digits) % 4 == 0 else ValueError
    except ValueError as error:
        return type(error)


@given(st.lists(st.sampled_from(PARTS), max_size=30))
@example(["QUJD"] * 2 + ["QQ=="] + ["QUJD"])
@example([" "] * 30 + ["QUJD"])
@example(["\x1c"] * 30 + ["QUJD"])
def test_decoding_in_slices_equals_decoding_the_whole(parts):
    text = "".join(parts)
    # A header must fit into two slices, which are larger than any in truth.
    if "data" not in text or text.index("data") < SLICE:
        assert in_slices(text) == whole(text)
        if text.isascii():
            assert in_slices(Base64Text(text.encode())) == whole(text)
            assert in_slices(Base64Text(memoryview(text.encode()))) == whole(text)


def test_a_header_follows_any_white_space():
    for spaces in range(5 * SLICE):
        assert in_slices(" " * spaces + "data:;base64,QUI=") == b"AB"


@pytest.mark.parametrize("kind", ['video/webm;codecs="vp8, opus"', "audio/webm;codecs=vp8,opus"])
def test_a_media_type_may_have_commas(monkeypatch, kind):
    monkeypatch.setattr(encodings, "SLICE", 100)
    assert in_slices(f"data:{kind};base64,QUI=") == b"AB"


@given(st.binary(max_size=200))
def test_all_base64_alphabets_round_trip(data):
    assert in_slices(base64.b64encode(data).decode()) == data
    assert in_slices(base64.encodebytes(data).decode()) == data
    assert in_slices(base64.urlsafe_b64encode(data).decode()) == data
    assert in_slices(base64.urlsafe_b64encode(data).decode().rstrip("=")) == data


def test_no_call_takes_more_than_a_slice(monkeypatch):
    sizes = []
    decoded = calls_of(monkeypatch, binascii, "a2b_base64")

    class Text(Base64Text):
        def __getitem__(self, part):
            sizes.append(len(taken := super().__getitem__(part)) // 2)
            return taken

    data = bytes(range(256)) * 40
    assert in_slices(Text(base64.b64encode(data))) == data
    assert max(*sizes, *(len(part) for (part,) in decoded)) <= SLICE
