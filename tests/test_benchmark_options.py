"""The command lines of scripts/bench and scripts/gpu-check, as a bare Python reads them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.options import BENCHMARKS
from config import REPOSITORY
from whosaid.cli.manifest import EXAMPLE


def read(*arguments: str) -> subprocess.CompletedProcess[str]:
    """By an interpreter with its standard library alone."""
    script = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from whosaid.cli.__main__ import COMMANDS, function\n"
        "function(COMMANDS[sys.argv[1]].read)(sys.argv[2:])"
    )
    command = [sys.executable, "-I", "-S", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_help_has_a_line_for_each_benchmark_and_each_is_there():
    shown = read("bench", "--help").stdout
    for name, (module, line, _) in BENCHMARKS.items():
        assert f"  # {line}\n  scripts/bench {name}" in shown
        assert find_spec(module) is not None


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_help_of_every_benchmark_needs_the_standard_library_alone(name):
    done = read("bench", name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: scripts/bench {name} ")


@pytest.mark.parametrize("name", ["real", "live"])
def test_the_help_shows_a_line_of_a_manifest(name):
    shown = " ".join(read("bench", name, "--help").stdout.split())
    assert EXAMPLE in shown


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["bench"], 0, ""),
        (["bench", "load", "--no_demo"], 0, ""),
        (["bench", "load", "--anything"], 2, "scripts/bench load: unknown option --anything"),
        (["bench", "--repeats", "2"], 2, "scripts/bench speed: unknown option --repeats"),
        (["bench", "real", "--repeats", "0"], 2, "--repeats: should be a whole number"),
        (["bench", "overlap", "--voices", "x", "--parameters", "[]"], 2, "should be an object"),
        (["bench", "real"], 2, "--manifest and --model: needed without --render"),
        (["bench", "real", "--render"], 0, ""),
        (["bench", "voices", "--recodings", "x"], 2, "did you mean --recordings?"),
        (["bench", "--quick"], 0, ""),
        (["bench", "sped"], 2, "did you mean speed?"),
        (["gpu-check", "--quik"], 2, "did you mean --quick?"),
        (["gpu-check", "--quick", "--output", "x"], 0, ""),
    ],
)
def test_what_is_wrong_is_one_line(arguments, status, said):
    done = read(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", status // 2)
    assert said in done.stderr
