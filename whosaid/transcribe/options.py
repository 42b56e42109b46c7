"""The options of scripts/transcribe (writes files) and scripts/demo (prints)."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from errno import EISDIR
from os import isatty, strerror
from pathlib import Path

from whosaid.cli.options import (
    LAYOUT,
    PARAMETERS,
    add_models,
    add_parameters,
    named_pairs,
    option_name,
)
from whosaid.cli.parser import (
    CommandParser,
    add_options,
    argument,
    count,
    flag,
    option,
    some_of,
    web_address,
)

FORMATS = ("json", "srt", "vtt", "txt", "md", "docx", "html", "tsv", "rttm")
MOST_TRACKS = 8
STANDARD_INPUT, BESIDE = Path("-"), Path("NAME.txt")
DEFAULT_FORMATS = ["json", "srt", "vtt", "txt"]
# Parameters that a live session accepts; it accepts no other options of WHOLE_RECORDINGS.
LIVE = {"language", "prompt", "hotwords", "return_timestamps", "diarize", *LAYOUT}
LIVE |= {"known_speakers", "known_speaker_threshold"}
WHOLE_RECORDINGS = (
    *(name for name in dict.fromkeys(PARAMETERS) if name not in LIVE),
    *("text", "parameters", "parallel", "job", "force"),
)
STATUSES = (
    "The exit status is 0 when every recording has its answer, 1 when one has none or a file was"
    " not written, 2 for a wrong command line."
)
TRANSCRIBE_EXAMPLES = (
    ("with Whisper base, downloaded once, and speakers", "scripts/transcribe talk.mp3"),
    (
        "subtitles of a German interview, by a larger model",
        "scripts/transcribe talk.mp3 --model openai/whisper-small --language de"
        " --output-format srt --no-subtitle-speakers",
    ),
    (
        "names for the speakers of an existing transcript",
        "scripts/transcribe talk.mp3 --speaker-names SPEAKER_00=Anna,SPEAKER_01=Bob",
    ),
    ("a folder, by a running server", "scripts/transcribe talks/ --url http://127.0.0.1:8000"),
    ("prints subtitles", "cat talk.mp3 | scripts/transcribe - --output-format srt"),
    (
        "a call with a person on each channel",
        "scripts/transcribe call.wav --channels separate --channel-names agent,customer",
    ),
    (
        "a conversation with a file for each person",
        "scripts/transcribe --tracks 1-katie.flac=Katie 2-steve.flac=Steve",
    ),
    ("the microphone", "scripts/transcribe --live"),
    (
        "samples, or a WAV file, from another program",
        "ffmpeg -i rtsp://camera -f s16le -ar 16000 -ac 1 - | scripts/transcribe --live -",
    ),
)
DEMO_EXAMPLES = (
    ("the bundled conversation, on the embedded models", "scripts/demo"),
    ("your recording, with Whisper base, downloaded once, and speakers", "scripts/demo talk.mp3"),
    (
        "subtitles by another model",
        "scripts/demo talk.mp3 --model openai/whisper-small --output-format srt",
    ),
)
TEXT = (
    "the text that is spoken in the one recording, in UTF-8 (- is standard input): its words get"
    " times and speakers, unless lines begin with NAME:. Without FILE, behind the recordings: each"
    " recording's text beside it, NAME.txt, if you have corrected or written it"
)
TRACKS = (
    "files of one conversation, each with one speaker, who is called NAME or like the file; the"
    " outputs are named like the first"
)
SPEAKER_NAMES = (
    "names to show in place of an answer's labels, e.g. SPEAKER_00=Anna,SPEAKER_01=Bob, or Anna,Bob"
    " in the order in which they first speak; of one recording, which is not transcribed again"
)
URL = "scripts/serve's, or an endpoint's; API_KEY holds its key"
# Names that people may try, and what has this effect.
OTHER_NAMES = {"--api-key": "API_KEY", "--rename": "--speaker-names"}
JOB = (
    "send recordings as jobs and ask for their answers, because a proxy would end long requests;"
    " the server has to keep jobs, which go on after Ctrl+C: the next run takes their answers"
)
LIVE_HELP = (
    "Words appear while they are spoken. Ctrl+C ends the audio and waits for its last words; a"
    " second one does not wait. Files are written at the end, if --output-format or"
    " --output-dir is given."
)
LIVE_OPTIONS = (
    flag(
        "--live",
        "transcribe the microphone, which the ffmpeg program records; or FILE_OR_FOLDER if it is"
        " one file, or - for samples (s16le, mono, 16 kHz) or a WAV file from standard input",
    ),
    argument("--microphone", "ffmpeg's name for it; default: the system's", "NAME"),
    flag("--list-microphones", "print the names for --microphone", default=False),
    flag("--realtime", "send a file no faster than it plays"),
)


def read_transcribe(arguments: Sequence[str] | None = None) -> Namespace:
    parser = CommandParser(
        "scripts/transcribe",
        "Transcribe recordings, with speakers, into files beside them. Recordings that are done,"
        " by the same models and parameters, are skipped.",
        TRANSCRIBE_EXAMPLES,
        STATUSES,
        "FILE_OR_FOLDER ...",
        OTHER_NAMES,
    )
    formats = "json is always written; default: json,srt,vtt,txt"
    _add_options(parser, formats, "default: beside each recording")
    option(parser, "--tracks", TRACKS, type=_track, nargs="+", metavar="FILE[=NAME]")
    add_options(parser, "live", LIVE_HELP, LIVE_OPTIONS)
    options = _checked(parser, arguments)
    _take_tracks(parser, options)
    options.prints = STANDARD_INPUT in options.recordings and options.output_dir is None
    if options.list_microphones:
        return options
    if options.live:
        _check_live(parser, options)
        return options
    for name in ("microphone", "realtime"):
        if getattr(options, name):
            parser.error(f"--{name}: needs --live")
    if not options.recordings:
        parser.error("the following arguments are required: FILE_OR_FOLDER")
    if options.prints and options.recordings != [STANDARD_INPUT]:
        parser.error("-: beside other recordings needs --output-dir")
    _check_printed(parser, options)
    default = ["txt"] if options.prints else DEFAULT_FORMATS
    options.output_format = options.output_format or default
    return options


def read_demo(arguments: Sequence[str] | None = None) -> Namespace:
    parser = CommandParser(
        "scripts/demo",
        "Print the transcripts of recordings, with speakers; of the bundled conversation if none is"
        " named.",
        DEMO_EXAMPLES,
        STATUSES,
        "[FILE_OR_FOLDER ...]",
        OTHER_NAMES,
    )
    _add_options(
        parser,
        "printed instead of the transcript, or written with --output-dir",
        "write files there instead of printing",
    )
    options = _checked(parser, arguments)
    options.live, options.tracks, options.list_microphones = False, None, False
    options.prints = options.output_dir is None
    _check_printed(parser, options)
    if options.prints and options.parallel is not None:
        parser.error("--parallel: needs --output-dir; answers are printed one by one")
    if not options.prints:
        options.output_format = options.output_format or list(FORMATS)
    return options


def _check_printed(parser: CommandParser, options: Namespace) -> None:
    if options.prints and options.text == BESIDE:
        parser.error("--text: name a file, because answers are printed")
    if options.prints and len(options.output_format or ()) > 1:
        parser.error("--output-format: one can be printed; several need --output-dir")


def _check_live(parser: CommandParser, options: Namespace) -> None:
    for name in WHOLE_RECORDINGS:
        if getattr(options, name) != parser.get_default(name):
            parser.error(f"{option_name(name, options)}: cannot be used with --live")
    if options.known_speaker_threshold is not None and not options.known_speakers:
        parser.error("--known-speaker-threshold: needs --known-speakers or --voices")
    if len(options.recordings) > 1:
        parser.error("--live: takes one file, standard input (-) or the microphone")
    if options.microphone and options.recordings:
        parser.error("--microphone: cannot be used with a file")
    if options.realtime and options.recordings in ([], [STANDARD_INPUT]):
        parser.error("--realtime: needs a file")
    if options.output_dir is not None:
        options.output_format = options.output_format or DEFAULT_FORMATS


def _take_tracks(parser: CommandParser, options: Namespace) -> None:
    """Make the first track the recording, and the names parameters."""
    if options.tracks is None:
        return
    if options.live:
        parser.error("--tracks: cannot be used with --live")
    if options.recordings:
        parser.error("--tracks: stands behind no other recording")
    if not 1 < len(options.tracks) <= MOST_TRACKS:
        parser.error(f"--tracks: needs 2 to {MOST_TRACKS} files")
    if options.channels is not None or options.channel_names is not None:
        parser.error("--tracks: has a channel for each file; name it by FILE=NAME")
    files, names = zip(*options.tracks, strict=True)
    options.recordings, options.tracks = [files[0]], files
    options.channels, options.channel_names = "separate", [*names]


def _track(text: str) -> tuple[Path, str]:
    """Read FILE or FILE=NAME; a file may have an equals sign in its name."""
    path, _, name = text.rpartition("=")
    if Path(text).exists() or not path:
        path, name = text, Path(text).stem
    return Path(path), name


def _checked(parser: CommandParser, arguments: Sequence[str] | None) -> Namespace:
    options: Namespace = parser.parse_args(arguments)
    options.program, options.written = parser.prog, parser.written
    if options.url is None and options.parallel is not None:
        parser.error("--parallel: needs --url; models loaded here transcribe one file at a time")
    piped = [each for each in (*options.recordings, options.text) if each == STANDARD_INPUT]
    if len(piped) > 1:
        parser.error("-: standard input can be read only once")
    if STANDARD_INPUT in options.recordings and (sys.stdin is None or isatty(0)):
        parser.error(f"-: pipe a recording into standard input: cat FILE | {parser.prog} -")
    several = len(options.recordings) > 1 or any(map(Path.is_dir, options.recordings))
    for name in ("text", "speaker_names"):
        if getattr(options, name) not in (None, BESIDE) and several:
            parser.error(f"{option_name(name, options)}: needs exactly one recording")
    if options.url is None and options.job:
        parser.error("--job: needs --url")
    for name in ("embedded", "model", "assistant", "diarization"):
        if options.url is not None and getattr(options, name):
            parser.error(f"--{name}: the server of --url has its own models")
    return options


def _add_options(parser: CommandParser, formats: str, folder: str) -> None:
    parser.add_argument(
        "recordings",
        nargs="*",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="any audio or video; all recordings of a folder; - is standard input, whose text is"
        " printed unless --output-dir is given",
    )
    add_parameters(parser)
    option(parser, "--text", TEXT, type=_text_file, nargs="?", const=BESIDE, metavar="FILE")
    option(parser, "--force", "transcribe again, and overwrite existing files", action="store_true")
    formats = f"some of {', '.join(FORMATS)} separated by commas, or all; {formats}"
    names = {"type": _speaker_names, "action": "extend"}
    output = (
        argument("--output-format", formats, "FORMATS", also=("-f",), type=_read_formats),
        argument("--output-dir", folder, "FOLDER", also=("-o",), type=Path),
        argument("--speaker-names", SPEAKER_NAMES, "LABEL=NAME", **names),
    )
    add_options(parser, "output", "", output)
    add_models(parser)
    server = (
        argument("--url", URL, "URL", type=web_address),
        count("--parallel", "files at once; default: 4", 64),
        flag("--job", JOB),
    )
    add_options(parser, "a running server, instead of loading models here", "", server)


def _text_file(path: str) -> Path:
    """Return the path of a file that exists. A pipe can be read once only, so it is not opened."""
    file = Path(path)
    try:
        if file != STANDARD_INPUT and file.stat() and file.is_dir():
            told = "; for the texts beside recordings, --text stands behind these"
            raise IsADirectoryError(EISDIR, strerror(EISDIR) + told)
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return file


def _speaker_names(text: str) -> list[tuple[str, str]]:
    """Read pairs, or names for the next speakers, whose labels are empty."""
    if "=" in text:
        return named_pairs(text, "LABEL=NAME")
    names = [each.strip() for each in text.split(",")]
    if not all(names):
        raise ArgumentTypeError("should be LABEL=NAME or NAME, or several with commas between them")
    return [("", name) for name in names]


def _read_formats(text: str) -> list[str]:
    named = some_of(*FORMATS, "all")(text)
    return list(FORMATS) if "all" in named else named
