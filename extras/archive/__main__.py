"""`python -m extras.archive`: reads the command line, and checks that Ray is installed, before
anything slow is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from extras.archive.options import read
from whosaid.cli.parser import WRONG

if TYPE_CHECKING:
    from extras.archive.worker import Handler

# Required packages of the endpoint and of extras/archive/requirements.txt.
PACKAGES = ("pyarrow", "pydantic_settings", "ray", "torch", "transformers")
START = "run scripts/setup --archive, then .venv/bin/python -m extras.archive"


def main(
    arguments: Sequence[str] | None = None,
    make_handler: Callable[[dict[str, Any]], Handler] | None = None,
) -> int:
    """Run the command; return the exit status. In each worker `make_handler` is called with the
    settings, and returns a replacement for the endpoint's handler.
    """
    options = read(arguments)
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        reason = f"this Python has no {', '.join(missing)}: {START}"
        print(f"python -m extras.archive: {reason}", file=sys.stderr)
        return WRONG
    from extras.archive import run

    return run.run(options, make_handler or run.load_handler)


if __name__ == "__main__":
    sys.exit(main())
