"""The error object, whose fields the SDK's exceptions show."""

from __future__ import annotations

import pytest

from whosaid.errors import (
    InvalidAudio,
    InvalidParameter,
    InvalidReference,
    ModelError,
    Unsupported,
)
from whosaid.server.error_response import openai_error
from whosaid.server.errors import Kind, Refusal

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (InvalidParameter("should be less", "num_beams"), INVALID, "num_beams"),
        (Unsupported("no token", "prompt, hotwords"), INVALID, "prompt"),
        (InvalidAudio("no audio: none"), INVALID, "file"),
        (
            InvalidReference("is another", "known_speakers[2].voice.model"),
            INVALID,
            "known_speaker_references[2]",
        ),
        (Refusal(Kind.UNAUTHORIZED, "no token"), "authentication_error", None),
        (Refusal(Kind.BUSY, "full", retry_after=1), "rate_limit_error", None),
        (ModelError("language: broke"), "server_error", None),
    ],
)
def test_an_error_names_its_kind_and_the_field_at_fault(error, kind, param):
    said = openai_error(error)
    assert said == {"message": str(error), "type": kind, "param": param, "code": error.code}
