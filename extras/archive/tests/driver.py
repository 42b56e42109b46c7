"""Runs of `python -m extras.archive` with a handler of tests/stand_ins.py, in children of this
process, which has imported Ray once: that takes more than such a run.

A line on the standard input is a list in JSON: a stand-in and arguments begin a run, which writes
to the files whose names come first; a process's id waits for its end. Answers are the id, and the
exit status.
"""

from __future__ import annotations

import json
import os
import sys

from extras.archive.__main__ import main
from extras.archive.tests import stand_ins
from runtime.environment import prepare_ray


def run(stdout: str, stderr: str, stand_in: str, *arguments: str) -> int:
    """Its exit status."""
    for name, number in ((stdout, 1), (stderr, 2)):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), number)
    return main(arguments, getattr(stand_ins, stand_in))


def begin_and_wait() -> None:
    """Return at the end of the input, and in a child at its end."""
    for line in sys.stdin:
        told = json.loads(line)
        if len(told) == 1:
            answer = os.waitstatus_to_exitcode(os.waitpid(told[0], 0)[1])
        elif not (answer := os.fork()):
            sys.exit(run(*told))
        print(answer, flush=True)


if __name__ == "__main__":
    prepare_ray()
    import ray.data  # noqa: F401

    import extras.archive.run  # noqa: F401

    begin_and_wait()
