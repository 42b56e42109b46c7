"""The exceptions that docstrings name exist and can be raised there, as far as names tell."""

import ast
import builtins
import re
from collections import defaultdict
from functools import cache

from config import REPOSITORY
from tests.test_wording import FUNCTIONS as FUNCTION
from tests.test_wording import MODULES

RAISES = re.compile(r"(?:^|[.;:] )Raises? ((?:[^.]|\.(?=\w))*)")
EXCEPTION = re.compile(r"(?<![\w.-])(?!(?:DiCoW|Hub|LoRA|NaN|Serve|Whisper)\b)_?[A-Z][a-z]\w*")
TREES = {
    re.sub(r"(/__init__)?\.py$", "", name).replace("/", "."): ast.parse(
        (REPOSITORY / name).read_text(encoding="utf-8")
    )
    for name in MODULES
}
NODES = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree)]
CLASSES, FUNCTIONS = (
    [each for each in NODES if isinstance(each[1], kind)] for kind in (ast.ClassDef, FUNCTION)
)
BASES = {node.name: [ast.unparse(each) for each in node.bases] for _, node in CLASSES}


def names(node: ast.AST) -> set[str]:
    return {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}


# By name, the module and the names in each function; for a class those of its special methods.
INSIDE = defaultdict(list)
for module, node in FUNCTIONS:
    INSIDE[node.name].append((module, names(node)))
for module, node in CLASSES:
    special = [each for each in node.body if getattr(each, "name", "").startswith("__")]
    INSIDE[node.name] += [(module, names(each)) for each in special]


@cache
def imported(module: str) -> frozenset[str]:
    """Return the full names that a module imports, and the modules that they are from."""
    found = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}", *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return frozenset(found)


@cache
def reachable(module: str) -> list[str]:
    """Return a module and those that it imports, also through others."""
    found = [module]
    for each in found:
        found += TREES.keys() & imported(each) - {*found}
    return found


def ancestors(name: str) -> set[str]:
    return {name}.union(*map(ancestors, BASES.get(name, ())))


def is_open(function: ast.AST) -> bool:
    """Return whether a function is an interface's, or raises an exception from a variable."""
    raised = [each.exc for each in ast.walk(function) if isinstance(each, ast.Raise) and each.exc]
    classes = [ast.unparse(getattr(each, "func", each)) for each in raised]
    from_variable = any(re.search(r"(^|\.)[a-z]\w*$|\]$", each) for each in classes)
    left_out = "NotImplementedError" in classes
    return from_variable or left_out or all(isinstance(each, ast.Expr) for each in function.body)


def can_raise(module: str, function: ast.AST) -> set[str]:
    """Return the exceptions that a function names, or that those can raise whose name it names in a
    reachable module; with their ancestors."""
    known = names(function)
    todo = [*known]
    for name in todo:
        for where, inside in INSIDE.get(name, ()):
            if where in reachable(module):
                todo += inside - known
                known |= inside
    return set().union(*map(ancestors, known))


def test_documented_exceptions_exist_and_can_be_raised():
    wrong = []
    for module, node in FUNCTIONS + CLASSES:
        text = re.sub(r"`[^`]*`", "`code`", " ".join((ast.get_docstring(node) or "").split()))
        for name in {each for told in RAISES.findall(text) for each in EXCEPTION.findall(told)}:
            if name in BASES:
                is_ours = ancestors(name) & vars(builtins).keys()
                holds = is_ours and (is_open(node) or name in can_raise(module, node))
            else:
                ends = {each.rpartition(".")[2] for each in imported(module)}
                holds = name in vars(builtins) or name in ends
            wrong += [] if holds else [f"{module}: {node.name}: {name}"]
    assert wrong == []
