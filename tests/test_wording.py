"""Docstrings, names of tests and documents keep the rules of English that a machine can check."""

import ast
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

from config import REPOSITORY

# What a docstring must not begin with, nor the name of a test, and why.
OPENINGS = {
    r"^(Which|Where|When|Why)\b": "name the thing",
    r"(^|[.:;]\)? )(What(ever)?|Who(ever)?|Whose|Whom|Whether|Those|That of)\b": "name the actor",
    r"^(It|Its|They|Their|These|Such|So (many|much))\b": "a docstring is read alone",
    r"^(The same|That which|Of|As|See)\b": "a docstring is read alone",
}
ANYWHERE = OPENINGS | {
    r"\b(heard|told|judged|apart)\b": "one word, one meaning",
    r"\b(None|False|True|empty|Raises? [A-Z]\w+) where\b": "`if` for conditions",
}
# Neither in properties nor in tests, whose docstrings are sentences.
IN_FUNCTIONS = {r"^(How|The|An?|All|Every|Each|One)\b": "a verb first"}
LONGEST_NAME = 12  # words behind `test`
LONGEST_SENTENCE = 35  # words in a document

FILES = subprocess.run(
    ["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True
).stdout.splitlines()
TESTS = [name for name in FILES if re.search(r"(^|/)tests/.*\.py$", name)]
MODULES = [name for name in FILES if name.endswith(".py") and name not in TESTS]
DOCUMENTS = [name for name in FILES if re.fullmatch(r"README\.md|docs/[\w-]+\.md", name)]
# Code blocks, tables, headings, HTML and the targets of links are no sentences.
NO_PROSE = re.compile(r"```.*?```|^\|.*?$|^#.*?$|^<.*?>$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def violations(source: str, in_tests: bool = False) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS):
            continue
        text = " ".join(re.sub(r"`[^`]*`", "`code`", ast.get_docstring(node) or "").split())
        needs_verb = isinstance(node, FUNCTIONS) and not any(
            "property" in ast.unparse(each) for each in node.decorator_list
        )
        rules = ANYWHERE | IN_FUNCTIONS if needs_verb and not in_tests else ANYWHERE
        found += [f"{why}: {text}" for rule, why in rules.items() if re.search(rule, text)]
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            found += violations_of_name(node.name)
    return found


def violations_of_name(name: str) -> list[str]:
    words = name.split("_")[1:]
    sentence = " ".join(words).capitalize()
    found = [f"{why}: {name}" for rule, why in OPENINGS.items() if re.search(rule, sentence)]
    return [*found, *([f"too long: {name}"] if len(words) > LONGEST_NAME else [])]


def long_sentences(page: str) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "code", NO_PROSE.sub("\n\n", page))
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose)
    sentences = [each for text in paragraphs for each in re.split(r"(?<=[.:;?!])\s+", text)]
    return [" ".join(each.split()) for each in sentences if len(each.split()) > LONGEST_SENTENCE]


def in_files(check: Callable[[str], list[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """Return what `check` finds in files, by name, without files in which it finds nothing."""
    results = {name: check((REPOSITORY / name).read_text(encoding="utf-8")) for name in names}
    return {name: result for name, result in results.items() if result}


def test_docstrings_name_things():
    assert in_files(violations, MODULES) == {}


def test_tests_say_what_they_expect():
    assert in_files(partial(violations, in_tests=True), TESTS) == {}


def test_sentences_of_documents_are_short():
    assert in_files(long_sentences, DOCUMENTS) == {}


def test_violations_are_found():
    source = '''def f():
    """The text. Who asks is told; None where nobody asks."""
'''
    assert len(violations(source)) == 4
    assert len(violations(source, in_tests=True)) == 3
    names = ("what_is_wrong_is_named", "_".join("x" * 13), "a_name_of_four", "_".join("x" * 12))
    found = [violations(f"def test_{name}(): pass") for name in names]
    assert [len(each) for each in found] == [1, 1, 0, 0]
    assert long_sentences("word " * 36 + "\n\n| " + "cell " * 36) == [" ".join(["word"] * 36)]
