"""The choice of test modules that run in both environments, by what they import."""

from __future__ import annotations

import pytest
from under_toolkit import chosen, is_chosen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch, whosaid.errors", True),
        ("from whosaid.asr.model.decoder import Decoder", True),
        ("import whosaid.errors", False),
        ("from whosaid.server.options import read\nimport torch", False),
        ("from whosaid.errors import StartError\nimport tests.support.sounds, numpy", True),
        ("from whosaid import errors\nimport oracle, torch", True),
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
def test_a_module_is_chosen_by_what_it_and_its_helpers_import(tmp_path, text, expected):
    path = tmp_path / "test_module.py"
    path.write_text(text)
    assert is_chosen(path) is expected


def test_what_tests_the_endpoint_is_chosen_and_what_is_around_it_is_not():
    names = {path.stem.removeprefix("test_") for path in chosen()}
    assert {"audio", "handler", "enrolment", "loading", "engine", "clustering"} <= names
    around = {"architecture", "deploy", "gpu_check", "server", "fairness", "subtitles"}
    assert not names & {*around, "requirements", "setup", "transcribe_main"}
