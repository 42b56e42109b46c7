"""Routes about the server's state, for platforms and people.

They never wait for the engine, so they answer at once under any load. With a full queue the server
is still ready.
"""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from whosaid.endpoint import Endpoint
from whosaid.server.admission import Admission
from whosaid.server.description import refusals
from whosaid.server.errors import Kind, Refusal
from whosaid.server.metrics import Metrics


def router(endpoint: Endpoint, admission: Admission, metrics: Metrics, page: bool) -> APIRouter:
    routes = APIRouter()

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", summary="200 while the process runs")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @routes.head("/ping", include_in_schema=False)
    @routes.get("/ping", include_in_schema=False)  # SageMaker and RunPod ask this path
    @routes.head("/ready", include_in_schema=False)
    @routes.get("/ready", summary="200 if requests are accepted", responses=refusals(503))
    async def ready() -> dict[str, str]:
        if not endpoint.alive:
            raise Refusal(Kind.NOT_READY, "the engine has stopped")
        admission.check_draining()
        return {"status": "idle" if endpoint.idle else "ready"}

    @routes.head("/metrics", include_in_schema=False)
    @routes.get(
        "/metrics",
        summary="Prometheus' metrics",
        response_class=PlainTextResponse,
        responses=refusals(401, 403, 429),
    )
    async def read_metrics() -> Response:
        return Response(await metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @routes.head("/", include_in_schema=False)
    @routes.get("/", summary="OK", response_class=PlainTextResponse, responses=refusals(403))
    async def root(request: Request) -> Response:
        if page and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("app/")
        return PlainTextResponse("OK")

    return routes
