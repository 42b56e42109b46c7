"""Real conversations whose speakers are known: a folder of sound files, RTTM and a manifest.

`manifest.json` is an object with an entry for each recording by its name: `file` and `rttm` are
paths beside it, `words` (optional) is what each speaker says, `language` Whisper's code (en unless
given). A person has the same label in every recording. A recording whose RTTM is empty is heard for
names alone; if its name ends in `enrollment_NAME` it is a clip of somebody who is known.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accuracy.answers import read_rttm
from benchmarks.real.manifest import Recording
from benchmarks.report import read
from whosaid.transcript import SpeakerTurn

CLIP = "enrollment_"


@dataclass(frozen=True)
class Conversation:
    """A recording, its true turns, and where they are known the words of each speaker."""

    name: str
    recording: Recording
    turns: tuple[SpeakerTurn, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def speakers(self) -> int:
        """How many people speak."""
        return len({turn.speaker for turn in self.turns})


@dataclass(frozen=True)
class Collection:
    """What a folder holds: conversations with turns, others, and clips (base64) by name."""

    conversations: tuple[Conversation, ...]
    without_turns: tuple[Conversation, ...]
    clips: Mapping[str, str]


def load_conversations(folder: Path) -> Collection:
    """The recordings of a folder. Raises ValueError of one line where it is no such folder."""
    file = folder / "manifest.json"
    try:
        entries = read(file)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {error.lineno}: is not JSON") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{file}: should be an object with recordings by their names")
    found = [_conversation(file, name, entry) for name, entry in entries.items()]
    silent = [each for each in found if not each.turns]
    return Collection(
        tuple(each for each in found if each.turns),
        tuple(each for each in silent if CLIP not in each.name),
        {
            each.name.rpartition(CLIP)[2]: base64.b64encode(
                each.recording.audio.read_bytes()
            ).decode()
            for each in silent
            if CLIP in each.name
        },
    )


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
    return Conversation(name, recording, turns, entry.get("words", {}))
