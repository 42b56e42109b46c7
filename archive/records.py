"""What became of a recording, in a few fields: what the worker hands to whoever counts.

A record holds no word that was said and nothing of the file but its path, so that it may be logged,
shown and kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

# Codes beside those of errors.py.
NOT_FOUND, UNREADABLE, CHANGED = "NOT_FOUND", "UNREADABLE", "CHANGED"
DEADLINE_EXCEEDED, WORKER_DIED, UNEXPECTED = "DEADLINE_EXCEEDED", "WORKER_DIED", "UNEXPECTED"


@dataclass(frozen=True, slots=True)
class Record:
    """One recording's outcome.

    `duration` is of its audio, `seconds` what it took, `attempt` counts from 1. Without an error
    `code` and `detail` are empty; with one `result` is, which is what the files of the result are
    called, without their endings.
    """

    id: str
    path: str
    code: str = ""
    detail: str = ""
    duration: float | None = None
    seconds: float = 0.0
    attempt: int = 1
    result: str = ""

    @property
    def status(self) -> str:
        """Whether there is a result: `done` or `error`."""
        return "error" if self.code else "done"

    def to_json(self) -> dict[str, Any]:
        """The fields, and the status."""
        return asdict(self) | {"status": self.status}

    def to_text(self) -> str:
        """The fields as one line of JSON."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The record in a JSON object that may hold more."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})
