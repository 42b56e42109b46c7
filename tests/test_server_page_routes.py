"""The page's files over HTTP, without a browser: their content and their headers."""

import asyncio
import http.client
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import PurePath
from urllib.parse import urlsplit

import pytest

from tests.helpers.asgi import FakeEndpoint, call, served
from tests.helpers.live_app import serving
from tests.helpers.readers import read_html
from whosaid.server.page.routes import STATIC

FILES = {
    path.relative_to(STATIC).as_posix(): path.read_bytes()
    for path in STATIC.rglob("*")
    if path.is_file()
}
OWN = {name: data for name, data in FILES.items() if not name.startswith("vendor/")}
MEDIA_TYPES = {
    ".html": {"text/html; charset=utf-8"},
    ".css": {"text/css; charset=utf-8"},
    ".js": {"text/javascript; charset=utf-8", "application/javascript"},  # from Python 3.12 on
    ".svg": {"image/svg+xml"},
    ".txt": {"text/plain; charset=utf-8"},
}


@pytest.fixture(scope="module")
def connection() -> Iterator[http.client.HTTPConnection]:
    """A client that sends a path as it is."""
    with serving(FakeEndpoint(), api_key="secret") as url:
        made = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        yield made
        made.close()


def ask(connection, path: str, method: str = "GET", **headers: str):
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


@pytest.mark.parametrize("name", ["", *FILES])
def test_each_file_needs_no_key_and_has_a_strict_policy(connection, name):
    status, headers, body = ask(connection, f"/app/{name}")
    name = name or "index.html"
    assert (status, body) == (200, FILES[name])
    assert headers["content-type"] in MEDIA_TYPES[PurePath(name).suffix]
    assert headers["cache-control"] == "no-cache"
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert {policy.pop("media-src")} == {"blob:"}
    assert {*policy.values()} <= {"'none'", "'self'", "'script'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in headers
    assert ask(connection, f"/app/{name}", "HEAD")[::2] == (200, b"")
    kept = {"If-None-Match": headers["etag"]}
    assert ask(connection, f"/app/{name}", **kept)[::2] == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/app/../config.py",
        "/app/%2e%2e/%2e%2e/config.py",
        "/app/..%2f..%2f..%2fetc%2fpasswd",
        "/app//etc/passwd",
        "/app/%2Fetc%2Fpasswd",
        "/app/..\\routes.py",
        "/app/routes.py",
        "/app/static/page.js",
        "/app/page.js%00",
        "/app/PAGE.JS",
        "/app/%ff%fe",
        "/app/" + 300 * "a",
        "/app/" + 300 * "%2e%2e%2f",
        "/app/gradio_api/file=/etc/passwd",
        "/app/config",
        "/apple",
    ],
)
def test_nothing_else_is_reached(connection, path):
    status, headers, body = ask(connection, path, Authorization="Bearer secret")
    assert (status, headers["content-type"]) == (404, "application/json")
    assert body == b'{"detail":"NOT_FOUND: no such path"}'


def test_the_page_is_only_read(connection):
    status, headers, _ = ask(connection, "/app/page.js", "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_browsers_are_redirected_below_any_proxy_path(connection):
    for path in ("/", "/app"):
        status, headers, _ = ask(connection, path, Accept="text/html")
        assert (status, headers["location"]) == (307, "app/")


def test_without_a_page_there_is_none():
    _, app = served()
    for path in ("/app", "/app/", "/app/page.js"):
        assert asyncio.run(call(app, "GET", path)).status == 404


def test_the_page_names_nothing_inline_and_nothing_foreign():
    tags = read_html(FILES["index.html"].decode()).elements
    for tag, attributes in tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], tag
        assert tag not in ("style", "iframe", "base")
        named = attributes.get("src") or attributes.get("href")
        assert named is None or named in FILES, named
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len({*ids})
    for name, file in OWN.items():
        text = file.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), name
        for module in re.findall(r'from "\./([\w./]+)"', text):
            assert module in FILES
        if name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|\beval\b|Function\(", text
            )
            for each in re.findall(r'byId\("([\w-]+)"\)', text):
                assert each in ids, each


def test_vendored_libraries_are_those_of_the_list():
    """Each has a licence, and the hash that is written there."""
    listed = re.findall(r"^(\w{64})  (\S+)$", FILES["vendor/README.txt"].decode(), re.MULTILINE)
    libraries = {name.removeprefix("vendor/") for name in FILES if re.match(r"vendor/.+\.js", name)}
    assert {name for _, name in listed} == libraries
    for digest, name in listed:
        assert sha256(FILES[f"vendor/{name}"]).hexdigest() == digest
        assert "opyright" in FILES[f"vendor/{name.removesuffix('.js')}.txt"].decode()


def luminance(colour: str) -> float:
    """WCAG 2: relative luminance of `#rrggbb`."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_every_colour_can_be_read(mode):
    """All eight speakers' colours, including those that no other test shows; WCAG 2's AA."""
    css = FILES["page.css"].decode()
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", css)
    colours = {name: both[mode] for name, *both in pairs}
    speakers = [f"c{i}" for i in range(8)]
    for name in ("text", "quiet", "failure", "accent", *speakers):
        for ground in ("ground", "card"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name, ground in (("text", "hover"), ("quiet", "hover"), ("text", "notice")):
        assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    # Borders of what is filled in, and the ring of the focus.
    assert contrast(colours["field"], colours["card"]) >= 3
