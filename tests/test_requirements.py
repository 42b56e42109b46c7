"""The locks answer the requirement files, and keep the packages of the servers. Each part of the
product declares the packages that it imports, and no other."""

import ast
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from config import REPOSITORY
from tests.support import locks

# Wants numpy 1, and is hf-serve's for tasks that a custom handler is not.
AT_ODDS = {".venv": {"pyctcdecode"}, ".venv-toolkit": set()}
NEVER_MOVED = {"torch", "torchaudio", "transformers", "huggingface-hub", "starlette", "uvicorn"}
SERVERS = {"3.12": "hf-serve", "3.11": "toolkit"}
ALL = (*locks.LAYERS, "toolkit", "uv")
# The modules that a container of Hugging Face does not run have further requirements.
COMMANDS = re.compile(r"deploy\.py|whosaid/(cli|models|server|transcribe)/|extras/")
OURS = {"benchmarks", "config", "diarization_utils", "extras", "handler", "tests", "whosaid"}
BY_PYDANTIC = "pydantic-core"  # which pydantic pins
BY_RAY = "grpcio-reflection"  # which Ray's proxies import
KNOWN = packages_distributions()


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
    for name in locks.DEV:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def replace(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.parametrize("python", locks.ENVIRONMENTS)
def test_packages_of_the_servers_are_never_moved(python):
    layer = f"servers/{SERVERS[python]}"
    server = {pin.name: pin.version for pin in locks.locked(REPOSITORY, [layer])}
    ours = {pin.name: pin.version for pin in locks.locked(REPOSITORY, locks.ENVIRONMENTS[python])}
    assert server.keys() >= NEVER_MOVED
    assert {it: ours[it] for it in NEVER_MOVED} == {it: server[it] for it in NEVER_MOVED}


def test_nothing_contradicts_what_is_installed(environment):
    uv = REPOSITORY / ".venv" / "bin" / "uv"
    python = environment / "bin" / "python"
    command = [str(uv), "pip", "check", "--offline", "--python", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    at_odds = set(re.findall(r"The package `([\w.-]+)`", done.stdout + done.stderr))
    assert at_odds == AT_ODDS[environment.name], done.stdout + done.stderr
    assert "Checked" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ALL)
def test_every_package_is_pinned_with_hashes_and_no_address(name):
    text = (REPOSITORY / "requirements" / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    pins = locks.read_pins(text)
    assert pins
    assert all(any("--hash=sha256:" in line for line in pin.more) for pin in pins)
    assert len([line for line in text.splitlines() if line[:1] not in (" ", "#")]) == len(pins)


def test_layers_share_no_package():
    names = [pin.name for pin in locks.locked(REPOSITORY, locks.LAYERS)]
    assert len(names) == len(set(names))


def test_users_get_nothing_that_is_compiled_or_calls_its_maker():
    names = {pin.name for pin in locks.locked(REPOSITORY, ["use", "archive"])}
    assert names.isdisjoint({"onnxruntime", "meeteval", "hf-serve"})


def test_the_locks_answer_the_requirement_files():
    assert locks.disagreements(REPOSITORY) == []


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
    found = locks.disagreements(copied)
    places = {line.partition(":")[0] for line in found}
    assert places == {f"{file}, Python 3.12", f"{file}, Python 3.11"}
    assert all(said in line for line in found)


def files_for(module: str) -> tuple[str, ...]:
    """Return the requirement files of the part of the product that a module belongs to."""
    if not COMMANDS.match(module):
        return locks.USE[:1]
    own = f"{'/'.join(module.split('/')[:2])}/requirements.txt"
    return (*locks.USE, own) if (REPOSITORY / own).is_file() else locks.USE


def imported(module: str) -> set[frozenset[str]]:
    """Return the distributions of each package that a module imports, or reads a file of; of a
    namespace, all that share it."""
    named = set()
    for node in ast.walk(ast.parse((REPOSITORY / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "distribution":
            named.add(ast.literal_eval(node.args[0]))
    packages = {name.partition(".")[0] for name in named} - sys.stdlib_module_names - OURS
    found = {frozenset(map(canonicalize_name, KNOWN.get(each, [each]))) for each in packages}
    return found - {frozenset({BY_PYDANTIC})}


def test_a_part_declares_the_packages_that_it_imports_and_no_other():
    others = ("tests/", "benchmarks/", "*/tests/*", "*conftest.py")
    listed = ["git", "ls-files", "*.py", *(f":!{each}" for each in others)]
    modules = subprocess.check_output(listed, cwd=REPOSITORY, text=True).split()
    declared = {
        name: {canonicalize_name(each.name) for each in locks.requirements(REPOSITORY / name)}
        for name in {file for module in modules for file in files_for(module)}
    }
    used = {name: {BY_RAY} for name in declared}
    for module in modules:
        for distributions in imported(module):
            found = [name for name in files_for(module) if declared[name] & distributions]
            assert found, f"{module} imports {sorted(distributions)}: in none of its files"
            used[found[0]] |= distributions
    assert {key: named - used[key] for key, named in declared.items() if named - used[key]} == {}
