"""The command lines of scripts/bench and scripts/gpu-check."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.options import BENCHMARKS, read_bench, read_gpu_check
from config import REPOSITORY
from whosaid.cli.manifest import EXAMPLE


def ended(read, arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        read(arguments)
    printed = capsys.readouterr()
    return raised.value.code, printed.out, printed.err


def test_a_bare_python_reads_the_options():
    """An interpreter with its standard library alone, as the scripts start it."""
    script = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from benchmarks.options import BENCHMARKS, read_bench, read_gpu_check\n"
        "read_gpu_check([])\n"
        "for name in BENCHMARKS: read_bench([name, '--render'])"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True)


def test_help_lists_every_benchmark_and_each_exists(capsys):
    _, shown, _ = ended(read_bench, ["--help"], capsys)
    for name, (module, line, _) in BENCHMARKS.items():
        assert f"  # {line}\n  scripts/bench {name}" in shown
        assert find_spec(module) is not None
        status, own, said = ended(read_bench, [name, "--help"], capsys)
        assert (status, said) == (0, "")
        assert own.startswith(f"usage: scripts/bench {name} ")
        assert (EXAMPLE in " ".join(own.split())) == (name in ("real", "live"))


def test_options_have_defaults():
    assert read_bench([]).benchmark == "speed"
    assert read_bench(["--quick", "--publish"]).publish is False
    real = read_bench(["real", "--render"])
    assert (real.repeats, real.publish) == (1, False)


@pytest.mark.parametrize(
    ("read", "arguments", "said"),
    [
        (read_bench, ["load", "--anything"], "scripts/bench load: unknown option --anything"),
        (read_bench, ["--repeats", "2"], "scripts/bench speed: unknown option --repeats"),
        (read_bench, ["real", "--repeats", "0"], "--repeats: should be a whole number"),
        (read_bench, ["overlap", "--voices", "x", "--parameters", "[]"], "should be a JSON object"),
        (read_bench, ["real"], "--manifest and --model: required without --render"),
        (read_bench, ["voices", "--recodings", "x"], "did you mean --recordings?"),
        (read_bench, ["sped"], "did you mean speed?"),
        (read_gpu_check, ["--quik"], "did you mean --quick?"),
    ],
)
def test_wrong_arguments_give_one_line(read, arguments, said, capsys):
    status, out, error = ended(read, arguments, capsys)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert said in error
