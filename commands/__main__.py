"""Reads a command line with the standard library alone: `python -m commands NAME [ARGUMENT...]`.

scripts/ ask it before they install anything. The exit status tells what to do: 0 go on, 2 the
command line is wrong, and HELPED that help was asked for and printed.
"""

from __future__ import annotations

import sys
from importlib import import_module

# The function that reads a command line, and ends the process where it is wrong, by script.
READERS = {
    "demo": "transcribe.options:read_demo",
    "transcribe": "transcribe.options:read_transcribe",
    "serve": "server.options:read",
    "bench": "benchmarks.options:read_bench",
    "gpu-check": "benchmarks.options:read_gpu_check",
}
HELPED = 10


def main() -> int:
    """The exit status."""
    name, *arguments = sys.argv[1:]
    try:
        module, function = READERS[name].split(":")
        getattr(import_module(module), function)(arguments)
    except SystemExit as end:
        return HELPED if end.code == 0 else int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
