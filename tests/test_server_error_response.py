"""One error in the shapes of both kinds of clients, and what the headers add."""

from __future__ import annotations

import json

import pytest

from whosaid.errors import EndpointError, InvalidAudio, InvalidParameter
from whosaid.server.error_response import ErrorResponse, error_event, translated
from whosaid.server.errors import BUSY, DEADLINE_EXCEEDED, UNAUTHORIZED, Refusal

BUSY = Refusal(BUSY, "as many wait as may", retry_after=7)
ERRORS = [InvalidAudio("no audio stream"), Refusal(UNAUTHORIZED, "no key"), BUSY]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
@pytest.mark.parametrize("path", ["/", "/predict", "/v1/audio/transcriptions"])
def test_code_and_text_are_the_same_wherever_they_are_read(error, path):
    reply = ErrorResponse(error, path)
    body = json.loads(reply.body)
    assert reply.status_code == error.status
    assert reply.headers["x-error-message"] == str(error)
    if path.startswith("/v1/"):
        assert (body["error"]["message"], body["error"]["code"]) == (str(error), error.code)
    else:
        assert body == {"detail": str(error)}


def test_clients_are_told_when_to_come_again_and_when_not_to():
    assert ErrorResponse(BUSY, "/").headers["retry-after"] == "7"
    assert "x-should-retry" not in ErrorResponse(BUSY, "/").headers
    late = ErrorResponse(Refusal(DEADLINE_EXCEEDED, "too long"), "/").headers
    assert ("retry-after" in late, late["x-should-retry"]) == (False, "false")
    assert (
        ErrorResponse(Refusal(UNAUTHORIZED, "no key"), "/").headers["www-authenticate"] == "Bearer"
    )


def test_a_stream_ends_with_openais_shape_on_every_route():
    event = error_event(InvalidParameter("should be 1 or more", "batch_size"))
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["param"] == "batch_size"


def test_what_nobody_expected_is_an_error_of_ours_that_tells_nothing():
    found = translated(RuntimeError("/home/user/secret"))
    assert isinstance(found, EndpointError)
    assert "secret" not in str(found)
    assert translated(BUSY) is BUSY
