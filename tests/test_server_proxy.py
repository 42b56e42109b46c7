"""The server behind nginx, as `whosaid/server/nginx.conf.template` has it: TLS, limits, WebSockets
and a path prefix."""

import asyncio
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from websockets.asyncio.client import connect

from config import REPOSITORY
from tests.helpers.asgi import FakeEndpoint, served
from tests.helpers.live_app import listening
from tests.helpers.live_stand_ins import Drivers, live
from tests.helpers.servers import free_port
from whosaid.server.lifecycle import DrainingServer

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(
    not NGINX or not OPENSSL, reason="left out: no nginx or openssl (apt-get: nginx-light)"
)
TEMPLATE = (REPOSITORY / "whosaid" / "server" / "nginx.conf.template").read_text(encoding="utf-8")
HEADERS = {"authorization": "Bearer key"}


@dataclass
class Proxy:
    """A running proxy: `https` and `http` are its ports."""

    https: int
    http: int
    tls: ssl.SSLContext

    def url(self, path: str) -> str:
        return f"https://localhost:{self.https}{path}"

    def ask(self, method: str, path: str, **options) -> httpx2.Response:
        options = {"headers": HEADERS, "timeout": 60, "verify": self.tls} | options
        return httpx2.request(method, self.url(path), **options)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "privkey.pem", folder / "fullchain.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-keyout", str(key), "-out", str(cert), *subject]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@contextmanager
def proxied(
    folder: Path, certificate: Path, upstream: tuple[str, int], **changes: str
) -> Iterator[Proxy]:
    """nginx before `upstream`; `changes` replace directives of the template."""
    values = {
        "UPSTREAM": "{}:{}".format(*upstream), "HTTP_PORT": str(free_port()),
        "HTTPS_PORT": str(free_port()), "SERVER_NAME": "localhost", "PREFIX": "/asr",
        "MAX_BODY": "1m", "TLS": str(certificate),
    }  # fmt: skip
    site = re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], TEMPLATE)
    for directive, value in changes.items():
        site = re.sub(rf"(?m)^(\s*{directive}) .*;", rf"\1 {value};", site)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in kinds)
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    subprocess.run([NGINX, "-t", "-c", str(file)], check=True, capture_output=True)
    with subprocess.Popen([NGINX, "-c", str(file)], stderr=subprocess.DEVNULL) as process:
        try:
            ports = int(values["HTTPS_PORT"]), int(values["HTTP_PORT"])
            for port in ports:
                wait_for(port, process)
            tls = ssl.create_default_context(cafile=str(certificate / "fullchain.pem"))
            yield Proxy(*ports, tls)
        finally:
            process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
        except ConnectionRefusedError:
            continue
        return
    raise AssertionError("nginx has ended")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, certificate) -> Iterator[Proxy]:
    endpoint, gate = served(api_key="key", page=True)
    endpoint.release.set()
    folder = tmp_path_factory.mktemp("nginx")
    with (
        listening(DrainingServer(gate, endpoint, 600)) as where,
        proxied(folder, certificate, where) as running,
    ):
        yield running


def test_requests_are_answered_over_tls_below_the_prefix(proxy):
    assert proxy.ask("GET", "/asr/health").json() == {"status": "ok"}
    body = {"inputs": "AAAA"}
    assert proxy.ask("POST", "/asr/predict", json=body).json()["text"] == ""
    events = proxy.ask("POST", "/asr/?stream=true", json=body).text
    kinds = [json.loads(line[6:])["type"] for line in events.splitlines() if line]
    assert (kinds[0], kinds[-1]) == ("decoded", "answer")
    sent_on = proxy.ask("GET", "/asr/", headers={**HEADERS, "accept": "text/html"})
    assert (sent_on.status_code, sent_on.headers["location"]) == (307, "app/")
    assert proxy.ask("GET", "/asr/app/").status_code == 200
    assert proxy.ask("GET", "/health").status_code == 404


def test_plain_http_is_sent_on_to_https(proxy):
    answer = httpx2.get(f"http://localhost:{proxy.http}/asr/health")
    assert (answer.status_code, answer.headers["location"]) == (301, proxy.url("/asr/health"))


def test_a_foreign_page_is_refused_through_the_proxy(proxy):
    own = {**HEADERS, "origin": f"https://localhost:{proxy.https}"}
    assert proxy.ask("GET", "/asr/v1/models", headers=own).status_code == 200
    foreign = {**HEADERS, "origin": "https://evil.example"}
    refused = proxy.ask("GET", "/asr/v1/models", headers=foreign)
    assert refused.headers["x-error-message"].startswith("ORIGIN_NOT_ALLOWED")


def test_the_proxy_refuses_a_body_beyond_its_limit(proxy):
    assert proxy.ask("POST", "/asr/", content=bytes(2**20 + 1)).status_code == 413


def tls_socket(proxy: Proxy) -> ssl.SSLSocket:
    plain = socket.create_connection(("localhost", proxy.https), timeout=60)
    return proxy.tls.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize(
    ("directive", "sent"),
    [
        ("client_header_timeout", b"GET /asr/health HTTP/1.1\r\nhost: local"),
        (
            "client_body_timeout",
            b"POST /asr/ HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key\r\n"
            b"content-length: 9\r\n\r\na",
        ),
    ],
)
def test_a_client_that_stops_sending_is_closed(tmp_path, certificate, directive, sent):
    endpoint, gate = served(api_key="key")
    with (
        listening(DrainingServer(gate, endpoint, 600)) as where,
        proxied(tmp_path, certificate, where, **{directive: "1s"}) as proxy,
        tls_socket(proxy) as client,
    ):
        client.sendall(sent)
        while client.recv(4096):
            pass


def test_requests_and_connections_of_one_address_are_limited(tmp_path, certificate):
    endpoint, gate = served()
    with listening(DrainingServer(gate, endpoint, 600)) as where:
        few = {"limit_req_zone": "$binary_remote_addr zone=requests:10m rate=1r/m"}
        few["limit_req"] = "zone=requests burst=2 nodelay"
        with proxied(tmp_path, certificate, where, **few) as proxy:
            statuses = [proxy.ask("GET", "/asr/health").status_code for _ in range(5)]
            assert statuses == [200] * 3 + [429] * 2
        with (
            proxied(tmp_path, certificate, where, limit_conn="connections 1") as proxy,
            tls_socket(proxy) as first,
        ):
            first.sendall(b"POST /asr/ HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\na")
            while not gate.running:
                pass
            assert proxy.ask("GET", "/asr/health").status_code == 429


def test_a_live_session_is_held_through_the_proxy(tmp_path, certificate):
    gate = live(Drivers(), api_key="key")
    with (
        listening(DrainingServer(gate, FakeEndpoint(), 600)) as where,
        proxied(tmp_path, certificate, where) as proxy,
    ):
        url = proxy.url("/asr/v1/realtime").replace("https", "wss")
        asyncio.run(hold_a_session(url, proxy.tls))


async def hold_a_session(url: str, tls: ssl.SSLContext) -> None:
    """Without websockets' synchronous client, whose two threads share a TLS connection."""
    async with asyncio.timeout(60), connect(url, ssl=tls, additional_headers=HEADERS) as session:
        assert json.loads(await session.recv())["type"] == "session.created"
        await session.send(json.dumps({"type": "input_audio_buffer.clear"}))
        assert json.loads(await session.recv())["type"] == "input_audio_buffer.cleared"
