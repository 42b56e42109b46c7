"""The command line of `python -m extras.archive`; imports only the standard library."""

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence

from whosaid.cli import manifest
from whosaid.cli.options import add_models, add_parameters, parameters
from whosaid.cli.parser import CommandParser, add_options, argument, count, flag, some_of

FORMATS = ("json", "srt", "vtt", "txt", "md", "docx", "html", "tsv", "rttm")
# The longest deadline of a recording, a week in seconds.
LONGEST = 7 * 86_400.0
EXAMPLES = (
    (
        "a folder, with subtitles",
        "python -m extras.archive talks/ --output-dir transcripts --output-format srt"
        " --model openai/whisper-small",
    ),
    (
        "a bucket, on a cluster, in German",
        "python -m extras.archive s3://recordings/talks --output-dir s3://transcripts/talks"
        " --address HEAD:6379 --language de",
    ),
    (
        "the recordings of a manifest, with the environment's models",
        "python -m extras.archive list.jsonl --output-dir transcripts",
    ),
)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise ArgumentTypeError(f"should be more than 0 seconds, and at most {LONGEST:.0f}")
    return seconds


OUTPUT = (
    argument(
        "--output-dir",
        "a folder or URL for the results",
        "FOLDER",
        also=("-o", "--out"),
        dest="out",
        required=True,
    ),
    argument(
        "--output-format",
        f"some of {', '.join(FORMATS)}, separated by commas; json is always written",
        "FORMATS",
        also=("-f", "--formats"),
        dest="formats",
        type=some_of(*FORMATS),
        default=["json"],
    ),
)
ALLOW = "a further folder or URL for a manifest's paths, besides its own folder; repeatable"
DEADLINE = "for one recording; default: 600 plus 20 for each 8 kB"
IGNORE = "exit with 0 even if some recordings failed, if all others have results"
RUN = (
    argument("--address", "a running Ray cluster; default: this machine", "RAY"),
    count("--actors", "number of workers; default: one per GPU, or by cores"),
    argument("--allow", ALLOW, "PREFIX", action="append", default=[]),
    argument("--deadline", DEADLINE, "SECONDS", type=_seconds),
    flag("--retry-errors", "try failed recordings again", default=False),
    flag("--ignore-errors", IGNORE, default=False),
)


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Return the options, with all request `parameters`; exit with status 2 if they are wrong."""
    parser = CommandParser(
        "python -m extras.archive",
        "Transcribe every recording of an archive, on all cores or GPUs of this machine or of a Ray"
        " cluster. Finished recordings are skipped: a run may be stopped and started again.",
        EXAMPLES,
        f"{manifest.HELP} Keys of object stores come from the stores' own variables. The exit"
        " status is 0 if every recording has a result, 1 if some have none, 2 for a wrong command"
        " line, wrong settings or models that do not load, 130 if it was stopped.",
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder, a recording, or a manifest; a path or a URL"
    )
    add_options(parser, "output", "", OUTPUT)
    add_models(parser)
    add_parameters(parser)
    add_options(parser, "run", "", RUN)
    options: Namespace = parser.parse_args(arguments)
    options.parameters, options.written = parameters(options), parser.written
    return options
