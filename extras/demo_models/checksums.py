"""Writes the SHA256SUMS of a model folder, which the endpoint checks before it loads the folder.

The format is sha256sum's, so `sha256sum -c SHA256SUMS` checks a folder without this repository.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

LISTING = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """List every file below `folder` with its SHA-256, except Markdown and the list itself."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in files
        if path.name != LISTING
    ]
    (folder / LISTING).write_text("".join(lines))
