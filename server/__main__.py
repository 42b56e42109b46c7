"""`python -m server`: loads the models and answers until SIGTERM, or until the engine stops.

Whatever is wrong with the start is one line and a status that is not 0. The address is taken before
the models are loaded, and answers only afterwards.
"""

from __future__ import annotations

import logging
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from socket import socket

from commands.parser import INTERRUPTED
from config import ModelSettings, ServerSettings
from errors import StartError
from handler import EndpointHandler
from model_sources.choice import VOCABULARY_SIZE, NothingFetched, Screen, choose, named
from server.app import create_app
from server.lifecycle import DrainingServer, bind
from server.options import read
from server.service import Service

logger = logging.getLogger("server")

NOTHING_FETCHED = (
    f"this server runs on demo models, which know {VOCABULARY_SIZE} English words and make nonsense"
    " of any other speech, because Whisper base could not be fetched"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve what the command line and the environment name.

    Raises SystemExit at the end, or where that cannot be.
    """
    options = read(arguments)
    to_stderr = logging.StreamHandler()
    to_stderr.addFilter(_is_no_progress)
    logging.basicConfig(
        handlers=[to_stderr],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Until requests are accepted there is nothing to drain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(INTERRUPTED))
    try:
        sys.exit(_serve(options))
    except StartError as error:
        raise SystemExit(str(error)) from error


def _serve(options: Namespace) -> int:
    """The exit status at the end. Raises StartError, or SystemExit where a model does not load."""
    settings = _read_settings(options)
    if warning := settings.warning:
        logger.warning(warning)
    with _bound(settings) as bound:
        models, notice = _choose_models(options)
        handler = EndpointHandler(settings=models)
        service = Service(handler, settings.max_rows, settings.max_decoded_bytes, notice)
        app = create_app(service, settings)
        server = DrainingServer(
            app, service, settings.drain_timeout, settings.forwarded_allow_ips, settings.page
        )
        server.run([bound])
        server.close()
    return server.exit_status


def _bound(settings: ServerSettings) -> socket:
    try:
        return bind(settings)
    except OSError as error:
        where = f"HOST={settings.host} PORT={settings.port}"
        raise StartError(f"{where}: {error.strerror}") from error


def _read_settings(options: Namespace) -> ServerSettings:
    """What the command line says, and else the environment. Raises StartError."""
    try:
        key = None if options.api_key_file is None else _read_key(options.api_key_file)
        return ServerSettings.from_environment(host=options.host, port=options.port, api_key=key)
    except ValueError as error:
        raise StartError(str(error)) from error


def _read_key(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise StartError(f"--api-key-file {file}: {why}") from error
    if not key:
        raise StartError(f"--api-key-file {file}: is empty")
    return key


def _choose_models(options: Namespace) -> tuple[ModelSettings, str | None]:
    """The models, and what every answer should warn of: where nobody named any and Whisper base
    can be had from nowhere, the embedded ones serve. Raises StartError.
    """
    try:
        return choose(options, Screen(logger.info, nullcontext)), None
    except NothingFetched as error:
        if named(options):
            raise
        logger.warning("%s; %s", NOTHING_FETCHED, error)
        return ModelSettings.for_embedded(), NOTHING_FETCHED


def _is_no_progress(record: logging.LogRecord) -> bool:
    """Leaves out the line of each window: among many clients' nobody could tell whose it is."""
    return not hasattr(record, "done")


if __name__ == "__main__":
    main()
