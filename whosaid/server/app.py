"""Builds the app from all routes.

Load, tokens, deadlines and logs are handled around the routers, for the page's files too.
"""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from whosaid.endpoint import Endpoint
from whosaid.errors import EndpointError, InvalidRequest
from whosaid.server import docs_page, health, info, native, transcripts
from whosaid.server.admission import Admission
from whosaid.server.description import authenticate
from whosaid.server.error_response import ErrorResponse, translated
from whosaid.server.errors import Kind, Refusal
from whosaid.server.gate import METHODS, Gate
from whosaid.server.jobs import routes as jobs
from whosaid.server.jobs.runner import JobRunner
from whosaid.server.jobs.store import JobStore
from whosaid.server.keys import ApiKeys
from whosaid.server.metrics import EngineMetrics, JobMetrics, Metrics
from whosaid.server.openai_api import routes
from whosaid.server.page import routes as page
from whosaid.server.realtime import routes as realtime
from whosaid.server.realtime.client_secrets import ClientSecrets
from whosaid.server.realtime.session import OpenDriver
from whosaid.server.service import Service
from whosaid.server.settings import ServerSettings


class App(FastAPI):
    """An app whose description has the bearer token, which all its clients need if `has_key`."""

    has_key = False

    def openapi(self) -> dict[str, Any]:
        described = super().openapi()
        authenticate(described, required=self.has_key)
        return described


def create_app(
    endpoint: Endpoint,
    settings: ServerSettings,
    open_driver: OpenDriver | None = None,
    store: JobStore | None = None,
) -> Gate:
    """Return the app. Live sessions need `open_driver`, and jobs a `store`, which it closes."""
    if open_driver is None:
        settings = settings.model_copy(update={"max_live_sessions": 0})
    admission = Admission(settings, endpoint.limits.max_bytes)
    metrics = Metrics(EngineMetrics(endpoint, admission))
    service = Service(endpoint, metrics)
    keys = ApiKeys(settings.api_key, settings.api_keys_file, store.owner_key if store else None)
    runner = None
    if store is not None:
        runner = JobRunner(service, store, settings, keys)
        metrics.on_disk.register(JobMetrics(store))
    app = App(
        title="Transcription with speakers",
        version="1",
        docs_url=None,  # its scripts come from another site; docs_page.py has ours
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # of operations
        lifespan=runner.running if runner else None,
    )
    app.has_key = settings.needs_key

    async def load_models() -> AsyncIterator[None]:
        async with endpoint.use_models():
            yield

    with_models = [Depends(load_models)]
    app.include_router(health.router(endpoint, admission, metrics, settings.page))
    app.include_router(native.router(service), dependencies=with_models)
    app.include_router(routes.router(service), dependencies=with_models)
    app.include_router(transcripts.router())
    app.include_router(jobs.router(endpoint, runner, settings.callback_hosts))
    secrets = ClientSecrets()
    app.include_router(realtime.router(endpoint, settings, admission, secrets, open_driver))
    app.include_router(docs_page.router())
    app.include_router(
        info.router(endpoint, admission, runner is not None), dependencies=with_models
    )
    if settings.page:
        app.include_router(page.router())
    app.add_exception_handler(Exception, _fail)
    app.add_exception_handler(HTTPException, _refuse)
    return Gate(app, admission, metrics, settings, secrets, keys, runner)


def _fail(request: Request, error: Exception) -> Response:
    return ErrorResponse(translated(error), request.scope["path"])


def _refuse(request: Request, error: Exception) -> Response:
    """Reword the framework's refusals, because its own texts may repeat the request."""
    assert isinstance(error, HTTPException)
    known: dict[int, EndpointError] = {
        404: Refusal(Kind.NOT_FOUND, "no such path"),
        405: Refusal(Kind.METHOD_NOT_ALLOWED, "method not allowed; see Allow"),
    }
    answer: Response = ErrorResponse(
        known.get(error.status_code, InvalidRequest("cannot be read")), request.scope["path"]
    )
    if error.status_code == 405:
        if request.method == "OPTIONS":
            answer = Response(status_code=204)
        asked = [(name, {**request.scope, "method": name}) for name in METHODS]
        routes = request.app.routes  # several may have the path
        served = [n for n, asks in asked if any(r.matches(asks)[0] is Match.FULL for r in routes)]
        answer.headers["Allow"] = ", ".join(served)
    return answer
