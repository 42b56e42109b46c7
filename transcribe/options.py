"""The options of scripts/transcribe, which writes files, and of scripts/demo, which prints."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from errno import EISDIR
from os import strerror
from pathlib import Path

from commands.options import (
    WITHOUT_MODELS,
    add_models,
    add_parameters,
    refuse_models_beside_embedded,
)
from commands.parser import CommandParser, option, some_of, web_address, whole_number

FORMATS = ("json", "srt", "vtt", "txt", "tsv", "rttm")
STANDARD_INPUT = Path("-")
DEFAULT_FORMATS = ["json", "srt", "vtt", "txt"]
# What means something for a whole recording alone, by option.
WHOLE_RECORDINGS = {
    "task": "--task",
    "multilingual": "--multilingual",
    "num_speakers": "--num-speakers",
    "min_speakers": "--min-speakers",
    "max_speakers": "--max-speakers",
    "channels": "--channels",
    "channel_names": "--channel-names",
    "num_beams": "--num-beams",
    "batch_size": "--batch-size",
    "text": "--text",
    "assisted": "--assisted",
    "temperature": "--temperature",
    "compression_ratio_threshold": "--compression-ratio-threshold",
    "logprob_threshold": "--logprob-threshold",
    "no_speech_threshold": "--no-speech-threshold",
    "vad_parameters": "--vad-parameters",
    "parallel": "--parallel",
    "job": "--job",
    "force": "--force",
}
STATUSES = (
    "The exit status is 0 when every recording has its answer, 1 when one has none, 2 for a wrong"
    " command line."
)


def read_transcribe(arguments: Sequence[str] | None = None) -> Namespace:
    """The options of scripts/transcribe; ends the process with status 2 where they are wrong."""
    parser = CommandParser(
        "scripts/transcribe",
        "Write what is said in recordings, and by whom, into files beside them. Recordings that"
        " are done, by the same models and parameters, are skipped.",
        (
            (
                "by Whisper base, with speakers; both are fetched once",
                "scripts/transcribe talk.mp3",
            ),
            (
                "subtitles of a German interview, by a larger model",
                "scripts/transcribe talk.mp3 --model openai/whisper-small --language de"
                " --output-format srt",
            ),
            (
                "a folder, by a running server",
                "scripts/transcribe talks/ --url http://127.0.0.1:8000",
            ),
            (
                "a call with a person on each channel",
                "scripts/transcribe call.wav --channels separate --channel-names agent,customer",
            ),
            ("what is said into the microphone, while it is said", "scripts/transcribe --live"),
            (
                "what another program hears: samples, or a WAV file",
                "ffmpeg -i rtsp://camera -f s16le -ar 16000 -ac 1 - | scripts/transcribe --live -",
            ),
        ),
        STATUSES,
        "FILE_OR_FOLDER ...",
    )
    formats = "json is always written; default: json,srt,vtt,txt"
    _add_options(parser, "*", formats, "default: beside each recording")
    option(
        parser,
        "--force",
        "transcribe again what is done, and write over whatever is there",
        action="store_true",
    )
    _add_live(parser)
    options = _checked(parser, arguments)
    options.prints = False
    if options.live:
        _check_live(parser, options)
        return options
    for name in ("microphone", "realtime"):
        if getattr(options, name):
            parser.error(f"--{name}: goes with --live")
    if not options.recordings:
        parser.error("the following arguments are required: FILE_OR_FOLDER")
    options.output_format = options.output_format or DEFAULT_FORMATS
    return options


def read_demo(arguments: Sequence[str] | None = None) -> Namespace:
    """The options of scripts/demo; ends the process with status 2 where they are wrong."""
    parser = CommandParser(
        "scripts/demo",
        "Print what is said in recordings, and by whom; of the bundled conversation if none is"
        " named.",
        (
            ("the bundled conversation, on the embedded models", "scripts/demo"),
            (
                "your recording, by Whisper base, with speakers; both are fetched once",
                "scripts/demo talk.mp3",
            ),
            (
                "subtitles by another model",
                "scripts/demo talk.mp3 --model openai/whisper-small --output-format srt",
            ),
        ),
        STATUSES,
        "[FILE_OR_FOLDER ...]",
    )
    _add_options(
        parser,
        "*",
        "printed in place of the transcript, or written with --output-dir",
        "write files there, and print no transcript",
    )
    options = _checked(parser, arguments)
    options.force, options.live = True, False
    if options.output_dir is None and len(options.output_format or ()) > 1:
        parser.error("--output-format: one can be printed; several need --output-dir")
    options.prints = options.output_dir is None
    if options.prints and options.parallel is not None:
        parser.error("--parallel: goes with --output-dir; answers are printed one after the other")
    if not options.prints:
        options.output_format = options.output_format or list(FORMATS)
    return options


def _add_live(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "live",
        "Words appear while they are spoken. Ctrl+C ends the audio and waits for its last words, a"
        " second one waits for nothing. Files are written at the end, where --output-format or"
        " --output-dir asks for them.",
    )
    option(
        group,
        "--live",
        "hear the microphone, by the ffmpeg program; in its place FILE_OR_FOLDER may be one file,"
        " or - for samples (s16le, mono, 16 kHz) or a WAV file from standard input",
        action="store_true",
    )
    option(
        group,
        "--microphone",
        "as ffmpeg names it; default: the system's",
        metavar="NAME",
    )
    option(group, "--realtime", "send a file no faster than it plays", action="store_true")


def _check_live(parser: CommandParser, options: Namespace) -> None:
    for name, given in WHOLE_RECORDINGS.items():
        if getattr(options, name):
            parser.error(f"{given}: goes with recordings, not with --live")
    if options.vad_filter is False:
        parser.error("--no-vad-filter: goes with recordings, not with --live")
    if len(options.recordings) > 1:
        parser.error("--live: hears one file, standard input (-) or the microphone")
    if options.microphone and options.recordings:
        parser.error("--microphone: goes without a file")
    if options.realtime and options.recordings in ([], [STANDARD_INPUT]):
        parser.error("--realtime: goes with a file")
    if options.output_dir is not None:
        options.output_format = options.output_format or DEFAULT_FORMATS


def _checked(parser: CommandParser, arguments: Sequence[str] | None) -> Namespace:
    options: Namespace = parser.parse_args(arguments)
    options.program = parser.prog
    refuse_models_beside_embedded(parser, options)
    if options.url is None and options.parallel is not None:
        parser.error("--parallel: goes with --url; models that are loaded here hear one at a time")
    several = len(options.recordings) > 1 or any(map(Path.is_dir, options.recordings))
    if options.text is not None and several:
        parser.error("--text: goes with one recording")
    if options.url is None and options.job:
        parser.error("--job: goes with --url; models that are loaded here keep nobody waiting")
    for name in ("embedded", "model", "assistant", "diarization"):
        if options.url is not None and getattr(options, name):
            parser.error(f"--{name}: the server of --url has its own models")
    return options


def _add_options(parser: CommandParser, number: str, formats: str, folder: str) -> None:
    parser.add_argument(
        "recordings",
        nargs=number,
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="any sound or video; of a folder all that it holds",
    )
    add_parameters(parser)
    option(
        parser,
        "--text",
        "what is said in the one recording, as UTF-8; - is standard input. Its words get times and"
        " speakers, also where the recording's files are there already",
        type=_text_file,
        metavar="FILE",
    )
    group = parser.add_argument_group("output")
    option(
        group,
        "--output-format",
        f"some of {', '.join(FORMATS)} with commas between them, or all; {formats}",
        type=_read_formats,
        metavar="FORMATS",
    )
    option(group, "--output-dir", folder, type=Path, metavar="FOLDER")
    add_models(parser, WITHOUT_MODELS)
    group = parser.add_argument_group("a running server, in place of models that are loaded here")
    option(
        group,
        "--url",
        "scripts/serve's, or an endpoint's; API_KEY holds its key",
        type=web_address,
        metavar="URL",
    )
    option(
        group, "--parallel", "files at a time; default: 4", type=whole_number(1, 64), metavar="N"
    )
    option(
        group,
        "--job",
        "send recordings as jobs and ask for their answers, where a proxy would end long requests;"
        " the server needs DATA_DIR",
        action="store_true",
    )


def read_text(file: Path) -> str:
    """What a file says, or standard input where it is STANDARD_INPUT; a pipe can be read once.

    Raises ValueError, which begins with the name of the option.
    """
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise ValueError(f"text: {file}: {reason}") from error


def _text_file(path: str) -> Path:
    """A file that is there, unread: two processes read a command line."""
    file = Path(path)
    try:
        if file != STANDARD_INPUT and file.stat() and file.is_dir():
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return file


def _read_formats(text: str) -> list[str]:
    named = some_of(*FORMATS, "all")(text)
    return list(FORMATS) if "all" in named else named
