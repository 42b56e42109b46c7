"""The worker: transcribes one recording after another with the endpoint's handler, in this process.

Exceptions become records here. The driver notices processes that end or hang
(extras/archive/cluster.py).
"""

from __future__ import annotations

import base64
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import InferenceConfig, ModelSettings
from extras.archive import storage
from extras.archive.manifest import Recording
from extras.archive.options import LONGEST
from extras.archive.records import CHANGED, NOT_FOUND, UNEXPECTED, UNREADABLE, Record
from extras.archive.results import Results
from whosaid.answer.kept import DOCUMENTS, RunRequest
from whosaid.errors import AudioTooLong, EndpointError, ModelError
from whosaid.runtime.errors import process_ends

if TYPE_CHECKING:
    from handler import EndpointHandler

# Default deadline: seconds for any recording, and seconds for each byte (20 for a second of audio
# at 64 kbit/s), because a large model on a CPU is slower than speech. At most a week.
PATIENCE, PATIENCE_A_BYTE = 600.0, 0.0025
EXIT_STATUS = 75


@dataclass(frozen=True, slots=True)
class Task:
    """Settings shared by all recordings of a run, sent to every worker.

    `settings` come from `without_token`; `models` are the user's names of their models. `deadline`
    is in seconds, None for a deadline by size. `make_handler` loads the models of the settings.
    """

    out: str
    settings: dict[str, Any]
    parameters: dict[str, Any]
    make_handler: Callable[[dict[str, Any]], EndpointHandler]
    deadline: float | None = None
    models: Mapping[str, Any] = field(default_factory=dict)

    def request_for(self, recording: Recording) -> RunRequest:
        """Return a recording's parameters, which override those of the run. Documents name it."""
        parameters = {**self.parameters, **(recording.parameters or {})}
        if not DOCUMENTS.isdisjoint(InferenceConfig.read(parameters).output):
            parameters = {"recording_name": storage.name_of(recording.path), **parameters}
        return RunRequest(self.models, parameters)

    def deadline_of(self, recording: Recording) -> float:
        """Return the seconds that a recording may take."""
        return self.deadline or min(PATIENCE + PATIENCE_A_BYTE * recording.size, LONGEST)


def without_token(settings: ModelSettings) -> dict[str, Any]:
    """Return the settings to send; each machine has its own token, or none."""
    return {name: value for name, value in settings if name != "hf_token"}


def load_handler(settings: dict[str, Any]) -> EndpointHandler:
    """Return the endpoint's handler, with the token of this machine's environment."""
    from handler import EndpointHandler

    return EndpointHandler(settings=ModelSettings.from_environment(**settings), serves=False)


class Worker:
    """A handler and the output folder."""

    def __init__(self, task: Task) -> None:
        self.task, self.results = task, Results(task.out)

    def load(self) -> None:
        """Load the models. Raises RuntimeError if they do not load, or refuse the parameters."""
        try:
            self.handler = self.task.make_handler(self.task.settings)
            self.handler.parse({"inputs": "", "parameters": self.task.parameters})
        except (SystemExit, EndpointError, ValueError) as error:
            raise RuntimeError(str(error)) from error

    def run(self, recording: Recording, attempt: int = 1) -> Record:
        """Transcribe a recording, unless it is done; return its record. Raises OSError."""
        if found := self.results.find(recording.id):
            return found
        started = time.monotonic()
        record, answer = self._transcribe(
            recording, Record(recording.id, recording.path, attempt=attempt)
        )
        record = replace(record, seconds=round(time.monotonic() - started, 3))
        if answer is not None:
            return self.results.write(record, answer, recording.result)
        self.results.write_error(record)
        return record

    def _transcribe(
        self, recording: Recording, record: Record
    ) -> tuple[Record, dict[str, Any] | None]:
        """Return the record, and the answer unless it is an error."""
        try:
            data = self._read(recording)
            size, digest = len(data), sha256(data).hexdigest()
            record = replace(record, size=size, modified=recording.modified, sha256=digest)
            request = self.task.request_for(recording)
            inputs, parameters = base64.b64encode(data).decode(), dict(request.parameters)
            answer = self.handler({"inputs": inputs, "parameters": parameters})
            unwritten = answer.get("unwritten", [])
            record = replace(record, duration=answer.get("duration"), unwritten=unwritten)
            return record, {"made_with": request.to_json(), **answer}
        except FileNotFoundError:
            code, detail = NOT_FOUND, "there is no such file"
        except _Changed:
            code, detail = CHANGED, "the file has changed since the manifest was made"
        except OSError as error:
            code, detail = UNREADABLE, error.strerror or type(error).__name__
        except EndpointError as error:
            if isinstance(error, ModelError) and process_ends():
                # The device is lost or the engine has stopped, so another process has to try again.
                os._exit(EXIT_STATUS)
            code, detail = error.code, error.text
        except Exception as error:
            code, detail = UNEXPECTED, _origin(error)
        return replace(record, code=code, detail=" ".join(detail.split())), None

    def _read(self, recording: Recording) -> bytes:
        """Return the file. Raises OSError, AudioTooLong before it is read, or _Changed."""
        entry = storage.look(recording.path)
        if entry is None:
            raise FileNotFoundError
        most = self.task.settings["max_audio_bytes"]
        if entry.size > most:
            raise AudioTooLong(f"the audio has {entry.size} bytes, this endpoint accepts {most}")
        times = {entry.modified, recording.modified}
        if entry.size != recording.size or (0 not in times and len(times) == 2):
            raise _Changed
        return storage.read(recording.path)


def _origin(error: Exception) -> str:
    """Return an exception's type, file and line, but not its message, which may contain text."""
    origin = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(origin.filename).name}, line {origin.lineno}"


class _Changed(Exception):
    """A file has changed since the manifest was made."""
