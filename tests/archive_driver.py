"""`python -m tests.archive_driver STAND_IN ...`: `python -m archive` with a handler of
tests/archive_stand_ins.py."""

from __future__ import annotations

import sys

from archive.__main__ import main
from tests import archive_stand_ins

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], getattr(archive_stand_ins, sys.argv[1])))
