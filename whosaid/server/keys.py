"""The clients' keys: API_KEY, and the keys of API_KEYS_FILE with their names, limits and weights.

docs/server.md has an example of the file.
"""

import hmac
import logging
import os
import time
import tomllib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from secrets import token_bytes
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from starlette.datastructures import Headers

from whosaid.server.clock import now
from whosaid.server.errors import Kind, Refusal

logger = logging.getLogger("server")

# Names of principals, and hexadecimal digits of an owner that name a client with another token.
ANONYMOUS, KEY_HOLDER, SHOWN_DIGITS = "anonymous", "key", 8
DAY_S = 86_400.0
# Seconds between two looks at the file, and after which a client without a free place may retry.
LOOK_S, RETRY_S = 1.0, 5


class KeyLimits(BaseModel):
    """A table of API_KEYS_FILE."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    keys: list[Annotated[SecretStr, Field(min_length=1)]] = Field(min_length=1)
    max_requests: int | None = Field(default=None, ge=1)
    audio_seconds_per_day: float | None = Field(default=None, gt=0)
    weight: float = Field(default=1.0, gt=0, le=100)


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
KEYS_FILE = TypeAdapter(dict[Name, KeyLimits])


def read_keys(file: Path) -> dict[str, KeyLimits]:
    """Return the file's tables by name. Raises ValueError, of one line without keys."""
    try:
        found = KEYS_FILE.validate_python(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError:
        raise ValueError("is not TOML") from None
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    keys = [key.get_secret_value() for limits in found.values() for key in limits.keys]
    if len({*keys}) < len(keys):
        raise ValueError("has a key twice")
    return found


class Account:
    """The use of a name's keys. `limits` change with the file, the rest lasts with the process."""

    def __init__(self, name: str, limits: KeyLimits) -> None:
        self.name, self.limits = name, limits
        self._requests, self._seconds, self._day = 0, 0.0, 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request during the block. Raises Refusal beyond the limits."""
        if (most := self.limits.max_requests) is not None and self._requests >= most:
            text = f"{most} requests of {self.name} are waiting, the most that its key allows"
            raise Refusal(Kind.BUSY, text, retry_after=RETRY_S)
        self.check_audio()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def check_audio(self) -> None:
        """Raise Refusal if the day's audio is used."""
        seconds = self.limits.audio_seconds_per_day
        if seconds is not None and self._today() >= seconds:
            text = f"{self.name} has used the {seconds:g} s of audio that its key allows a day"
            left = ceil(self._day + DAY_S - now())
            raise Refusal(Kind.QUOTA_EXCEEDED, text, retry_after=left)

    def charge(self, seconds: float) -> None:
        self._seconds = self._today() + seconds

    def _today(self) -> float:
        """Return the seconds used since midnight, UTC."""
        day = now() // DAY_S * DAY_S
        if day != self._day:
            self._day, self._seconds = day, 0.0
        return self._seconds


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request: a `name` for logs, and the `owner` of what the server keeps, which
    is a digest that does not reveal the key. Names of API_KEYS_FILE have an `account`.
    """

    name: str
    owner: bytes
    account: Account | None = None


class ApiKeys:
    """The keys that clients must send; without any, every client is accepted.

    `owner_key` keys the digests of principals, by default until the process ends. Unchecked tokens
    have principals of their own, because a proxy may have checked them. A changed `file` is read
    again; if it is wrong, the keys stay. A name's owner outlasts its keys.
    """

    def __init__(
        self,
        key: SecretStr | None,
        file: Path | None = None,
        owner_key: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key.get_secret_value().encode() if key else b""
        self._file, self._clock = file, clock
        self._owner_key = owner_key or token_bytes(32)
        self._accounts: dict[str, Account] = {}
        self._looked, self._stamp = clock(), self._stamp_of_file()
        if file is not None:
            self._take(read_keys(file))

    def account(self, name: str | None) -> Account | None:
        self._look()
        return self._accounts.get(name or "")

    def begins_with(self, prefix: bytes) -> bool:
        """Return whether a key begins like a client secret."""
        return any(key.startswith(prefix) for key, _ in self._keys())

    def authorize(self, given: bytes) -> Principal:
        """Return who sends `given`. Raises Refusal unless it is a key (in constant time)."""
        self._look()
        owner = hmac.digest(self._owner_key, given, "sha256")
        if not self._key and self._file is None:
            return Principal(owner.hex()[:SHOWN_DIGITS] if given else ANONYMOUS, owner)
        if not given:
            raise Refusal(Kind.UNAUTHORIZED, "the bearer token is missing")
        equal = [account for key, account in self._keys() if hmac.compare_digest(given, key)]
        if not equal:
            raise Refusal(Kind.UNAUTHORIZED, "the bearer token is wrong")
        if (account := equal[0]) is None:
            return Principal(KEY_HOLDER, owner)
        owner = hmac.digest(self._owner_key, b"name " + account.name.encode(), "sha256")
        return Principal(account.name, owner, account)

    def _keys(self) -> Iterator[tuple[bytes, Account | None]]:
        if self._key:
            yield self._key, None
        for account in self._accounts.values():
            for key in account.limits.keys:
                yield key.get_secret_value().encode(), account

    def _look(self) -> None:
        """Read the file again if it has changed."""
        if self._file is None or self._clock() - self._looked < LOOK_S:
            return
        self._looked = self._clock()
        if (stamp := self._stamp_of_file()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._take(read_keys(self._file))
        except ValueError as error:
            logger.warning("API_KEYS_FILE %s; the keys of before stay", error)
        else:
            logger.info("API_KEYS_FILE has %d names", len(self._accounts))

    def _take(self, found: dict[str, KeyLimits]) -> None:
        """Replace the limits of all names; names that stay keep what they have used."""
        known, self._accounts = self._accounts, {}
        for name, limits in found.items():
            account = known.get(name) or Account(name, limits)
            account.limits = limits
            self._accounts[name] = account

    def _stamp_of_file(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._file or "")
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def token_of(headers: Headers) -> bytes:
    """Return the bearer token, the Basic password, or the key of Azure's clients; b"" for none."""
    if "authorization" not in headers:
        return headers.get("api-key", "").encode("latin-1")
    scheme, _, credentials = headers["authorization"].partition(" ")
    given = credentials.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return given if scheme.lower() == "bearer" else b""
    try:
        return b64decode(given, validate=True).partition(b":")[2]
    except Base64Error:
        return b""
