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
    "num_beams",
    "batch_size",
    "assisted",
)
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
    option(group, "--num-beams", "beam search; default: 1", type=whole_number(1), metavar="N")
    option(group, "--batch-size", "windows at a time", type=whole_number(1), metavar="N")
    option(group, "--assisted", "let the assistant draft (speculative decoding)", **GIVEN)


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were given."""
    given = {name: getattr(options, name) for name in PARAMETERS}
    return {name: value for name, value in given.items() if value is not None}
