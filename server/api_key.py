"""Who has the API key, and how often a client may guess it.

A client that has sent too many wrong keys is told to wait, and until then its key is not looked at:
else the answer to a right one would still tell it from wrong ones, however slow those were. So that
nobody waits for what others do, only clients with wrong keys of their own are ever told to wait,
and an address from which the right key has come, which may be that of a proxy or of an office, is
not told again. What is kept of clients is bounded.
"""

from __future__ import annotations

import hmac
import math
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from pydantic import SecretStr
from starlette.datastructures import Headers

from server.errors import TooManyGuesses, Unauthorized

# A client's wrong keys that are answered at once, and the seconds that pay for each.
FREE_GUESSES, SECONDS_PER_GUESS = 10, 10.0
# The same for all clients together; beyond it each has one free guess.
ALL_FREE_GUESSES, ALL_SECONDS_PER_GUESS = 100, 1.0
# Clients that are remembered; beyond so many the oldest is forgotten.
MOST_GUESSERS, MOST_KNOWN = 10_000, 1_000


class ApiKey:
    """The key that clients must send; without a `key` everybody is let in. `now` is in seconds."""

    def __init__(self, key: SecretStr | None, now: Callable[[], float] = time.monotonic) -> None:
        self._key = key.get_secret_value().encode() if key else b""
        self._guesses = Guesses(now)

    def begins_with(self, prefix: bytes) -> bool:
        """Whether there is a key, and it begins so."""
        return self._key.startswith(prefix)

    def authorize(self, headers: Headers, address: str) -> None:
        """Raises Unauthorized unless the request has the key, and TooManyGuesses where the client
        at `address` may not try now.

        It comes as bearer token or, because that is what a browser can send, as the password of
        HTTP's Basic scheme. Compared in constant time.
        """
        self.authorize_token(token_of(headers), address)

    def authorize_token(self, given: bytes, address: str) -> None:
        """The same for a key that came in another way; empty where none came."""
        if not self._key:
            return
        if not given:
            raise Unauthorized("the bearer token is missing")
        client = network(address)
        if seconds := self._guesses.seconds_to_wait(client):
            raise TooManyGuesses("wrong keys came too often: this one was not looked at", seconds)
        if not hmac.compare_digest(given, self._key):
            self._guesses.add_wrong(client)
            raise Unauthorized("the bearer token is wrong")
        self._guesses.add_right(client)


class Guesses:
    """Wrong keys by client, as the time at which they are paid for: the generic cell rate
    algorithm, a number each. `now` returns seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._paid_at: dict[str, float] = {}  # the latest wrong key last
        self._all_paid_at = -math.inf
        self._known: dict[str, None] = {}  # the latest right key last

    def seconds_to_wait(self, client: str) -> int:
        """How long no key of this client is looked at; 0 where it is now."""
        if client in self._known or client not in self._paid_at:
            return 0
        now = self._now()
        crowded = self._all_paid_at - now >= ALL_FREE_GUESSES * ALL_SECONDS_PER_GUESS
        free = 1 if crowded else FREE_GUESSES
        return max(0, math.ceil(self._paid_at[client] - now - (free - 1) * SECONDS_PER_GUESS))

    def add_wrong(self, client: str) -> None:
        """A wrong key came from `client`."""
        now = self._now()
        self._all_paid_at = max(now, self._all_paid_at) + ALL_SECONDS_PER_GUESS
        paid_at = max(now, self._paid_at.pop(client, now)) + SECONDS_PER_GUESS
        self._paid_at[client] = paid_at
        if len(self._paid_at) > MOST_GUESSERS:
            del self._paid_at[next(iter(self._paid_at))]

    def add_right(self, client: str) -> None:
        """The right key came from `client`."""
        self._known.pop(client, None)
        self._known[client] = None
        self._paid_at.pop(client, None)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def network(address: str) -> str:
    """Return the name under which a client's guesses are counted: its IPv4 address, the first 64
    bits of its IPv6 address, or "" for all clients without an address: those of a Unix socket, and
    those whose X-Forwarded-For holds something else.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or ip.packed[:8].hex())
    return str(ip)


def token_of(headers: Headers) -> bytes:
    """The key that a request's head has; empty where it has none."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    given = credentials.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return given if scheme.lower() == "bearer" else b""
    try:
        return b64decode(given, validate=True).partition(b":")[2]
    except Base64Error:
        return b""
