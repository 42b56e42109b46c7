"""Reads a command line with the standard library alone: `python -m commands NAME [ARGUMENT...]`.

scripts/ ask it before they install anything. The exit status tells what to do: 0 go on, 2 the
command line is wrong, and HELPED that help was asked for and printed.
"""

from __future__ import annotations

import sys
from importlib import import_module

# The module whose `parser()` knows the options, by the script's name.
OPTIONS = {
    "serve": "server.options",
}
HELPED = 10


def main() -> int:
    """The exit status."""
    name, *arguments = sys.argv[1:]
    try:
        import_module(OPTIONS[name]).parser().parse_args(arguments)
    except SystemExit as end:
        return HELPED if end.code == 0 else int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
