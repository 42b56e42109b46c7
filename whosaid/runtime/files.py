"""Writes files whole."""

import os
import secrets
from pathlib import Path


def write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file atomically, through a temporary name that fits every file system."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(opened, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
