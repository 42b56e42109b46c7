"""The phases of requests, in log lines and, if OTEL_EXPORTER_OTLP_ENDPOINT names a collector, as
OpenTelemetry's spans.

    /predict                continues the client's `traceparent`; status, code, key
      decode                until the audio is decoded
      recognise             until the last window is read
      attribute             until the answer, speakers and overlaps included
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from whosaid.runtime.logs import REQUEST

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# The process's provider; without it no spans are made.
PROVIDER: "TracerProvider | None" = None


@contextmanager
def exporting(endpoint: str | None) -> Iterator[None]:
    """Export spans to a collector during the block, as OpenTelemetry's variables say."""
    global PROVIDER
    if endpoint is None:
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = Resource({SERVICE_NAME: "whosaid"}).merge(OTELResourceDetector().detect())
    PROVIDER = TracerProvider(resource=named, shutdown_on_exit=False)
    PROVIDER.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield
    finally:
        PROVIDER.shutdown()
        PROVIDER = None


@contextmanager
def span(name: str, headers: Headers | None = None) -> Iterator[None]:
    """Make a request's span the current one during the block."""
    if PROVIDER is None:
        yield
        return
    parent = TraceContextTextMapPropagator().extract(headers or {})
    kind = SpanKind.SERVER if headers else SpanKind.INTERNAL
    with PROVIDER.get_tracer("whosaid").start_as_current_span(name, parent, kind):
        yield


def describe(status: int, code: str, sender: str) -> None:
    """Set the attributes of the current request's span."""
    attributes = {"http.response.status_code": status, "code": code, "key": sender}
    trace.get_current_span().set_attributes(attributes)


class Phases:
    """The phases of one request within a block, from `decode` on."""

    _name = ""
    _span: Span | None = None

    async def __aenter__(self) -> Self:
        self.enter("decode")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def enter(self, name: str) -> None:
        """Begin a phase, unless it has begun."""
        if name == self._name:
            return
        self._end()
        self._name = name
        if request := REQUEST.get():
            request.phase = name
        if PROVIDER is not None and trace.get_current_span().is_recording():
            self._span = PROVIDER.get_tracer("whosaid").start_span(name)

    def _end(self) -> None:
        if self._span is not None:
            self._span.end()
            self._span = None
