"""The command lines of scripts/bench and scripts/gpu-check; imports only the standard library."""

import os
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from whosaid.cli import manifest
from whosaid.cli.options import json_object
from whosaid.cli.parser import CommandParser, Option, argument, count, flag, one_of, option

# The engines of `scripts/bench real`.
OURS, BATCHED, SEQUENTIAL, PIPELINE = FORMS = ("ours", "batched", "sequential", "pipeline")
TIMED = OURS, SEQUENTIAL  # of `scripts/bench word-times`
DEFAULT = (OURS, "ours-5", BATCHED, "batched-5", SEQUENTIAL, "sequential-5", PIPELINE)


def read_bench(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of the benchmark named by the first argument, and its name as `benchmark`.

    Ends the process with status 2 if the name or an option is wrong.
    """
    given = list(arguments or ())
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given.insert(0, "speed")
    if given[0] in BENCHMARKS:
        return _read_options(given[0], given[1:])
    parser = CommandParser(
        "scripts/bench",
        "Run a benchmark and print its figures.",
        (
            *((line, _example(name)) for name, (_, line, _) in BENCHMARKS.items()),
            ("a smoke test", "scripts/bench speed --quick"),
            ("write the figures into docs/benchmarks", "scripts/bench speed --publish"),
            ("the options of one benchmark", "scripts/bench load --help"),
        ),
        operands="[NAME]",
    )
    names = one_of(*BENCHMARKS)
    parser.add_argument("benchmark", type=names, metavar="NAME", help="default: speed")
    listed: Namespace = parser.parse_args(given[:1])
    return listed


def _example(name: str) -> str:
    needed = (f" --{each} {each.upper()}" for each in NEEDED.get(name, ()))
    return f"scripts/bench {name}{''.join(needed)}"


def _read_options(name: str, arguments: Sequence[str]) -> Namespace:
    _, line, options = BENCHMARKS[name]
    parser = CommandParser(
        f"scripts/bench {name}", f"{line[0].upper()}{line[1:]}.", (), NOTES.get(name, "")
    )
    for each, told, how in (*options, *KEPT):
        option(parser, each, told, **how)
    found: Namespace = parser.parse_args(arguments)
    needed = NEEDED.get(name, ())
    if needed and not found.render and not all(getattr(found, each) for each in needed):
        parser.error(f"{' and '.join(f'--{each}' for each in needed)}: required without --render")
    found.publish &= not getattr(found, "quick", False)
    found.benchmark = name
    return found


def _path(name: str, told: str, metavar: str = "FOLDER", **how: Any) -> Option:  # noqa: ANN401
    return argument(name, told, metavar, type=Path, **how)


def _engines(default: Sequence[str]) -> Option:
    told = f"engines to compare; default: {' '.join(default)}"
    return argument("--engines", told, "ENGINE", default=default, nargs="+")


SHOWN = "default: %(default)s"
QUICK = flag("--quick", "a short smoke test; its figures are meaningless")
KEPT = (
    flag("--fresh", "drop earlier results; default: keep those that this run does not measure"),
    flag("--render", "do not measure, only render the earlier results"),
    flag(
        "--publish",
        "write the page of docs/benchmarks; default: one beside the results",
        default=False,
    ),
)

MODEL = argument("--model", "a Whisper; default: the one that scripts/demo downloaded", "FOLDER")
ANY_MODEL = argument("--model", "a Whisper: a folder or a Hub id", "MODEL")
PIPE = argument("--pipeline", "a pyannote pipeline; default: models/diarization", "FOLDER")
OUTPUT = _path("--output", "the results; default: in build/bench", "FILE")

# Each benchmark's module, description, and options besides KEPT.
BENCHMARKS: dict[str, tuple[str, str, tuple[Option, ...]]] = {
    "speed": (
        "benchmarks.speed.bench",
        "speed of decoding, compared with transformers' pipeline",
        (QUICK,),
    ),
    "voices": (
        "benchmarks.voices.bench",
        "diarization, words' speakers and names in real conversations",
        (
            QUICK,
            _path("--recordings", "conversations and their manifest.json"),
            _path("--voices", "also single voices to mix, in files named SPEAKER-..."),
            PIPE,
            MODEL,
        ),
    ),
    "overlap": (
        "benchmarks.voices.overlap",
        "word errors when people talk at once",
        (
            QUICK,
            _path("--voices", "single voices to mix, in files named SPEAKER-..."),
            _path("--recordings", "also conversations with known words, as for voices"),
            _path("--conversation", "also a conversation of single voices with several clips each"),
            PIPE,
            MODEL,
            argument(
                "--only", 'recordings with TEXT in their names, or "mixed"', "TEXT", default=""
            ),
            argument("--split", f"speakers: train, dev or test; {SHOWN}", default="test"),
            argument(
                "--parameters",
                "sets of request parameters to compare; default: {}",
                "JSON",
                nargs="+",
                type=json_object,
            ),
            OUTPUT,
        ),
    ),
    "real": (
        "benchmarks.real.bench",
        "word errors and time of several engines on your recordings",
        (
            _path("--manifest", "recordings and their texts", "FILE", nargs="+"),
            ANY_MODEL,
            _engines(DEFAULT),
            count("--repeats", f"repeats of each recording; {SHOWN}", default=1),
            OUTPUT,
        ),
    ),
    "word-times": (
        "benchmarks.real.word_times",
        "errors of word times in recordings with TextGrids",
        (
            _path("--recordings", "sound files and their TextGrids, in folders of kinds of speech"),
            ANY_MODEL,
            _engines(TIMED),
            argument("--language", f"Whisper's code; {SHOWN}", "CODE", default="en"),
            OUTPUT,
        ),
    ),
    "words": (
        "benchmarks.words.bench",
        "names and terms that are written with hot words, and the cost",
        (
            _path("--data", "clips, their phrases and distractors"),
            MODEL,
            argument("--sets", "libri or tts; default: both", nargs="+", default=("libri", "tts")),
            OUTPUT,
        ),
    ),
    "load": (
        "benchmarks.load.bench",
        "latency and throughput of the server under load, compared with hf-serve",
        (
            QUICK,
            _path("--model", "another Whisper to measure; repeatable", action="append", default=[]),
        ),
    ),
    "operate": (
        "benchmarks.load.operate",
        "start, memory, throughput and price of the server",
        (
            QUICK,
            _path("--model", "a Whisper; default: the demo models"),
            _path("--pipeline", "a pyannote pipeline for it; default: models/diarization"),
            count("--minutes", "only sample memory under load, so long", default=None),
        ),
    ),
    "live": (
        "benchmarks.live.bench",
        "delay of words in live sessions, compared with faster-whisper",
        (
            QUICK,
            _path("--recordings", "recordings and their manifest.json"),
            MODEL,
            argument("--precision", f"of the weights; {SHOWN}", "PRECISION", default="float32"),
            argument("--rival-precision", "faster-whisper's; default: --precision", "PRECISION"),
        ),
    ),
}
# Text after the options in the help of some benchmarks.
NOTES = {
    "voices": (
        'FOLDER/manifest.json is {"NAME": {"file": "talk.wav", "rttm": "talk.rttm", "language":'
        ' "de", "words": {"SPEAKER": "what that speaker says"}}} with an entry for each recording;'
        " language (default: en) and words may be left out."
    ),
    "real": (
        f"ENGINE is one of {', '.join(FORMS)}, with beams or a precision of its own as in"
        f" batched-5@int8. {manifest.HELP}"
    ),
    "live": manifest.HELP,
    "words": (
        'FOLDER/SET.json is [{"audio": "libri/a.flac", "text": "...", "rare": ["seest"]}] with an'
        " entry for each clip, and FOLDER/distractors.json has a list of phrases for each set."
    ),
}
# Options required unless earlier results are rendered.
NEEDED = {
    "real": ("manifest", "model"),
    "word-times": ("recordings", "model"),
    "voices": ("recordings",),
    "overlap": ("voices",),
    "words": ("data",),
}


def run(options: Namespace) -> int:
    """Run the benchmark of `read_bench`; return the exit status."""
    os.chdir(Path(__file__).resolve().parents[1])
    harness = import_module("benchmarks.harness")
    status: int = harness.run(BENCHMARKS[options.benchmark][0], options)
    return status


def read_gpu_check(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options of gpu-check; ends the process with status 2 if they are wrong."""
    parser = CommandParser(
        "scripts/gpu-check",
        "Check load, CUDA graphs, text, speed and memory on this machine, and print a report.",
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
    option(parser, "--quick", "each speed once", action="store_true")
    option(parser, "--output", "also write the growing page there", type=Path, metavar="FILE")
    options: Namespace = parser.parse_args(arguments)
    return options
