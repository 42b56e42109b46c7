"""A server in this process for one live session: the models that the command line chooses, on a
port of loopback that nobody else has the key of.

A live session is the server's business alone, and so it is the same with `--url` and without. In
this process nothing is left behind, however it ends. What the environment says of a server
(DATA_DIR, ALLOWED_HOSTS, ...) is for one that is deployed: this one would run its jobs, send its
callbacks, or end its sessions.
"""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import SecretStr

from config import ModelSettings
from errors import StartError
from server.settings import ServerSettings
from transcribe.client import Unusable

if TYPE_CHECKING:
    from server.lifecycle import DrainingServer

SECONDS_TO_END = 10.0
# A year: one's own session ends when its audio does, and its last words are waited for.
NO_LIMIT = 365 * 86_400.0


@contextmanager
def own_server(choose: Callable[[], ModelSettings]) -> Iterator[tuple[str, str]]:
    """The address and the key of a server with the models that `choose` names, in a block.

    Raises Unusable where they cannot be loaded.
    """
    key = secrets.token_urlsafe(32)
    settings = own_settings(key)
    try:
        models = choose()
        from server.lifecycle import address, bind
        from server.serving import load_server  # takes seconds

        server = load_server(models, settings)
    except (StartError, SystemExit) as error:
        raise Unusable(str(error).removeprefix(f"{StartError.code}: ")) from error
    with bind(settings) as bound:
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        _wait_for(server, thread)
        yield address(bound), key
        # Not where the block was left by an error: that may be somebody who waits for nothing more.
        server.handle_exit(signal.SIGTERM, None)
        thread.join(SECONDS_TO_END)
        server.close()


def own_settings(key: str) -> ServerSettings:
    """The settings of that server: the defaults where nothing else is said, and none of the
    environment's.
    """
    return ServerSettings.model_construct(
        host="127.0.0.1",
        port=0,
        api_key=SecretStr(key),
        page=False,
        max_live_sessions=1,
        live_session_seconds=NO_LIMIT,
        live_idle_seconds=NO_LIMIT,
        request_timeout=NO_LIMIT,
        drain_timeout=NO_LIMIT,
    )


def _wait_for(server: DrainingServer, thread: threading.Thread) -> None:
    """Until it listens. Raises Unusable where it does not."""
    while not server.started:
        thread.join(0.02)
        if not thread.is_alive():
            raise Unusable("the server of this session does not start")
