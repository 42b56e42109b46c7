"""What became of a recording, in a few fields: what the worker hands to whoever counts.

A record holds no word that was said, and of the file no more than its path, size, time of change
and digest, so that it may be logged, shown and kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from extras.archive.storage import name_of

# Codes beside those of errors.py.
NOT_FOUND, UNREADABLE, CHANGED = "NOT_FOUND", "UNREADABLE", "CHANGED"
DEADLINE_EXCEEDED, WORKER_DIED, UNEXPECTED = "DEADLINE_EXCEEDED", "WORKER_DIED", "UNEXPECTED"


@dataclass(frozen=True, slots=True)
class Record:
    """One recording's outcome.

    `duration` is of its audio, `seconds` what it took, `attempt` counts from 1. Without an error
    `code` and `detail` are empty; with one `result` is, which is what the files of the result are
    called, without their endings. `size` (bytes), `modified` (nanoseconds since 1970) and `sha256`
    are of the file that was read. `unwritten` are spans of seconds, `start` and `end`, with speech
    and no words.
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
    unwritten: Sequence[Mapping[str, float]] = ()

    @property
    def status(self) -> str:
        """Whether there is a result: `done` or `error`."""
        return "error" if self.code else "done"

    def to_json(self) -> dict[str, Any]:
        """The fields, the status, and the file's name."""
        unwritten = [dict(each) for each in self.unwritten]
        derived = {"status": self.status, "name": name_of(self.path), "unwritten": unwritten}
        return asdict(self) | derived

    def to_text(self) -> str:
        """The fields as one line of JSON."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The record in a JSON object that may hold more."""
        given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(**given | {"unwritten": tuple(given.get("unwritten") or ())})
