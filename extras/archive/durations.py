"""How long recordings are, by their headers: to give blocks equal audio, and to tell the time left.

Files are not trusted: their headers are read in confined processes (`audio.sandbox`). A file whose
header tells nothing is estimated by its size; the worker's record says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from extras.archive import storage
from extras.archive.options import LONGEST
from whosaid.audio.sandbox import run_confined

# Bytes that are read at the beginning of a file, and at its end.
END = 2 * 2**20


def read_durations(addresses: Sequence[str]) -> dict[str, float]:
    """Return seconds by address, of those files that tell."""
    with ThreadPoolExecutor(storage.PARALLEL) as threads:
        found = list(zip(addresses, threads.map(read_duration, addresses), strict=True))
    return {address: seconds for address, seconds in found if seconds is not None}


def read_duration(address: str) -> float | None:
    try:
        with storage.open_file(address) as file:
            size, head = file.size(), file.read(END)
            file.seek(max(len(head), size - END))
            data = head + file.read()
        seconds = run_confined("whosaid.audio.libav:announced_seconds", data, len(head), size)
    except Exception:  # an estimate is missing, no more
        return None
    # A header that announces more is wrong, or nothing that the endpoint takes.
    return round(seconds, 3) if 0 < seconds <= LONGEST else None
