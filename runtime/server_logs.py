"""What the two servers may write into the log: no body of a request, and one line for a start that
fails.

Filters stand on the servers' own loggers and know the texts that hf-serve 0.2.0,
huggingface-inference-toolkit 0.5.6 and uvicorn write there. A text that changes lets its record
through unfiltered, and the tests, which run the real servers, notice.
"""

from __future__ import annotations

import logging

# hf-serve logs every body, the toolkit one without `inputs`; both after these words.
BODY_FOLLOWS = {
    "hf-serve": "Received request with:",
    "huggingface_inference_toolkit": "Body needs to provide a inputs key, received:",
}


def hide_bodies() -> None:
    """Cut the request's body, base64 audio and all, off the records in which servers log it."""
    for name in BODY_FOLLOWS:
        logging.getLogger(name).addFilter(hide_body)


def hide_body(record: logging.LogRecord) -> bool:
    """Cut one record after the words that announce a body; a filter, which keeps every record."""
    announced, found, _ = record.getMessage().partition(BODY_FOLLOWS[record.name])
    if found:
        record.msg, record.args = f"{announced}Received request, body not logged", ()
    return True


def keep_one_line(reason: str) -> None:
    """Let uvicorn, in which the toolkit runs, log `reason` where it would log the traceback of the
    SystemExit that says it, and nothing after it.
    """

    def shorten(record: logging.LogRecord) -> bool:
        if reason not in record.getMessage():
            return "Application startup failed" not in record.getMessage()
        record.msg, record.args = reason, ()
        return True

    logging.getLogger("uvicorn.error").addFilter(shorten)
