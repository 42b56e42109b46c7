"""Keeps request bodies out of the two servers' logs, and shortens a failed start to one line.

The filters know what hf-serve 0.2.0, huggingface-inference-toolkit 0.5.6 and uvicorn write. If a
release changes a text, its record passes unfiltered; tests against the real servers notice that.
"""

from __future__ import annotations

import logging

# By logger: hf-serve logs the whole body after these words, the toolkit a body without `inputs`.
BODY_FOLLOWS = {
    "hf-serve": "Received request with:",
    "huggingface_inference_toolkit": "Body needs to provide a inputs key, received:",
}


def hide_bodies() -> None:
    """Cut request bodies, base64 audio included, from the servers' log records."""
    for name in BODY_FOLLOWS:
        logging.getLogger(name).addFilter(hide_body)


def hide_body(record: logging.LogRecord) -> bool:
    """Replace the body in one record; a logging filter that keeps every record."""
    announced, found, _ = record.getMessage().partition(BODY_FOLLOWS[record.name])
    if found:
        record.msg, record.args = f"{announced}Received request, body not logged", ()
    return True


def keep_one_line(reason: str) -> None:
    """Make uvicorn, which runs the toolkit, log `reason` instead of the SystemExit's traceback."""

    def shorten(record: logging.LogRecord) -> bool:
        if reason not in record.getMessage():
            return "Application startup failed" not in record.getMessage()
        record.msg, record.args = reason, ()
        return True

    logging.getLogger("uvicorn.error").addFilter(shorten)
