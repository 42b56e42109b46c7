"""An ASGI app on loopback, in a thread of the test's process."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from whosaid.server.app import create_app
from whosaid.server.jobs.store import JobStore
from whosaid.server.lifecycle import DrainingServer, bind
from whosaid.server.settings import ServerSettings


@contextmanager
def live(app) -> Iterator[str]:
    """Yield the app's address while uvicorn serves it on a free port; no stream delays its end."""
    config = uvicorn.Config(
        app, log_config=None, log_level=None, lifespan="on", ws="none", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    with _running(server, stop) as (host, port):
        yield f"http://{host}:{port}"


@contextmanager
def serving(endpoint, jobs: Path | None = None, most: int = 10, **settings) -> Iterator[str]:
    """Serve an endpoint; with a folder for `jobs`, the server has so many at most."""
    store = jobs and JobStore(jobs, most, 2**30, 0.0)
    with live(create_app(endpoint, ServerSettings(**settings), store=store)) as url:
        yield url


@contextmanager
def listening(server: DrainingServer) -> Iterator[tuple[str, int]]:
    """Yield the server's URL; `server.loops` has its event loop."""

    def stop() -> None:
        server.drain_timeout = 0
        if not server.gate.admission.draining:
            server.handle_exit(signal.SIGTERM, None)

    with _running(server, stop) as where:
        yield where


@contextmanager
def _running(server: uvicorn.Server, stop: Callable[[], None]) -> Iterator[tuple[str, int]]:
    with bind(ServerSettings(port=0)) as bound:
        ready, startup = threading.Event(), server.startup

        async def tell(sockets=None) -> None:
            await startup(sockets)
            server.loops = [asyncio.get_running_loop()]
            ready.set()

        server.startup = tell
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            assert ready.wait(60)
            yield bound.getsockname()[:2]
        finally:
            stop()
            thread.join()
