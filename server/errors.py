"""Refusals that only a server knows, and the HTTP status of every error.

Statuses live here and nowhere else; the endpoint's own errors keep the codes that every server of
the contract answers with.
"""

from __future__ import annotations

from typing import ClassVar

from errors import ClientError, EndpointError


class Refusal(EndpointError):
    """The server does not take or does not finish a request; `status` is HTTP's.

    `retry_after` is in seconds: when the client may try again, where that is known.
    """

    status: ClassVar[int] = 500
    retry_after: int | None = None


class InvalidHttp(Refusal):
    """What came is no request, or nobody can say where it ends."""

    code = "INVALID_REQUEST"
    status = 400


class HostNotAllowed(Refusal):
    """The server does not answer to the name that the request is for."""

    code = "HOST_NOT_ALLOWED"
    status = 403


class OriginNotAllowed(Refusal):
    """A browser sends the request for a page of another site."""

    code = "ORIGIN_NOT_ALLOWED"
    status = 403


class Unauthorized(Refusal):
    """The bearer token is missing or wrong."""

    code = "UNAUTHORIZED"
    status = 401


class TooManyGuesses(Refusal):
    """The client has sent too many wrong keys."""

    code = "TOO_MANY_GUESSES"
    status = 429

    def __init__(self, text: str, retry_after: int) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class NotFound(Refusal):
    """There is nothing at this path."""

    code = "NOT_FOUND"
    status = 404


class MethodNotAllowed(Refusal):
    """The path exists, for another method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405


class SlowBody(Refusal):
    """The body does not arrive."""

    code = "BODY_TIMEOUT"
    status = 408


class BodyTooLarge(Refusal):
    """The body is larger than the endpoint reads."""

    code = "BODY_TOO_LARGE"
    status = 413


class UnsupportedMediaType(Refusal):
    """The body is of a type that this route does not read."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class InvalidBody(Refusal):
    """The body is not a JSON object, of which the contract's servers say 422."""

    code = "INVALID_REQUEST"
    status = 422


class Busy(Refusal):
    """As many requests wait as may wait."""

    code = "BUSY"
    status = 429

    def __init__(self, text: str, retry_after: int) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Crowded(Refusal):
    """As many connections are open as may be."""

    code = "TOO_MANY_CONNECTIONS"
    status = 503
    retry_after = 5


class Draining(Refusal):
    """The server is about to stop."""

    code = "DRAINING"
    status = 503
    retry_after = 5


class NotReady(Refusal):
    """The models are still loading, or the engine has stopped and a new process has to answer."""

    code = "NOT_READY"
    status = 503
    retry_after = 5


class NoReplica(Refusal):
    """The process that had the request has died, or none takes any."""

    code = "NO_REPLICA"
    status = 503
    retry_after = 1


class JobsDisabled(Refusal):
    """The server has no folder to keep jobs in."""

    code = "JOBS_DISABLED"
    status = 404


class JobsFull(Refusal):
    """As many jobs, or as many bytes of them, are kept as may be."""

    code = "JOBS_FULL"
    status = 429
    retry_after = 60


class JobNotDone(Refusal):
    """The job has no answer, or none yet."""

    code = "JOB_NOT_DONE"
    status = 409


class CallbackNotAllowed(Refusal):
    """The server calls nobody back there."""

    code = "CALLBACK_NOT_ALLOWED"
    status = 403


class StorageFailed(Refusal):
    """The disk takes no more."""

    code = "STORAGE_FAILED"
    status = 507


class UpgradeRequired(Refusal):
    """The path is for WebSockets."""

    code = "UPGRADE_REQUIRED"
    status = 426


class DeadlineExceeded(Refusal):
    """The request was not answered within the server's time limit."""

    code = "DEADLINE_EXCEEDED"
    status = 504


def status_of(error: EndpointError) -> int:
    """The HTTP status that an error is answered with."""
    if isinstance(error, Refusal):
        return error.status
    return 400 if isinstance(error, ClientError) else 500
