"""`python -m extras.archive`: reads the command line before anything slow is imported."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from extras.archive.options import read
from whosaid.cli.parser import WRONG

# Required packages of the endpoint and of extras/archive/requirements.txt.
PACKAGES = ("pyarrow", "pydantic_settings", "ray", "torch", "transformers")
START = "run scripts/setup --archive, then .venv/bin/python -m extras.archive"


def main(arguments: Sequence[str] | None = None) -> int:
    options = read(arguments)
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        reason = f"this Python has no {', '.join(missing)}: {START}"
        print(f"python -m extras.archive: {reason}", file=sys.stderr)
        return WRONG
    from extras.archive import run

    return run.run(options)


if __name__ == "__main__":
    sys.exit(main())
