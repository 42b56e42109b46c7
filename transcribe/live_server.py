"""A server in this process for one live session: the models that the command line chooses, on a
port of loopback that nobody else has the key of.

A live session is the server's business alone, and so it is the same with `--url` and without. In
this process nothing is left behind, however it ends.
"""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from config import ModelSettings
from errors import StartError
from server.settings import ServerSettings
from transcribe.client import Unusable

if TYPE_CHECKING:
    from server.lifecycle import DrainingServer

SECONDS_TO_END = 10.0


@contextmanager
def own_server(choose: Callable[[], ModelSettings]) -> Iterator[tuple[str, str]]:
    """The address and the key of a server with the models that `choose` names, in a block.

    Raises Unusable where they cannot be loaded.
    """
    key = secrets.token_urlsafe(32)
    settings = ServerSettings.from_environment(host="127.0.0.1", port=0, api_key=key, page=False)
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


def _wait_for(server: DrainingServer, thread: threading.Thread) -> None:
    """Until it listens. Raises Unusable where it does not."""
    while not server.started:
        thread.join(0.02)
        if not thread.is_alive():
            raise Unusable("the server of this session does not start")
