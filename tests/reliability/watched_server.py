"""`python -m whosaid.server` under observation: `python watched_server.py EVENTS [--forks]`.

Connections, name look-ups and child processes are written to the file EVENTS, a line each, except
the processes that read large files. With `--forks` everything is imported once, which takes longer
than loading a tiny model and serving, and a new child serves each line on the standard input, an
environment in JSON; the environment's FIRST is Python code, which runs before."""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from whosaid.runtime import modules_that_stay

WATCHED = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec")


def watch(path: str) -> None:
    """Write the process's connections, look-ups and child processes to `path`."""
    events = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event in WATCHED and "whosaid.audio.sandbox.serve" not in str(arguments):
            told = arguments[1:] if "connect" in event else arguments
            os.write(events, f"{event} {told}\n".encode())

    sys.addaudithook(note)


def fork_servers() -> None:
    """Return in a child for each line, and wait there for the end of each; the end of all comes
    with that of the input."""
    with modules_that_stay():
        import whosaid.server.serving  # noqa: F401

    for line in sys.stdin:
        if not (child := os.fork()):
            os.environ.update(json.loads(line))
            tempfile.tempdir = None  # the parent may have asked for its own
            exec(os.environ.pop("FIRST", ""), {})
            return
        print(f"started {child}", flush=True)
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)
    sys.exit()


if __name__ == "__main__":
    watch(sys.argv[1])
    if "--forks" in sys.argv:
        fork_servers()
    from whosaid.audio import sandbox
    from whosaid.server.__main__ import main

    sandbox.hide_memory = lambda: None  # the suite reads /proc, not as root

    main([])
