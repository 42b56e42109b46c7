"""An ASGI app on loopback, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def live(app) -> Iterator[str]:
    """The app's address while uvicorn serves it on a free port; nobody's stream delays its end."""
    config = uvicorn.Config(
        app, port=0, log_level="critical", lifespan="on", ws="none", timeout_graceful_shutdown=0
    )
    server, started = uvicorn.Server(config), threading.Event()
    startup = server.startup

    async def tell(sockets=None) -> None:
        await startup(sockets)
        started.set()

    server.startup = tell
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
