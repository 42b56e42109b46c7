"""The command line of scripts/serve and `python -m whosaid.server`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from whosaid.cli.options import add_models
from whosaid.cli.parser import CommandParser, option, whole_number

# Settings of the server that have no option.
SETTINGS = (
    "API_KEY",
    "MAX_QUEUE",
    "MAX_QUEUE_BYTES",
    "MAX_DECODED_BYTES",
    "REQUEST_TIMEOUT",
    "DRAIN_TIMEOUT",
    "PAGE",
    "MAX_ROWS",
    "ALLOWED_HOSTS",
    "ALLOWED_ORIGINS",
    "MAX_LIVE_SESSIONS",
    "MAX_APPEND_BYTES",
    "LIVE_AHEAD_SECONDS",
    "LIVE_IDLE_SECONDS",
    "LIVE_SESSION_SECONDS",
    "DATA_DIR",
    "MAX_JOBS",
    "MAX_JOB_BYTES",
    "MAX_RUNNING_JOBS",
    "JOB_SECONDS",
    "CALLBACK_HOSTS",
    "CALLBACK_SECRET",
)


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options; an option that is not given is read from its variable."""
    made = CommandParser(
        "scripts/serve",
        "Serve one set of models to many clients: the endpoint's JSON, audio files, OpenAI's audio"
        " API, and a page for the browser. Answers until SIGTERM or Ctrl+C.",
        (
            (
                "Whisper base, downloaded once, with speakers, on http://127.0.0.1:8000",
                "scripts/serve",
            ),
            (
                "another model, on another port",
                "scripts/serve --model openai/whisper-small --port 9000",
            ),
            (
                "for other machines, with a key",
                "scripts/serve --host 0.0.0.0 --api-key-file key.txt",
            ),
            ("jobs, kept in a folder", "DATA_DIR=jobs scripts/serve"),
            ("the demo models of this repository", "scripts/serve --embedded"),
        ),
        "docs/server.md has the other variables and all routes. The exit status is 2 for a wrong"
        " command line, 1 if the server cannot start or cannot load its models.",
        variables={f"--{name.lower().replace('_', '-')}": name for name in SETTINGS},
    )
    option(made, "--host", "address; default: 127.0.0.1", "HOST", metavar="ADDRESS")
    option(
        made,
        "--port",
        "default: 8000; 0: any free port",
        "PORT",
        type=whole_number(0, 65535),
        metavar="N",
    )
    option(
        made,
        "--api-key-file",
        "a file with the key that clients must send; the variable holds the key itself",
        "API_KEY",
        type=Path,
        metavar="FILE",
    )
    add_models(made)
    option(
        made,
        "--no-speakers",
        "load no pipeline; do not find speakers",
        also=("--no-diarize",),
        dest="diarize",
        action="store_const",
        const=False,
    )
    options: Namespace = made.parse_args(arguments)
    return options
