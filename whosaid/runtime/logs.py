"""The lines of logs: as JSON, with the request that they are about, and without tokens in URLs.

HTTP clients log each request's URL, and libraries those of failed requests; the query string of a
signed URL opens its file to anybody.
"""

import json
import logging
import re
from contextvars import ContextVar
from dataclasses import dataclass

OWN = ("endpoint", "server")
CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "urllib3")
QUERY, USER = re.compile(r"\?[^\s\"'<>]+"), re.compile(r"//[^\s/@\"'<>]+@")


@dataclass
class RequestInLog:
    """A request whose lines are logged; `key` is the name of its sender."""

    id: str
    key: str = ""
    phase: str = "received"


REQUEST: ContextVar[RequestInLog | None] = ContextVar("request", default=None)


class JsonLines(logging.Formatter):
    """Formats each record as a JSON object; a request's have `request_id`, `key` and `phase`."""

    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := REQUEST.get():
            line |= {"request_id": request.id, "key": request.key, "phase": request.phase}
        if record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def without_tokens(text: str) -> str:
    """Return a text without the query strings, names and passwords of its URLs."""
    return USER.sub("//", QUERY.sub("?...", text))


def hide_tokens() -> None:
    """Apply `without_tokens` to other packages' records, and drop the lines of each request."""
    for name in CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.setLogRecordFactory(_make_record)


def _make_record(name: str, *values: object, **named: object) -> logging.LogRecord:
    record = logging.LogRecord(name, *values, **named)  # type: ignore[arg-type]
    if name in OWN:
        return record
    if isinstance(record.args, tuple) and record.args:  # uvicorn's formatter reads them
        record.args = tuple(map(_without_tokens, record.args))
    else:
        record.msg, record.args = without_tokens(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = without_tokens(logging.Formatter().formatException(record.exc_info))
    return record


def _without_tokens(value: object) -> object:
    cut = without_tokens(text := str(value))
    return value if cut == text else cut
