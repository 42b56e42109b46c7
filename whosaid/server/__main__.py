"""`python -m whosaid.server`: loads the models; answers until SIGTERM, or until the engine stops.

For a wrong command line or a failed start it prints one line and exits with a nonzero status.
"""

import logging
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from whosaid.cli.parser import INTERRUPTED, exit_at_once
from whosaid.errors import StartError
from whosaid.runtime import modules_that_stay
from whosaid.runtime.logs import OWN, JsonLines, hide_tokens
from whosaid.server.options import read
from whosaid.server.settings import ServerSettings


def main(arguments: Sequence[str] | None = None) -> None:
    run(read(arguments))


def run_for_user(options: Namespace) -> None:
    """Serve like `run`, and keep jobs in a folder of this user unless another is named."""
    run(options, user_jobs=not options.no_jobs)


def run(options: Namespace, user_jobs: bool = False) -> None:
    """Serve with the options and the environment, then raise SystemExit."""
    # While no requests are accepted there is nothing to drain.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        settings = read_settings(options)
        log_to_stderr(settings.log_format, settings.log_level)
        with modules_that_stay():
            from whosaid.server.serving import serve  # takes seconds; signals end these cleanly too

        sys.exit(serve(options, settings, user_jobs))
    except StartError as error:
        raise SystemExit(str(error)) from error
    except _Interrupted as interrupted:
        exit_at_once(interrupted.status)


class _Interrupted(BaseException):
    """A signal ends the start; another thread may be loading models."""

    def __init__(self, number: int) -> None:
        self.status = INTERRUPTED if number == signal.SIGINT else 0


def _interrupt(number: int, _: object) -> NoReturn:
    raise _Interrupted(number)


def read_settings(options: Namespace) -> ServerSettings:
    """Read settings from the command line, then the environment. Raises StartError."""
    try:
        key = None if options.api_key_file is None else _read_key(options.api_key_file)
        said = {"host": options.host, "port": options.port, "api_key": key}
        said["data_dir"] = options.data_dir
        given = {name: value for name, value in said.items() if value is not None}
        settings = ServerSettings.from_environment(**given)
    except ValueError as error:
        raise StartError(str(error)) from error
    return settings.model_copy(update={"data_dir": None}) if options.no_jobs else settings


def _read_key(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise StartError(f"--api-key-file {file}: {why}") from error
    if not key:
        raise StartError(f"--api-key-file {file}: is empty")
    return key


def log_to_stderr(form: str = "text", level: str = "INFO") -> None:
    """Log to stderr: our own lines from `level` on, and other packages' warnings without tokens."""
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in OWN:
        logging.getLogger(name).setLevel(level)
    hide_tokens()


if __name__ == "__main__":
    main()
