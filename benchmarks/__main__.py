"""Runs a benchmark by its name: `python -m benchmarks NAME [OPTION...]`, as scripts/bench does."""

from __future__ import annotations

import runpy
import sys

from benchmarks.options import BENCHMARKS, read_bench


def main() -> None:
    """Run the benchmark as if its module had been named."""
    name = read_bench(sys.argv[1:]).benchmark
    if sys.argv[1:2] == [name]:
        del sys.argv[1]
    module, *_ = BENCHMARKS[name]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
