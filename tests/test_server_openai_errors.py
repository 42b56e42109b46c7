"""The error object, whose fields the SDK's exceptions show."""

from __future__ import annotations

import pytest

from errors import (
    AudioTooLong,
    InvalidAudio,
    InvalidParameter,
    InvalidReference,
    InvalidRequest,
    ModelError,
    Unsupported,
)
from server.errors import Busy, Unauthorized, status_of
from server.openai_api.errors import ModelNotFound, error_body

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (InvalidParameter("num_beams: should be less"), INVALID, "num_beams"),
        (Unsupported("prompt, hotwords: no token"), INVALID, "prompt"),
        (
            Unsupported("chunking_strategy[threshold]: none"),
            INVALID,
            "chunking_strategy[threshold]",
        ),
        (InvalidParameter("the file: is odd"), INVALID, None),
        (InvalidRequest("the form cannot be read: broken"), INVALID, None),
        (InvalidAudio("no audio: none"), INVALID, "file"),
        (AudioTooLong("too long"), INVALID, "file"),
        (InvalidReference("known_speakers[2]: no speech"), INVALID, "known_speaker_references[2]"),
        (ModelNotFound("model: x is not loaded"), INVALID, "model"),
        (Unauthorized("no token"), "authentication_error", None),
        (Busy("full", 1), "rate_limit_error", None),
        (ModelError("language: broke"), "server_error", None),
    ],
)
def test_an_error_names_its_kind_and_the_field_at_fault(error, kind, param):
    (said,) = error_body(error, status_of(error)).values()
    assert said == {"message": str(error), "type": kind, "param": param, "code": error.code}
