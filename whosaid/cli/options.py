"""The options that several commands share: models, and a request's parameters.

The parameters are those of docs/api.md under names that other programs use. An option that is not
given is not sent, and only `config.InferenceConfig` checks bounds.
"""

import argparse
import json
import re
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from whosaid.cli.parser import (
    CommandParser,
    Option,
    add_options,
    argument,
    count,
    flag,
    model,
    one_of,
    option,
)

# Variables of models' settings without an option, by the option that people may try.
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
# Between pairs A=B; a comma that no pair follows is part of a name.
COMMA_BEFORE_PAIR = re.compile(r",(?=[^,=]*=)")

T = TypeVar("T")


def _clips(text: str) -> list[dict[str, str]]:
    """Read `FILE=NAME`, or several with commas between them, as the parameter `known_speakers`."""
    clips = []
    for path, name in named_pairs(text, "FILE=NAME"):
        data = _read(Path.read_bytes, path)
        clips.append({"name": name, "reference": b64encode(data).decode()})
    return clips


def read_voices(path: Path) -> list[dict[str, Any]]:
    """Return entries of `name` and `voice` from scripts/voices. Raises OSError, ValueError."""
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(entries, list) and all(each.keys() >= {"name", "voice"} for each in entries):
            return entries
    except (ValueError, AttributeError, RecursionError):
        pass
    raise ValueError("is not a file of scripts/voices")


def _read(read: Callable[[Path], T], path: str) -> T:
    try:
        return read(Path(path).expanduser())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{path}: {reason}") from error


_voices = partial(_read, read_voices)


def named_pairs(text: str, form: str) -> list[tuple[str, str]]:
    """Read pairs of `A=B` or `A=B,C=D`; `form` tells the user how to write a pair."""
    pairs = [part.rpartition("=") for part in COMMA_BEFORE_PAIR.split(text)]
    if not all(first.strip() and second.strip() for first, _, second in pairs):
        raise argparse.ArgumentTypeError(f"should be {form}, or several with commas between them")
    return [(first.strip(), second.strip()) for first, _, second in pairs]


def _phrases(text: str) -> str:
    """Return the JSON list in a file with the name `text`, or its lines as one, else `text`."""
    if not Path(text).is_file():
        return text
    read = _read(partial(Path.read_text, encoding="utf-8"), text)
    if read.lstrip().startswith("["):
        return read
    lines = [line.strip() for line in read.splitlines() if line.strip()]
    return json.dumps(lines, ensure_ascii=False)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("is not JSON") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("should be a JSON object")
    return value


MODELS = (
    ("--model", "ASR_MODEL", "a Whisper, such as openai/whisper-small"),
    ("--assistant", "ASSISTANT_MODEL", "drafts for it: a smaller Whisper, or Medusa heads"),
    (
        "--diarization",
        "DIARIZATION_MODEL",
        "finds speakers: a pyannote pipeline, or nvidia/Nemotron-3-Diarization",
    ),
)
EMBEDDED = (
    "the demo models of this repository, which know only 133 English words in synthetic voices"
)
KNOWN = (
    "a clip of one person's voice (2 to 10 s) and that person's name, e.g. anna.wav=Anna;"
    " repeatable, or several with commas"
)
CHANNELS = "mix (default), or separate: transcribe each channel by itself, as one speaker"
TASKS, WORDS = one_of("transcribe", "translate"), ("--word-timestamps",)
PROMPT = 'earlier text, whose spelling is followed, e.g. "Dr. Lovelace, hello."'
HOTWORDS = (
    'names and terms to expect, with commas, e.g. "Lovelace, Analytical Engine"; or a file with'
    " one a line, or a JSON list"
)
ASSISTED = (
    "let the assistant draft (default: if that saves time); if it does not, a warning says why"
)
VOICES = "known speakers too: the voices that scripts/voices keeps in a file"
SIMILARITY = "the least similarity (0 to 1) of a speaker and a clip; default: the model's"
CHANNEL_NAMES = "names of separate channels, with commas between them"
CHANNEL_STARTS = "seconds at which separate channels or --tracks begin, e.g. 0,12.5"
TEMPERATURE = "0 (default): the likeliest text; up to 1: sampled once"
UNLIKELY = "retry a window whose text is less likely than this; default: -0.35"
LENGTH = "0 to 1: how strongly beam search favours long text"
RATIO = "retry a window whose text compresses better than this; default: 2.4"
SILENT = "a window that is more likely than this to be silent may get no text; default: 0.6"
# The options for a request's parameters, by the help's group and its description.
GROUPS: dict[tuple[str, str], tuple[Option, ...]] = {
    ("transcription", "explained in docs/api.md"): (
        argument("--language", "a code or English name, e.g. de; default: detected", "LANGUAGE"),
        argument("--task", "transcribe (default), or translate into English", "TASK", type=TASKS),
        flag("--words", "times of every word", "word", also=WORDS, dest="return_timestamps"),
        flag("--multilingual", "several languages in one recording"),
        argument("--prompt", PROMPT, "TEXT", also=["--initial-prompt"]),
        argument("--hotwords", HOTWORDS, "WORDS", type=_phrases),
        count("--num-beams", "beam search; default: 1", also=("--beam-size",)),
        count("--batch-size", "windows decoded at once"),
        flag("--assisted", ASSISTED),
    ),
    ("speakers", ""): (
        count("--num-speakers", "number of speakers, if known"),
        count("--min-speakers", "at least so many"),
        count("--max-speakers", "at most so many"),
        argument("--known-speakers", KNOWN, "FILE=NAME", type=_clips, action="extend"),
        argument("--voices", VOICES, "FILE", type=_voices, action="extend", dest="known_speakers"),
        argument("--known-speaker-threshold", SIMILARITY, "NUMBER"),
        flag("--diarize", "find speakers (default)"),
        flag("--no-speakers", "do not find speakers", False, also=["--no-diarize"], dest="diarize"),
        argument("--channels", CHANNELS, "CHANNELS", type=one_of("mix", "separate")),
        argument("--channel-names", CHANNEL_NAMES, "NAMES"),
        argument("--channel-starts", CHANNEL_STARTS, "SECONDS"),
    ),
    ("thresholds", "as openai/whisper and faster-whisper call them"): (
        argument("--temperature", TEMPERATURE, "NUMBER"),
        argument("--compression-ratio-threshold", RATIO, "NUMBER"),
        argument("--logprob-threshold", UNLIKELY, "NUMBER"),
        argument("--no-speech-threshold", SILENT, "NUMBER"),
        argument("--length-penalty", LENGTH, "NUMBER"),
        flag("--vad-filter", "decode only speech (default)"),
        flag("--no-vad-filter", "also decode silence and noise", const=False, dest="vad_filter"),
        argument("--vad-parameters", "settings of speech detection, as in faster-whisper", "JSON"),
    ),
    ("layout", "of srt and vtt, as openai/whisper's, and of txt"): (
        count("--max-line-width", "characters of a line"),
        count("--max-line-count", "lines of a subtitle"),
        count("--max-words-per-line", "words of a subtitle, unless both limits above are given"),
        flag("--highlight-words", "underline each word while it is spoken"),
        flag("--no-subtitle-speakers", "do not show who speaks", False, dest="subtitle_speakers"),
        flag("--txt-times", "begin each line of txt with its time, [00:12:31]"),
    ),
}


def _names(options: tuple[Option, ...]) -> tuple[str, ...]:
    named = (how.get("dest") or name[2:].replace("-", "_") for name, _, how in options)
    return tuple(dict.fromkeys(named))


# The request's parameters that have an option, and those for the layout of files.
PARAMETERS = tuple(name for options in GROUPS.values() for name in _names(options))
LAYOUT = _names(GROUPS["layout", "of srt and vtt, as openai/whisper's, and of txt"])


def add_parameters(parser: CommandParser) -> None:
    for (title, description), options in GROUPS.items():
        add_options(parser, title, description, options)
    told = "any parameters of docs/api.md; options override them"
    option(parser, "--parameters", told, type=json_object, default={}, metavar="JSON")


def add_models(parser: CommandParser) -> None:
    parser.variables |= VARIABLES
    parser.checks.append(_models_beside_embedded)
    add_options(
        parser,
        "models",
        "MODEL is a Hub id (owner/name or owner/name@revision), downloaded once, or a folder; short"
        " names such as large-v3 and turbo are understood. If none is named: OpenAI's Whisper base,"
        " fetched once, and the pyannote pipeline in models/diarization.",
        (
            *(
                argument(name, help_text, "MODEL", variable=variable, type=model)
                for name, variable, help_text in MODELS
            ),
            flag("--embedded", EMBEDDED, default=False),
        ),
    )


def _models_beside_embedded(options: argparse.Namespace) -> str | None:
    others = options.model or options.assistant or options.diarization
    return "--embedded: cannot be used with other models" if options.embedded and others else None


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in PARAMETERS}
    others: dict[str, Any] = options.parameters
    return others | {name: each for name, each in given.items() if each is not None}


def option_name(parameter: str, options: argparse.Namespace) -> str:
    """Return the option that gave a request's parameter, as the user wrote it."""
    written: dict[str, str] = options.written
    if parameter in options.parameters and parameter not in written:
        return f"--parameters: {parameter}"
    return written.get(parameter, f"--{parameter.replace('_', '-')}")
