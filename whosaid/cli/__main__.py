"""Runs a command: `python -m whosaid.cli NAME [ARGUMENT...]`, as scripts/NAME does.

The command line is read with any Python and only the standard library, so that help and mistakes
install nothing. Then .venv is installed, and the command runs under its Python.
"""

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from whosaid.cli.parser import FAILED, INTERRUPTED, WRONG, CommandParser, exit_at_once, option

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / ".venv"
ENVIRONMENT = REPOSITORY / "scripts" / "environment"
# First arguments: the packages are installed, or scripts/gpu-check got an interpreter.
READY, GIVEN = "--ready", "--given"
# Packages needed by clients of a running server, and by scripts/gpu-check.
CLIENT = ("httpx2", "pydantic_settings", "rich")
CHECKED = (
    *("torch", "transformers", "numpy", "joblib", "psutil"),
    *("pydantic", "pydantic_settings", "rapidfuzz", "av", "silero_vad"),
)
LAYERS = {
    "archive": "also install Ray, for archives and Ray Serve",
    "dev": "add hf-serve, Ray and the packages of checks, tests and benchmarks; as root on Debian"
    " also the programs that tests use",
    "toolkit": "like --dev, and .venv-toolkit with Python 3.11 and the packages of"
    " huggingface-inference-toolkit's container",
}


class Command(NamedTuple):
    """`module:function` of options and command, which returns a status; the layer of packages."""

    read: str
    run: str
    layer: str = "use"


COMMANDS = {
    "demo": Command("whosaid.transcribe.options:read_demo", "whosaid.transcribe.__main__:run"),
    "transcribe": Command(
        "whosaid.transcribe.options:read_transcribe", "whosaid.transcribe.__main__:run"
    ),
    "voices": Command("whosaid.transcribe.voices:read", "whosaid.transcribe.voices:run"),
    "serve": Command("whosaid.server.options:read", "whosaid.server.__main__:run_for_user"),
    "bench": Command("benchmarks.options:read_bench", "benchmarks.options:run", "dev"),
    "gpu-check": Command(
        "benchmarks.options:read_gpu_check", "benchmarks.gpu_check.__main__:main", "dev"
    ),
    "setup": Command("whosaid.cli.__main__:read_setup", "whosaid.cli.__main__:set_up"),
}


def read_setup(arguments: Sequence[str] | None = None) -> Namespace:
    parser = CommandParser(
        "scripts/setup",
        "Install Python 3.12 and the packages of requirements/locks/, verified by hash, into .venv,"
        " for demo, serve, transcribe and deploy.py. If nothing has changed, nothing is done."
        " Packages of earlier calls are kept.",
        (
            ("packages for use", "scripts/setup"),
            (
                "also Ray, and packages for checks, tests and benchmarks",
                "scripts/setup --archive --dev",
            ),
        ),
        "Without an NVIDIA device torch is PyTorch's build for the CPU, without CUDA's libraries.",
    )
    for name, help_text in LAYERS.items():
        option(parser, f"--{name}", help_text, action="store_true")
    options: Namespace = parser.parse_args(arguments)
    return options


def set_up(options: Namespace) -> NoReturn:
    layers = [name for name in LAYERS if getattr(options, name)]
    os.execvp("bash", ["bash", str(ENVIRONMENT), *layers])


def make_ready(layer: str) -> None:
    """Install the packages of `layer`, if they are missing, and restart under .venv's Python."""
    ready = VENV / "ready"
    before = ready.read_text(encoding="utf-8") if ready.is_file() else ""
    if status := subprocess.run(["bash", ENVIRONMENT, layer], check=False).returncode:
        sys.exit(status)
    if Path(sys.prefix).resolve() != VENV.resolve() or ready.read_text(encoding="utf-8") != before:
        python = str(VENV / "bin" / "python")
        os.execv(python, [python, "-m", "whosaid.cli", READY, *sys.argv[1:]])


def require(program: str, packages: Sequence[str], status: int) -> None:
    if missing := [name.replace("_", "-") for name in packages if find_spec(name) is None]:
        told = f"{program}: first pip install {' '.join(missing)}, or run scripts/setup"
        print(told, file=sys.stderr)
        sys.exit(status)


def function(place: str) -> Any:  # noqa: ANN401
    module, name = place.split(":")
    return getattr(import_module(module), name)


def main() -> int:
    python = sys.argv[1] if sys.argv[1] in (READY, GIVEN) else ""
    name, *arguments = sys.argv[2 if python else 1 :]
    command = COMMANDS[name]
    options = function(command.read)(arguments)
    try:
        if python == GIVEN:
            require(f"scripts/{name}", CHECKED, WRONG)
        elif name in ("transcribe", "voices") and options.url is not None:  # without .venv, too
            require(f"scripts/{name}", CLIENT, FAILED)
        elif python != READY and name != "setup":
            make_ready(command.layer)
        return int(function(command.run)(options) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    status = main()
    if status == INTERRUPTED:
        exit_at_once(status)
    sys.exit(status)
