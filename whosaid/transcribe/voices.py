"""scripts/voices: keeps voices of people in a file, by which scripts/transcribe names speakers."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whosaid.cli.options import VARIABLES, WITHOUT_MODELS, add_models, refuse_models_beside_embedded
from whosaid.cli.parser import FAILED, CommandParser, did_you_mean, one_of, option, web_address
from whosaid.cli.voices import Entry, read_voices, write_voices

ADD, LIST, REMOVE = "add", "list", "remove"


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Read scripts/voices' options; end the process with status 2 if they are wrong."""
    parser = CommandParser(
        "scripts/voices",
        "Keep voices of people in a file, for --voices of scripts/transcribe. A voice identifies a"
        " person: ask the person first, and protect the file.",
        (
            ("a voice from a recording in which Anna speaks", "scripts/voices add Anna anna.wav"),
            (
                "a voice from an answer to a request with voices",
                "scripts/voices add Anna --from talk.json --speaker SPEAKER_00",
            ),
            ("who is kept", "scripts/voices list"),
            ("all voices of Anna", "scripts/voices remove Anna"),
        ),
        "scripts/transcribe talk.mp3 --voices voices.json names the speakers. Several voices of a"
        " name count as one. The exit status is 1 if nothing was done, 2 for a wrong command line.",
        "add NAME FILE | list | remove NAME",
        VARIABLES | {"--api-key": "API_KEY"},
    )
    actions = one_of(ADD, LIST, REMOVE)
    parser.add_argument("action", type=actions, metavar="ACTION", help="add, list or remove")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a person's name")
    parser.add_argument(
        "recording", nargs="?", type=Path, metavar="FILE", help="any sound or video"
    )
    _add_options(parser)
    options: Namespace = parser.parse_args(arguments)
    refuse_models_beside_embedded(parser, options)
    if (options.name is None) != (options.action == LIST):
        parser.error(f"{options.action}: takes {'no' if options.name else 'a'} NAME")
    given = sum(each is not None for each in (options.recording, options.answer))
    if given != (options.action == ADD):
        parser.error("add: takes a FILE or --from; list and remove take neither")
    options.recordings, options.written = [options.recording], parser.written
    options.job, options.diarize, options.parameters = False, None, {}
    return options


def _add_options(parser: CommandParser) -> None:
    option(
        parser,
        "--voices",
        "the file of voices; default: voices.json",
        type=Path,
        default=Path("voices.json"),
        metavar="FILE",
    )
    option(
        parser,
        "--from",
        "a JSON answer that has voices, in place of a recording",
        dest="answer",
        type=Path,
        metavar="ANSWER",
    )
    option(parser, "--speaker", "whose voice, if there are several", metavar="LABEL")
    add_models(parser, WITHOUT_MODELS)
    option(
        parser,
        "--url",
        "a running server, in place of models that are loaded here; API_KEY holds its key",
        type=web_address,
        metavar="URL",
    )


def run(options: Namespace) -> int:
    """Do what the command line asks for; return the exit status."""
    try:
        entries = read_voices(options.voices) if options.voices.exists() else []
        if options.action == LIST:
            for each in entries:
                voice = each["voice"]
                print(f"{each['name']}\t{voice['seconds']:.1f} s\t{voice['model']}")
        elif options.action == REMOVE:
            write_voices(options.voices, _without(entries, options.name))
        else:
            added = {"name": options.name, "voice": _new_voice(options)}
            write_voices(options.voices, _checked([*entries, added]))
    except (OSError, ValueError) as error:
        print(f"scripts/voices: {error}", file=sys.stderr)
        return FAILED
    return 0


def _without(entries: list[Entry], name: str) -> list[Entry]:
    left = [each for each in entries if each["name"] != name]
    if len(left) == len(entries):
        near = did_you_mean(name, (each["name"] for each in entries))
        raise ValueError(f"there is no voice of {name}{near}")
    return left


def _checked(entries: list[Entry]) -> list[Entry]:
    """Return the entries. Raises ValueError if a request could not have them."""
    from config import InferenceConfig

    InferenceConfig.read({"known_speakers": entries})
    return entries


def _new_voice(options: Namespace) -> dict[str, Any]:
    """Return the voice of the one speaker, or of `--speaker`. Raises OSError, ValueError."""
    source = options.answer or options.recording
    voices = _kept_voices(source) if options.answer else _voices_of(options)
    if options.speaker is None and len(voices) == 1:
        return dict(*voices.values())
    if options.speaker not in voices:
        there = f"--speaker names one of {', '.join(voices)}" if voices else "nobody is heard"
        raise ValueError(f"{source}: {there}")
    voice: dict[str, Any] = voices[options.speaker]
    return voice


def _kept_voices(answer: Path) -> dict[str, Any]:
    try:
        voices = json.loads(answer.read_text(encoding="utf-8"))["voices"]
    except (ValueError, KeyError, TypeError):
        voices = None
    if not isinstance(voices, dict):
        raise ValueError(f"{answer}: is not an answer to a request with voices") from None
    return voices


def _voices_of(options: Namespace) -> dict[str, Any]:
    from whosaid.transcribe.__main__ import Job, make_endpoint
    from whosaid.transcribe.client import Failed
    from whosaid.transcribe.screen import Terminal

    terminal, path = Terminal(), options.recording
    try:
        with terminal.shown({path: 0}) as shown:
            job = Job(make_endpoint(options, terminal), {"voices": True}, ())
            answer, _ = job.answer(path, shown)
    except Failed as error:
        raise ValueError(str(error)) from error
    voices: dict[str, Any] = answer.get("voices") or {}
    for warning in answer.get("warnings") or ():
        print(f"{path}: warning: {warning}", file=sys.stderr)
    return voices
