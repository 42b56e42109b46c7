"""The worker: one recording after the other through the endpoint's handler, in this process.

Every recording gets a record, however it ends. An exception becomes a record here. A recording that
takes too long gets its record from a second thread, which then ends the process, because nothing
can stop the first thread. A recording whose process died has the mark that was set before it began.
The driver only has to start dead workers again.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from config import ModelSettings
from extras.archive import storage
from extras.archive.manifest import Recording
from extras.archive.options import LONGEST
from extras.archive.records import CHANGED, NOT_FOUND, UNEXPECTED, UNREADABLE, WORKER_DIED, Record
from extras.archive.records import DEADLINE_EXCEEDED as DEADLINE
from extras.archive.results import MOST_ATTEMPTS, Results
from whosaid.answer.kept import Request
from whosaid.errors import AudioTooLong, EndpointError, ModelError

# By default a recording has so many seconds, and so many for each byte (20 for a second of audio at
# 64 kbit/s): a large model on a CPU is slower than speech. At most a week.
PATIENCE, PATIENCE_A_BYTE = 600.0, 0.0025
# How long after its deadline a process is ended that runs no Python any more.
GRACE = 60.0
EXIT_STATUS = 75


class Handler(Protocol):
    """The part of `handler.EndpointHandler` that workers use."""

    def parse(self, data: object) -> object:
        """Check a request's body. Raises ClientError."""

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answer a request. Raises ClientError or ServerError."""


@dataclass(frozen=True, slots=True)
class Task:
    """Settings shared by all recordings of a run, sent to every worker.

    `settings` are those of `without_token`, and `models` their models as the user names them;
    `deadline` is in seconds, None for one by size; `run` separates this run's attempts from those
    of other runs; `make_handler` loads the models that settings name.
    """

    out: str
    settings: dict[str, Any]
    parameters: dict[str, Any]
    run: str
    make_handler: Callable[[dict[str, Any]], Handler]
    deadline: float | None = None
    models: Mapping[str, Any] = field(default_factory=dict)

    def request_for(self, recording: Recording) -> Request:
        """Return what is asked for a recording, whose own parameters go before those of the run."""
        return Request(self.models, {**self.parameters, **(recording.parameters or {})})


def without_token(settings: ModelSettings) -> dict[str, Any]:
    """Return the settings that travel: each machine has a token of its own, or none."""
    return {name: value for name, value in settings if name != "hf_token"}


def load_handler(settings: dict[str, Any]) -> Handler:
    """Return the endpoint's handler, with the token of this machine's environment."""
    from handler import EndpointHandler

    return EndpointHandler(settings=ModelSettings.from_environment(**settings), serves=False)


class Worker:
    """A handler and the output place."""

    def __init__(self, task: Task, name: str) -> None:
        """Load the models; a worker that is started again for one that died has the same `name`.

        Raises RuntimeError, with the reason, if the models do not load, do not take the parameters,
        or end the process each time.
        """
        self.task, self.results = task, Results(task.out, task.run)
        attempt = self.results.begin(f"loading-{name}")
        if attempt is None:
            raise RuntimeError(f"the process died {MOST_ATTEMPTS} times while loading the models")
        try:
            self.handler = task.make_handler(task.settings)
            self.handler.parse({"inputs": "", "parameters": task.parameters})
        except (SystemExit, EndpointError, ValueError) as error:
            raise RuntimeError(str(error)) from error
        self.results.end(f"loading-{name}", attempt)

    def run(self, recording: Recording) -> Record:
        """Transcribe a recording, unless it is done, and return its record. Raises OSError."""
        if found := self.results.find(recording.id):
            return found
        record = Record(recording.id, recording.path)
        attempt = self.results.begin(recording.id)
        if attempt is None:
            detail = f"the process that computed it died {MOST_ATTEMPTS} times"
            died = replace(record, code=WORKER_DIED, detail=detail, attempt=MOST_ATTEMPTS)
            return self._failed(died)
        try:
            return self._attempt(recording, replace(record, attempt=attempt))
        except Exception:
            self.results.take_back(recording.id, attempt)
            raise

    def _attempt(self, recording: Recording, record: Record) -> Record:
        started, seconds = time.monotonic(), self.task.deadline
        if seconds is None:
            seconds = min(PATIENCE + PATIENCE_A_BYTE * recording.size, LONGEST)
        late = replace(
            record, code=DEADLINE, detail=f"it took over {seconds:.0f} s", seconds=seconds
        )
        with _deadline(seconds, lambda: self._failed(late)):
            record, answer = self._transcribe(recording, record)
        record = replace(record, seconds=round(time.monotonic() - started, 3))
        if answer is None:
            return self._failed(record)
        record = self.results.write(record, answer, recording.result)
        self.results.end(record.id, record.attempt)
        return record

    def _failed(self, record: Record) -> Record:
        self.results.write_error(record)
        self.results.end(record.id, record.attempt)
        return record

    def _transcribe(
        self, recording: Recording, record: Record
    ) -> tuple[Record, dict[str, Any] | None]:
        """Return the record, and the answer unless it is an error."""
        try:
            data = self._read(recording)
            record = replace(record, size=len(data), sha256=sha256(data).hexdigest())
            record = replace(record, modified=recording.modified)
            request = self.task.request_for(recording)
            inputs, parameters = base64.b64encode(data).decode(), dict(request.parameters)
            answer = self.handler({"inputs": inputs, "parameters": parameters})
            unwritten = tuple(answer.get("unwritten", ()))
            record = replace(record, duration=answer.get("duration"), unwritten=unwritten)
            return record, {"made_with": request.to_json(), **answer}
        except FileNotFoundError:
            code, detail = NOT_FOUND, "there is no such file"
        except _Changed:
            code, detail = CHANGED, "the file is another than when the manifest was made"
        except OSError as error:
            code, detail = UNREADABLE, error.strerror or type(error).__name__
        except EndpointError as error:
            if isinstance(error, ModelError):
                _end_with_the_process()
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
    """Return its type, file and line; never its message, which may hold text."""
    origin = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(origin.filename).name}, line {origin.lineno}"


class _Changed(Exception):
    """A file is another than when the manifest was made."""


@contextmanager
def _deadline(seconds: float, give_up: Callable[[], object]) -> Iterator[None]:
    """End the process unless the block ends within `seconds`, after `give_up`.

    The C library's own timer ends it some time later, in case a call that keeps the interpreter's
    lock lets no thread of Python run.
    """

    def end_process() -> None:
        try:
            give_up()
        finally:
            os._exit(EXIT_STATUS)

    timer = threading.Timer(seconds, end_process)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def _end_with_the_process() -> None:
    """End the process at once if it is about to end, its device lost or its engine stopped: that is
    no fault of the recording's, and another process has to try again.
    """
    from whosaid.runtime.errors import process_ends

    if process_ends():
        os._exit(EXIT_STATUS)
