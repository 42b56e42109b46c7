"""Spans of requests, sent to a collector on loopback; and log lines in JSON."""

import asyncio
import gzip
import json
import logging
import sys

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.helpers.asgi import HELLO, JSON, call, served
from tests.helpers.loopback import Handler, Loopback
from whosaid.errors import InvalidAudio
from whosaid.runtime.logs import JsonLines
from whosaid.server import tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(Loopback):
    def __init__(self) -> None:
        self.spans: list = []
        super().__init__(Receiver)


class Receiver(Handler):
    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send(200)


@pytest.fixture
def collector(monkeypatch):
    with Collector() as listening:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", listening.url)
        yield listening


@pytest.mark.parametrize("error", [None, InvalidAudio("broken")])
def test_a_collector_gets_a_requests_phases(collector, error):
    async def ask():
        endpoint, app = served()
        endpoint.release.set()
        endpoint.error = error
        headers = {**JSON, "traceparent": f"00-{TRACE}-{PARENT}-01"}
        await call(app, path="/predict", headers=headers, parts=HELLO, query=b"key=secret-text")
        await call(app, "GET", "/ready")

    with tracing.exporting(collector.url):
        asyncio.run(ask())
    spans = {span.name: span for span in collector.spans}
    assert spans.keys() == {"/predict", "decode", "recognise"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    root = spans["/predict"]
    assert root.parent_span_id.hex() == PARENT
    assert {spans[name].parent_span_id for name in ("decode", "recognise")} == {root.span_id}
    assert spans["decode"].end_time_unix_nano <= spans["recognise"].start_time_unix_nano
    told = {each.key: each.value.string_value for each in root.attributes}
    assert (told["code"], told["key"]) == (error.code if error else "OK", "anonymous")
    assert b"secret-text" not in b"".join(span.SerializeToString() for span in collector.spans)


def test_without_a_collector_there_are_no_spans():
    with tracing.exporting(None):
        assert tracing.PROVIDER is None


async def test_json_lines_name_the_request_its_key_and_phase(caplog):
    """Requests at the same time keep their own."""
    lines: list[dict] = []

    class Writer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    handler = Writer()
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("server")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "server"):
            endpoint, app = served(api_key="a-key-of-some-length", max_queue=9)
            key = {"authorization": "Bearer a-key-of-some-length"}
            names = [{"x-request-id": f"r{i}"} for i in range(3)]
            asked = [call(app, headers={**JSON, **key, **name}, parts=HELLO) for name in names]
            running = [asyncio.ensure_future(each) for each in asked]
            await endpoint.began.wait()
            endpoint.release.set()
            await asyncio.gather(*running)
            await call(app, headers={**JSON, "x-request-id": "no"}, parts=HELLO)
    finally:
        logger.removeHandler(handler)
    phases = {(line["request_id"], line["key"], line["phase"]) for line in lines}
    own = {(f"r{i}", "key", "recognise") for i in range(3)}
    assert phases == {*own, ("no", "anonymous", "received")}
    assert {line["level"] for line in lines} == {"INFO"}
    assert lines[-1]["message"].startswith("POST / 401 UNAUTHORIZED")
    assert "a-key-of-some-length" not in json.dumps(lines)


def test_json_lines_hold_one_exception_each():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        raised = sys.exc_info()
    record = logging.LogRecord("server", logging.ERROR, "", 0, "of %s", ("a",), raised)
    line = JsonLines().format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["message"], read["exception"].splitlines()[-1]) == ("of a", "lines")
