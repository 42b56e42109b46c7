"""Python programs in processes of their own."""

import subprocess
import sys

from config import REPOSITORY


def run_python(*arguments, cwd=REPOSITORY, **options):
    """Run this interpreter to its end, by default in the repository, and return what it printed."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)
