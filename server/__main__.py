"""`python -m server`: loads the models and answers until SIGTERM, or until the engine stops.

The one decision: whatever is wrong with the start is one line and a status that is not 0; the
address is taken before the models are loaded, and answers only afterwards.
"""

from __future__ import annotations

import logging
import signal
import sys

from config import ModelSettings, ServerSettings
from errors import StartError
from handler import EndpointHandler
from server.app import create_app
from server.lifecycle import DrainingServer, bind
from server.service import Service

logger = logging.getLogger("server")


def main() -> None:
    """Serve what the environment names. Raises SystemExit at the end, or where that cannot be."""
    to_stderr = logging.StreamHandler()
    to_stderr.addFilter(_is_no_progress)
    logging.basicConfig(
        handlers=[to_stderr],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Until requests are accepted there is nothing to drain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        settings, models = ServerSettings.from_environment(), ModelSettings.for_demo()
    except ValueError as error:
        raise SystemExit(str(StartError(str(error)))) from error
    try:
        bound = bind(settings)
    except OSError as error:
        where = f"HOST={settings.host} PORT={settings.port}"
        raise SystemExit(str(StartError(f"{where}: {error.strerror}"))) from error
    if warning := settings.warning:
        logger.warning(warning)
    with bound:
        handler = EndpointHandler(settings=models)
        service = Service(handler, settings.max_rows, settings.max_decoded_bytes)
        app = create_app(service, settings)
        server = DrainingServer(app, service, settings.drain_timeout, settings.forwarded_allow_ips)
        server.run([bound])
        server.close()
    sys.exit(server.exit_status)


def _is_no_progress(record: logging.LogRecord) -> bool:
    """Leaves out the line of each window: among many clients' nobody could tell whose it is."""
    return not hasattr(record, "done")


if __name__ == "__main__":
    main()
