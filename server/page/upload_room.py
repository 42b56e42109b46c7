"""How much the page's uploads may take of the disk, or of memory where the folder is on a tmpfs.

The one decision: what lies in the folder is counted for each upload, and never remembered, because
Gradio adds and deletes files there by rules of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

# A small file takes a block, as a rule of so many bytes.
BLOCK_BYTES = 4096


class UploadRoom:
    """Room for `max_bytes` in `folder`: what lies there, and what is on its way."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._coming = 0

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[bool]:
        """Whether an upload of `size` bytes has room, which is its own until the block ends.

        There always is where there is nothing else, as for bodies (Admission.take_bytes). While it
        comes it counts twice, in full and with what has come. The others' sizes are added up before
        the folder is read, so that one that ends meanwhile is not missed.
        """
        others = self._coming
        self._coming += size
        try:
            others += await asyncio.to_thread(stored_bytes, self.folder)
            yield not others or others + size <= self.max_bytes
        finally:
            self._coming -= size


def stored_bytes(folder: Path) -> int:
    """The bytes of all files in a folder and below it; none where there is no such folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # deleted meanwhile
                total += max(BLOCK_BYTES, os.lstat(os.path.join(place, name)).st_size)
    return total
