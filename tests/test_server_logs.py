"""What the filters cut and what they let through; tests/reliability/test_hf_serve.py and
tests/test_toolkit.py hold the texts of the real servers against them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from whosaid.runtime.servers import BODY_FOLLOWS, hide_bodies, keep_one_line

AUDIO = "UklGRiQAAABXQVZF"


@pytest.fixture
def log(monkeypatch):
    """Loggers of their own by name, and what they wrote."""
    written: list[str] = []
    loggers: dict[str, logging.Logger] = {}

    class Writer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    def get_logger(name: str) -> logging.Logger:
        if name not in loggers:
            loggers[name] = logging.Logger(name)
            loggers[name].addHandler(Writer())
        return loggers[name]

    monkeypatch.setattr("whosaid.runtime.servers.logging", SimpleNamespace(getLogger=get_logger))
    return get_logger, written


@pytest.mark.parametrize("name", BODY_FOLLOWS)
def test_bodies_are_cut_off_and_other_lines_are_kept(log, name):
    get_logger, written = log
    hide_bodies()
    get_logger(name).info("%s {'inputs': '%s'}", BODY_FOLLOWS[name], AUDIO)
    get_logger(name).info("POST / | Duration: %d ms", 12)
    assert written == ["Received request, body not logged", "POST / | Duration: 12 ms"]


def test_what_stands_before_the_body_is_kept(log):
    get_logger, written = log
    hide_bodies()
    get_logger("hf-serve").info("id 7: Received request with: %s", AUDIO)
    assert written == ["id 7: Received request, body not logged"]


def test_a_failed_start_is_its_reason_alone(log):
    get_logger, written = log
    keep_one_line("START_FAILED: ASR_MODEL: is required")
    uvicorn = get_logger("uvicorn.error")
    uvicorn.info("Waiting for application startup.")
    uvicorn.error("Traceback\n  File 100%\nSystemExit: START_FAILED: ASR_MODEL: is required\n")
    uvicorn.error("Application startup failed. Exiting.")
    assert written == ["Waiting for application startup.", "START_FAILED: ASR_MODEL: is required"]
