"""The parser of large bodies against json.loads, and how much of a body one call may take."""

import base64
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.helpers.calls import calls_of
from whosaid.errors import EndpointError, InvalidRequest
from whosaid.payload import encodings
from whosaid.payload.encodings import Base64Text, TooMuchJson, parse_json
from whosaid.server.request_body import read_json

SLICE = 16
LONG = "QUJD" * 20
VALUES = [
    *(f'"{LONG}"', f'"{LONG[:40]}\\n{LONG}\\/\\u0041"', f'"{LONG}\\ud83d\\ude00{LONG}"'),
    *(f'"{LONG}\\ud83d"', f'"{LONG}\\""', f'"{LONG}\\\\"', f'"\\"inputs\\": \\"{LONG}\\""'),
    *(f'"{LONG}\\x{LONG}"', f'"{LONG}\t"', f'"{LONG}\u00e9"', f'"{LONG}\udc80"', f'"{LONG}'),
    *(f'"x \\"inputs": "{LONG}"', '"' + "\\n" * 40 + '"', '"' + "\\\\" * 40 + '"'),
    *('"' + "\\ud83d\\ude00" * 20 + "A" * 40 + '"', '"QUJD"', "1", "NaN"),
    *(f'{{"inputs": "{LONG}"}}', f'[["inputs", "{LONG}"]]'),
]
KEYS = ['"inputs"', '"parameters"', '"x \\"inputs"', '"\\u0069nputs"', "inputs", '"inputs\\""']
BETWEEN = st.sampled_from(["", " ", "\n", "\ufeff", "x"])


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(encodings, "SLICE", SLICE)
    monkeypatch.setattr(encodings, "LONG", SLICE)


def said(parse, body):
    """Return a parser's result or exception; NaN equals itself."""
    try:
        return repr(_plain(parse(body)))
    except (ValueError, RecursionError) as error:
        return UnicodeDecodeError if isinstance(error, UnicodeDecodeError) else ValueError


def _plain(value):
    """The value, with a text of its own where there is a Base64Text."""
    if isinstance(value, Base64Text):
        return value[: len(value)]
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


@st.composite
def bodies(draw):
    """Objects with the keys and values above in any order, white space, and what is no JSON."""
    entry = st.tuples(st.sampled_from(KEYS), BETWEEN, st.sampled_from(VALUES))
    entries = draw(st.lists(entry, max_size=4))
    joined = ",".join(f"{key}{space}:{space}{value}" for key, space, value in entries)
    ends = [("{", "}"), ("[{", "}]"), ("{", ""), ("", ""), (" {", "} ")]
    first, last = draw(st.sampled_from(ends))
    text = draw(BETWEEN) + first + joined + last
    encoding = draw(st.sampled_from(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "utf-32-le"]))
    body = text.encode(encoding, "surrogatepass")
    broken = draw(st.sampled_from([b""] * 8 + [b"\xff", b'"', b"\0", b"\\"]))
    place = draw(st.integers(0, len(body)))
    return body[:place] + broken + body[place:]


@settings(max_examples=250)
@given(bodies())
@example(f'{{"inputs": "{LONG}", "inputs": "short"}}'.encode())
@example(f'{{"inputs": "{LONG}", "inputs": "{LONG}A"}}'.encode())
@example(f'{{"parameters": {{"inputs": "{LONG}"}}, "inputs": "{LONG}A"}}'.encode())
@example('{"\u2022inputs": 1}'.encode("utf-16-le") + b'"inputs":"' + LONG.encode())
def test_parsing_agrees_with_the_json_module(body):
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


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"inputs": "' + b"A" * 90 + b'"', "INVALID_REQUEST"),
        (b'{"inputs": "' + b"A" * 90 + b'", "x": "\xff"}', "INVALID_REQUEST"),
        (b'[{"inputs": "' + b"A" * 90 + b'"}]', "INVALID_REQUEST"),
        (b"[" * 100_000, "INVALID_REQUEST"),
    ],
)
def test_long_unreadable_bodies_fail_like_short_ones(body, code, monkeypatch):
    told = []
    for long in (SLICE, len(body)):
        monkeypatch.setattr(encodings, "LONG", long)
        with pytest.raises(EndpointError) as caught:
            read_json(body)
        told.append((type(caught.value), str(caught.value)))
    assert told[0] == told[1]
    assert caught.value.code == code


def test_json_gets_no_more_than_the_rest_and_a_slice(monkeypatch):
    """Neither json nor a search for a quotation mark takes the whole text."""
    parsed = calls_of(monkeypatch, json, "loads")
    parameters = b', "parameters": {"language": "en"}}'
    encoded = base64.b64encode(bytes(3000))
    for text in (encoded, encoded.replace(b"A" * 24, b"A" * 20 + b"\\/\\n")):
        parsed.clear()
        value = parse_json(b'{"inputs": "' + text + b'"' + parameters)
        assert isinstance(value["inputs"], Base64Text)
        sizes = [len(text) for (text,) in parsed]
        assert max(sizes[1:], default=0) <= SLICE + 2
        assert sizes[0] <= len(b'{"inputs": ""' + parameters) + 40


REPEATED = {
    "numbers": b"[%b1]" % (b"1," * 500),
    "lists": b"[%b1]" % (b"[]," * 500),
    "nested": b"[" * 1_000 + b"]" * 1_000,
    "a large integer": b"1" * 1_000,
    "white space": b" " * 1_000 + b"1",
    "keys": b"{%b}" % b",".join(b'"%d":1' % number for number in range(200)),
    "a long key": b'{"%b": 1}' % (b"k" * 1_000),
    "short texts": b'["%b"]' % b'","'.join([b"abc"] * 200),
    "no ASCII": b'"%b"' % ("\u00e9" * 500).encode(),
    "no ASCII, escaped": b'"%b"' % (b"\\u00e9" * 200),
    "quotation marks": b'"%b"' % (b'\\"' * 500),
    "backslashes": b'"%b"' % (b"\\\\" * 500),
    "without an end": b'"%b' % (b'\\"' * 500),
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("audio", [b"", b'"inputs": "%b",' % LONG.encode()])
def test_too_much_json_is_refused_before_parsing(monkeypatch, name, audio):
    monkeypatch.setattr(encodings, "MOST_JSON", 700)
    parsed = calls_of(monkeypatch, json, "loads")
    body = b"{%b" % audio + b'"x": %b}' % REPEATED[name]
    with pytest.raises(TooMuchJson):
        parse_json(body)
    with pytest.raises(TooMuchJson):
        parse_json(body.decode())
    assert parsed == []


def test_searching_stops_where_the_bound_is_passed(monkeypatch):
    """A refusal looks at no more quotation marks than the bound has characters."""
    monkeypatch.setattr(encodings, "MOST_JSON", 700)
    looks = calls_of(monkeypatch, encodings, "_find_quote")
    for body in (b'["",' * 9_000, b'"' + b'\\"' * 9_000, b'"' + b"\\\\" * 9_000):
        looks.clear()
        with pytest.raises(TooMuchJson):
            parse_json(body)
        assert len(looks) < 700


def test_clips_as_long_as_they_may_be_are_not_parsed(monkeypatch):
    """Base64 of twenty clips does not count towards the bound."""
    monkeypatch.setattr(encodings, "MOST_JSON", 2_000)
    clips = [{"name": f"n{place}", "reference": LONG * 50} for place in range(20)]
    body = {"inputs": LONG * 500, "parameters": {"known_speakers": clips}}
    assert _plain(parse_json(json.dumps(body).encode())) == body


def test_utf_16_is_read_within_the_bound(monkeypatch):
    body = json.dumps({"inputs": LONG}).encode("utf-16")
    assert parse_json(body) == {"inputs": LONG}
    monkeypatch.setattr(encodings, "MOST_JSON", len(body) - 1)
    with pytest.raises(InvalidRequest, match="the body is not UTF-8"):
        read_json(body)


def test_a_number_is_no_text_that_a_client_can_name():
    body = b'{"inputs": "%b", "x": [1.0, 1.5, 0.0, 2e3, 1.0e0]}' % LONG.encode()
    assert parse_json(body)["x"] == [1.0, 1.5, 0.0, 2000.0, 1.0]
