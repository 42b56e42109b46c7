"""The options that several commands share: which models, and a request's parameters.

The parameters are those of docs/api.md under the names that people know from other commands. An
option that is not given is not sent, and `config.InferenceConfig` alone checks bounds.
"""

from __future__ import annotations

import argparse
import json
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from whosaid.cli.parser import CommandParser, model, one_of, option, whole_number
from whosaid.cli.voices import read_voices

# Variables of the models' settings that have no option, by the options that people try.
VARIABLES = {
    "--hf-token": "HF_TOKEN",
    "--device": "DEVICE",
    "--dtype": "DTYPE",
    "--compute-type": "DTYPE",
    "--fp16": "DTYPE",
    "--cuda-graphs": "CUDA_GRAPHS",
    "--idle-unload-seconds": "IDLE_UNLOAD_SECONDS",
    "--max-audio-seconds": "MAX_AUDIO_SECONDS",
    "--max-audio-bytes": "MAX_AUDIO_BYTES",
}
# What scripts/demo, transcribe and serve load without these options.
WITHOUT_MODELS = (
    "If none is named: OpenAI's Whisper base, fetched once, and the pyannote pipeline in"
    " models/diarization."
)
# Between pairs A=B; a comma that no pair follows is part of a name.
COMMA_BEFORE_PAIR = re.compile(r",(?=[^,=]*=)")

T = TypeVar("T")

# An option: its name, its help, and what `whosaid.cli.parser.option` needs to know.
Option = tuple[str, str, dict[str, Any]]


def _text(name: str, help_text: str, metavar: str, **how: Any) -> Option:  # noqa: ANN401
    return name, help_text, {"metavar": metavar, **how}


def _count(name: str, help_text: str, **how: Any) -> Option:  # noqa: ANN401
    return name, help_text, {"type": whole_number(1), "metavar": "N", **how}


def _flag(name: str, help_text: str, const: object = True, **how: Any) -> Option:  # noqa: ANN401
    return name, help_text, {"action": "store_const", "const": const, **how}


def _clips(text: str) -> list[dict[str, str]]:
    """Read `FILE=NAME`, or several with commas between them, as the parameter `known_speakers`."""
    clips = []
    for path, name in named_pairs(text, "FILE=NAME"):
        data = _read(Path.read_bytes, path)
        clips.append({"name": name, "reference": b64encode(data).decode()})
    return clips


def _voices(path: str) -> list[dict[str, Any]]:
    """Read a file of scripts/voices as the parameter `known_speakers`."""
    return _read(read_voices, path)


def _read(read: Callable[[Path], T], path: str) -> T:
    try:
        return read(Path(path).expanduser())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{path}: {reason}") from error


def named_pairs(text: str, form: str) -> list[tuple[str, str]]:
    """Read pairs of `A=B` or `A=B,C=D`; `form` tells the user how to write a pair."""
    pairs = [part.rpartition("=") for part in COMMA_BEFORE_PAIR.split(text)]
    if not all(first.strip() and second.strip() for first, _, second in pairs):
        raise argparse.ArgumentTypeError(f"should be {form}, or several with commas between them")
    return [(first.strip(), second.strip()) for first, _, second in pairs]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("is not JSON") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("should be a JSON object")
    return value


KNOWN = (
    "a clip of one person's voice (2 to 10 s) and the name to show for that person, e.g."
    " anna.wav=Anna; several with commas, or the option again"
)
CHANNELS = "mix (default), or separate: transcribe each channel by itself; each is one speaker"
RATIO = "retry a window whose text compresses better than this; default: 2.4"
SILENT = "a window that is more likely than this to be silent may get no text; default: 0.6"
# The options of a request's parameters, by the group of the help and what is said of the group.
GROUPS: dict[tuple[str, str], tuple[Option, ...]] = {
    ("transcription", "docs/api.md says more about each"): (
        _text("--language", "a code or English name, e.g. de; default: detected", "LANGUAGE"),
        _text(
            "--task",
            "transcribe (default), or translate into English",
            "TASK",
            type=one_of("transcribe", "translate"),
        ),
        _flag(
            "--words",
            "times of every word",
            "word",
            also=("--word-timestamps",),
            dest="return_timestamps",
        ),
        _flag("--multilingual", "several languages in one recording"),
        _text(
            "--prompt",
            'text that came before, whose spelling is followed, e.g. "Dr. Lovelace, hello."',
            "TEXT",
            also=("--initial-prompt",),
        ),
        _text(
            "--hotwords",
            'names and terms to expect, separated by commas, e.g. "Lovelace, Analytical Engine"',
            "WORDS",
        ),
        _count("--num-beams", "beam search; default: 1", also=("--beam-size",)),
        _count("--batch-size", "windows at a time"),
        _flag(
            "--assisted",
            "let the assistant draft (default where that saves time); a warning says why it does"
            " not",
        ),
    ),
    ("speakers", ""): (
        _count("--num-speakers", "how many people speak, if that is known"),
        _count("--min-speakers", "at least so many"),
        _count("--max-speakers", "at most so many"),
        _text("--known-speakers", KNOWN, "FILE=NAME", type=_clips, action="extend"),
        _text(
            "--voices",
            "known speakers too: the voices that scripts/voices keeps in a file",
            "FILE",
            type=_voices,
            action="extend",
            dest="known_speakers",
        ),
        _text(
            "--known-speaker-threshold",
            "the least similarity (0 to 1) of a speaker and a clip; default: the model's",
            "NUMBER",
        ),
        _flag("--diarize", "find speakers (default)"),
        _flag(
            "--no-speakers",
            "do not find speakers",
            const=False,
            also=("--no-diarize",),
            dest="diarize",
        ),
        _text("--channels", CHANNELS, "CHANNELS", type=one_of("mix", "separate")),
        _text("--channel-names", "names of separate channels, separated by commas", "NAMES"),
    ),
    ("thresholds", "as openai/whisper and faster-whisper call them"): (
        _text("--temperature", "0 (default): the likeliest text; up to 1: sampled once", "NUMBER"),
        _text("--compression-ratio-threshold", RATIO, "NUMBER"),
        _text(
            "--logprob-threshold",
            "retry a window whose text is less likely than this; default: -0.35",
            "NUMBER",
        ),
        _text("--no-speech-threshold", SILENT, "NUMBER"),
        _text("--length-penalty", "0 to 1: how much beam search favours long text", "NUMBER"),
        _flag("--vad-filter", "decode speech alone (default)"),
        _flag("--no-vad-filter", "decode silence and noise, too", const=False, dest="vad_filter"),
        _text("--vad-parameters", "what counts as speech, as faster-whisper's", "JSON"),
    ),
    ("subtitles", "layout of srt and vtt, as openai/whisper's"): (
        _count("--max-line-width", "characters of a line"),
        _count("--max-line-count", "lines of a subtitle"),
        _count("--max-words-per-line", "words of a subtitle, unless both limits above are given"),
        _flag("--highlight-words", "underline each word while it is spoken"),
        _flag(
            "--no-subtitle-speakers",
            "do not show who speaks",
            const=False,
            dest="subtitle_speakers",
        ),
    ),
}


def _names(options: tuple[Option, ...]) -> tuple[str, ...]:
    named = (how.get("dest") or name[2:].replace("-", "_") for name, _, how in options)
    return tuple(dict.fromkeys(named))


# The parameters of a request that have an option, and those of the layout of subtitles.
PARAMETERS = tuple(name for options in GROUPS.values() for name in _names(options))
LAYOUT = _names(GROUPS["subtitles", "layout of srt and vtt, as openai/whisper's"])


def add_parameters(parser: CommandParser) -> None:
    """Add the options that say how each recording is transcribed."""
    for (title, description), options in GROUPS.items():
        group = parser.add_argument_group(title, description)
        for name, help_text, how in options:
            option(group, name, help_text, **how)
    option(
        parser,
        "--parameters",
        "any parameters of docs/api.md; options go before them",
        type=_json_object,
        default={},
        metavar="JSON",
    )


def add_models(parser: CommandParser, without: str) -> None:
    """Add the options that name models; `without` says what is loaded if none is named."""
    group = parser.add_argument_group(
        "models",
        "MODEL is a Hub id (owner/name or owner/name@revision), downloaded once, or a folder; short"
        f" names such as large-v3 and turbo are understood. {without}",
    )
    for name, variable, help_text in (
        ("--model", "ASR_MODEL", "a Whisper, such as openai/whisper-small"),
        ("--assistant", "ASSISTANT_MODEL", "a smaller Whisper, or Medusa heads, that draft for it"),
        (
            "--diarization",
            "DIARIZATION_MODEL",
            "finds speakers: a pyannote pipeline, or nvidia/Nemotron-3-Diarization",
        ),
    ):
        option(group, name, help_text, variable, type=model, metavar="MODEL")
    option(
        group,
        "--embedded",
        "the demo models of this repository, which know 133 English words of synthetic voices",
        action="store_true",
    )


def refuse_models_beside_embedded(parser: CommandParser, options: argparse.Namespace) -> None:
    """End the process with status 2 if `--embedded` stands beside an option that names a model."""
    if options.embedded and (options.model or options.assistant or options.diarization):
        parser.error("--embedded: goes without other models")


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of a request that the command line gives."""
    given = {name: getattr(options, name) for name in PARAMETERS}
    others: dict[str, Any] = options.parameters
    return others | {name: each for name, each in given.items() if each is not None}


def option_name(parameter: str, options: argparse.Namespace) -> str:
    """Return the option that gave a request's parameter, as the user wrote it."""
    written: dict[str, str] = options.written
    if parameter in options.parameters and parameter not in written:
        return f"--parameters: {parameter}"
    return written.get(parameter, f"--{parameter.replace('_', '-')}")
