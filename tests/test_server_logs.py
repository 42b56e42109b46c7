"""The filters of logs: cut and kept lines; tests/reliability/test_hf_serve.py and
tests/test_toolkit.py check the same on the logs of the real servers."""

import asyncio
import io
import logging
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import http_backoff

from tests.helpers.asgi import JSON, call
from tests.test_server_jobs_callbacks import Receiver, asking, jobs
from whosaid.runtime.servers import BODY_FOLLOWS, hide_bodies, keep_one_line
from whosaid.server.__main__ import log_to_stderr
from whosaid.transcribe.client import Client, Failed

AUDIO, CANARY = "UklGRiQAAABXQVZF", "canary7f3a"


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

    mine = SimpleNamespace(getLogger=get_logger, LogRecord=logging.LogRecord)
    monkeypatch.setattr("whosaid.runtime.servers.logging", mine)
    return get_logger, written


@pytest.mark.parametrize("name", BODY_FOLLOWS)
def test_bodies_are_cut_and_other_lines_kept(log, name):
    get_logger, written = log
    hide_bodies()
    get_logger(name).info("%s {'inputs': '%s'}", BODY_FOLLOWS[name], AUDIO)
    get_logger(name).info("POST / | Duration: %d ms", 12)
    assert written == ["Received request, body not logged", "POST / | Duration: 12 ms"]


def test_text_before_the_body_is_kept(log):
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


@pytest.fixture
def stderr(monkeypatch) -> io.StringIO:
    """The log of a server's process."""
    written, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr()
    return written


def test_the_log_holds_no_token_of_outgoing_requests(stderr, tmp_path, monkeypatch):
    """Requests are callbacks, downloads from the Hub, and those of scripts/transcribe."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    async def call_back(url: str) -> None:
        async with jobs(tmp_path, [receiver.host]) as (endpoint, app):
            endpoint.release.set()
            await call(app, "POST", "/v1/jobs", JSON, asking(url))
            while "callback of job_" not in stderr.getvalue():
                await asyncio.sleep(0)

    with Receiver() as receiver:
        url = f"http://{receiver.host}/{CANARY}?X-Amz-Signature={CANARY}&token={CANARY}"
        asyncio.run(call_back(url))
        receiver.statuses = [503]
        signed = url.replace(f"/{CANARY}", "/file")
        with pytest.raises(HfHubHTTPError):
            http_backoff("POST", signed, max_retries=1, base_wait_time=0)
        client = Client(url, CANARY, sleep=lambda _: None)
        with pytest.raises(Failed), client.transcribed([b""], {}, lambda *_: None):
            pass
        assert len(receiver.got) > 3
    lines = stderr.getvalue()
    assert "HTTP Error 503 thrown while requesting POST http://127.0.0.1" in lines
    assert CANARY not in lines


def test_other_packages_lines_keep_their_arguments_without_tokens(stderr):
    access, hub = logging.getLogger("uvicorn.access"), logging.getLogger("another.package")
    line = '%s - "%s %s HTTP/%s" %d'
    records: list[logging.LogRecord] = []
    access.addFilter(lambda record: bool(records.append(record)))
    access.warning(line, "::1", "GET", f"/predict?key={CANARY}", "1.1", 200)
    access.filters.pop()
    assert records[0].args == ("::1", "GET", "/predict?...", "1.1", 200)
    try:
        raise OSError(f"no answer: url: /file?signature={CANARY}")
    except OSError:
        hub.exception("of %(url)s", {"url": f"https://me:{CANARY}@host/file"})
    lines = stderr.getvalue()
    assert CANARY not in lines
    assert "of https://host/file\n" in lines
    assert "OSError: no answer: url: /file?...\n" in lines
