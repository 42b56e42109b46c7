"""Refusals of the server: the table of codes, HTTP statuses and waiting times.

The endpoint's own errors (`whosaid/errors.py`) carry their code and status too.
"""

from enum import Enum

from whosaid.errors import EndpointError


class Kind(Enum):
    """A code: when it is sent, its HTTP status, and `retry_after` in seconds."""

    HOST_NOT_ALLOWED = "unknown `Host`", 403
    ORIGIN_NOT_ALLOWED = "a page of another origin, or a proxy that drops `Host`", 403
    UNAUTHORIZED = "token missing or wrong", 401
    DRAINING = "the server is stopping", 503, 5
    BUSY = (
        "`MAX_QUEUE`, `MAX_QUEUE_BYTES` or the key's `max_requests` reached; live:"
        " `MAX_LIVE_SESSIONS`, or sessions lag",
        429,
    )
    QUOTA_EXCEEDED = "the key's `audio_seconds_per_day` are used", 429
    BODY_TOO_LARGE = "over `MAX_AUDIO_BYTES` (7/5 of it in base64) plus 16 MiB for the rest", 413
    UNSUPPORTED_MEDIA_TYPE = (
        "text, images and the like; Content-Encoding; anything but a form under `/v1/audio`",
        415,
    )
    JOBS_DISABLED = "the server keeps no jobs", 404
    JOBS_FULL = "`MAX_JOBS` or `MAX_JOB_BYTES` reached", 429, 60
    BODY_TIMEOUT = "the body falls 30 s behind 1 KiB/s", 408
    INVALID_REQUEST = "not a JSON object", 422  # as the contract's servers answer
    IDEMPOTENCY_KEY_REUSED = "another request had this `Idempotency-Key`", 422
    CALLBACK_NOT_ALLOWED = "host of `callback_url` not in `CALLBACK_HOSTS`", 403
    STORAGE_FAILED = "`DATA_DIR`'s disk is full or fails (DELETE too)", 507
    DEADLINE_EXCEEDED = "`REQUEST_TIMEOUT` has passed (`X-Should-Retry: false`)", 504
    NOT_READY = "models are loading, or the engine has stopped", 503, 5
    NO_REPLICA = "Ray Serve only: no replica answers; retry", 503, 1
    NOT_FOUND = "no such path or job", 404
    METHOD_NOT_ALLOWED = "`Allow` lists the methods", 405
    MODEL_NOT_FOUND = "`/v1/models/{id}`: this model is not loaded", 404
    JOB_NOT_DONE = "the job has no answer yet", 409
    UPGRADE_REQUIRED = "`/v1/realtime` without a WebSocket", 426

    # Codes of live sessions: OpenAI's, if it has one.
    invalid_json = "not a JSON object, over 1 MiB besides audio, or over 17,000 values"
    unknown_event = "an unknown `type`"
    unsupported_event = "an event that transcription sessions lack (`response.create`)"
    unknown_parameter = "no such field; the update changes nothing"
    missing_required_parameter = "a field is missing"
    invalid_type = "a field of a wrong type"
    invalid_value = "a field with a wrong value"
    unsupported_value = (
        "not served here: several `languages`, a `session.type` such as `translation`"
    )
    invalid_base64 = "this `audio` is dropped"
    append_too_large = "over `MAX_APPEND_BYTES`; this `audio` is dropped"
    session_ending = "an event after the last commit"
    session_idle = "`LIVE_IDLE_SECONDS` without an event; close status 1001"
    session_expired = "`LIVE_SESSION_SECONDS` have passed; close status 1001"

    def __init__(self, when: str, status: int = 400, retry_after: int | None = None) -> None:
        self.when, self.status, self.retry_after = when, status, retry_after


class Refusal(EndpointError):
    """The server refuses or aborts a request. `retry_after` replaces the kind's."""

    def __init__(
        self, kind: Kind, reason: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        self.kind, self.code, self.status = kind, kind.name, kind.status
        self.retry_after = kind.retry_after if retry_after is None else retry_after
        super().__init__(reason, param)
