"""Which web pages may ask: by the names that the server answers to, and by where a page came from.

A browser sends requests to any address on behalf of any page, so whoever opens a foreign page lends
it their place in the network: to this machine's loopback, say, which needs no key. Two things tell
such requests. A name that a stranger's DNS points here (DNS rebinding) stands in `Host`. What a
page sends to another site has that page's `Origin`, and `Sec-Fetch-Site`, which no script can set.
A body's type could not tell them: browsers send forms, and bytes without a type, across sites
without asking first, and both are ways to send audio here.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from starlette.datastructures import Headers

from server.errors import HostNotAllowed, OriginNotAllowed
from server.settings import ServerSettings

# They tell nothing of any request, and a cluster asks for them by the address of the container.
ASKED_BY_ADDRESS = ("/health", "/ready")
READING = ("GET", "HEAD")
ANY = "*"
AUTHORITY = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^][:@/\s]+)(?::(?P<port>[0-9]*))?")
ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/\s]+)")
DEFAULT_PORTS = {"http": "80", "https": "443"}
# What a page of an allowed origin may send, and read of an answer beside its body.
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    # The star does not stand for the key's header, by the Fetch standard.
    (b"access-control-allow-headers", b"Authorization, *"),
    (b"access-control-max-age", b"600"),
)
EXPOSED = b"Location, Retry-After, X-Error-Message, X-Request-Id, X-Should-Retry, X-Warnings"


class OriginPolicy:
    """What `settings` say of hosts and origins.

    With an API key every host is answered unless `allowed_hosts` names some, because a page that
    came by a foreign name has no key to send.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._hosts = {name.strip("[]") for name in settings.allowed_hosts}
        if not self._hosts and settings.api_key:
            self._hosts = {ANY}
        self._origins = settings.allowed_origins
        self._bound_to = settings.host.lower()

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raises HostNotAllowed or OriginNotAllowed."""
        if path in ASKED_BY_ADDRESS and method in READING:
            return
        if not self._answers_to(host_name(headers.get("host", ""))):
            raise HostNotAllowed(
                "requests for this host are not answered: name it in ALLOWED_HOSTS, or set API_KEY"
            )
        if not self._is_listed(headers) and is_foreign(method, headers):
            raise OriginNotAllowed(
                "pages of other sites are not answered, unless ALLOWED_ORIGINS names them; for this"
                " server's own page behind a proxy, let the proxy pass the Host header on"
            )

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Whether a browser asks if a page of an allowed origin may send a request."""
        asks = method == "OPTIONS" and "access-control-request-method" in headers
        return asks and self._is_listed(headers)

    def answer_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """What lets a page of an allowed origin read the answer; nothing where none is allowed."""
        if not self._origins:
            return []
        vary = [(b"vary", b"Origin")]
        if not self._is_listed(headers):
            return vary
        origin = headers["origin"].encode("latin-1")
        allowed = [(b"access-control-allow-origin", origin)]
        return [*vary, *allowed, (b"access-control-expose-headers", EXPOSED)]

    def _answers_to(self, name: str) -> bool:
        if not self._hosts:
            return is_loopback(name) or name == self._bound_to
        return any(
            allowed in (ANY, name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))
            for allowed in self._hosts
        )

    def _is_listed(self, headers: Headers) -> bool:
        origin = headers.get("origin", "").lower()
        return bool(ORIGIN.fullmatch(origin)) and not self._origins.isdisjoint((ANY, origin))


def host_name(host: str) -> str:
    """The name or address in a `Host`, without port and brackets; "" where there is none."""
    found = AUTHORITY.fullmatch(host.lower())
    return found["name"].strip("[]").removesuffix(".") if found else ""


def is_loopback(name: str) -> bool:
    """Whether a name, or an address, always means this machine (RFC 6761, section 6.3)."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def is_foreign(method: str, headers: Headers) -> bool:
    """Whether a browser sends this for a page of another site, or of another port.

    A link to the page here is no such request: the browser goes there and shows it by itself.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        # Browsers tell the site to https and loopback alone.
        return site != "same-origin" if site else not _is_same(origin, headers.get("host", ""))
    follows_link = (
        method in READING
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    return site in ("same-site", "cross-site") and not follows_link


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin has the name and port of a `Host`; the scheme may be a proxy's."""
    found = ORIGIN.fullmatch(origin.lower())
    if not found:
        return False  # "null": a sandboxed frame, a file
    ours, theirs = AUTHORITY.fullmatch(host.lower()), AUTHORITY.fullmatch(found["authority"])
    if not ours or not theirs or ours["name"] != theirs["name"]:
        return False
    default = DEFAULT_PORTS.get(found["scheme"])
    return (ours["port"] or default) == (theirs["port"] or default)
