"""The command line of scripts/serve and `python -m whosaid.server`."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whosaid.cli.options import add_models
from whosaid.cli.parser import CommandParser, option, whole_number

# Settings of the server that have no option.
SETTINGS = (
    *("API_KEY", "MAX_QUEUE", "MAX_QUEUE_BYTES", "MAX_DECODED_BYTES", "REQUEST_TIMEOUT"),
    *("KEEP_ALIVE_SECONDS", "DRAIN_TIMEOUT", "PAGE", "MAX_ROWS", "ALLOWED_HOSTS"),
    *("ALLOWED_ORIGINS", "MAX_LIVE_SESSIONS", "MAX_APPEND_BYTES", "LIVE_AHEAD_SECONDS"),
    *("LIVE_IDLE_SECONDS", "LIVE_SESSION_SECONDS", "MAX_JOBS", "MAX_JOB_BYTES"),
    *("MAX_RUNNING_JOBS", "JOB_SECONDS", "CALLBACK_HOSTS", "CALLBACK_SECRET", "API_KEYS_FILE"),
    *("LOG_FORMAT", "LOG_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT"),
)
EXAMPLES = (
    ("Whisper base, downloaded once, with speakers, on http://127.0.0.1:8000", "scripts/serve"),
    ("another model, on another port", "scripts/serve --model openai/whisper-small --port 9000"),
    ("for other machines, with a key", "scripts/serve --host 0.0.0.0 --api-key-file key.txt"),
    ("jobs, kept in a folder of your own", "scripts/serve --data-dir jobs"),
    ("the demo models of this repository", "scripts/serve --embedded"),
)
KEY_FILE = "a file with the key that clients must send; the variable holds the key itself"
DATA_DIR = "folder for jobs; default: one for each port, in the user's folder for programs"


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options; an option that is not given is read from its variable."""
    made = CommandParser(
        "scripts/serve",
        "Serve one set of models to many clients: the endpoint's JSON, audio files, OpenAI's audio"
        " API, and a page for the browser. Answers until SIGTERM or Ctrl+C.",
        EXAMPLES,
        "docs/server.md has the other variables and all routes. The exit status is 2 for a wrong"
        " command line, 1 if the server cannot start or cannot load its models.",
        variables={f"--{name.lower().replace('_', '-')}": name for name in SETTINGS},
    )
    option(made, "--host", "address; default: 127.0.0.1", "HOST", metavar="ADDRESS")
    port = whole_number(0, 65535)
    option(made, "--port", "default: 8000; 0: any free port", "PORT", type=port, metavar="N")
    option(made, "--api-key-file", KEY_FILE, "API_KEY", type=Path, metavar="FILE")
    option(made, "--data-dir", DATA_DIR, "DATA_DIR", type=Path, metavar="FOLDER")
    told = "keep no jobs: a closed tab or a restart ends a transcription"
    option(made, "--no-jobs", told, action="store_true")
    made.checks.append(_jobs_beside_none)
    add_models(made)
    how: dict[str, Any] = {"dest": "diarize", "action": "store_const", "const": False}
    told = "load no pipeline; do not find speakers"
    option(made, "--no-speakers", told, also=["--no-diarize"], **how)
    options: Namespace = made.parse_args(arguments)
    return options


def _jobs_beside_none(options: Namespace) -> str | None:
    both = options.no_jobs and options.data_dir is not None
    return "--no-jobs: cannot be used with --data-dir" if both else None
