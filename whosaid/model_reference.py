"""References to models: a folder, a Hub ID, or a short name such as `large-v3`.

Imports only the standard library, because command lines are parsed before anything is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

REPOSITORY = Path(__file__).resolve().parents[1]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
REVISION = re.compile(r"\w[\w./-]*")
SIZES = ("tiny", "base", "small", "medium")
KNOWN = (
    *(f"openai/whisper-{size}{english}" for size in SIZES for english in ("", ".en")),
    "openai/whisper-large",
    "openai/whisper-large-v2",
    "openai/whisper-large-v3",
    "openai/whisper-large-v3-turbo",
    "distil-whisper/distil-small.en",
    "distil-whisper/distil-medium.en",
    "distil-whisper/distil-large-v2",
    "distil-whisper/distil-large-v3",
    "distil-whisper/distil-large-v3.5",
    "pyannote/speaker-diarization-3.1",
    "pyannote/speaker-diarization-community-1",
    "nvidia/Nemotron-3-Diarization",
)
# Hub IDs by lower-case name without the owner, with and without "whisper-". "large" is the third
# version in openai/whisper, but the Hub's whisper-large is the first.
SHORT_NAMES = (
    {each.split("/")[1].lower(): each for each in KNOWN}
    | {each.split("/")[1].removeprefix("whisper-").lower(): each for each in KNOWN}
    | {
        "large-v1": "openai/whisper-large",
        "large": "openai/whisper-large-v3",
        "turbo": "openai/whisper-large-v3-turbo",
    }
)


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A Hub ID with an optional revision, or a folder's absolute path."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @classmethod
    def parse(cls, text: str, repository: Path = REPOSITORY) -> Self:
        """Parse `owner/name`, `owner/name@revision`, a short name or a folder.

        A folder may be relative to `repository`. An existing folder takes precedence over a Hub ID,
        as in transformers. Raises ValueError for other text, with a known model of a similar name
        as a suggestion.
        """
        text = text.strip()
        folder = repository / Path(text).expanduser()
        if text and folder.is_dir():
            return cls(str(folder.resolve()))
        name, at, revision = text.partition("@")
        name = SHORT_NAMES.get(name.lower(), name)
        if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
            raise ValueError(
                "neither a hub id (owner/name or owner/name@revision) nor an existing folder"
                f"{_suggestion(name)}"
            )
        return cls(name, revision or None)


def _suggestion(name: str) -> str:
    nearest = get_close_matches(name.lower().replace("_", "-"), SHORT_NAMES, 1, 0.75)
    return f"; did you mean {SHORT_NAMES[nearest[0]]}?" if nearest else ""
