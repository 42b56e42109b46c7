"""Real conversations whose speakers are known: a folder of sound files, RTTM and a manifest.

`manifest.json` is an object with an entry for each recording by its name: `file` and `rttm` are
paths relative to it, `words` (optional) has each speaker's text with AMI's underscores after
spelled letters ("L_C_D_"), `language` is Whisper's code (default: en). A person has the same label
in every recording. Recordings with an empty RTTM are skipped.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.real.manifest import Recording
from benchmarks.report import read
from benchmarks.voices.answers import read_rttm
from whosaid.transcript import SpeakerTurn


@dataclass(frozen=True)
class Conversation:
    """A recording, its true turns, and the words of each speaker if they are known."""

    name: str
    recording: Recording
    turns: tuple[SpeakerTurn, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def speakers(self) -> int:
        """Return the number of people who speak."""
        return len({turn.speaker for turn in self.turns})


def load_conversations(folder: Path) -> list[Conversation]:
    """Return the recordings of a folder; raises ValueError of one line if the manifest is wrong."""
    file = folder / "manifest.json"
    try:
        entries = read(file)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {error.lineno}: is not JSON") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{file}: should be an object with recordings by their names")
    found = [_conversation(file, name, entry) for name, entry in entries.items()]
    return [each for each in found if each.turns]


def _conversation(file: Path, name: str, entry: Any) -> Conversation:  # noqa: ANN401
    try:
        audio, rttm = (file.parent / entry[key] for key in ("file", "rttm"))
        turns = tuple(read_rttm(rttm.read_text(encoding="utf-8")))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file}: {name} should have paths called file and rttm") from error
    except OSError as error:
        raise ValueError(f"{file}: {name}: {error.strerror}: {entry['rttm']}") from error
    if not audio.is_file():
        raise ValueError(f"{file}: there is no {entry['file']}")
    recording = Recording(audio, entry.get("language", "en"))
    words = {speaker: text.replace("_", "") for speaker, text in entry.get("words", {}).items()}
    return Conversation(name, recording, turns, words)
