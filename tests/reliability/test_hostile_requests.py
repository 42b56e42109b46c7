"""Hostile and broken requests over HTTP: each gets its code, and nothing else."""

import json
import random
from functools import cache
from typing import Any

import httpx2
import pytest
import traffic

from tests.helpers.fuzz import SOUND, file_bodies, nonsense_bodies
from tests.helpers.tagged_files import TAGGED
from tests.support.audio_files import mutated
from tests.test_audio_faults import BOMBS
from tests.test_bombs import MP4S
from tests.test_robustness import REFUSALS, text64
from whosaid.errors import ClientError

CLIENTS = 4
# The most MiB that a server's memory may grow for a request that is refused.
BOMB_MEMORY = 64
# What hf-serve itself refuses, in words of its own, before the handler sees it.
NO_OBJECT = {"body is null", "body is a list", "body is text"}


def as_requests(bodies):
    """Yield the bodies that JSON can express, as requests."""
    found = {}
    for name, body in bodies.items():
        try:
            found[name] = traffic.in_json(body)
        except (TypeError, ValueError):
            continue
    return found


@pytest.mark.parametrize("kind", traffic.QUICK_SERVERS)
def test_every_fault_has_its_code(subject_of, kind):
    requests = as_requests({name: body for name, (body, _) in REFUSALS.items()})
    sent = traffic.send_all(subject_of(kind).url, list(requests.values()), CLIENTS)
    answers = dict(zip(requests, sent, strict=True))
    for name in NO_OBJECT:
        assert answers.pop(name).status_code == 422
    found = {name: (each.status_code, traffic.code_of(each)) for name, each in answers.items()}
    assert found == {name: (400, REFUSALS[name][1]) for name in found}
    assert len(found) > 30


@cache
def bombs() -> list[dict]:
    files = {name: make() for name, make in BOMBS.items()} | MP4S
    files["names"] = TAGGED["flv"](150_000)  # fewer are read in time on some machines
    return [traffic.in_json({"inputs": text64(data)}) for data in files.values()]


@pytest.mark.reliability
@pytest.mark.parametrize("kind", [traffic.OURS, traffic.HF_SERVE])
def test_bombs_are_refused_in_little_memory(subject_of, kind):
    requests = bombs()
    subject = subject_of(kind)
    traffic.send_all(subject.url, requests[:2], 1)
    subject.reset_peak()
    before = subject.resident
    answers = traffic.send_all(subject.url, requests, 1)
    assert {traffic.code_of(answer) for answer in answers} <= {"INVALID_AUDIO", "AUDIO_TOO_LONG"}
    grown = subject.peak - before
    print(f"{kind}: {len(requests)} bombs, peak {grown:+.1f} MiB")
    assert grown < BOMB_MEMORY


def repeated(start: bytes, part: bytes, end: bytes):
    """Return bodies of any size with many repetitions of one thing beside their audio."""
    spoken = b'{"inputs": "%b", ' % SOUND.encode()
    return lambda size: spoken + start + part * (size // len(part)) + end + b"}"


def counted(start: bytes, end: bytes):
    """Return bodies as in `repeated`, whose keys all differ."""
    return lambda size: repeated(
        start + b",".join(b'"%07x":1' % number for number in range(size // 12)), b" ", end
    )(1)


MUCH = {
    "one format": repeated(b'"parameters": {"output": [', b'"srt",', b'"srt"]}'),
    "wrong formats": repeated(b'"parameters": {"output": [', b"1,", b"1]}"),
    "wrong words": repeated(b'"parameters": {"hotwords": [', b"1,", b"1]}"),
    "words in a text": repeated(b'"parameters": {"hotwords": "', b"a,", b'"}'),
    "wrong clips": repeated(b'"parameters": {"known_speakers": [', b"{},", b"{}]}"),
    "keys": counted(b"", b""),
    "parameters": counted(b'"parameters": {', b"}"),
    "numbers": repeated(b'"x": [', b"1,", b"1]"),
    "lists": repeated(b'"x": [', b"[],", b"1]"),
    "brackets": repeated(b'"x": ', b"[", b"1"),
    "digits": repeated(b'"x": ', b"1", b""),
    "escapes": repeated(b'"x": "', b"\\u00e9", b'"'),
    "quotation marks": repeated(b'"x": "', b'\\"', b'"'),
}


@pytest.mark.reliability
@pytest.mark.parametrize("size", [16 * traffic.MIB - 2**13])
def test_much_of_anything_is_refused_in_little_memory(ours, size):
    """The refusal is about the size, with no error for each part."""
    traffic.send_all(ours.url, [{"content": SPOKEN, "headers": traffic.JSON}] * 2, 1)
    for name, make in MUCH.items():
        body = make(size)
        ours.reset_peak()
        before = ours.resident
        (answer,) = traffic.send_all(ours.url, [{"content": body, "headers": traffic.JSON}], 1)
        grown = ours.peak - before
        print(f"{name}: {answer.elapsed.total_seconds():.2f} s, peak {grown:+.1f} MiB")
        assert answer.status_code in (400, 413, 422), name
        assert len(answer.content) < 600, name
        assert grown < BOMB_MEMORY + 2 * size / traffic.MIB, name


@cache
def fuzzed(files: int, bodies: int) -> dict[int, Any]:
    file, nonsense = file_bodies(0), nonsense_bodies(0)
    return dict(enumerate([*map(file, range(files)), *map(nonsense, range(bodies))]))


@pytest.mark.parametrize(("files", "bodies"), traffic.scaled((10, 60), (2_000, 10_000)))
@pytest.mark.parametrize("kind", traffic.QUICK_SERVERS)
def test_fuzzed_inputs_are_answered_or_refused_with_a_code(subject_of, kind, files, bodies):
    made = fuzzed(files, bodies)
    if kind == traffic.HF_SERVE:
        made = {key: body for key, body in made.items() if isinstance(body, dict) or _echoes(body)}
    requests = as_requests(made)
    answers = traffic.send_all(subject_of(kind).url, list(requests.values()), CLIENTS)
    strange = []
    for number, answer in zip(requests, answers, strict=True):
        if isinstance(answer, httpx2.HTTPError):
            strange.append((number, repr(answer)))
        elif answer.status_code == 422:
            if isinstance(made[number], dict) and (kind == traffic.OURS or _is_plain(made[number])):
                strange.append((number, answer.text))
        elif traffic.code_of(answer) not in ("OK", *traffic.CODES):
            strange.append((number, answer.status_code, answer.text[:300]))
    assert strange == []


@pytest.mark.reliability
def test_the_handler_answers_or_refuses_bodies_beyond_json(handler):
    made, codes = fuzzed(0, 10_000), set()
    others = made.keys() - as_requests(made).keys()
    for number in others:
        try:
            json.dumps(handler(made[number]), allow_nan=False)
        except ClientError as error:
            codes.add(error.code)
        except Exception as error:
            raise AssertionError(f"body {number}") from error
    assert codes <= {*traffic.CODES}
    assert len(others) > 500


def _echoes(body) -> bool:
    """Return whether hf-serve, whose refusals repeat non-objects, can serialize the body."""
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):
        return False
    return True


def _is_plain(body) -> bool:
    """Return whether hf-serve can read the body: it cannot read surrogates."""
    return "\\ud800" not in repr(body)


PATHS = ("/", "/predict", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/models", "/x")
TYPES = (
    *(None, "application/json", "application/json; charset=utf-16"),
    *("multipart/form-data; boundary=x", "multipart/form-data", "audio/wav", "audio/mpeg"),
    *("application/octet-stream", "text/html", "image/png; a=\x7f"),
)
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
    b'--x\r\nContent-Disposition: form-data; name="parameters"\r\n\r\n{"batch_size": 2}\r\n'
    b"--x--\r\n"
)
SPOKEN = json.dumps({"inputs": SOUND}).encode()
BODIES = [FORM, SPOKEN, b"", b"{", b"\xff\xfe{", b'{"inputs": NaN}']


def request_of_anything(number: int) -> dict:
    """A request with a path, a type and a body that need not fit each other."""
    chance = random.Random(f"request {number}")
    body = chance.choice(BODIES)
    if chance.random() < 0.7:
        body = mutated(body or b"x", BODIES[:2], chance)
    headers = {}
    if kind := chance.choice(TYPES):
        headers["content-type"] = kind
    if chance.random() < 0.1:
        headers["accept"] = "text/event-stream"
    query = chance.choice(
        ["", "?stream=true", "?batch_size=0", "?language=%ff", "?" + "a=1&" * 200]
    )
    return {"url": chance.choice(PATHS) + query, "content": body, "headers": headers}


@pytest.mark.parametrize("count", traffic.scaled(150, 10_000))
def test_requests_of_any_shape_get_a_code(ours, count):
    requests = [request_of_anything(number) for number in range(count)]
    strange = []
    for number, answer in enumerate(traffic.send_all(ours.url, requests, CLIENTS)):
        if isinstance(answer, httpx2.HTTPError):
            strange.append((number, repr(answer)))
        elif answer.status_code >= 500 or (
            answer.status_code >= 400 and not answer.headers.get("x-error-message")
        ):
            strange.append((number, answer.status_code, answer.text[:200]))
        elif SOUND[:40] in answer.text:
            strange.append((number, "echoed"))
    assert strange == []


def test_without_the_key_nothing_is_read(ours):
    headers = {"authorization": f"Bearer {traffic.KEY}x"}
    requests = [{**traffic.in_json({"inputs": SOUND}), "headers": headers}, {"headers": headers}]
    answers = traffic.send_all(ours.url, requests, 1)
    assert [answer.status_code for answer in answers] == [401, 401]
