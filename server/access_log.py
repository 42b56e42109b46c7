"""What is told of a request or a session once it has ended: a line of the log, and the metrics.

Both name routes, never paths, queries or file names: these are the client's, and may be secrets.
"""

from __future__ import annotations

import logging

from errors import EndpointError
from server.admission import JOBS, PROBES, TRANSCRIBING, WITHOUT_TOKEN
from server.exchange import CLIENT_GONE, Exchange
from server.metrics import Metrics
from server.realtime.handshake import UPGRADED, Handshake

logger = logging.getLogger("server")

PAGE = "/app"
REALTIME = "/v1/realtime"
JOB = f"{JOBS}/{{job}}"
ROUTES = {
    *PROBES,
    *TRANSCRIBING,
    *WITHOUT_TOKEN,
    "/info",
    "/v1/models",
    REALTIME,
    f"{REALTIME}/client_secrets",
}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def route_of(path: str) -> str:
    """The name of the route that a path belongs to, "other" where there is none."""
    if path in ROUTES:
        return path
    if path.startswith(f"{JOBS}/"):
        return JOB
    return PAGE if path == PAGE or path.startswith(f"{PAGE}/") else "other"


class AccessLog:
    """Writes the log's lines, and counts in `metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def refused(self, refusal: EndpointError) -> None:
        """A request, or a session, was refused before its body was understood."""
        self._metrics.refused.labels(refusal.code).inc()

    def answered(self, exchange: Exchange, request_id: str) -> None:
        """A request has its answer, or its client is gone."""
        route = route_of(exchange.scope["path"])
        status = CLIENT_GONE if exchange.gone else exchange.status or CLIENT_GONE
        code = "CLIENT_GONE" if status == CLIENT_GONE else exchange.code
        self._metrics.requests.labels(route, status, code).inc()
        self._metrics.seconds.labels(route).observe(exchange.seconds)
        if status == CLIENT_GONE:
            self._metrics.cancelled.inc()
        if exchange.body.received:
            self._metrics.body_bytes.observe(exchange.body.received)
        if exchange.first_event_s is not None:
            self._metrics.first_event.observe(exchange.first_event_s)
        level = logging.DEBUG if route in (*PROBES, PAGE) else logging.INFO
        method = exchange.scope["method"]
        logger.log(
            level,
            "%s %s %s %s in %.2f s, id %s",
            method if method in METHODS else "other",
            route,
            status,
            code,
            exchange.seconds,
            request_id,
        )

    def held(self, handshake: Handshake, request_id: str) -> None:
        """A session has ended, or was refused."""
        route, place = route_of(handshake.scope["path"]), handshake.place
        status = handshake.status or CLIENT_GONE
        self._metrics.requests.labels(route, status, handshake.code).inc()
        told = ""
        if status == UPGRADED and place is not None:
            told = f", {place.audio_seconds:.1f} s of audio, closed with {handshake.close_status}"
        logger.info(
            "GET %s %s %s in %.2f s%s, id %s",
            route,
            status,
            handshake.code,
            handshake.seconds,
            told,
            request_id,
        )
