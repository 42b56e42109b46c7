"""Short-lived secrets for clients that should not have the server's key, such as browsers.

A client with the API key creates a secret, with the settings of its sessions. Until it expires, the
secret opens any number of sessions and nothing else, while that key is valid. Secrets are kept in
memory, so a restart of the server invalidates them.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from whosaid.server.clock import now
from whosaid.server.errors import Kind, Refusal
from whosaid.server.realtime.session_config import SessionConfig

PREFIX = "ek_"
# The most unexpired secrets. Each may have settings of 64 KiB.
MOST_SECRETS = 1_000
SHORTEST_S, LONGEST_S, DEFAULT_S = 10, 7200, 600
RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """`value` opens sessions with `config` until `expires_at` (since 1970, in s), while `key`, the
    token that created it, is valid.
    """

    value: str = field(repr=False)
    expires_at: int
    config: SessionConfig
    key: bytes = field(repr=False)


class ClientSecrets:
    """The secrets of one server. `now` returns seconds since 1970."""

    def __init__(self, now: Callable[[], float] = now) -> None:
        self._now = now
        # By digest, so that the time of a look-up reveals nothing about existing secrets.
        self._secrets: dict[bytes, ClientSecret] = {}

    def create(self, seconds: int, config: SessionConfig, key: bytes) -> ClientSecret:
        """Create a secret of a `key` for so many seconds. Raises Refusal if there are too many."""
        now = self._now()
        self._secrets = {key: each for key, each in self._secrets.items() if each.expires_at > now}
        if len(self._secrets) >= MOST_SECRETS:
            first = min(each.expires_at for each in self._secrets.values())
            text = f"{MOST_SECRETS} unexpired secrets exist, the most allowed"
            raise Refusal(Kind.BUSY, text, retry_after=max(1, first - int(now)))
        value = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        secret = ClientSecret(value, int(now) + seconds, config, key)
        self._secrets[_digest(value.encode())] = secret
        return secret

    def find(self, given: bytes) -> ClientSecret:
        """Return the client's secret. Raises Refusal if it is unknown or expired."""
        secret = self._secrets.get(_digest(given))
        if secret is None or secret.expires_at <= self._now():
            raise Refusal(Kind.UNAUTHORIZED, "the client secret is unknown, or has expired")
        return secret


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
