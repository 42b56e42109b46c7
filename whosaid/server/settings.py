"""Settings that the server reads from its environment."""

import re
from base64 import b64decode
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode, SettingsConfigDict

from config import EnvironmentSettings
from whosaid.server.keys import read_keys

# Characters; shorter keys cause a warning. 16 random letters and digits have 95 bits.
SAFE_KEY = 16
# Hosts of a server, and origins of a web page.
HOST_PATTERN = re.compile(
    r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f.]*:[0-9a-f:.]+|\[[0-9a-f:.]+\]"
)
ORIGIN_PATTERN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
# A TCP port, up to 65535.
PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4})"
CALLBACK_PATTERN = re.compile(rf"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:{PORT})?")


def _names(pattern: re.Pattern[str], should_be: str) -> BeforeValidator:
    """Return a validator that splits text at commas into lower-case names that match `pattern`."""

    def check(value: str | Collection[str]) -> frozenset[str]:
        names = value.lower().split(",") if isinstance(value, str) else value
        stripped = [name.strip() for name in names]
        if not all(pattern.fullmatch(name) for name in stripped):
            raise PydanticCustomError(
                "names", "{should_be}", {"should_be": f"should be {should_be}"}
            )
        return frozenset(stripped)

    return BeforeValidator(check)


HOSTS = _names(HOST_PATTERN, "names or addresses without scheme and port, or *")
ORIGINS = _names(ORIGIN_PATTERN, "scheme://name or scheme://name:port, no path, or *")
CALLBACK_HOSTS = _names(CALLBACK_PATTERN, "names, or names with ports")


def callback_key(secret: SecretStr) -> bytes:
    """Return the signing key in a secret of Standard Webhooks; b"" if it is not base64."""
    try:
        return b64decode(secret.get_secret_value().removeprefix("whsec_"), validate=True)
    except ValueError:
        return b""


class ServerSettings(EnvironmentSettings):
    """How the server listens and what it accepts."""

    # Otherwise a line feed at the end of a secret's file would be part of the key.
    model_config = SettingsConfigDict(str_strip_whitespace=True)

    host: str = "127.0.0.1"
    """Address."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0: any free port."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """Sent as bearer token, Basic password or `api-key` header. Use a long random key: guesses are
    not limited."""
    api_keys_file: Path | None = None
    """TOML with [more keys](#keys), their names and limits; read again when it changes."""
    max_queue: int = Field(default=64, ge=1)
    """Requests that wait or run."""
    max_queue_bytes: int = Field(default=2 * 2**30, ge=1)
    """Received bytes of waiting requests; a single request may exceed it."""
    max_decoded_bytes: int = Field(default=2 * 2**30, ge=1)
    """Decoded audio of all requests (230 MB an hour); one more recording may exceed it."""
    request_timeout: float = Field(default=3600, gt=0, allow_inf_nan=False)
    """Seconds for a request, or for a live session after its audio."""
    keep_alive_seconds: int = Field(default=75, ge=1)
    """Seconds for which an idle connection stays open: more than the proxy's (nginx: 60)."""
    drain_timeout: float = Field(default=600, gt=0, allow_inf_nan=False)
    """Seconds to finish after SIGTERM."""
    log_format: Literal["text", "json"] = "text"
    """`json`: one object a line, with `request_id`, `key` (its name) and `phase` of requests."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least level of lines; DEBUG has probes and the page's files."""
    otel_exporter_otlp_endpoint: str | None = None
    """Collector of OpenTelemetry (HTTP) for spans of requests and their phases; OpenTelemetry's
    other variables count too."""
    page: bool = True
    """Serve `/app`."""
    max_rows: int | None = Field(default=None, ge=1, le=128)
    """Windows decoded at once, memory permitting; by default 32 on a CPU, on a GPU as many as it
    has rows for."""
    allowed_hosts: Annotated[frozenset[str], NoDecode, HOSTS] = frozenset()
    """Names and addresses of this server: `asr.example, *.lan, 10.0.0.7`; `*` for all."""
    allowed_origins: Annotated[frozenset[str], NoDecode, ORIGINS] = frozenset()
    """Sites whose pages may call: `https://app.example, http://localhost:3000`; `*` for all."""
    max_live_sessions: int = Field(default=16, ge=0)
    """Open live sessions; 0 for none."""
    max_append_bytes: int = Field(default=15 * 2**20, ge=1)
    """Audio bytes in one live append."""
    live_ahead_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """How far a live client may be ahead of real time."""
    live_idle_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """Seconds without an event after which a live session ends."""
    live_session_seconds: float = Field(default=3600, gt=0, allow_inf_nan=False)
    """Length of a live session."""
    data_dir: Path | None = None
    """Folder for jobs; without it only `scripts/serve` keeps jobs."""
    max_jobs: int = Field(default=1000, ge=1)
    """Jobs kept."""
    max_job_bytes: int = Field(default=10 * 2**30, ge=1)
    """Bytes of the jobs' recordings and answers."""
    max_running_jobs: int = Field(default=2, ge=1)
    """Jobs running at once."""
    job_seconds: float = Field(default=86_400, gt=0, allow_inf_nan=False)
    """Seconds for which an ended job is kept."""
    callback_hosts: Annotated[frozenset[str], NoDecode, CALLBACK_HOSTS] = frozenset()
    """Hosts for job callbacks: `hooks.example, 10.0.0.7:8443`; the default port is 443. Needs
    `CALLBACK_SECRET`."""
    callback_secret: SecretStr | None = None
    """Signs callbacks: base64 of 24 to 64 bytes, with or without `whsec_`."""

    @field_validator("callback_secret")
    @classmethod
    def _is_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not 24 <= len(callback_key(secret)) <= 64:
            raise PydanticCustomError("secret", "should be base64 of 24 to 64 bytes")
        return secret

    @model_validator(mode="after")
    def _callbacks_are_signed(self) -> Self:
        if self.callback_hosts and self.callback_secret is None:
            raise PydanticCustomError("secret", "CALLBACK_HOSTS: needs CALLBACK_SECRET")
        return self

    @field_validator("api_keys_file")
    @classmethod
    def _has_keys(cls, file: Path | None) -> Path | None:
        if file is not None:
            read_keys(file)
        return file

    @property
    def needs_key(self) -> bool:
        return self.api_key is not None or self.api_keys_file is not None

    @property
    def warning(self) -> str | None:
        keys = [("API_KEY", self.api_key)] if self.api_key else []
        if self.api_keys_file:
            named = read_keys(self.api_keys_file).items()
            keys += [(f"a key of {name}", key) for name, limits in named for key in limits.keys]
        for name, key in keys:
            if len(key.get_secret_value()) < SAFE_KEY:
                return f"{name} has less than {SAFE_KEY} characters and can be guessed"
        return None
