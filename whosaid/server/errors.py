"""Refusals of the server: the table of codes, HTTP statuses and waiting times.

The endpoint's own errors (`whosaid/errors.py`) carry their code and status too.
"""

from __future__ import annotations

from typing import NamedTuple

from whosaid.errors import EndpointError


class Kind(NamedTuple):
    """A row of the table. `retry_after` is in seconds."""

    code: str
    status: int = 400
    retry_after: int | None = None


HOST_NOT_ALLOWED = Kind("HOST_NOT_ALLOWED", 403)
ORIGIN_NOT_ALLOWED = Kind("ORIGIN_NOT_ALLOWED", 403)
UNAUTHORIZED = Kind("UNAUTHORIZED", 401)
NOT_FOUND = Kind("NOT_FOUND", 404)
METHOD_NOT_ALLOWED = Kind("METHOD_NOT_ALLOWED", 405)
BODY_TIMEOUT = Kind("BODY_TIMEOUT", 408)
BODY_TOO_LARGE = Kind("BODY_TOO_LARGE", 413)
UNSUPPORTED_MEDIA_TYPE = Kind("UNSUPPORTED_MEDIA_TYPE", 415)
INVALID_BODY = Kind("INVALID_REQUEST", 422)  # no JSON object: the contract's servers answer 422
UPGRADE_REQUIRED = Kind("UPGRADE_REQUIRED", 426)
BUSY = Kind("BUSY", 429)
DRAINING = Kind("DRAINING", 503, 5)
NOT_READY = Kind("NOT_READY", 503, 5)
NO_REPLICA = Kind("NO_REPLICA", 503, 1)
DEADLINE_EXCEEDED = Kind("DEADLINE_EXCEEDED", 504)
MODEL_NOT_FOUND = Kind("MODEL_NOT_FOUND", 404)

JOBS_DISABLED = Kind("JOBS_DISABLED", 404)
JOBS_FULL = Kind("JOBS_FULL", 429, 60)
JOB_NOT_DONE = Kind("JOB_NOT_DONE", 409)
CALLBACK_NOT_ALLOWED = Kind("CALLBACK_NOT_ALLOWED", 403)
STORAGE_FAILED = Kind("STORAGE_FAILED", 507)

# Of live sessions, with OpenAI's codes where OpenAI has one.
INVALID_JSON = Kind("invalid_json")
UNKNOWN_EVENT = Kind("unknown_event")
UNSUPPORTED_EVENT = Kind("unsupported_event")
UNKNOWN_PARAMETER = Kind("unknown_parameter")
MISSING_PARAMETER = Kind("missing_required_parameter")
INVALID_TYPE = Kind("invalid_type")
INVALID_VALUE = Kind("invalid_value")
UNSUPPORTED_VALUE = Kind("unsupported_value")
INVALID_BASE64 = Kind("invalid_base64")
APPEND_TOO_LARGE = Kind("append_too_large")
SESSION_ENDING = Kind("session_ending")
SESSION_EXPIRED = Kind("session_expired")
SESSION_IDLE = Kind("session_idle")


class Refusal(EndpointError):
    """The server does not take or does not finish a request. `retry_after` replaces the kind's."""

    def __init__(
        self, kind: Kind, reason: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        self.kind, self.code, self.status = kind, kind.code, kind.status
        self.retry_after = kind.retry_after if retry_after is None else retry_after
        super().__init__(reason, param)
