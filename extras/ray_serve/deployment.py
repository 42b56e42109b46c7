"""`python -m extras.ray_serve`: the server's application on Ray Serve, for more than one device.

A replica is a process with its own models, on a GPU or a share of the cores. Serve starts new ones
if requests wait or a replica has died, and lets replicas finish their requests. It retries nothing:
if a replica dies, its clients get an error that says to send the request again. Replicas share no
memory, so routes that need state in memory are refused.

Settings are in `ray_serve.yaml`, in the form that `serve deploy` and KubeRay's RayService read.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import ModelSettings
from whosaid.cli.parser import INTERRUPTED, CommandParser, option
from whosaid.errors import StartError, Unsupported
from whosaid.runtime import modules_that_stay
from whosaid.server.error_response import ErrorResponse
from whosaid.server.errors import Kind, Refusal
from whosaid.server.settings import ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.schema import ServeDeploySchema
    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("server")

FILE = Path(__file__).with_name("ray_serve.yaml")
# Routes whose state belongs to one process.
OF_ONE_PROCESS = ("/metrics", "/v1/jobs", "/v1/realtime/client_secrets")
# Routes that Serve's proxy answers itself.
OF_THE_PROXY = "/-/"
# Turn Ray's usage reports off, and let Serve's proxies use our error format.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:proxy_middlewares",
}
# A header of every replica's answer (server.gate), and of no answer of Serve.
GUARD = b"x-content-type-options"


class Replica:
    """The server's application in one process."""

    def __init__(self) -> None:
        """Load the environment's models. Raises RuntimeError if that fails."""
        from whosaid.server.__main__ import log_to_stderr

        with modules_that_stay():
            from whosaid.server.serving import load_app

        log_to_stderr()
        try:
            models, settings = ModelSettings.from_environment(), ServerSettings.from_environment()
            # DATA_DIR belongs to one process.
            settings = settings.model_copy(update={"data_dir": None})
            self._gate, self._endpoint = load_app(models, settings)
        except (SystemExit, StartError, ValueError) as error:
            raise RuntimeError(str(error)) from None
        self._gate.app = _of_all_processes(self._gate.app)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application; Serve calls this."""
        return self._gate

    def check_health(self) -> None:
        """Raise RuntimeError if only a new process can answer again."""
        if not self._endpoint.alive:
            raise RuntimeError("the engine has stopped")


def _of_all_processes(app: ASGIApp) -> ASGIApp:
    """Return the application without the routes that need state of one process."""

    async def refuse_or_pass(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(OF_ONE_PROCESS):
            raise Unsupported("not available on Ray Serve, because replicas share no state")
        await app(scope, receive, send)

    return refuse_or_pass


class ProxyAnswers:
    """Middleware in Serve's proxy: replaces Serve's errors (404, 500, 503) by the server's own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request, and a replica's answer."""
        if scope["type"] != "http" or scope["path"].startswith(OF_THE_PROXY):
            await self._app(scope, receive, send)
            return
        answered = False

        async def send_on(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])  # Serve repeats the request's id
                answered = GUARD in headers
                message = {**message, "headers": [*headers.items()]}
            if answered:
                await send(message)

        await self._app(scope, receive, send_on)
        if not answered:
            error = Refusal(Kind.NO_REPLICA, "no replica answered this request: send it again")
            await ErrorResponse(error, scope["path"])(scope, receive, send)


def proxy_middlewares() -> list[Middleware]:
    """Return middlewares for RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH."""
    from starlette.middleware import Middleware

    return [Middleware(ProxyAnswers)]


def application(options: dict[str, Any]) -> Application:
    """Return the application for the file's `import_path` with Serve's deployment `options`."""
    from ray import serve

    deployment: Any = serve.deployment(serve.ingress()(Replica))
    made: Application = deployment.options(**options).bind()
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve with the file's settings until SIGTERM or SIGINT, then drain. Raises SystemExit."""
    options = _read_options(arguments)
    os.environ |= ENVIRONMENT
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:  # settings that every replica would refuse
        ModelSettings.from_environment()
        ServerSettings.from_environment()
    except ValueError as error:
        raise SystemExit(f"{StartError(str(error))}") from error
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise SystemExit(f"{error}: scripts/setup --archive installs Ray") from error
    from whosaid.server.__main__ import log_to_stderr

    log_to_stderr()
    told, http, deployment = _read_file(options.config)
    (asked,) = told.applications
    if options.address:
        ray.init(options.address)
    else:
        ray.init("local", include_dashboard=False)
        _require_room(ray.cluster_resources(), deployment.get("ray_actor_options", {}))
    try:
        serve.start(told.proxy_location, http, None, told.logging_config)
        serve.run(application(deployment), name=asked.name, route_prefix=asked.route_prefix)
        logger.info("listening on http://%s:%s", http["host"], http["port"])
        _wait_for_signal()
        logger.info("draining")
        while asked.name in serve.status().applications:
            with suppress(TimeoutError):  # at most a minute
                serve.delete(asked.name)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    finally:
        serve.shutdown()
        ray.shutdown()
    logger.info("drained")


def _read_file(file: Path) -> tuple[ServeDeploySchema, dict[str, Any], dict[str, Any]]:
    """Read a file in Serve's format with one application and one deployment. Return it, its HTTP
    options, and the deployment's. Raises SystemExit.
    """
    import yaml
    from ray.serve.schema import ServeDeploySchema

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        told = ServeDeploySchema.model_validate(content)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SystemExit(f"--config {file}: {' '.join(str(error).split())}") from error
    if [len(each.deployments) for each in told.applications] != [1]:
        text = f"--config {file}: should have one application with one deployment, like {FILE.name}"
        raise SystemExit(text)
    settings = ServerSettings.model_fields
    http = {name: settings[name].default for name in ("host", "port")}
    http |= content.get("http_options") or {}
    return told, http, content["applications"][0]["deployments"][0]


def _read_options(arguments: Sequence[str] | None) -> Namespace:
    made = CommandParser(
        "python -m extras.ray_serve",
        "The server on Ray Serve: a replica for each GPU, or for a share of the cores.",
        (
            ("on this machine", "python -m extras.ray_serve"),
            ("on a cluster", "python -m extras.ray_serve --address HEAD:6379 --config my.yaml"),
        ),
        "Models and settings come from the environment (docs/server.md), the rest from the file.",
    )
    told = f"default: {FILE.name} of this package"
    option(made, "--config", told, type=Path, default=FILE, metavar="FILE")
    option(made, "--address", "a running cluster's head; default: start a cluster on this machine")
    options: Namespace = made.parse_args(arguments)
    return options


def _require_room(there: Mapping[str, float], wanted: Mapping[str, float]) -> None:
    """Raise SystemExit if this machine lacks room for a replica: Serve would wait for ever."""
    for name, resource in (("num_gpus", "GPU"), ("num_cpus", "CPU")):
        if wanted.get(name, 0) > there.get(resource, 0):
            told = f"{name}: {wanted[name]:g} for each replica, and Ray finds"
            raise SystemExit(f"{told} {there.get(resource, 0):g} here; change it in --config")


def _wait_for_signal() -> None:
    """Wait for SIGTERM or SIGINT. Before this call Ray ends the process on either."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
