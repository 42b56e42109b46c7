"""requirements.txt in both environments: what each server brought was not moved, and nothing that
came on top contradicts anything. scripts/setup wrote down what was installed before and after."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from config import REPOSITORY

# pyannote.core 6 needs numpy 2; what hf-serve brings works with it, but for the package below.
MOVED = {".venv": {"numpy"}, ".venv-toolkit": set()}
# Wants numpy 1, and is hf-serve's for tasks that a custom handler is not.
AT_ODDS = {".venv": {"pyctcdecode"}, ".venv-toolkit": set()}
NEVER_MOVED = {"torch", "torchaudio", "transformers", "huggingface-hub", "starlette", "uvicorn"}


@pytest.fixture(params=[".venv", ".venv-toolkit"])
def environment(request) -> Path:
    folder = REPOSITORY / request.param
    if not (folder / "ready").is_file():
        pytest.skip(f"no {request.param}: scripts/setup --toolkit makes it")
    return folder


def installed(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line)


def test_requirements_leave_the_servers_packages_as_they_are(environment):
    before = installed(environment / "server.txt")
    after = installed(environment / "server-and-requirements.txt")
    assert before.keys() >= NEVER_MOVED
    assert after.keys() > before.keys()
    moved = {name for name in before if after[name] != before[name]}
    assert moved == MOVED[environment.name]


def test_nothing_contradicts_what_is_installed(environment):
    uv = REPOSITORY / ".venv" / "bin" / "uv"
    done = subprocess.run(
        [str(uv), "pip", "check", "--offline", "--python", str(environment / "bin" / "python")],
        capture_output=True,
        text=True,
        check=False,
    )
    at_odds = set(re.findall(r"The package `([\w.-]+)`", done.stdout + done.stderr))
    assert at_odds == AT_ODDS[environment.name], done.stdout + done.stderr
    assert "Checked" in done.stdout + done.stderr


def test_requirements_bound_what_both_servers_share_by_the_version_of_python():
    text = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8")
    for name in ("torch", "transformers", "huggingface-hub", "numpy", "pyannote.audio"):
        lines = [line for line in text.splitlines() if line.startswith(f"{name}>")]
        markers = {line.partition("; ")[2] for line in lines}
        assert markers == {'python_version < "3.12"', 'python_version >= "3.12"'}, name
