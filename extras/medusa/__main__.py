"""`python -m extras.medusa train` and `evaluate`: heads that draft for a Whisper.

The command line is read before anything that loads torch is imported.
"""

import sys
from collections.abc import Sequence

from extras.medusa.options import read
from whosaid.errors import EndpointError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Ends the process with one line if it fails."""
    options = read(arguments)
    from extras.medusa import commands

    run = {"train": commands.train, "evaluate": commands.evaluate}[options.command]
    try:
        run(options)
    except (EndpointError, OSError, ValueError) as error:
        sys.exit(f"python -m extras.medusa {options.command}: {error}")


if __name__ == "__main__":
    main()
