"""The file of voices that scripts/voices keeps: the parameter `known_speakers` as JSON."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

# {"name": "Anna", "voice": {...}}, with a voice of an answer's `voices`.
Entry = dict[str, Any]


def read_voices(path: Path) -> list[Entry]:
    """Return the entries of a file. Raises OSError, or ValueError if it is not such a file."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        entries = None
    wanted = isinstance(entries, list) and all(
        isinstance(each, dict) and each.keys() >= {"name", "voice"} for each in entries
    )
    if not wanted:
        raise ValueError("is not a file of scripts/voices")
    found: list[Entry] = entries
    return found


def write_voices(path: Path, entries: list[Entry]) -> None:
    """Replace a file; nobody but its owner can read it. Raises OSError."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(entries, file, indent=1)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
