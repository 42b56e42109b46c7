"""The parser of large bodies against json.loads, and how much of a body one call may take."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from base64_text import Base64Text
from errors import EndpointError
from server import json_body
from server.json_body import parse_json
from server.request_body import read_json

SLICE = 16
LONG = "QUJD" * 20
VALUES = [
    f'"{LONG}"',
    f'"{LONG[:40]}\\n{LONG}\\/\\u0041"',
    f'"{LONG}\\ud83d\\ude00{LONG}"',
    f'"{LONG}\\ud83d"',
    f'"{LONG}\\""',
    f'"{LONG}\\\\"',
    f'"\\"inputs\\": \\"{LONG}\\""',
    f'"{LONG}\\x{LONG}"',
    f'"{LONG}\t"',
    f'"{LONG}\u00e9"',
    f'"{LONG}\udc80"',
    f'"{LONG}',
    f'"x \\"inputs": "{LONG}"',
    '"' + "\\n" * 40 + '"',
    '"' + "\\\\" * 40 + '"',
    '"' + "\\ud83d\\ude00" * 20 + "A" * 40 + '"',
    '"QUJD"',
    "1",
    "NaN",
    f'{{"inputs": "{LONG}"}}',
    f'[["inputs", "{LONG}"]]',
]
KEYS = ['"inputs"', '"parameters"', '"x \\"inputs"', '"\\u0069nputs"', "inputs", '"inputs\\""']
BETWEEN = st.sampled_from(["", " ", "\n", "\ufeff", "x"])


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(json_body, "SLICE", SLICE)
    monkeypatch.setattr(json_body, "SMALL", 2 * SLICE)


def said(parse, body):
    """What a parser finds or raises; NaN is equal to itself."""
    try:
        return repr(_plain(parse(body)))
    except (ValueError, RecursionError) as error:
        return UnicodeDecodeError if isinstance(error, UnicodeDecodeError) else ValueError


def _plain(value):
    """The value, with a text of its own where there is a Base64Text."""
    if isinstance(value, dict) and isinstance(text := value.get("inputs"), Base64Text):
        return {**value, "inputs": text[: len(text)]}
    return value


@st.composite
def bodies(draw):
    """Objects with the keys and values above in any order, white space, and what is no JSON."""
    entry = st.tuples(st.sampled_from(KEYS), BETWEEN, st.sampled_from(VALUES))
    entries = draw(st.lists(entry, max_size=4))
    joined = ",".join(f"{key}{space}:{space}{value}" for key, space, value in entries)
    first, last = draw(
        st.sampled_from([("{", "}"), ("[{", "}]"), ("{", ""), ("", ""), (" {", "} ")])
    )
    text = draw(BETWEEN) + first + joined + last
    encoding = draw(st.sampled_from(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "utf-32-le"]))
    body = text.encode(encoding, "surrogatepass")
    broken = draw(st.sampled_from([b""] * 8 + [b"\xff", b'"', b"\0", b"\\"]))
    place = draw(st.integers(0, len(body)))
    return body[:place] + broken + body[place:]


@settings(max_examples=1500, deadline=None)
@given(bodies())
@example(f'{{"inputs": "{LONG}", "inputs": "short"}}'.encode())
@example(f'{{"inputs": "{LONG}", "inputs": "{LONG}A"}}'.encode())
@example(f'{{"parameters": {{"inputs": "{LONG}"}}, "inputs": "{LONG}A"}}'.encode())
@example('{"\u2022inputs": 1}'.encode("utf-16-le") + b'"inputs":"' + LONG.encode())
def test_what_is_found_is_what_json_finds(body):
    assert said(parse_json, body) == said(json.loads, body)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("space", ["", " ", "\n\t"])
@pytest.mark.parametrize("text", [LONG, "data:a/b;base64," + LONG, LONG[:8] + "\n" + LONG])
def test_a_long_text_of_inputs_is_not_made_a_str(order, space, text):
    fields = [f'"inputs"{space}:{space}{json.dumps(text)}', '"parameters": {"language": "en"}']
    body = (space + "{" + ",".join(fields[::order]) + "}" + space).encode()
    value = parse_json(body)
    assert isinstance(value["inputs"], Base64Text)
    assert _plain(value) == json.loads(body)


def test_a_str_and_a_small_body_are_parsed_as_ever():
    assert parse_json('{"inputs": "' + LONG + '"}') == {"inputs": LONG}
    assert parse_json(b'{"inputs": "QUJD"}') == {"inputs": "QUJD"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"inputs": "' + b"A" * 90 + b'"', "INVALID_REQUEST"),
        (b'{"inputs": "' + b"A" * 90 + b'", "x": "\xff"}', "INVALID_REQUEST"),
        (b'[{"inputs": "' + b"A" * 90 + b'"}]', "INVALID_REQUEST"),
        (b"[" * 100_000, "INVALID_REQUEST"),
    ],
)
def test_what_cannot_be_read_is_told_as_in_small_bodies(body, code, monkeypatch):
    told = []
    for small in (SLICE, len(body)):
        monkeypatch.setattr(json_body, "SMALL", small)
        with pytest.raises(EndpointError) as caught:
            read_json(body)
        told.append((type(caught.value), str(caught.value)))
    assert told[0] == told[1]
    assert caught.value.code == code


def test_json_gets_no_more_than_the_rest_and_a_slice(monkeypatch):
    """Neither json nor a search for a quotation mark takes the whole text."""
    sizes = []
    loads = json.loads

    def spy(text, **options):
        sizes.append(len(text))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", spy)
    parameters = b', "parameters": {"language": "en"}}'
    encoded = base64.b64encode(bytes(3000))
    for text in (encoded, encoded.replace(b"A" * 24, b"A" * 20 + b"\\/\\n")):
        sizes.clear()
        value = parse_json(b'{"inputs": "' + text + b'"' + parameters)
        assert isinstance(value["inputs"], Base64Text)
        assert max(sizes[1:], default=0) <= SLICE + 2
        assert sizes[0] == len(b'{"inputs": ""' + parameters) + 32
