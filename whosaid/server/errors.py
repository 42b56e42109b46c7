"""Refusals of the server: the table of codes, HTTP statuses and waiting times.

The endpoint's own errors (`whosaid/errors.py`) carry their code and status too.
"""

from __future__ import annotations

from enum import Enum

from whosaid.errors import EndpointError


class Kind(Enum):
    """A row of the table: the code, the HTTP status and `retry_after`, in seconds."""

    HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED", 403
    ORIGIN_NOT_ALLOWED = "ORIGIN_NOT_ALLOWED", 403
    UNAUTHORIZED = "UNAUTHORIZED", 401
    NOT_FOUND = "NOT_FOUND", 404
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED", 405
    BODY_TIMEOUT = "BODY_TIMEOUT", 408
    BODY_TOO_LARGE = "BODY_TOO_LARGE", 413
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE", 415
    INVALID_BODY = "INVALID_REQUEST", 422  # no JSON object: the contract's servers answer 422
    UPGRADE_REQUIRED = "UPGRADE_REQUIRED", 426
    BUSY = "BUSY", 429
    DRAINING = "DRAINING", 503, 5
    NOT_READY = "NOT_READY", 503, 5
    NO_REPLICA = "NO_REPLICA", 503, 1
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED", 504
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND", 404

    JOBS_DISABLED = "JOBS_DISABLED", 404
    JOBS_FULL = "JOBS_FULL", 429, 60
    JOB_NOT_DONE = "JOB_NOT_DONE", 409
    CALLBACK_NOT_ALLOWED = "CALLBACK_NOT_ALLOWED", 403
    STORAGE_FAILED = "STORAGE_FAILED", 507

    # Of live sessions, with OpenAI's codes where OpenAI has one.
    INVALID_JSON = "invalid_json"
    UNKNOWN_EVENT = "unknown_event"
    UNSUPPORTED_EVENT = "unsupported_event"
    UNKNOWN_PARAMETER = "unknown_parameter"
    MISSING_PARAMETER = "missing_required_parameter"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_VALUE = "unsupported_value"
    INVALID_BASE64 = "invalid_base64"
    APPEND_TOO_LARGE = "append_too_large"
    SESSION_ENDING = "session_ending"
    SESSION_EXPIRED = "session_expired"
    SESSION_IDLE = "session_idle"

    def __init__(self, code: str, status: int = 400, retry_after: int | None = None) -> None:
        self.code, self.status, self.retry_after = code, status, retry_after


class Refusal(EndpointError):
    """The server does not take or does not finish a request. `retry_after` replaces the kind's."""

    def __init__(
        self, kind: Kind, reason: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        self.kind, self.code, self.status = kind, kind.code, kind.status
        self.retry_after = kind.retry_after if retry_after is None else retry_after
        super().__init__(reason, param)
