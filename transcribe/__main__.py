"""`python -m transcribe demo|transcribe`: what scripts/demo and scripts/transcribe run.

Both ask an endpoint that is loaded here or, with `--url`, a server; one prints the answers and the
other writes them into files. Everything but the answers goes to stderr, and every failure is one
line there.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from commands.options import parameters
from commands.parser import FAILED, INTERRUPTED, WRONG
from config import REPOSITORY, InferenceConfig, ServerSettings
from errors import StartError
from model_sources.choice import Screen, choose
from transcribe.client import Client, Failed, OnProgress
from transcribe.options import read_demo, read_transcribe
from transcribe.recordings import (
    Recording,
    as_texts,
    asked_formats,
    complete,
    find_recordings,
    write_outputs,
)
from transcribe.screen import Lines, Tally, shown

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
PARALLEL = 4


class Endpoint(Protocol):
    """What answers: `Client` or `LocalEndpoint`."""

    def transcribe(
        self, data: bytes, parameters: dict[str, Any], on_progress: OnProgress
    ) -> dict[str, Any]:
        """The answer to an audio file. Raises Failed; StartError ends the run."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for every recording, and written of each."""

    endpoint: Endpoint
    parameters: dict[str, Any]
    formats: Sequence[str]

    def run(self, recording: Recording, lines: Lines) -> None:
        """Transcribe one recording into its files, or say why that was not possible.

        Raises StartError.
        """
        started = time.monotonic()
        path = recording.path
        try:
            lines.begin(path)
            answer = self.endpoint.transcribe(
                path.read_bytes(),
                self.parameters,
                lambda done, total: lines.advance(path, done, total),
            )
            write_outputs(recording, answer, self.formats)
            warnings = [str(each) for each in answer.get("warnings") or ()]
            lines.finish(path, _duration(answer), time.monotonic() - started, warnings)
        except StartError:
            raise
        except Exception as error:
            lines.fail(path, reason(error))


def reason(error: Exception) -> str:
    """Why a recording has no answer, in one line."""
    if isinstance(error, Failed):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _duration(answer: dict[str, Any]) -> float | None:
    """The recording's seconds; None where the server did not send them."""
    seconds = answer.get("duration")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None


def run_all(job: Job, recordings: Sequence[Recording], parallel: int, lines: Lines) -> None:
    """Transcribe the recordings, `parallel` at a time.

    The threads are daemons, so that Ctrl+C ends the process at once: nothing is half written. What
    is loaded here computes in this thread.
    """
    if parallel == 1:
        for recording in recordings:
            job.run(recording, lines)
        return
    waiting: queue.SimpleQueue[Recording | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work() -> None:
        while (recording := waiting.get()) is not None:
            job.run(recording, lines)
            ended.put(None)

    workers = min(parallel, len(recordings))
    for recording in (*recordings, *[None] * workers):
        waiting.put(recording)
    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    for _ in recordings:
        ended.get()


def write_files(options: Namespace, endpoint: Endpoint) -> int:
    """Write every recording's files; the exit status."""
    found = find_recordings(options.recordings, options.output_dir)
    formats = options.output_format
    left = [each for each in found if options.force or not complete(each, formats)]
    sizes = {each.path: each.path.stat().st_size for each in left}
    job = Job(endpoint, request_parameters(options), formats)
    with shown(Tally(sizes, len(found) - len(left))) as lines:
        parallel = 1 if options.url is None else options.parallel or PARALLEL
        run_all(job, left, parallel, lines)
    return FAILED if lines.tally.failures else 0


def print_answers(options: Namespace, endpoint: Endpoint) -> int:
    """Print every recording's answer; the exit status."""
    from rich.console import Console

    from transcribe.printing import show

    status, found = 0, find_recordings(options.recordings, None)
    for recording in found:
        with _bar(recording.path) as on_progress:
            started = time.monotonic()
            try:
                answer = endpoint.transcribe(
                    recording.path.read_bytes(), request_parameters(options), on_progress
                )
            except (Failed, OSError) as error:
                say(f"{recording.path}: {reason(error)}")
                status = FAILED
                continue
        if options.output_format:
            sys.stdout.write("".join(as_texts(answer, options.output_format).values()))
            continue
        if len(found) > 1:
            print(f"{recording.path}:")
        show(answer, time.monotonic() - started, Console())
    return status


@contextmanager
def _bar(path: Path) -> Iterator[OnProgress]:
    """A bar on the terminal that disappears; nothing elsewhere."""
    with shown(Tally({path: 0})) if sys.stderr.isatty() else nullcontext() as lines:
        if lines is None:
            yield lambda done, total: None
        else:
            lines.begin(path)
            yield lambda done, total: lines.advance(path, done, total)


def request_parameters(options: Namespace) -> dict[str, Any]:
    """The parameters of every request. Raises ValueError where one is wrong."""
    given = parameters(options)
    if formats := asked_formats(options.output_format or ()):
        given["output"] = formats
    if options.assistant is not None:
        given["assisted"] = True
    InferenceConfig.read(given)
    return given


def make_endpoint(options: Namespace, bundled: bool) -> Endpoint:
    """The server of `--url`, or an endpoint of this process."""
    if options.url is not None:
        key = ServerSettings.from_environment().api_key
        return Client(options.url, key.get_secret_value() if key else None)
    from transcribe.local import LocalEndpoint

    return LocalEndpoint(lambda: choose(options, Screen(say, nullcontext), bundled))


def say(line: str) -> None:
    """Tell the user something that is no answer."""
    print(line, file=sys.stderr, flush=True)


def run(options: Namespace) -> int:
    """Answer a command line; the exit status."""
    bundled = not options.recordings or options.recordings == [CONVERSATION]
    options.recordings = options.recordings or [CONVERSATION]
    try:
        request_parameters(options)
    except ValueError as error:
        say(str(error))
        return WRONG
    try:
        endpoint = make_endpoint(options, bundled)
        return (print_answers if options.prints else write_files)(options, endpoint)
    except (Failed, StartError, ValueError) as error:
        say(str(error).removeprefix(f"{StartError.code}: "))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; the exit status."""
    name, *given = sys.argv[1:] if arguments is None else arguments
    return run({"demo": read_demo, "transcribe": read_transcribe}[name](given))


if __name__ == "__main__":
    sys.exit(main())
