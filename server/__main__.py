"""`python -m server`: loads the models and answers until SIGTERM, or until the engine stops.

Whatever is wrong with the command line or the start is one line and a status that is not 0.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence

from commands.parser import INTERRUPTED
from errors import StartError
from server.options import read


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
        from server.serving import serve  # takes seconds, which end in order too

        sys.exit(serve(options))
    except StartError as error:
        raise SystemExit(str(error)) from error


def _is_no_progress(record: logging.LogRecord) -> bool:
    """Leaves out the line of each window: among many clients' nobody could tell whose it is."""
    return not hasattr(record, "done")


if __name__ == "__main__":
    main()
