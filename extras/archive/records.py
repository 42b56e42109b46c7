"""The outcome of a recording: a worker's message to the driver, stored beside the result.

A record has no transcript, and only path, size, time of change and digest of the file, so it may be
logged and stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from extras.archive.storage import name_of

# Codes besides those of whosaid/errors.py.
NOT_FOUND, UNREADABLE, CHANGED = "NOT_FOUND", "UNREADABLE", "CHANGED"
DEADLINE_EXCEEDED, WORKER_DIED, UNEXPECTED = "DEADLINE_EXCEEDED", "WORKER_DIED", "UNEXPECTED"


@dataclass(frozen=True, slots=True)
class Record:
    """One recording's outcome: the audio's `duration`, the `seconds` it took at the `attempt`,
    counted from 1, an error's `code` and `detail`, `result`, the name of the result's files without
    endings, `size` (bytes), `modified` (nanoseconds since 1970) and `sha256` of the file, and
    `unwritten` spans, `start` and `end` in seconds, with speech and no words.
    """

    id: str
    path: str
    code: str = ""
    detail: str = ""
    duration: float | None = None
    seconds: float = 0.0
    attempt: int = 1
    result: str = ""
    size: int | None = None
    modified: int | None = None
    sha256: str = ""
    unwritten: Sequence[Mapping[str, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the status, and the file's name."""
        status = "error" if self.code else "done"
        return asdict(self) | {"status": status, "name": name_of(self.path)}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read the record from a JSON object, which may have more fields."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})
