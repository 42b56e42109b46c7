"""The drawing of the rooms, held against the syntax trees: who may import whom, and how large a
room may grow.
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from config import REPOSITORY

ARROWS = {
    "handler": {
        "config",
        "audio",
        "asr.transcriber",
        "asr.checkpoint.loading",
        "asr.checkpoint.assistants",
        "diarization_utils",
        "diarizer",
        "response",
        "transcript",
        "errors",
        "checkpoints",
    },
    "asr.*": {"asr.*", "transcript", "errors"},
    "response": {"config", "subtitles", "transcript"},
    "subtitles": {"transcript"},
    "diarizer": {"embeddings", "transcript", "errors"},
    "embeddings": set(),
    "diarization_utils": {"transcript"},
    "audio": {"errors"},
    "checkpoints": {"errors"},
    "config": set(),
    "transcript": set(),
    "errors": set(),
}
# They use the rooms as they like, and no room knows them.
OUTSIDE = ("demo.*", "benchmarks.*", "scripts.*")
# Light rooms stay light: what settles a request's form does not wait for torch.
WITHOUT_TORCH = ("config", "transcript", "errors", "audio", "subtitles", "diarization_utils")
LONGEST_MODULE, LONGEST_FUNCTION, LONGEST_CALL, MOST_PARAMETERS = 400, 60, 25, 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return sorted(
        path for path in paths if path.parts[0] != "tests" and (REPOSITORY / path).is_file()
    )


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): REPOSITORY / path for path in source_files()}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
FUNCTIONS = {
    f"{name}:{node.name}:{node.lineno}": node
    for name, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, Function)
}


def imported(name: str) -> set[str]:
    """Every module that `name` imports, wherever in the file, for typing too."""
    found: set[str] = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            module = node.module or ""
            inner = {f"{module}.{alias.name}" for alias in node.names}
            found |= inner & FILES.keys() or {module}
    return found


def room(name: str) -> str:
    package, dot, _ = name.partition(".")
    return (
        f"{package}.*"
        if dot or f"{package}.__init__" in FILES or package in ("asr", "demo")
        else name
    )


def length(function: Function) -> int:
    docstring = function.body[0] if ast.get_docstring(function) else None
    return (
        function.end_lineno
        - function.lineno
        + 1
        - (docstring.end_lineno - docstring.lineno + 1 if docstring else 0)
    )


@pytest.mark.parametrize("name", [name for name in FILES if room(name) not in OUTSIDE])
def test_imports_follow_the_drawing(name):
    local = imported(name) & FILES.keys()
    assert {other for other in local if not {other, room(other)} & ARROWS[room(name)]} == set()


def test_there_is_no_circle():
    arrows = {name: imported(name) & FILES.keys() - {name} for name in FILES}
    while arrows:
        ends = {name for name, others in arrows.items() if not others & arrows.keys()}
        assert ends, f"a circle among {sorted(arrows)}"
        arrows = {name: others for name, others in arrows.items() if name not in ends}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_light_rooms_do_not_load_torch(name):
    script = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False).returncode == 0
    )


def test_the_environment_is_read_in_config_alone():
    readers = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
    }
    assert readers == {"config"}


def test_no_room_is_named_like_an_installed_package():
    installed = {
        path.stem
        for folder in sys.path
        if "site-packages" in folder
        for path in Path(folder).iterdir()
    }
    rooms = {name.partition(".")[0] for name in FILES} - {"scripts", "benchmarks"}
    assert rooms & (installed | set(sys.stdlib_module_names)) == set()


def test_modules_stay_short():
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()
    }
    assert {name: count for name, count in lines.items() if count > LONGEST_MODULE} == {}
    assert statistics.median(lines.values()) <= 150


def test_functions_stay_short():
    lengths = {name: length(function) for name, function in FUNCTIONS.items()}
    assert {name: count for name, count in lengths.items() if count > LONGEST_FUNCTION} == {}
    assert statistics.median(lengths.values()) <= 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 30


def test_the_path_of_a_request_fits_on_a_page():
    (call,) = (
        function for name, function in FUNCTIONS.items() if name.startswith("handler:__call__:")
    )
    assert length(call) <= LONGEST_CALL


def test_signatures_stay_short():
    counts = {
        name: len(function.args.posonlyargs + function.args.args + function.args.kwonlyargs)
        for name, function in FUNCTIONS.items()
    }
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}


@pytest.mark.parametrize("name", FILES)
def test_every_module_says_why_it_exists(name):
    assert ast.get_docstring(TREES[name])
