"""requirements.txt and the locks: what each server brings was not moved, nothing that came on top
contradicts anything, and locks answer the requirement files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from config import REPOSITORY
from tests.support.locks import DEV, ENVIRONMENTS, LAYERS, disagreements, locked, read_pins

# Wants numpy 1, and is hf-serve's for tasks that a custom handler is not.
AT_ODDS = {".venv": {"pyctcdecode"}, ".venv-toolkit": set()}
NEVER_MOVED = {"torch", "torchaudio", "transformers", "huggingface-hub", "starlette", "uvicorn"}
SERVERS = {"3.12": "hf-serve", "3.11": "toolkit"}
ALL = (*LAYERS, "toolkit", "uv")


@pytest.fixture(params=[".venv", ".venv-toolkit"])
def environment(request) -> Path:
    folder = REPOSITORY / request.param
    if not (folder / "ready").is_file():
        pytest.skip(f"left out: no {request.param}: scripts/setup --toolkit makes it")
    return folder


@pytest.fixture
def copied(tmp_path) -> Path:
    """The requirement files and the locks, to be changed."""
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "requirements")
    for name in DEV:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.parametrize("python", ENVIRONMENTS)
def test_what_is_installed_is_what_the_server_brings(python):
    server = {pin.name: pin.version for pin in locked(REPOSITORY, [f"servers/{SERVERS[python]}"])}
    ours = {pin.name: pin.version for pin in locked(REPOSITORY, ENVIRONMENTS[python])}
    assert server.keys() >= NEVER_MOVED
    assert {name: ours[name] for name in NEVER_MOVED} == {
        name: server[name] for name in NEVER_MOVED
    }


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


# ---- the locks


@pytest.mark.parametrize("name", ALL)
def test_every_package_is_pinned_with_hashes_and_no_address(name):
    text = (REPOSITORY / "requirements" / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    pins = read_pins(text)
    assert pins
    assert all(any("--hash=sha256:" in line for line in pin.more) for pin in pins)
    listed = [line for line in text.splitlines() if line[:1] not in (" ", "#")]
    assert len(listed) == len(pins)


def test_layers_share_no_package():
    names = [pin.name for pin in locked(REPOSITORY, LAYERS)]
    assert len(names) == len(set(names))


def test_users_get_nothing_that_is_compiled_or_calls_its_maker():
    names = {pin.name for pin in locked(REPOSITORY, ["use", "archive"])}
    assert names.isdisjoint({"onnxruntime", "meeteval", "hf-serve"})


def test_the_locks_answer_the_requirement_files():
    assert disagreements(REPOSITORY) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("requirements/dev.txt", "jiwer==4.0.0", "jiwer==4.0.1", "jiwer==4.0.1 is locked as 4.0.0"),
        ("requirements.txt", "joblib>=1.4,<2", "joblib>=1.4,<2\nnumpydoc>=1", "numpydoc is in no"),
        ("requirements.txt", "silero-vad>=6.2,<7\n", "", "silero-vad is only in a lock"),
    ],
)
def test_a_requirement_that_the_locks_do_not_answer_is_named(copied, file, before, after, said):
    replace(copied / file, before, after)
    found = disagreements(copied)
    assert {line.partition(":")[0] for line in found} == {
        f"{file}, Python 3.12",
        f"{file}, Python 3.11",
    }
    assert all(said in line for line in found)
