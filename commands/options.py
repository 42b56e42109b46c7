"""The options that several commands share: which models, and a request's parameters.

The parameters are those of docs/api.md under the names that people know from other commands. What
is not given is not sent, and bounds are checked by `config.InferenceConfig` alone.
"""

from __future__ import annotations

import argparse
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
    "channels",
    "channel_names",
    "num_beams",
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
# What scripts/demo, transcribe and serve do without these options.
WITHOUT_MODELS = (
    "Without one, OpenAI's Whisper base, and a pyannote pipeline that tells speakers apart; both"
    " are fetched once."
)
GIVEN: dict[str, Any] = {"action": "store_const", "const": True}


def add_models(parser: CommandParser, without: str) -> None:
    """Which models are loaded; `without` says what is where none is named."""
    group = parser.add_argument_group(
        "models",
        "MODEL is a Hub id (owner/name or owner/name@revision), downloaded once, or a folder."
        f" {without}",
    )
    for name, variable, help_text in (
        ("--model", "ASR_MODEL", "a Whisper, such as openai/whisper-small"),
        ("--assistant", "ASSISTANT_MODEL", "a smaller Whisper, or Medusa heads, that draft for it"),
        (
            "--diarization",
            "DIARIZATION_MODEL",
            "what tells speakers apart: a pyannote pipeline, or nvidia/Nemotron-3-Diarization",
        ),
    ):
        option(group, name, help_text, variable, type=model, metavar="MODEL")
    option(
        group,
        "--embedded",
        "the small models of this repository, which know 133 English words of synthetic voices",
        action="store_true",
    )


def refuse_models_beside_embedded(parser: CommandParser, options: argparse.Namespace) -> None:
    """End the process with status 2 where models are named beside the embedded ones."""
    if options.embedded and (options.model or options.assistant or options.diarization):
        parser.error("--embedded: goes without other models")


def add_parameters(parser: CommandParser) -> None:
    """How each recording is transcribed."""
    group = parser.add_argument_group("transcription", "docs/api.md says more about each")
    option(group, "--language", "a code or an English name; default: detected", metavar="LANGUAGE")
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
        "every word with its times",
        dest="return_timestamps",
        action="store_const",
        const="word",
    )
    option(group, "--multilingual", "several languages in one recording", **GIVEN)
    option(group, "--prompt", "earlier text, whose style and spelling is followed", metavar="TEXT")
    option(group, "--hotwords", "names and terms, with commas between them", metavar="WORDS")
    for name, help_text in (
        ("--num-speakers", "how many people speak, where that is known"),
        ("--min-speakers", "at least so many"),
        ("--max-speakers", "at most so many"),
    ):
        option(group, name, help_text, type=whole_number(1), metavar="N")
    option(
        group,
        "--no-speakers",
        "do not tell speakers apart",
        dest="diarize",
        **GIVEN | {"const": False},
    )
    option(
        group,
        "--channels",
        "mix (default), or separate: each is heard apart, and is its speaker",
        type=one_of("mix", "separate"),
        metavar="CHANNELS",
    )
    option(
        group,
        "--channel-names",
        "what separate channels are called, with commas between them",
        metavar="NAMES",
    )
    option(group, "--num-beams", "beam search; default: 1", type=whole_number(1), metavar="N")
    option(group, "--batch-size", "windows at a time", type=whole_number(1), metavar="N")
    option(
        group,
        "--assisted",
        "let the assistant draft, which it does by default where that saves time; a warning says"
        " why it does not",
        **GIVEN,
    )
    _add_thresholds(group)
    _add_layout(parser)


def _add_thresholds(group: argparse._ArgumentGroup) -> None:
    """What openai/whisper and faster-whisper call so; the values are checked with the others."""
    for name, help_text in (
        ("--temperature", "0 (default): the likeliest text; up to 1: sampled once"),
        ("--compression-ratio-threshold", "above it a text is decoded again; default: 2.4"),
        ("--logprob-threshold", "below it a text is decoded again; default: -0.35"),
        ("--no-speech-threshold", "above it a window may be silent; default: 0.6"),
    ):
        option(group, name, help_text, metavar="NUMBER")
    no_filter = GIVEN | {"const": False}
    option(
        group, "--no-vad-filter", "decode what is no speech, too", dest="vad_filter", **no_filter
    )
    option(group, "--vad-parameters", "as faster-whisper's", metavar="JSON")


def _add_layout(parser: CommandParser) -> None:
    group = parser.add_argument_group("subtitles", "of srt and vtt, as openai/whisper's")
    for name, help_text in (
        ("--max-line-width", "characters of a line"),
        ("--max-line-count", "lines of a subtitle"),
        ("--max-words-per-line", "words of a subtitle, where text does not flow on"),
    ):
        option(group, name, help_text, type=whole_number(1), metavar="N")
    option(group, "--highlight-words", "underline each word while it is said", **GIVEN)
    option(
        group,
        "--no-subtitle-speakers",
        "do not show who speaks",
        dest="subtitle_speakers",
        **GIVEN | {"const": False},
    )


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were given."""
    given = {name: getattr(options, name) for name in PARAMETERS}
    return {name: value for name, value in given.items() if value is not None}
