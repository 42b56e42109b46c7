"""The worker: one recording after the other through the endpoint's handler, in this process.

Whatever a recording does, the worker ends up with a record of it. What is raised becomes a record
here; a recording that takes too long gets its record from a second thread, which then ends the
process, because nothing can stop the first one; and one whose process died is known by the mark
that was set before it began. Whoever starts workers only has to start them again.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from answer.kept import Request
from archive import storage
from archive.manifest import Recording
from archive.records import CHANGED, NOT_FOUND, UNEXPECTED, UNREADABLE, WORKER_DIED, Record
from archive.records import DEADLINE_EXCEEDED as DEADLINE
from archive.results import MOST_ATTEMPTS, Died, Results
from archive.retries import patiently
from config import InferenceConfig, ModelSettings
from errors import AudioTooLong, EndpointError, ModelError, OutOfMemory

# So many recordings in a row that a worker cannot read end the run: a share is no longer mounted,
# or a key has run out, and all the others would have records of errors within minutes.
MOST_UNREAD = 20
# By default a recording has so many seconds, and so many for each of its own: a large model on a
# CPU is slower than speech.
PATIENCE, PATIENCE_A_SECOND = 600.0, 20.0
# How long after its deadline a process is ended that runs no Python any more.
GRACE = 60.0
EXIT_STATUS = 75


class Handler(Protocol):
    """What is needed of `handler.EndpointHandler`."""

    def parse(self, data: object) -> object:
        """Check a request's body. Raises ClientError."""

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answer a request. Raises ClientError or ServerError."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is the same for all recordings of a run; it travels to every worker.

    `settings` are those of `without_token`, and `models` their models as the user names them;
    `deadline` is in seconds, None for one by duration; `run` tells this run's attempts from those
    of others; `make_handler` loads the models that settings name.
    """

    out: str
    settings: dict[str, Any]
    parameters: dict[str, Any]
    run: str
    make_handler: Callable[[dict[str, Any]], Handler]
    deadline: float | None = None
    in_shards: bool = False
    models: Mapping[str, Any] = field(default_factory=dict)

    def request_for(self, recording: Recording) -> Request:
        """What is asked for a recording, whose own parameters go before those of the run."""
        return Request(self.models, {**self.parameters, **(recording.parameters or {})})


def without_token(settings: ModelSettings) -> dict[str, Any]:
    """What travels of the settings: all but the token, which each machine has or has not."""
    return {name: value for name, value in settings if name != "hf_token"}


def load_handler(settings: dict[str, Any]) -> Handler:
    """The endpoint's handler, with the token of this machine's environment."""
    from handler import EndpointHandler

    return EndpointHandler(settings=ModelSettings.from_environment(**settings), serves=False)


class Worker:
    """A handler and the output place."""

    def __init__(self, task: Task, name: str) -> None:
        """Load the models; a worker that is started again for one that died has the same `name`.

        Raises RuntimeError, with the reason, where this cannot be the worker of this task: its
        models do not load, or they do not take the parameters, or loading them ends the process.
        """
        self.task, self.results = task, Results(task.out, task.in_shards)
        self._unread = 0
        try:
            attempt = self.results.begin(f"loading-{name}", task.run)
        except Died as died:
            detail = f"the process died {MOST_ATTEMPTS} times while loading the models"
            raise RuntimeError(detail) from died
        self._load(task)
        self.results.end(f"loading-{name}", attempt)

    def _load(self, task: Task) -> None:
        try:
            self.handler = task.make_handler(task.settings)
            self.handler.parse({"inputs": "", "parameters": task.parameters})
        except (SystemExit, EndpointError, ValueError) as error:
            raise RuntimeError(str(error)) from error

    def run_block(self, recordings: Sequence[Recording]) -> Iterator[Record]:
        """Transcribe the recordings of one block and yield a record of each.

        Raises OSError where the output place cannot be read or written, and RuntimeError where so
        many recordings in a row cannot be read that it is no fault of theirs.
        """
        for recording in recordings:
            yield self.run(recording)

    def run(self, recording: Recording) -> Record:
        """Transcribe a recording, unless it is done: its record. Raises as `run_block`."""
        if found := self.results.find(recording.id):
            return found
        record = Record(recording.id, recording.path, duration=recording.duration)
        try:
            attempt = self.results.begin(recording.id, self.task.run)
        except Died as died:
            record = replace(record, code=WORKER_DIED, detail=str(died), attempt=died.attempts)
            self.results.write_error(record)
            return self._ended(record)
        try:
            record = self._attempt(recording, replace(record, attempt=attempt))
        except Exception:
            self.results.take_back(recording.id, attempt)
            raise
        return self._ended(record)

    def _attempt(self, recording: Recording, record: Record) -> Record:
        """The record of what comes of it, written."""
        started, seconds = time.monotonic(), self._deadline(recording)
        late = replace(record, code=DEADLINE, detail=f"it took over {seconds:.0f} s")
        with _Deadline(seconds, lambda: self._give_up(replace(late, seconds=seconds))):
            record, answer = self._transcribe(recording, record)
        self._count_unread(recording, record)
        record = replace(record, seconds=round(time.monotonic() - started, 3))
        if answer is None:
            self.results.write_error(record)
        else:
            record = self.results.write(record, answer, recording.result)
        return record

    def _count_unread(self, recording: Recording, record: Record) -> None:
        """Raise RuntimeError at the last of MOST_UNREAD. One that was missing already when the
        manifest was made tells nothing.
        """
        if record.code not in (NOT_FOUND, UNREADABLE):
            self._unread = 0
        elif recording.size >= 0:
            self._unread += 1
        if self._unread == MOST_UNREAD:
            raise RuntimeError(
                f"{MOST_UNREAD} recordings in a row could not be read, the last: {record.detail};"
                " is their place within reach? Those that are gone are to leave the manifest"
            )

    def _ended(self, record: Record) -> Record:
        self.results.end(record.id, record.attempt)
        return record

    def _give_up(self, record: Record) -> None:
        self.results.write_error(record)
        self._ended(record)

    def _deadline(self, recording: Recording) -> float:
        if self.task.deadline is not None:
            return self.task.deadline
        return PATIENCE + PATIENCE_A_SECOND * recording.seconds

    def _transcribe(
        self, recording: Recording, record: Record
    ) -> tuple[Record, dict[str, Any] | None]:
        """The record, and the answer unless it is that of an error."""
        try:
            data = self._read(recording)
            record = replace(record, size=len(data), sha256=sha256(data).hexdigest())
            record = replace(record, modified=recording.modified)
            answer = self._answer(recording, data)
            unwritten, made = answer.get("unwritten", ()), self.task.request_for(recording)
            record = replace(record, duration=answer.get("duration"), unwritten=tuple(unwritten))
            return record, {"made_with": made.to_json(), **answer}
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

    def _answer(self, recording: Recording, data: bytes) -> dict[str, Any]:
        """What the handler answers; where memory does not suffice, asked for small batches."""
        inputs = base64.b64encode(data).decode()
        parameters = dict(self.task.request_for(recording).parameters)
        try:
            return self.handler({"inputs": inputs, "parameters": parameters})
        except OutOfMemory:
            batch_size = InferenceConfig.read(parameters).batch_size
            if batch_size == 1:
                raise
            parameters["batch_size"] = max(1, batch_size // 4)
            return self.handler({"inputs": inputs, "parameters": parameters})

    def _read(self, recording: Recording) -> bytes:
        """The file. Raises OSError, AudioTooLong before it is read, or _Changed."""
        entry = patiently(storage.look, recording.path)
        if entry is None:
            raise FileNotFoundError
        most = self.task.settings["max_audio_bytes"]
        if entry.size > most:
            raise AudioTooLong(f"the audio has {entry.size} bytes, this endpoint accepts {most}")
        times = {entry.modified, recording.modified}
        if entry.size != recording.size or (0 not in times and len(times) == 2):
            raise _Changed
        return patiently(storage.read, recording.path)


def _origin(error: Exception) -> str:
    """Its type, and the file and line that raised it; never its message, which may hold text."""
    origin = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(origin.filename).name}, line {origin.lineno}"


class _Changed(Exception):
    """A file is another than when the manifest was made."""


class _Deadline:
    """Ends the process unless the block ends within `seconds`, after `give_up`.

    The C library's own timer ends it some time later, should a call that keeps the interpreter's
    lock let no thread of Python run.
    """

    def __init__(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._seconds, self._give_up = seconds, give_up
        self._lock, self._over = threading.Lock(), False
        self._timer = threading.Timer(seconds, self._end_process)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()
        faulthandler.dump_traceback_later(self._seconds + GRACE, exit=True)

    def __exit__(self, *_: object) -> None:
        with self._lock:  # held for ever by a thread that ends the process
            self._over = True
        self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _end_process(self) -> None:
        with self._lock:
            if self._over:
                return
            try:
                self._give_up()
            finally:
                os._exit(EXIT_STATUS)


def _end_with_the_process() -> None:
    """End the process at once where it is about to end, its device lost or its engine stopped: that
    is no fault of the recording's, and another process has to try again.
    """
    from runtime.errors import process_ends

    if process_ends():
        os._exit(EXIT_STATUS)
