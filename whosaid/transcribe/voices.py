"""scripts/voices: keeps voices of people in a file, by which scripts/transcribe names speakers."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whosaid.cli.options import add_models, read_voices
from whosaid.cli.parser import FAILED, CommandParser, one_of, option, web_address

EXAMPLES = (
    ("a voice from a recording of Anna", "scripts/voices add Anna anna.wav"),
    (
        "a voice from an answer with voices",
        "scripts/voices add Anna --from talk.json --speaker SPEAKER_00",
    ),
    ("the names and models of all voices", "scripts/voices list"),
    ("all voices of Anna", "scripts/voices remove Anna"),
)
URL = "a server, instead of loading models; API_KEY holds its key"


def read(arguments: Sequence[str] | None = None) -> Namespace:
    """Read scripts/voices' options; end the process with status 2 if they are wrong."""
    parser = CommandParser(
        "scripts/voices",
        "Keep voices of people in a file, for --voices of scripts/transcribe. A voice identifies a"
        " person: ask the person first, and protect the file.",
        EXAMPLES,
        "Several voices of a name count as one. The exit status is 1 if nothing was done, 2 for a"
        " wrong command line.",
        "add NAME FILE | list | remove NAME",
        {"--api-key": "API_KEY"},
    )
    action = one_of("add", "list", "remove")
    parser.add_argument("action", type=action, metavar="ACTION", help="add, list or remove")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a person's name")
    parser.add_argument("recording", nargs="?", type=Path, metavar="FILE", help="audio or video")
    for name, metavar, help_text, how in (
        ("--voices", "FILE", "default: voices.json", {"default": "voices.json", "type": Path}),
        ("--from", "FILE", "a JSON answer that has voices", {"dest": "answer", "type": Path}),
        ("--speaker", "LABEL", "the speaker, if there are several", {}),
        ("--url", "URL", URL, {"type": web_address}),
    ):
        option(parser, name, help_text, metavar=metavar, **how)
    add_models(parser)
    options: Namespace = parser.parse_args(arguments)
    if (options.name is None) != (options.action == "list"):
        parser.error(f"{options.action}: takes {'no' if options.name else 'a'} NAME")
    sources = sum(each is not None for each in (options.recording, options.answer))
    if sources != (options.action == "add"):
        parser.error("add needs a FILE or --from; list and remove need neither")
    options.recordings, options.job, options.diarize = [options.recording], False, None
    return options


def run(options: Namespace) -> int:
    from config import InferenceConfig
    from whosaid.runtime.files import write_file
    from whosaid.transcribe.__main__ import say
    from whosaid.transcribe.client import Failed

    try:
        entries = read_voices(options.voices) if options.voices.exists() else []
        if options.action == "list":
            for each in entries:
                voice = each["voice"]
                print(each["name"], f"{voice['seconds']} s", voice["model"], sep="\t")
            if not entries:
                there = "has no voices" if options.voices.exists() else "does not exist"
                say(f"{options.voices} {there}; scripts/voices add NAME FILE adds one")
            return 0
        if options.action == "add":
            voice = _new_voice(options)
            if options.voices.exists():  # another run may have added a voice meanwhile
                entries = read_voices(options.voices)
            new = [*entries, {"name": options.name, "voice": voice}]
            InferenceConfig.read({"known_speakers": new})  # as a request does
        elif len(new := [each for each in entries if each["name"] != options.name]) == len(entries):
            raise ValueError(f"{options.voices} has no voice of {options.name}")
        write_file(options.voices, json.dumps(new, indent=1).encode(), 0o600)  # for its owner alone
        done = "added to" if options.action == "add" else "removed from"
        say(f"{options.name} {done} {options.voices}, which now has {len(new)} voices")
    except (OSError, ValueError, Failed) as error:
        say(f"scripts/voices: {error}")
        return FAILED
    return 0


def _new_voice(options: Namespace) -> dict[str, Any]:
    """Return the only voice, or `--speaker`'s. Raises OSError, ValueError, Failed."""
    source: Path = options.answer or options.recording
    answer = json.loads(source.read_text("utf-8")) if options.answer else _ask(options)
    voices = answer.get("voices") or {}
    label = options.speaker or next(iter(voices), None)
    if label not in voices or (len(voices) > 1 and not options.speaker):
        there = ", ".join(voices) or "nobody"
        raise ValueError(f"{source} has voices of {there}; choose one by --speaker")
    voice: dict[str, Any] = voices[label]
    return voice


def _ask(options: Namespace) -> dict[str, Any]:
    """Return the answer for the recording. Raises OSError, Failed."""
    from whosaid.transcribe.__main__ import TranscriptionJob, make_endpoint, say
    from whosaid.transcribe.recordings import Recording
    from whosaid.transcribe.screen import Terminal

    terminal = Terminal()
    with terminal.shown({options.recording: 0}) as shown:
        job = TranscriptionJob(make_endpoint(options, terminal), {"voices": True})
        recording = Recording(options.recording, options.recording)
        with job.answered(recording, shown) as (answer, _):
            for warning in answer["warnings"]:
                say(f"{options.recording}: warning: {warning}")
            return answer
