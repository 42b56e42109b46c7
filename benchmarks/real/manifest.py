"""A manifest: which recordings there are, in which language, and what is said in them.

A manifest is a JSON list of objects with `audio` (a path relative to the manifest), `language`
(Whisper's code, or null to let every engine detect it), `text`, and `reference`: where the text is
from. `truth` is what was spoken or read; anything else names what wrote it, another model mostly.
Where the text is missing or empty nobody speaks, and every word written is invented.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.report import read

TRUTH = "truth"
Shape = TypeVar("Shape", list[Any], dict[str, Any])


@dataclass(frozen=True)
class Recording:
    """One entry of a manifest; `audio` is absolute."""

    audio: Path
    language: str | None = None
    text: str = ""
    reference: str = TRUTH

    @property
    def name(self) -> str:
        """What the recording is called in results."""
        return self.audio.name


def load_manifests(files: list[Path]) -> list[Recording]:
    """The recordings of several manifests in order.

    Raises ValueError of one line where one is no such list, a recording is not there, or two have
    one name.
    """
    recordings = [
        _recording(file, entry)
        for file in files
        for entry in read_manifest(file, list, "a list of recordings")
    ]
    names = [recording.name for recording in recordings]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"more than one recording is called {twice[0]}")
    return recordings


def read_manifest(file: Path, shape: type[Shape], described: str) -> Shape:
    """The JSON of a manifest. Raises ValueError of one line where it is not of that `shape`."""
    try:
        entries = read(file)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file}: no JSON: {error}") from error
    if not isinstance(entries, shape):
        raise ValueError(f"{file}: should be {described}")
    return entries


def _recording(file: Path, entry: object) -> Recording:
    if not isinstance(entry, dict) or not isinstance(entry.get("audio"), str):
        raise ValueError(f"{file}: every recording should be an object with a path called audio")
    audio = (file.parent / entry["audio"]).resolve()
    if not audio.is_file():
        raise ValueError(f"{file}: there is no {entry['audio']}")
    text, language = entry.get("text") or "", entry.get("language") or None
    return Recording(audio, language, text, str(entry.get("reference") or TRUTH))
