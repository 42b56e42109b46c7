"""Chooses the test modules that also run under huggingface-inference-toolkit's libraries:
`.venv-toolkit/bin/python tests/helpers/under_toolkit.py` prints their paths, for `scripts/test`.

A test module is chosen if it tests what the endpoint does with a library that has another release
there. All that such a module imports, by itself and through the helpers beside it, is a module of
the endpoint, a means of testing, or an installed package. The test module, or a module of the
endpoint that it imports, imports one of `LIBRARIES`. So a new test module is chosen without being
named anywhere. Modules in `ORDER_OF_WORK` are left out."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
HELPERS = TESTS / "helpers"
# A module that takes only these of config.py asks where files lie, and tests something else.
PLACES = {("config", "REPOSITORY"), ("config", "DEMO_MODELS")}
# They stand in for calls of hf-serve's libraries, or of the demo's.
AROUND = ("test_demo_", "test_cuda_diarizer", "test_cuda_embeddings")
# Libraries that the endpoint computes with, of which the two environments have different releases.
LIBRARIES = {
    *("av", "librosa", "numpy", "pyannote", "safetensors", "scipy", "silero_vad", "tokenizers"),
    *("torch", "torchaudio", "transformers"),
}
# Test modules about the order of work, or about what is made of results. test_engine, test_handler,
# test_end_to_end and the tests of layers run the same calls of the libraries.
ORDER_OF_WORK = {
    *("test_batches", "test_channels", "test_crosstalk", "test_cues", "test_diarization_utils"),
    *("test_cuda_emulator", "test_cuda_graphs", "test_drafters", "test_early_start"),
    *("test_endpoint", "test_endpoint_stream", "test_known_failures"),
    *("test_guessed_texts", "test_live_lanes", "test_live_pass", "test_repetition"),
    *("test_response", "test_result_reader", "test_scheduler", "test_scheduler_machine"),
    *("test_shortest_first", "test_transcriber", "test_transcription", "test_unwritten"),
}

Import = tuple[str, str]  # a module, and a name of it or ""


def chosen() -> list[Path]:
    """Return the test modules of the endpoint that this interpreter's environment can run."""
    paths = sorted(TESTS.glob("test_*.py"))
    paths = [path for path in paths if not path.name.startswith(AROUND)]
    return [path for path in paths if path.stem not in ORDER_OF_WORK and is_chosen(path)]


def is_chosen(path: Path) -> bool:
    """Return whether a test module uses the endpoint and a library, and otherwise only test
    tools and installed packages."""
    imports = set(_imports_with_helpers(path))
    own = {(module, name) for module, name in imports if file_of(module)}
    used = {module for module, _ in own - PLACES if module.partition(".")[0] != "tests"}
    if not used or not used <= endpoint():
        return False
    if not any(_calls_a_library(each) for each in [path, *filter(None, map(file_of, used))]):
        return False
    return all(find_spec(module.partition(".")[0]) for module, _ in imports - own)


def _calls_a_library(path: Path) -> bool:
    return any(module.partition(".")[0] in LIBRARIES for module, _ in _imports(path, ast.walk))


@cache
def endpoint() -> frozenset[str]:
    """The modules that handler.py imports, directly or not, and the packages they are in."""
    found: set[str] = set()
    waiting = ["handler"]
    while waiting:
        module = waiting.pop()
        file = file_of(module)
        if module and module not in found and file is not None:
            found.add(module)
            waiting.append(module.rpartition(".")[0])
            waiting += [each for each, _ in _imports(file, ast.walk)]
    return frozenset(found)


@cache
def file_of(module: str) -> Path | None:
    path = REPOSITORY.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _imports_with_helpers(path: Path) -> Iterator[Import]:
    """Return the other modules that a test module, and the tests and helpers it uses, import."""
    seen, waiting = {path}, [path]
    while waiting:
        for module, name in _imports(waiting.pop(), ast.iter_child_nodes):
            helper = file_of(module)
            if helper is None or helper.parent not in (TESTS, HELPERS):
                yield module, name
            elif helper not in seen:
                seen.add(helper)
                waiting.append(helper)


@cache
def _imports(path: Path, nodes) -> list[Import]:
    """The imports of a file: of all of it, or of its top level, as `nodes` goes through it."""
    found: list[Import] = []
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.append((submodule, "") if file_of(submodule) else (node.module, alias.name))
    return found


if __name__ == "__main__":
    print(*(path.relative_to(REPOSITORY) for path in chosen()), sep="\n")
