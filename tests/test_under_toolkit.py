"""The choice of test modules that run in both environments, by what they import."""

import pytest

from tests.helpers.under_toolkit import chosen, is_chosen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch, whosaid.errors", True),
        ("from whosaid.asr.model.decoder import Decoder", True),
        ("import whosaid.errors", False),
        ("from whosaid.server.options import read\nimport torch", False),
        ("from whosaid.errors import StartError\nimport tests.support.sounds, numpy", True),
        ("from whosaid import errors\nfrom tests.helpers import oracle\nimport torch", True),
        ("from whosaid import errors\ndef test():\n    import torch, no_such_package", True),
        ("from whosaid import errors\nimport torch, no_such_package", False),
        ("from whosaid import errors\nfrom no_such_package.parts import part", False),
        ("from whosaid.asr import engine\nfrom whosaid.server import options", False),
        ("from whosaid.server.options import read", False),
        ("from whosaid import errors\nfrom benchmarks.report import table", False),
        ("from config import ModelSettings\nimport torch", True),
        ("from config import DEMO_MODELS, REPOSITORY", False),
        ("import tests.support.sounds", False),
        ("import numpy", False),
    ],
)
def test_a_module_is_chosen_by_direct_and_helpers_imports(tmp_path, text, expected):
    path = tmp_path / "test_module.py"
    path.write_text(text)
    assert is_chosen(path) is expected


def test_only_tests_of_the_endpoint_are_chosen():
    names = {path.stem.removeprefix("test_") for path in chosen()}
    assert {"audio", "handler", "enrolment", "loading", "engine", "clustering"} <= names
    around = {"architecture", "deploy", "gpu_check", "server", "fairness", "subtitles"}
    assert not names & {*around, "requirements", "setup", "transcribe_main"}
