"""The options that several commands share: which models, and a request's parameters.

The parameters are those of docs/api.md under the names that people know from other commands. What
is not given is not sent, and bounds are checked by `config.InferenceConfig` alone.
"""

from __future__ import annotations

import argparse
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

from commands.parser import CommandParser, model, one_of, option, whole_number

# The parameters of a request that have an option, by the option's destination.
PARAMETERS = (
    "language",
    "task",
    "return_timestamps",
    "multilingual",
    "prompt",
    "hotwords",
    "num_speakers",
    "min_speakers",
    "max_speakers",
    "diarize",
    "known_speakers",
    "known_speaker_threshold",
    "channels",
    "channel_names",
    "num_beams",
    "length_penalty",
    "batch_size",
    "assisted",
    "max_line_width",
    "max_line_count",
    "max_words_per_line",
    "highlight_words",
    "subtitle_speakers",
    "temperature",
    "compression_ratio_threshold",
    "logprob_threshold",
    "no_speech_threshold",
    "vad_filter",
    "vad_parameters",
)
# Those that say how subtitles look.
LAYOUT = PARAMETERS[PARAMETERS.index("max_line_width") : PARAMETERS.index("temperature")]
# Variables of the models' settings that have no option, by the options that people try.
VARIABLES = {
    "--hf-token": "HF_TOKEN",
    "--device": "DEVICE",
    "--dtype": "DTYPE",
    "--compute-type": "DTYPE",
    "--fp16": "DTYPE",
    "--cuda-graphs": "CUDA_GRAPHS",
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
GIVEN: dict[str, Any] = {"action": "store_const", "const": True}


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


def add_parameters(parser: CommandParser) -> None:
    """Add the options that say how each recording is transcribed."""
    group = parser.add_argument_group("transcription", "docs/api.md says more about each")
    option(
        group,
        "--language",
        "a code or an English name, e.g. de or German; default: detected",
        metavar="LANGUAGE",
    )
    option(
        group,
        "--task",
        "transcribe (default), or translate into English",
        type=one_of("transcribe", "translate"),
        metavar="TASK",
    )
    option(
        group,
        "--words",
        "times of every word",
        also=("--word-timestamps",),
        dest="return_timestamps",
        action="store_const",
        const="word",
    )
    option(group, "--multilingual", "several languages in one recording", **GIVEN)
    option(
        group,
        "--prompt",
        'text that came before; its spelling and style are followed, e.g. "Dr. Lovelace, hello."',
        also=("--initial-prompt",),
        metavar="TEXT",
    )
    option(
        group,
        "--hotwords",
        'names and terms to expect, separated by commas, e.g. "Lovelace, Analytical Engine"',
        metavar="WORDS",
    )
    _add_decoding(group)
    _add_speakers(parser)
    _add_thresholds(parser)
    _add_layout(parser)


def _add_decoding(group: argparse._ArgumentGroup) -> None:
    option(
        group,
        "--num-beams",
        "beam search; default: 1",
        also=("--beam-size",),
        type=whole_number(1),
        metavar="N",
    )
    option(group, "--batch-size", "windows at a time", type=whole_number(1), metavar="N")
    option(
        group,
        "--assisted",
        "let the assistant draft (default where that saves time); a warning says why it does not",
        **GIVEN,
    )
    option(
        group,
        "--parameters",
        "any parameters of docs/api.md; options go before them",
        type=_json_object,
        default={},
        metavar="JSON",
    )


def _add_speakers(parser: CommandParser) -> None:
    group = parser.add_argument_group("speakers")
    for name, help_text in (
        ("--num-speakers", "how many people speak, if that is known"),
        ("--min-speakers", "at least so many"),
        ("--max-speakers", "at most so many"),
    ):
        option(group, name, help_text, type=whole_number(1), metavar="N")
    option(
        group,
        "--known-speakers",
        "a clip of one person's voice (2 to 10 s) and the name to show for that person, e.g."
        " anna.wav=Anna; several with commas, or the option again",
        type=_clips,
        action="extend",
        metavar="FILE=NAME",
    )
    option(
        group,
        "--known-speaker-threshold",
        "the least similarity (0 to 1) of a speaker and a clip; default: the model's",
        metavar="NUMBER",
    )
    option(group, "--diarize", "find speakers (default)", **GIVEN)
    option(
        group,
        "--no-speakers",
        "do not find speakers",
        also=("--no-diarize",),
        dest="diarize",
        **GIVEN | {"const": False},
    )
    option(
        group,
        "--channels",
        "mix (default), or separate: transcribe each channel by itself; each channel is one"
        " speaker",
        type=one_of("mix", "separate"),
        metavar="CHANNELS",
    )
    option(
        group,
        "--channel-names",
        "names of separate channels, separated by commas",
        metavar="NAMES",
    )


def _add_thresholds(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "thresholds", "as openai/whisper and faster-whisper call them"
    )
    for name, help_text in (
        ("--temperature", "0 (default): the likeliest text; up to 1: sampled once"),
        (
            "--compression-ratio-threshold",
            "retry a window whose text compresses better than this; default: 2.4",
        ),
        (
            "--logprob-threshold",
            "retry a window whose text is less likely than this; default: -0.35",
        ),
        (
            "--no-speech-threshold",
            "a window that is more likely than this to be silent may get no text; default: 0.6",
        ),
        ("--length-penalty", "0 to 1: how much beam search favours long text"),
    ):
        option(group, name, help_text, metavar="NUMBER")
    option(group, "--vad-filter", "decode speech alone (default)", **GIVEN)
    option(
        group,
        "--no-vad-filter",
        "decode silence and noise, too",
        dest="vad_filter",
        **GIVEN | {"const": False},
    )
    option(group, "--vad-parameters", "what counts as speech, as faster-whisper's", metavar="JSON")


def _add_layout(parser: CommandParser) -> None:
    group = parser.add_argument_group("subtitles", "layout of srt and vtt, as openai/whisper's")
    for name, help_text in (
        ("--max-line-width", "characters of a line"),
        ("--max-line-count", "lines of a subtitle"),
        ("--max-words-per-line", "words of a subtitle; of no effect beside both limits above"),
    ):
        option(group, name, help_text, type=whole_number(1), metavar="N")
    option(group, "--highlight-words", "underline each word while it is spoken", **GIVEN)
    option(
        group,
        "--no-subtitle-speakers",
        "do not show who speaks",
        dest="subtitle_speakers",
        **GIVEN | {"const": False},
    )


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of a request that the command line gives."""
    given = {name: getattr(options, name) for name in PARAMETERS}
    others: dict[str, Any] = options.parameters
    return others | {name: each for name, each in given.items() if each is not None}


def option_name(parameter: str, options: argparse.Namespace) -> str:
    """The option that gave a request's parameter, as the user wrote it."""
    written: dict[str, str] = options.written
    if parameter in options.parameters and parameter not in written:
        return f"--parameters: {parameter}"
    return written.get(parameter, f"--{parameter.replace('_', '-')}")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("is not JSON") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("should be a JSON object")
    return value


def _clips(text: str) -> list[dict[str, str]]:
    """`FILE=NAME`, or several with commas between them, as the parameter `known_speakers`."""
    clips = []
    for path, name in named_pairs(text, "FILE=NAME"):
        try:
            data = Path(path).expanduser().read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise argparse.ArgumentTypeError(f"{path}: {reason}") from error
        clips.append({"name": name, "reference": b64encode(data).decode()})
    return clips


def named_pairs(text: str, form: str) -> list[tuple[str, str]]:
    """The pairs of `A=B` or `A=B,C=D`; `form` is how the user is told to write one."""
    pairs = [part.rpartition("=") for part in COMMA_BEFORE_PAIR.split(text)]
    if not all(first.strip() and second.strip() for first, _, second in pairs):
        raise argparse.ArgumentTypeError(f"should be {form}, or several with commas between them")
    return [(first.strip(), second.strip()) for first, _, second in pairs]
