"""Allowed hosts and origins, and the answers to browsers about foreign pages."""

import asyncio
from functools import cache
from itertools import cycle, product

import pytest

from tests.helpers.asgi import HELLO, JSON, call, served
from whosaid.server.admission import host_name

EVIL = "http://evil.example"


@cache
def app_of(**settings):
    """Return one app for all requests with these settings, because it takes a tenth of a second
    to make."""
    service, app = served(**settings)
    service.release.set()
    return app


def ask(headers, method="GET", path="/metrics", **settings):
    parts = HELLO if method == "POST" else (b"",)
    return asyncio.run(call(app_of(**settings), method, path, headers=headers, parts=parts))


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "app.localhost:1", "localhost.", "127.0.0.1:8000"),
        *("127.8.9.1", "[::1]:8000", "[::1]"),
    ],
)
def test_names_of_this_machine_need_no_key(host):
    assert ask({"host": host}).status == 200


STRANGERS = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("evillocalhost", "192.168.1.5:8000", "[2001:db8::1]", "localhost@evil.example"),
    *("localhost:8000:8000", "localhost/", "127.0.0.1 evil", ""),
]

PATHS = ["/", "/v1/models", "/metrics", "/openapi.json", "/app/", "/x"]
PROBES = list(product(("GET", "HEAD"), ("/health", "/ready", "/health/")))


# Every host and every path; which of the two is looked at first, no pair of them decides.
@pytest.mark.parametrize(("host", "path"), list(zip(STRANGERS, cycle(PATHS))))
def test_others_are_refused_and_told_which_variable_opens(host, path):
    """A page whose name was pointed here (DNS rebinding) has its own name in `Host`."""
    reply = ask({"host": host}, path=path)
    assert (reply.status, reply.code) == (403, "HOST_NOT_ALLOWED")
    assert "ALLOWED_HOSTS" in reply.headers["x-error-message"]
    assert "API_KEY" in reply.headers["x-error-message"]
    assert b"evil" not in reply.body


@pytest.mark.parametrize(("host", "probe"), list(zip(STRANGERS, cycle(PROBES))))
def test_a_cluster_probes_by_any_address(host, probe):
    """A kubelet sends the pod's address as `Host`."""
    method, path = probe
    assert ask({"host": host}, method, path).status == 200


def test_only_reading_is_for_probes():
    assert ask({"host": "evil.example"}, "POST", "/health").code == "HOST_NOT_ALLOWED"


@pytest.mark.parametrize("host", STRANGERS)
def test_with_a_key_hosts_are_open(host):
    headers = {"host": host, "authorization": "Bearer key"}
    assert ask(headers, api_key="key").status == 200


def test_only_allowed_hosts_are_answered():
    names = frozenset({"asr.example", "*.asr.test", "[2001:db8::1]"})
    for key in (None, "key"):
        headers = {"authorization": "Bearer key"}
        settings = {"allowed_hosts": names, "api_key": key}
        for host in ("asr.example:80", "ASR.example", "a.b.asr.test", "[2001:db8::1]:8000"):
            assert ask({"host": host, **headers}, **settings).status == 200
        for host in ("localhost", "asr.test", "evilasr.test", "x.asr.example"):
            assert ask({"host": host, **headers}, **settings).code == "HOST_NOT_ALLOWED"


def test_the_listening_host_and_a_wildcard_are_answered():
    assert ask({"host": "evil.example"}, allowed_hosts=frozenset("*")).status == 200
    assert ask({"host": "asr.lan:8000"}, host="ASR.lan").status == 200
    assert ask({"host": "other.lan:8000"}, host="asr.lan").status == 403


@pytest.mark.parametrize(
    ("host", "name"), [("A.b.:1", "a.b"), ("[::1]:", "::1"), ("::1", ""), ("a b", ""), (":1", "")]
)
def test_the_name_in_a_host(host, name):
    assert host_name(host) == name


SAME = [
    {},
    {"origin": "http://localhost:8000"},
    {"origin": "https://localhost:8000"},  # a proxy ends TLS
    {"origin": "http://LOCALHOST:8000", "sec-fetch-site": "same-origin"},
    {"origin": "https://behind.example", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
]
FOREIGN = [
    *({"origin": each} for each in (EVIL, "http://localhost:3000", "http://localhost", "null", "")),
    {"origin": "http://localhost:8000.evil.example"},
    {"origin": "http://evil.example/localhost:8000"},
    {"origin": EVIL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"origin": "http://localhost:8000", "sec-fetch-site": "cross-site"},
    {"origin": "chrome-extension://abc", "sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
]
KINDS = ["application/json", "application/octet-stream", "audio/wav", ""]


@pytest.mark.parametrize("headers", SAME)
@pytest.mark.parametrize("key", [None, "key"])
def test_requests_of_the_own_page_and_of_programs_are_answered(headers, key):
    common = {"host": "localhost:8000", "authorization": "Bearer key"}
    assert ask({**common, **headers}, api_key=key).status == 200
    assert ask({**common, **JSON, **headers}, "POST", "/", api_key=key).status == 200


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("key", [None, "key"])
def test_requests_of_foreign_pages_are_refused_under_any_type(headers, key):
    common = {"host": "localhost:8000", "authorization": "Bearer key", **headers}
    replies = [ask(common, api_key=key), ask(common, "OPTIONS", "/", api_key=key)]
    for kind in KINDS:
        replies.append(ask({**common, "content-type": kind}, "POST", "/predict", api_key=key))
    for reply in replies:
        assert (reply.status, reply.code) == (403, "ORIGIN_NOT_ALLOWED")
        # What a proxy that sends a Host of its own does to this server's own page.
        assert "let the proxy pass the Host header on" in reply.json["detail"]
        assert "ALLOWED_ORIGINS" in reply.headers["x-error-message"]
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_foreign_links_are_answered_and_foreign_forms_refused():
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    headers["sec-fetch-dest"] = "document"
    assert ask(headers, path="/").status == 200
    assert ask({**headers, "origin": EVIL}, "POST", "/").code == "ORIGIN_NOT_ALLOWED"
    assert ask(headers, "POST", "/").code == "ORIGIN_NOT_ALLOWED"


ALLOWED = {"allowed_origins": frozenset({"https://app.example"})}
FROM_APP = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}


@pytest.mark.parametrize("key", [None, "key"])
def test_pages_of_an_allowed_origin_read_every_answer(key):
    for headers, status in (
        ({"authorization": "Bearer key"}, 200),
        ({"authorization": "Bearer other"}, 401 if key else 200),
        ({"authorization": "Bearer key", "content-type": "text/html"}, 415),
    ):
        method = "POST" if status == 415 else "GET"
        path = "/" if status == 415 else "/metrics"
        reply = ask({**FROM_APP, **headers}, method, path, **ALLOWED, api_key=key)
        assert reply.status == status
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert reply.headers["vary"] == "Origin"
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        ours = {"X-Error-Message", "X-Request-Id", "X-Should-Retry", "X-Warnings"}
        assert {*exposed} == ours | {"Location", "Retry-After"}
        assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize("key", [None, "key"])
def test_preflight_requests_need_no_key(key):
    asks = {"access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization,content-type,x-stainless-os"
    for path in ("/", "/predict", "/v1/audio/transcriptions"):
        reply = ask({**FROM_APP, **asks}, "OPTIONS", path, **ALLOWED, api_key=key)
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == "Authorization, *"
    foreign = ask({"origin": EVIL, **asks}, "OPTIONS", "/", **ALLOWED, api_key=key)
    assert (foreign.status, foreign.code) == (403, "ORIGIN_NOT_ALLOWED")
    assert "access-control-allow-origin" not in foreign.headers
    assert foreign.headers["vary"] == "Origin"


def test_an_allowed_origin_is_no_allowed_host():
    """The page may send requests, but a foreign name for this server is still refused."""
    asks = {**FROM_APP, "access-control-request-method": "POST"}
    for method in ("GET", "OPTIONS"):
        assert ask({**asks, "host": "evil.example"}, method, **ALLOWED).code == "HOST_NOT_ALLOWED"


def test_a_wildcard_allows_every_origin_except_null():
    everybody = {"allowed_origins": frozenset("*")}
    reply = ask({"origin": EVIL}, **everybody)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, EVIL)
    assert ask({"origin": "null"}, **everybody).code == "ORIGIN_NOT_ALLOWED"
