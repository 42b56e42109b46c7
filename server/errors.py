"""Refusals that only a server knows, and the HTTP status of every error.

The one decision: statuses live here and nowhere else; the endpoint's own errors keep the codes that
every server of the contract answers with.
"""

from __future__ import annotations

from typing import ClassVar

from errors import ClientError, EndpointError


class Refusal(EndpointError):
    """The server does not take or does not finish a request; `status` is HTTP's."""

    status: ClassVar[int] = 500


class Unauthorized(Refusal):
    """The bearer token is missing or wrong."""

    code = "UNAUTHORIZED"
    status = 401


class BodyTooLarge(Refusal):
    """The body is larger than the endpoint reads."""

    code = "BODY_TOO_LARGE"
    status = 413


class UnsupportedMediaType(Refusal):
    """The body is of a type that this route does not read."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class Busy(Refusal):
    """As many requests wait as may wait."""

    code = "BUSY"
    status = 429


class Draining(Refusal):
    """The server is about to stop."""

    code = "DRAINING"
    status = 503


class DeadlineExceeded(Refusal):
    """The request was not answered within the server's time limit."""

    code = "DEADLINE_EXCEEDED"
    status = 504


def status_of(error: EndpointError) -> int:
    """The HTTP status that an error is answered with."""
    if isinstance(error, Refusal):
        return error.status
    return 400 if isinstance(error, ClientError) else 500
