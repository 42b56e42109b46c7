"""One error in the shapes of both kinds of clients, and what the headers add."""

from __future__ import annotations

import json

import pytest

from errors import EndpointError, InvalidAudio, InvalidParameter
from server.error_response import error_event, error_response, translated
from server.errors import Busy, DeadlineExceeded, TooManyGuesses, Unauthorized, status_of

BUSY = Busy("as many wait as may", 7)
ERRORS = [InvalidAudio("no audio stream"), Unauthorized("no key"), BUSY, TooManyGuesses("wait", 9)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
@pytest.mark.parametrize("path", ["/", "/predict", "/v1/audio/transcriptions"])
def test_code_and_text_are_the_same_wherever_they_are_read(error, path):
    reply = error_response(error, path)
    body = json.loads(reply.body)
    assert reply.status_code == status_of(error)
    assert reply.headers["x-error-message"] == str(error)
    if path.startswith("/v1/"):
        assert (body["error"]["message"], body["error"]["code"]) == (str(error), error.code)
    else:
        assert body == {"detail": str(error)}


def test_clients_are_told_when_to_come_again_and_when_not_to():
    assert error_response(BUSY, "/").headers["retry-after"] == "7"
    assert "x-should-retry" not in error_response(BUSY, "/").headers
    guesses = error_response(TooManyGuesses("wait", 9), "/v1/models").headers
    assert (guesses["retry-after"], guesses["x-should-retry"]) == ("9", "false")
    late = error_response(DeadlineExceeded("too long"), "/").headers
    assert ("retry-after" in late, late["x-should-retry"]) == (False, "false")
    assert error_response(Unauthorized("no key"), "/").headers["www-authenticate"] == "Bearer"


def test_a_stream_ends_with_openais_shape_on_every_route():
    event = error_event(InvalidParameter("batch_size: should be 1 or more"))
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["param"] == "batch_size"


def test_what_nobody_expected_is_an_error_of_ours_that_tells_nothing():
    found = translated(RuntimeError("/home/user/secret"))
    assert isinstance(found, EndpointError)
    assert "secret" not in str(found)
    assert translated(BUSY) is BUSY
