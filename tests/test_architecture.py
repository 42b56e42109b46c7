"""The shape of the repository, asserted from the syntax trees of all Python files in git."""

import ast
import collections.abc
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from config import REPOSITORY
from tests.helpers.programs import run_python

THE_ENDPOINT = "the endpoint"  # in the table: all its rows down to `handler`
SUBPACKAGES = "its subpackages"  # in the table: of asr


def section(heading: str) -> str:
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def documented_arrows() -> dict[str, set[str]]:
    """Return the packages that each package may import, by the table of docs/architecture.md.
    Root modules count as packages, and so do the subpackages of asr/."""
    rows = re.findall(r"^\| (`[^|]+`) \| (.*) \|$", section("Who imports whom"), re.MULTILINE)
    arrows: dict[str, set[str]] = {}
    for names, cell in rows:
        targets = set(re.findall(r"`([\w.]+)`", cell))
        if THE_ENDPOINT in cell:
            targets |= endpoint_of(arrows).keys()
        if SUBPACKAGES in cell:
            targets |= {name for name in arrows if name.startswith("asr.")}
        for name in re.findall(r"`([\w.]+)`", names):
            assert name not in arrows
            arrows[name] = targets
    return arrows


def endpoint_of(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """The rows of the endpoint itself, without those that use it."""
    names = list(arrows)
    return {name: arrows[name] for name in names[: names.index("handler") + 1]}


ARROWS = documented_arrows()
ENDPOINT = endpoint_of(ARROWS)
AROUND = {name: targets for name, targets in ARROWS.items() if name not in ENDPOINT}
# What may load torch. The rest of the endpoint settles a request's form, and starts, without it.
WITH_TORCH = {
    *("asr", "diarization", "endpoint", "handler", "runtime.device", "runtime.on_demand"),
    *(f"live.{name}" for name in ("commit", "driver", "item", "session", "turn_detection")),
}
# Packages that mypy and coverage may leave out.
UNTYPED = {"tests", "extras.tests"}
UNCOVERED = {*UNTYPED, "benchmarks", "extras", "tests.support"}
LONGEST_FUNCTION = 60  # lines; ruff bounds the parameters

Function = ast.FunctionDef | ast.AsyncFunctionDef
KEPT = ast.Import | ast.ImportFrom | ast.alias | ast.Attribute | ast.ClassDef | Function


def python_files() -> list[Path]:
    """Every Python file of the checkout, committed or not, that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return sorted(path for path in paths if (REPOSITORY / path).is_file())


def dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def short(name: str) -> str:
    """The name of a module in the table, which has those of `whosaid` without that prefix."""
    return name.removeprefix("whosaid.")


PATHS = {short(dotted(path)): path for path in python_files()}
del PATHS["whosaid"]  # a docstring


def package(module: str) -> str:
    """The row of ARROWS of a module: a package, a root module, or a subpackage of asr/."""
    first, *rest = module.split(".")
    subpackage = f"{first}.{rest[0]}" if rest else first
    if first == "extras" and {"tests", "conftest"} & set(rest):
        return "extras.tests"
    if subpackage == "tests.support":
        return subpackage
    in_asr = first == "asr" and (len(rest) > 1 or PATHS[module].name == "__init__.py")
    return subpackage if in_asr else first


SOURCE = [name for name in PATHS if package(name) not in ("tests", "extras.tests")]


@cache
def nodes_of(name: str, for_typing: bool = False) -> list[ast.AST]:
    """The imports, attributes, classes and functions of a module, read as Python 3.11 does. Code
    under `if TYPE_CHECKING` counts only `for_typing`. Of tests only statements are looked through.
    """
    path, found, source = REPOSITORY / PATHS[name], list[ast.AST](), name in SOURCE
    text = path.read_text(encoding="utf-8")
    waiting: list[ast.AST] = [ast.parse(text, path.as_posix(), feature_version=(3, 11))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, KEPT):
            found.append(node)
        test = node.test if isinstance(node, ast.If) and not for_typing else None
        typing = "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
        children = node.orelse if typing else ast.iter_child_nodes(node)
        waiting += (each for each in children if source or not isinstance(each, ast.expr))
    return found


@cache
def functions() -> dict[str, Function]:
    return {
        f"{name}:{node.name}:{node.lineno}": node
        for name in SOURCE
        for node in nodes_of(name)
        if isinstance(node, Function)
    }


@cache
def local_imports(name: str, for_typing: bool = False) -> set[str]:
    """The modules of this repository that `name` imports, wherever in the file."""
    found: set[str] = set()
    for node in nodes_of(name, for_typing):
        if isinstance(node, ast.Import):
            found |= {short(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            module = node.module or ""
            names = {short(f"{module}.{alias.name}") for alias in node.names}
            found |= names & PATHS.keys() or {short(module)}
    return found & PATHS.keys() - {name}


def length(function: Function) -> int:
    """Lines from `def` to the last one, without the docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    without = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - without


def test_every_package_has_a_row_of_arrows():
    assert {package(name) for name in PATHS} == ARROWS.keys()
    assert set().union(*ARROWS.values()) - ARROWS.keys() == set()


def test_imports_follow_the_arrows():
    imports = [(name, other) for name in PATHS for other in local_imports(name)]
    allowed = {row: {row, *others} for row, others in ARROWS.items()}
    against = {pair for pair in imports if package(pair[1]) not in allowed[package(pair[0])]}
    assert against == set()


def test_endpoint_imports_nothing_that_surrounds_it():
    assert {name for name, targets in ENDPOINT.items() if targets & AROUND.keys()} == set()


def test_nothing_uses_the_extras():
    users = {
        name
        for name in PATHS
        for other in local_imports(name)
        if other.partition(".")[0] == "extras" and name.partition(".")[0] != "extras"
    }
    assert users == set()


def test_modules_have_no_import_cycle():
    """Imports for typing count."""
    graph = {name: local_imports(name, for_typing=True) for name in PATHS}
    TopologicalSorter(graph).prepare()


def test_public_classes_differ_in_name():
    """Classes of collections.abc count too."""
    names = [
        node.name
        for name, path in PATHS.items()
        if path.parts[0] == "whosaid"
        for node in nodes_of(name)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    counts = Counter([*names, *collections.abc.__all__])
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_tree_names_every_package_and_module():
    entries = {path.parts[1] for path in PATHS.values() if path.parts[0] == "whosaid"}
    named = set(re.findall(r"(\w+(?:\.py|(?=/)))", section("The tree")))
    assert entries - named == set()


def test_packages_have_no_import_cycle():
    arrows: dict[str, set[str]] = {name: set() for name in ARROWS}
    for name in PATHS:
        arrows[package(name)] |= {package(other) for other in local_imports(name)} - {package(name)}
    TopologicalSorter(arrows).prepare()


def test_every_arrow_is_used():
    """Rows that name the endpoint or subpackages as a whole are exempt."""
    imported: dict[str, set[str]] = {name: set() for name in ARROWS}
    for name in PATHS:
        imported[package(name)] |= {package(other) for other in local_imports(name)}
    unused = {name: ARROWS[name] - imported[name] - ENDPOINT.keys() for name in AROUND}
    for name in ENDPOINT:
        own = {target for target in ARROWS[name] if target.startswith(f"{name}.")}
        unused[name] = ARROWS[name] - imported[name] - own
    assert {name: targets for name, targets in unused.items() if targets} == {}


def test_light_modules_do_not_load_torch():
    light = sorted(
        dotted(PATHS[name])
        for name in PATHS
        if package(name) in {*ENDPOINT, "deploy"}
        and not {name, name.partition(".")[0]} & WITH_TORCH
    )
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = run_python("-c", script, *light)
    assert (done.returncode, done.stderr) == (0, "")


def imported_when_run(name: str) -> set[str]:
    """Every module that `name` imports, libraries too, but for typing."""
    found: set[str] = set()
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_the_scheduler_is_policy_without_torch():
    """The package's `__init__`, which loads models, is not checked."""
    seen: set[str] = set()
    following = {"asr.engine.scheduler"}
    while following:
        name = following.pop()
        seen.add(name)
        imported = imported_when_run(name)
        assert not {each for each in imported if each.partition(".")[0] == "torch"}, name
        following |= set(map(short, imported)) & PATHS.keys() - seen
    assert {"asr.engine.request", "scheduling.fair_shares"} <= seen


def test_the_environment_is_read_in_two_modules_alone():
    readers = {
        name
        for name in SOURCE
        for node in nodes_of(name)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"))
        or (isinstance(node, ast.alias) and node.name == "BaseSettings")
    }
    allowed = ("extras", "tests.support")
    readers = {name for name in readers if package(name) not in allowed}
    assert readers == {"config", "runtime.environment"}


def test_other_packages_know_recognition_by_its_interface():
    """The models and the engine of a transcriber are unknown to them."""
    reads = {
        f"{name}: {ast.unparse(node)}"
        for name, path in PATHS.items()
        if path.parts[0] == "whosaid" and name.partition(".")[0] != "asr"
        for node in nodes_of(name)
        if isinstance(node, ast.Attribute)
        and re.search(
            r"\btranscriber\.models$|\.(engine|special_tokens|tokenizer)$", ast.unparse(node)
        )
    }
    assert reads == set()


def test_ray_is_known_to_two_modules_of_the_extras_alone():
    """A worker and the server run without it; another way to start either touches nothing else."""
    imported = {
        name
        for name in SOURCE
        if any(each.partition(".")[0] == "ray" for each in imported_when_run(name))
    }
    assert imported == {"extras.archive.cluster", "extras.ray_serve.deployment"}


def test_versions_are_asked_for_in_versions_alone():
    """The measurements name them in their reports, and the demo's pipeline in its checkpoint."""
    asked = {"__version__", "version_info", "python_version"}
    askers = {
        name
        for name in SOURCE
        for node in nodes_of(name)
        if (isinstance(node, ast.Attribute) and node.attr in asked)
        or (isinstance(node, ast.alias) and node.name in {"version", *asked})
    }
    assert {name for name in askers if package(name) in ENDPOINT} == {"runtime.versions"}
    assert {package(name) for name in askers} <= {"runtime", "benchmarks", "extras"}


def test_no_package_is_named_like_an_installed_one():
    folders = [Path(folder) for folder in sys.path if "site-packages" in folder]
    installed = {path.stem for folder in folders for path in folder.iterdir()}
    packages = {dotted(PATHS[name]).partition(".")[0] for name in SOURCE} - {"benchmarks"}
    assert packages & (installed | set(sys.stdlib_module_names)) == set()


def test_mypy_and_coverage_take_every_source_module():
    tools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert (tools["mypy"]["files"], tools["coverage"]["run"]["source"]) == (["."], ["."])
    excluded = "|".join(f"(?:{each})" for each in tools["mypy"]["exclude"])
    files = [(name, path.as_posix()) for name, path in PATHS.items()]
    untyped = {package(name) for name, path in files if re.search(excluded, path)}
    omitted = tools["coverage"]["run"]["omit"]
    uncovered = {package(name) for name, path in PATHS.items() if any(map(path.match, omitted))}
    assert untyped <= UNTYPED
    assert uncovered <= UNCOVERED


def test_functions_stay_short():
    lengths = {name: length(function) for name, function in functions().items()}
    assert {name: count for name, count in lengths.items() if count > LONGEST_FUNCTION} == {}
    assert statistics.median(lengths.values()) <= 10
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 30
