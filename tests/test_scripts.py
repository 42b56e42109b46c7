"""The scripts in a fresh clone: nothing is installed, and installers fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config import REPOSITORY

FOLDERS = ("scripts", "benchmarks", "whosaid/cli", "whosaid/server", "whosaid/transcribe")
# Without .venv these programs are what a script could install with.
STUBS = ("uv", "pip", "apt-get", "curl")


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of the files that the scripts need, and a Python with only the standard library."""
    folder = tmp_path_factory.mktemp("clone")
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("__init__.py", "model_reference.py"):
        shutil.copy(REPOSITORY / "whosaid" / name, folder / "whosaid")
    programs = folder / "programs"
    programs.mkdir()
    for name in STUBS:
        (programs / name).write_text("#!/bin/sh\necho installs >&2\nexit 99\n")
        (programs / name).chmod(0o755)
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return folder


def run(clone: Path, script: str, *arguments: str, path: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [clone / "scripts" / script, *arguments],
        env={"PATH": path or f"{clone / 'programs'}:/usr/bin:/bin", "HOME": str(clone / "home")},
        cwd="/",
        capture_output=True,
        text=True,
    )


SCRIPTS = sorted(it.name for it in (REPOSITORY / "scripts").iterdir() if os.access(it, os.X_OK))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_every_script_installs_nothing(clone, script):
    done = run(clone, script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 2
    assert not (clone / ".venv").exists()


def test_a_wrong_option_is_one_line_before_installation(clone):
    done = run(clone, "serve", "--prot")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/serve: ")
    assert "; did you mean --port?" in line
    assert not (clone / ".venv").exists()


def test_the_check_takes_no_arguments(clone):
    done = run(clone, "check", "nope")
    assert (done.returncode, "takes no arguments" in done.stderr) == (2, True)


def test_help_works_without_python(clone, tmp_path):
    for name in ("bash", "env", "dirname", "readlink", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = run(clone, "demo", "-h", path=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout


def test_modules_in_the_working_folder_are_not_imported(clone, tmp_path):
    (tmp_path / "argparse.py").write_text("raise SystemExit('shadowed')")
    link = tmp_path / "link"  # as one on PATH
    link.symlink_to(clone / "scripts" / "demo")
    command = [link, "--help"]
    environment = {"PATH": f"{clone / 'programs'}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: scripts/demo")
