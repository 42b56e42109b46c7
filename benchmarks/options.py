"""The command lines of scripts/bench and scripts/gpu-check, read by the standard library alone."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path

from commands import manifest
from commands.parser import CommandParser, one_of, option, whole_number

# The engines of `scripts/bench real`, and short names for some of their settings.
OURS, BATCHED, SEQUENTIAL, PIPELINE = FORMS = ("ours", "batched", "sequential", "pipeline")
SHORT = {
    "ours-5": "ours:num_beams=5",
    "batched-5": "batched:beam_size=5",
    "sequential-5": "sequential:beam_size=5",
    "batched-timestamps": "batched:without_timestamps=false",
    "batched-timestamps-5": "batched:without_timestamps=false,beam_size=5",
    "pipeline-5": "pipeline:num_beams=5",
}
DEFAULT = (OURS, "ours-5", BATCHED, "batched-5", SEQUENTIAL, "sequential-5", PIPELINE)


def read_bench(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of the benchmark that is named first, with its name as `benchmark`.

    Ends the process with status 2 if the name or an option is wrong.
    """
    given = list(arguments or ())
    named = bool(given) and not given[0].startswith("-")
    name, rest = (given[0], given[1:]) if named else ("speed", given)
    if name in BENCHMARKS and (named or not {"-h", "--help"} & set(rest)):
        options = read_options(name, rest)
        options.benchmark = name
        return options
    parser = CommandParser(
        "scripts/bench",
        "Run the benchmark that answers a question, and print its figures.",
        (
            *((line, f"scripts/bench {name}") for name, (_, line, _) in BENCHMARKS.items()),
            ("any of them as a smoke test", "scripts/bench speed --quick"),
            ("its figures as a page of docs/benchmarks", "scripts/bench speed --publish"),
            ("the options of one of them", "scripts/bench load --help"),
        ),
        operands="[NAME]",
    )
    parser.add_argument(
        "benchmark",
        nargs="?",
        type=one_of(*BENCHMARKS),
        metavar="NAME",
        help="default: speed; its own options follow it",
    )
    listed: Namespace = parser.parse_args([name] if named else ["--help"])
    return listed


def read_options(name: str, arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of benchmark `name`, by default from the process's own command line.

    Ends the process with status 2 if they are wrong.
    """
    _, line, add = BENCHMARKS[name]
    parser = CommandParser(f"scripts/bench {name}", f"{line[0].upper()}{line[1:]}.", ())
    add(parser)
    option(
        parser,
        "--publish",
        "write the page and pictures of docs/benchmarks; default: a page beside the results",
        action="store_true",
    )
    options: Namespace = parser.parse_args(arguments)
    for smoke_test in ("quick", "development"):
        options.publish &= not getattr(options, smoke_test, False)
    needed = {"real": ("manifest", "model"), "voices": ("recordings",)}.get(name, ())
    if needed and not options.render and not all(getattr(options, each) for each in needed):
        parser.error(f"{' and '.join(f'--{each}' for each in needed)}: needed without --render")
    return options


def _quick(parser: CommandParser) -> None:
    option(
        parser, "--quick", "a short smoke test, whose figures prove nothing", action="store_true"
    )


def _again(parser: CommandParser) -> None:
    """For benchmarks whose results can be measured in several runs."""
    option(
        parser,
        "--fresh",
        "drop earlier results; default: keep those that this run does not measure anew",
        action="store_true",
    )
    _render(parser)


def _render(parser: CommandParser) -> None:
    option(parser, "--render", "measure nothing: write the earlier results", action="store_true")


def _repeats(parser: CommandParser, default: int) -> None:
    option(
        parser,
        "--repeats",
        f"how often each is timed; default: {default}",
        type=whole_number(1),
        default=default,
        metavar="N",
    )


def _text(parser: CommandParser, names: Sequence[str], what: str) -> None:
    parser.add_argument(
        *names, default="", metavar="TEXT", help=f"only {what} whose name contains TEXT"
    )


def _add_speed(parser: CommandParser) -> None:
    _quick(parser)
    _text(parser, ["--models"], "models")
    _text(parser, ["--cells"], "cells of the page")
    _again(parser)


def _add_accuracy(parser: CommandParser) -> None:
    _quick(parser)
    option(
        parser,
        "--development",
        "the voices to look at and to tune on",
        action="store_true",
    )
    _render(parser)


def _add_diarization(parser: CommandParser) -> None:
    _quick(parser)
    _repeats(parser, 5)
    option(
        parser,
        "--minutes",
        "minutes of audio for the memory, 0: leave it out; default: 60",
        type=whole_number(0),
        default=60,
        metavar="N",
    )
    option(
        parser,
        "--pipeline",
        "a pipeline of real weights, measured as well",
        type=Path,
        metavar="FOLDER",
    )
    option(
        parser,
        "--recordings",
        "audio files that it hears one after the other; default: the demo's conversation",
        type=Path,
        metavar="FOLDER",
    )
    option(
        parser,
        "--lengths",
        "of audio for the pipeline; default: 1 10 60",
        type=float,
        nargs="+",
        default=[1, 10, 60],
        metavar="MINUTES",
    )
    option(
        parser,
        "--stock-minutes",
        "the most that pyannote.audio gets more than once; default: 10",
        type=float,
        default=10,
        metavar="MINUTES",
    )
    option(
        parser, "--fresh", "drop the earlier tables that this run leaves out", action="store_true"
    )


def _add_speakers(parser: CommandParser) -> None:
    _quick(parser)
    option(
        parser,
        "--seed",
        "of voices, texts and dialogues; default: 15",
        type=whole_number(0),
        default=15,
        metavar="N",
    )
    _render(parser)


def _add_voices(parser: CommandParser) -> None:
    parser.epilog = (
        'FOLDER/manifest.json is {"NAME": {"file": "talk.wav", "rttm": "talk.rttm", "language":'
        ' "de", "words": {"SPEAKER": "what that speaker says"}}} with an entry for each recording;'
        " language (default: en) and words may be left out."
    )
    _quick(parser)
    option(
        parser,
        "--recordings",
        "conversations, their turns and a manifest.json",
        type=Path,
        metavar="FOLDER",
    )
    option(
        parser,
        "--pipeline",
        "a pyannote pipeline; default: the one scripts/demo fetched",
        metavar="FOLDER",
    )
    option(
        parser,
        "--model",
        "a Whisper; default: the Whisper base that scripts/demo fetched",
        metavar="FOLDER",
    )
    option(
        parser,
        "--only",
        "only recordings whose name contains a TEXT",
        nargs="+",
        default=[""],
        metavar="TEXT",
    )
    _repeats(parser, 3)
    option(
        parser,
        "--ours",
        "this project alone; what pyannote.audio found earlier is kept",
        action="store_true",
    )
    _again(parser)


def _add_real(parser: CommandParser) -> None:
    parser.epilog = (
        f"ENGINE is one of {', '.join((*FORMS, *SHORT))}, or FORM[@PRECISION][:NAME=VALUE,...] with"
        " settings of that engine's own, such as batched@int8:beam_size=5 or"
        f" ours:return_timestamps=false. {manifest.HELP}"
    )
    option(
        parser,
        "--manifest",
        "recordings and their texts",
        nargs="+",
        type=Path,
        metavar="FILE",
    )
    option(
        parser,
        "--model",
        "a Whisper: a folder or a Hub id",
        metavar="MODEL",
    )
    option(
        parser,
        "--engines",
        f"default: {' '.join(DEFAULT)}",
        nargs="+",
        default=DEFAULT,
        metavar="ENGINE",
    )
    _text(parser, ["--only", "--recordings"], "recordings")
    option(
        parser,
        "--precision",
        "of every engine that names none; default: float32",
        default="float32",
        metavar="PRECISION",
    )
    for name, default, help_text in (
        ("--batch-size", 24, "windows decoded together; default: 24"),
        ("--threads", None, "of every engine; default: torch's"),
        ("--repeats", 1, "how often each recording is heard; default: 1"),
    ):
        option(parser, name, help_text, type=whole_number(1), default=default, metavar="N")
    option(parser, "--words", "ask every engine for the times of words too", action="store_true")
    option(
        parser,
        "--output",
        "where results are kept; default: build/bench/real.json",
        type=Path,
        metavar="FILE",
    )
    option(parser, "--add", "does nothing: earlier results are kept anyway", action="store_true")
    _again(parser)


def _add_load(parser: CommandParser) -> None:
    _quick(parser)
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a Whisper, beside the demo models; may be repeated",
    )
    option(parser, "--no-demo", "without the demo models", dest="demo", action="store_false")
    option(parser, "--diarize", "with speakers; demo models only", action="store_true")
    _again(parser)


def _add_live(parser: CommandParser) -> None:
    _quick(parser)
    parser.epilog = manifest.HELP
    option(
        parser,
        "--recordings",
        "recordings and their manifest.json; default: synthetic dialogues",
        type=Path,
        metavar="FOLDER",
    )
    option(
        parser,
        "--silent",
        "files of FOLDER in which nobody speaks",
        nargs="+",
        default=[],
        metavar="FILE",
    )
    _text(parser, ["--only"], "recordings")
    option(
        parser,
        "--model",
        "a Whisper; default: the demo model, for --recordings the Whisper base that"
        " scripts/demo fetched",
        type=Path,
        metavar="FOLDER",
    )
    option(
        parser,
        "--precision",
        "default: float32",
        default="float32",
        metavar="PRECISION",
    )
    option(
        parser,
        "--rival-precision",
        "faster-whisper's; default: that of --precision",
        metavar="PRECISION",
    )
    option(
        parser,
        "--clients",
        "at once; default: 1 4 16",
        type=whole_number(1),
        nargs="+",
        metavar="N",
    )
    option(
        parser,
        "--seconds",
        "of a measurement of several clients; default: 180",
        type=float,
        metavar="SECONDS",
    )
    option(
        parser,
        "--minutes",
        "of one long session, for its memory; default: none",
        type=float,
        default=0.0,
        metavar="MINUTES",
    )
    option(parser, "--no-rival", "without faster-whisper", dest="rival", action="store_false")
    _again(parser)


def _add_medusa(parser: CommandParser) -> None:
    _quick(parser)
    _text(parser, ["--cells"], "cells of the page")
    option(
        parser,
        "--fresh",
        "drop earlier results; default: keep those that this run does not measure anew",
        action="store_true",
    )


def _add_archive(parser: CommandParser) -> None:
    _quick(parser)


def _add_kernels(parser: CommandParser) -> None:
    _quick(parser)
    _repeats(parser, 9)


# The module of each benchmark, what it measures, and the function that adds its options.
BENCHMARKS = {
    "speed": (
        "benchmarks.speed",
        "seconds of a request, beside transformers' pipeline",
        _add_speed,
    ),
    "accuracy": (
        "benchmarks.accuracy",
        "words given to the wrong speaker in synthetic dialogues",
        _add_accuracy,
    ),
    "diarization": (
        "benchmarks.diarization",
        "seconds and memory of diarization, beside pyannote.audio",
        _add_diarization,
    ),
    "speakers": ("benchmarks.speakers", "speakers named by reference clips", _add_speakers),
    "voices": (
        "benchmarks.voices",
        "diarization, words' speakers and names in real conversations",
        _add_voices,
    ),
    "real": (
        "benchmarks.real",
        "word errors, seconds and memory of several engines on your recordings",
        _add_real,
    ),
    "load": (
        "benchmarks.load",
        "latency and rate of the server under load, beside hf-serve",
        _add_load,
    ),
    "live": (
        "benchmarks.live",
        "when words of live sessions come, beside faster-whisper's",
        _add_live,
    ),
    "medusa": ("benchmarks.medusa", "drafts of Medusa heads beside an assistant's", _add_medusa),
    "archive": (
        "benchmarks.archive",
        "what python -m archive adds to a plain loop",
        _add_archive,
    ),
    "kernels": (
        "benchmarks.speed.kernels",
        "single operations of a step on this processor",
        _add_kernels,
    ),
    "cpu": ("benchmarks.speed.cpu", "precisions and threads on this processor", _add_kernels),
}


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
