"""scripts/setup and its callers, with stand-ins for Python, pip and uv that write down their
arguments: nothing is installed here, and only a few programs are on the path."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from config import REPOSITORY

PROGRAMS = (
    *("awk", "bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "flock", "grep", "id"),
    *("mkdir", "mktemp", "readlink", "rm", "sed", "sleep", "touch", "uname"),
)
PYTHON = rf"""#!/usr/bin/env bash
case "$*" in
    "-m whosaid.cli "*) exec "{sys.executable}" -S "$@" ;;
    "-c import sys; print"*) echo "$0" ;;
    "-c import httpx2"*) exit 1 ;;
    "-m venv "*)
        echo "$*" >>"$LOG"
        mkdir -p "$3/bin" "$3/lib/python3.12/site-packages"
        cp "$0" "$3/bin/python"
        ;;
    "-m pip install "*)
        echo "$*" >>"$LOG"
        cp "$STUBS/uv" "${{0%/*}}/uv"
        ;;
    "-m "* | "-c import"*) ;;
    "--version") echo "Python 3.12.0" ;;
    *) echo "$*" >>"$LOG" ;;
esac
"""
UV = r"""#!/usr/bin/env bash
echo "uv $*" >>"$LOG"
case "$*" in
    *--torch-backend*)
        [ ! -e "$STUBS/no-index" ] || exit 2
        mkdir -p "${0%/bin/uv}/lib/python3.12/site-packages/torch-2.11.0+cpu.dist-info"
        echo uv >"${0%/bin/uv}/lib/python3.12/site-packages/torch-2.11.0+cpu.dist-info/INSTALLER"
        ;;
    *" sync "*)
        [ ! -e "$STUBS/interrupted" ] || exit 130
        [ ! -e "$STUBS/slow" ] || touch "$STUBS/unpacks"
        while [ -e "$STUBS/slow" ]; do sleep 0.02; done
        ;;
esac
"""
without_gpu = pytest.mark.skipif(
    bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has an NVIDIA device"
)


class Clone:
    """A copy of the scripts and locks, with the stand-ins beside it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.stubs, self.log = folder / "clone", folder / "bin", folder / "log"
        self.stubs.mkdir()
        for name in PROGRAMS:
            (self.stubs / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
        for name, text in (("python3.12", PYTHON), ("python3", PYTHON), ("uv-", UV)):
            (self.stubs / name).write_text(text)
            (self.stubs / name).chmod(0o755)
        # Not on the path under the name by which a user's own would be found.
        self.hidden = folder / "hidden"
        self.hidden.mkdir()
        (self.stubs / "uv-").rename(self.hidden / "uv")
        for name in ("scripts", "requirements", "whosaid/cli"):
            shutil.copytree(REPOSITORY / name, self.root / name)
        for name in ("__init__.py", "model_reference.py"):
            shutil.copy(REPOSITORY / "whosaid" / name, self.root / "whosaid")
        self.site = self.root / ".venv" / "lib" / "python3.12" / "site-packages"

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env={"PATH": str(self.stubs), "LOG": str(self.log), "STUBS": str(self.hidden)}
            | {"HOME": str(self.root)},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def calls(self) -> list[str]:
        """Return the calls of the stand-ins since the last call."""
        found = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found

    def wait_until_it_unpacks(self, process: subprocess.Popen[str]) -> None:
        while not (self.hidden / "unpacks").exists():
            assert process.poll() is None
            time.sleep(0.02)

    def packages(self) -> set[str]:
        lines = (self.root / ".venv" / "lock.txt").read_text().splitlines()
        return {line.partition("==")[0] for line in lines if line[:1].isalnum()}


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.parametrize(
    ("options", "layer", "toolkit"),
    [
        (["--dev", "--archive"], "dev", False),
        pytest.param(["--toolkit", "--archive"], "dev", True, marks=pytest.mark.reliability),
    ],
)
def test_options_add_up(clone, options, layer, toolkit):
    done = clone.run("scripts/setup", *options)
    assert done.returncode == 0, done.stderr
    assert (clone.root / ".venv" / "layer").read_text() == f"{layer}\n"
    assert (clone.root / ".venv-toolkit").is_dir() == toolkit


def test_setup_installs_only_the_users_locked_packages(clone):
    done = clone.run("scripts/setup")
    assert done.returncode == 0, done.stderr
    made, uv, *_, sync = clone.calls()
    assert made == "-m venv .venv"
    assert uv.endswith("--require-hashes -r requirements/locks/uv.txt")
    assert "pip sync" in sync
    assert "--require-hashes" in sync
    packages = clone.packages()
    assert packages > {"torch", "transformers", "pyannote-audio", "silero-vad", "fastapi", "rich"}
    not_for_users = {"hf-serve", "ray", "onnxruntime", "meeteval", "pytest", "ctranslate2"}
    assert packages.isdisjoint(not_for_users)


def test_an_interrupted_installation_is_continued(clone):
    (clone.hidden / "interrupted").touch()
    assert clone.run("scripts/setup").returncode == 130
    whole, half = clone.site / "whole-1.dist-info", clone.site / "half-1.dist-info"
    for folder in (whole, half):
        folder.mkdir()
        (folder / "METADATA").touch()
    (whole / "INSTALLER").touch()
    (clone.hidden / "interrupted").unlink()
    clone.calls()
    done = clone.run("scripts/setup")
    assert done.returncode == 0, done.stderr
    assert not any("venv" in call.split()[:2] for call in clone.calls())
    assert whole.is_dir()
    assert not half.exists()


@pytest.mark.reliability
def test_two_first_starts_install_once(clone):
    """The second one waits, and takes nothing for half unpacked that the first one unpacks."""
    (clone.hidden / "slow").touch()
    with clone.start("scripts/setup") as first:
        clone.wait_until_it_unpacks(first)
        unpacked = clone.site / "new-1.dist-info"
        unpacked.mkdir()
        with clone.start("scripts/setup") as second:
            said = second.stderr.readline()
            was_there = unpacked.is_dir()
            unpacked.mkdir(exist_ok=True)
            (unpacked / "INSTALLER").touch()
            (clone.hidden / "slow").unlink()
            rest = second.communicate()[1]
        first.communicate()
    assert said == "Another scripts/setup runs here: waiting for it\n"
    assert was_there
    assert (first.returncode, second.returncode, rest) == (0, 0, "")
    assert len([call for call in clone.calls() if " sync " in call]) == 1


@pytest.mark.reliability
def test_a_killed_set_up_keeps_nobody_waiting(clone):
    (clone.hidden / "slow").touch()
    with clone.start("scripts/setup") as killed:
        clone.wait_until_it_unpacks(killed)
        killed.kill()
        (clone.hidden / "slow").unlink()
        killed.communicate()
    done = clone.run("scripts/setup")
    assert (done.returncode, "Another" in done.stderr) == (0, False), done.stderr


@pytest.mark.reliability
def test_parts_once_installed_stay(clone):
    """Without a compiler a benchmark's package is left out with a message."""
    done = clone.run("scripts/setup", "--dev")
    assert clone.packages() > {"pytest", "hf-serve", "ray", "torchvision"}
    assert ("meeteval" in done.stderr, "meeteval" in clone.packages()) == (True, False)
    with (clone.root / "requirements" / "locks" / "use.txt").open("a") as lock:
        lock.write("new==1 \\\n    --hash=sha256:0\n")
    clone.calls()
    assert clone.run("scripts/setup").returncode == 0
    assert clone.packages() > {"pytest", "hf-serve", "ray", "new"}


@without_gpu
def test_without_a_gpu_torch_comes_without_cuda(clone):
    assert clone.run("scripts/setup").returncode == 0
    (torch,) = [call for call in clone.calls() if "--torch-backend" in call]
    locked = (REPOSITORY / "requirements" / "locks" / "use.txt").read_text(encoding="utf-8").split()
    pins = [word for word in locked if word.startswith(("torch==", "torchaudio=="))]
    assert torch.endswith(" ".join(["--torch-backend cpu --no-deps", *pins]))
    assert not {name for name in clone.packages() if name.startswith(("nvidia-", "cuda-"))}
    assert {"torch", "torchaudio", "sympy"} < clone.packages()


@pytest.mark.reliability
@without_gpu
def test_unreachable_cpu_builds_are_replaced_by_cuda_ones(clone):
    (clone.hidden / "no-index").touch()
    done = clone.run("scripts/setup")
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "cannot be reached" in line]
    assert "CUDA" in line
    assert {"nvidia-cublas", "triton", "torch"} < clone.packages()


def test_a_command_installs_only_the_first_time(clone):
    package = clone.root / "whosaid" / "transcribe"
    package.mkdir()
    (package / "options.py").write_text("def read_demo(arguments):\n    return arguments\n")
    (package / "__main__.py").write_text("def run(options):\n    print(*options)\n    return 3\n")
    done = clone.run("scripts/demo", "talk.mp3", "--words")
    assert (done.returncode, done.stdout) == (3, "talk.mp3 --words\n"), done.stderr
    assert any(" sync " in call for call in clone.calls())
    done = clone.run("scripts/demo", "talk.mp3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "talk.mp3\n", "")
    assert clone.calls() == []
