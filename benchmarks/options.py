"""The command lines of scripts/bench and scripts/gpu-check, read by the standard library alone."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path

from commands.parser import CommandParser, one_of, option

# What each benchmark answers, by its name, with its module.
BENCHMARKS = {
    "speed": (
        "benchmarks.speed",
        "seconds of a request, beside transformers' pipeline",
    ),
    "accuracy": ("benchmarks.accuracy", "words given to the wrong speaker in synthetic dialogues"),
    "diarization": ("benchmarks.diarization", "diarization errors on the same dialogues"),
    "speakers": ("benchmarks.speakers", "speakers named by reference clips"),
    "voices": ("benchmarks.voices", "diarization, words' speakers and names in real conversations"),
    "real": ("benchmarks.real", "word errors and speed of Whisper base on real recordings"),
    "load": ("benchmarks.load", "latency and rate of the server under load, beside hf-serve"),
    "live": ("benchmarks.live", "when words of live sessions come, beside faster-whisper's"),
    "medusa": ("benchmarks.medusa", "drafts of Medusa heads beside an assistant's"),
    "archive": ("benchmarks.archive", "what python -m archive adds to a plain loop"),
    "kernels": ("benchmarks.speed.kernels", "single operations of a step on this processor"),
    "cpu": ("benchmarks.speed.cpu", "precisions and threads on this processor"),
}


def read_bench(arguments: Sequence[str] | None = None) -> Namespace:
    """Which benchmark; its own options are left to it. Ends the process where there is none."""
    parser = CommandParser(
        "scripts/bench",
        "Run the benchmark that answers a question, and fill in its page under docs/benchmarks.",
        (
            *((line, f"scripts/bench {name}") for name, (_, line) in BENCHMARKS.items()),
            ("any of them as a smoke test, without a page", "scripts/bench speed --quick"),
            ("the options of one of them", "scripts/bench load --help"),
        ),
    )
    parser.add_argument(
        "benchmark",
        nargs="?",
        type=one_of(*BENCHMARKS),
        metavar="NAME",
        help="speed if none is given; its own options follow it",
    )
    given = list(arguments or ())
    named = bool(given) and not given[0].startswith("-")
    asked = not named and any(each in ("-h", "--help") for each in given)
    options: Namespace = parser.parse_args(given[:1] if named else ["--help"] if asked else [])
    return options


def read_gpu_check(arguments: Sequence[str] | None = None) -> Namespace:
    """The options; ends the process with status 2 where they are wrong."""
    parser = CommandParser(
        "scripts/gpu-check",
        "Check load, CUDA graphs, text, speed and memory on this machine, and print one page.",
        (
            ("the embedded models", "scripts/gpu-check --output gpu.md"),
            (
                "a rented machine's own torch, and another model",
                "PYTHON=python3 ASR_MODEL=openai/whisper-large-v3 scripts/gpu-check",
            ),
        ),
        "ASR_MODEL, ASSISTANT_MODEL and DIARIZATION_MODEL name the models. PYTHON is an interpreter"
        " with torch and transformers to use as it is; without it .venv is prepared first. The exit"
        " status is 0 when all is as expected, 1 when a line is NOT OK, 2 where nothing can be"
        " checked.",
    )
    option(parser, "--quick", "less audio, each speed once", action="store_true")
    option(parser, "--output", "write the page there too, as it grows", type=Path, metavar="FILE")
    # How a section is run in a process of its own (benchmarks/gpu_check/sections.py).
    parser.add_argument("--section", help=SUPPRESS)
    parser.add_argument("--outcome", type=Path, help=SUPPRESS)
    options: Namespace = parser.parse_args(arguments)
    return options
