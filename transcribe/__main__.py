"""`python -m transcribe demo|transcribe`: what scripts/demo and scripts/transcribe run.

Both ask an endpoint that is loaded here or, with `--url`, a server; one prints the answers and the
other writes them into files. Everything but the answers goes to stderr, and every failure is one
line there.
"""

from __future__ import annotations

import math
import os
import queue
import re
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from answer import kept
from commands.options import option_name, parameters
from commands.parser import FAILED, INTERRUPTED, WRONG, did_you_mean
from config import REPOSITORY, InferenceConfig, ModelSettings, misspelt_variables
from model_sources.choice import Screen, as_given, choose, loaded_models, model_names
from payload.parameters import check_name
from server.settings import ServerSettings
from transcribe.client import Client, Failed, OnProgress, Unusable
from transcribe.options import read_demo, read_text, read_transcribe
from transcribe.recordings import (
    InTheWay,
    Recording,
    Work,
    as_texts,
    asked_formats,
    find_recordings,
    left_out,
    needed_work,
    refuse_collisions,
    refuse_to_overwrite,
    rename_speakers,
    write_outputs,
)
from transcribe.screen import Lines, Tally, Terminal, notes
from transcribe.speaker_names import with_speaker_names

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
PARALLEL = 4
# An error that is about a parameter, with or without its code.
OF_PARAMETER = re.compile(r"([A-Z_]+: )?(?P<name>[a-z_]+)(\[\d+\](\.\w+)?)?: (?P<wrong>.+)")


class Endpoint(Protocol):
    """`Client` or `LocalEndpoint`. Their methods raise Failed; Unusable ends the run."""

    def models(self) -> dict[str, Any] | None:
        """The models' names, or what else is known of them; None if a server does not tell."""

    def prepare(self, data: bytes) -> None:
        """Do what is needed before the time of a recording begins."""

    def transcribe(
        self, data: bytes, parameters: dict[str, Any], on_progress: OnProgress
    ) -> dict[str, Any]:
        """The answer to an audio file, which was prepared for."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for every recording, and written of each; `text` is the file that was given of
    what is said. `names` are those of speakers, by label.
    """

    endpoint: Endpoint
    parameters: dict[str, Any]
    formats: Sequence[str]
    text: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def answer(
        self, path: Path, lines: Lines, recording: Recording | None = None
    ) -> tuple[dict[str, Any], float]:
        """The endpoint's answer to a recording, and the seconds it took. An answer for the files of
        a `recording` says of which one it is and how it was made.

        Raises what the endpoint does, and OSError.
        """
        lines.begin(path)
        data = path.read_bytes()
        described = None if recording is None else recording.described(data)
        self.endpoint.prepare(data)
        started = time.monotonic()
        answer = self.endpoint.transcribe(data, self.parameters, partial(lines.advance, path))
        seconds = time.monotonic() - started
        answer = with_speaker_names(answer, self.names)
        if described is not None:
            made = kept.Request(self.endpoint.models(), self.parameters).to_json()
            answer = {"recording": described, "made_with": made, **answer}
        return answer, seconds

    def hear(self, path: Path, lines: Lines) -> tuple[dict[str, Any], float] | None:
        """An answer that has the formats, and the seconds it took; None where there is none, which
        is told. Raises Unusable.
        """
        with failures_told(path, lines):
            answer, seconds = self.answer(path, lines)
            as_texts(answer, self.formats)
            return answer, seconds
        return None

    def write(self, recording: Recording, lines: Lines) -> None:
        """Transcribe one recording into its files, or tell why there are none. Raises Unusable."""
        path = recording.path
        with failures_told(path, lines):
            answer, seconds = self.answer(path, lines, recording)
            write_outputs(recording, answer, self.formats, keep=self.text)
            lines.finish(path, _duration(answer), seconds, notes(answer))


@contextmanager
def failures_told(path: Path, lines: Lines) -> Iterator[None]:
    """Whatever goes wrong with one recording is a line, and no end of the others."""
    try:
        yield
    except Unusable:
        raise
    except Exception as error:
        lines.fail(path, reason(error))


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, Failed):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _duration(answer: dict[str, Any]) -> float | None:
    """The recording's seconds; None where the server did not send them."""
    seconds = answer.get("duration")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None


def write_all(job: Job, recordings: Sequence[Recording], parallel: int, lines: Lines) -> None:
    """Transcribe the recordings, `parallel` at a time. Raises Unusable.

    The threads are daemons, so that Ctrl+C ends the process at once: nothing is half written. Where
    one finds the server unusable, the others end what they have begun. What is loaded here computes
    in this thread.
    """
    if parallel == 1:
        for recording in recordings:
            job.write(recording, lines)
        return
    waiting: queue.SimpleQueue[Recording] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Unusable | None] = queue.SimpleQueue()
    for recording in recordings:
        waiting.put(recording)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                try:
                    job.write(waiting.get_nowait(), lines)
                    ended.put(None)
                except Unusable as error:
                    ended.put(error)
                    return

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(parallel, len(recordings)))
    ]
    for thread in threads:
        thread.start()
    for _ in recordings:
        if error := ended.get():
            with suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            for thread in threads:
                thread.join()
            raise error


def write_files(options: Namespace, endpoint: Endpoint, terminal: Terminal) -> int:
    """Write every recording's files; the exit status. Raises Failed."""
    found = find_recordings(options.recordings, options.output_dir)
    refuse_collisions(found, options.output_dir)
    _tell_left_out(options.recordings)
    formats = options.output_format
    _keep_text(options.text, found, formats)
    models = endpoint.models()
    request = kept.Request(models, kept_parameters(options, tells_speakers(models)))
    anew = options.force or options.text is not None
    names = dict(options.speaker_names or ())
    if names and not anew:
        for recording in found:
            for warning in rename_speakers(recording, names):
                say(f"{recording.path}: warning: {warning}")
    works = [needed_work(each, request, formats, anew) for each in found]
    if not options.force:
        refuse_to_overwrite(works, "--force overwrites it, --output-dir writes elsewhere")
    _tell_again(works)
    left = [each.recording for each in works if each.transcribes]
    sizes = {each.path: each.path.stat().st_size for each in left}
    job = Job(endpoint, dict(request.parameters), formats, options.text, names)
    with terminal.shown(Tally(sizes, len(found) - len(left))) as lines:
        for each in works:
            if each.write and not each.transcribes:
                _write_kept(each, request, lines)
        write_all(job, left, 1 if options.url is None else options.parallel or PARALLEL, lines)
    return FAILED if lines.tally.failures else 0


def tells_speakers(models: dict[str, Any] | None) -> bool:
    """Whether it is known of the models that they tell speakers apart."""
    return bool(models and (models.get("diarization_model") or models.get("diarization")))


def kept_parameters(options: Namespace, speakers: bool) -> dict[str, Any]:
    """The parameters of a request whose answer is kept, by models that can tell `speakers` apart
    or not. Raises ValueError.
    """
    given = request_parameters(options)
    apart = InferenceConfig.read(given).tells_voices_apart and speakers
    formats = asked_formats(options.output_format, apart or options.channels == "separate")
    return kept.for_keeping({**given, "output": formats})


def _write_kept(work: Work, request: kept.Request, lines: Lines) -> None:
    """Write formats of an answer that is there already, or tell why not."""
    try:
        work.write_kept(request)
    except (Failed, OSError, ValueError) as error:
        path = work.recording.path
        lines.tally.skipped -= 1
        lines.tally.sizes[path] = 0
        lines.fail(path, reason(error))


def _tell_left_out(named: Sequence[Path]) -> None:
    """Say which files of folders may be recordings and are left out."""
    if files := left_out(named):
        says = "left out by name; a file that is named itself is transcribed"
        say(f"{files[0]}{_and_more(files[1:])}: {says}")


def _tell_again(works: Sequence[Work]) -> None:
    """Say which recordings are transcribed again and why, and which files stay as they are."""
    again = sorted((each for each in works if each.why), key=lambda each: each.why)
    for why, same in groupby(again, key=lambda each: each.why):
        first, *others = (each.recording.path for each in same)
        say(f"{first}{_and_more(others)}: transcribed again; the answer there {why}")
    if edited := [path for each in works for path in each.edited]:
        are = "stay as they are" if edited[1:] else "stays as it is"
        says = "the text there is not this program's; --force overwrites it"
        say(f"{edited[0]}{_and_more(edited[1:])}: {are}, because {says}")


def _and_more(others: Sequence[Path]) -> str:
    return f" and {len(others)} more" if others else ""


def _keep_text(text: Path | None, found: Sequence[Recording], formats: Sequence[str]) -> None:
    """Raises Failed where the text that is given lies in the place of an output."""
    written = [each.output(name).resolve() for each in found for name in formats]
    if text is not None and text.resolve() in written:
        raise Failed(f"{text}: would be overwritten; --output-dir writes elsewhere")


def print_answers(options: Namespace, endpoint: Endpoint, terminal: Terminal) -> int:
    """Print every recording's answer; the exit status. Raises Failed."""
    found = find_recordings(options.recordings, None)
    _tell_left_out(options.recordings)
    names = dict(options.speaker_names or ())
    formats = options.output_format or ()
    job = Job(endpoint, request_parameters(options), formats, names=names)
    status = 0
    for recording in found:
        with terminal.shown(Tally({recording.path: 0})) as lines:
            heard = job.hear(recording.path, lines)
        if heard is None:
            status = FAILED
            continue
        if len(found) > 1 and not job.formats:
            print(f"{recording.path}:")
        print_answer(*heard, job.formats)
    return status


def print_answer(answer: dict[str, Any], seconds: float, formats: Sequence[str]) -> None:
    """Print an answer, which took so many `seconds`, as a person reads it or in one format."""
    if formats:
        sys.stdout.write("".join(as_texts(answer, formats).values()))
        return
    from rich.console import Console

    from transcribe.printing import show

    show(answer, seconds, Console())


def request_parameters(options: Namespace) -> dict[str, Any]:
    """The parameters of every request. Raises ValueError, which begins with the parameter's name,
    if one is wrong.
    """
    given = parameters(options)
    formats = options.output_format or ()
    if asked := asked_formats(formats, False) if "json" in formats else formats:
        given["output"] = asked
    if options.given_text is not None:
        given["text"] = options.given_text
    if options.assistant is not None:
        given["assisted"] = True
    if unknown := InferenceConfig.unknown(given):
        nearest = did_you_mean(unknown[0], InferenceConfig.model_fields)
        raise ValueError(f"--parameters: {unknown[0]!a} is not a parameter{nearest}")
    InferenceConfig.read(given)
    return given


def check_speaker_names(options: Namespace) -> None:
    """Raises ValueError if a name of `--speaker-names` could not be a known speaker's."""
    try:
        for _, name in options.speaker_names or ():
            check_name(name)
    except ValueError as error:
        raise ValueError(f"speaker_names: {error}") from error


def make_endpoint(options: Namespace, terminal: Terminal) -> Endpoint:
    """The server of `--url`, or an endpoint of this process."""
    if options.url is not None:
        key = ServerSettings.from_environment().api_key
        return Client(options.url, key.get_secret_value() if key else None, jobs=options.job)
    from transcribe.local import LocalEndpoint

    names = model_names(options, is_bundled(options), options.diarize is not False)
    return LocalEndpoint(lambda: choose_models(options, terminal), names)


def choose_models(options: Namespace, terminal: Terminal) -> ModelSettings:
    """The models of the command line, which are about to be loaded. Raises StartError."""
    screen = Screen(say, terminal.without_bars)
    settings = choose(options, screen, is_bundled(options), options.diarize is not False)
    say(f"Loading {loaded_models(options, settings)} ...")
    return settings


def is_bundled(options: Namespace) -> bool:
    """Whether nothing but the bundled conversation is to be transcribed."""
    return [path.resolve() for path in options.recordings] == [CONVERSATION]


def hear_live(options: Namespace, terminal: Terminal) -> int:
    """Show what is said while it is said; the exit status. Raises Failed."""
    try:
        from transcribe.live import transcribe_live
    except ImportError as error:
        raise Unusable(
            f"--live needs the package {error.name}: scripts/setup installs it"
        ) from error
    return transcribe_live(options, lambda: choose_models(options, terminal), say)


def say(line: str) -> None:
    """Tell the user something that is no answer."""
    print(line, file=sys.stderr, flush=True)


def _by_option(reason: str, options: Namespace) -> str:
    """What is wrong with a parameter, under its option's name; any other reason as it is."""
    found = OF_PARAMETER.fullmatch(reason)
    if not found or found["name"] not in {*InferenceConfig.model_fields, "speaker_names"}:
        return reason
    return f"{option_name(found['name'], options)}: {found['wrong']}"


def run(options: Namespace) -> int:
    """Answer a command line; the exit status."""
    if not options.live:
        options.recordings = options.recordings or [CONVERSATION]
    for line in misspelt_variables(ModelSettings, ServerSettings):
        say(line)
    try:
        options.given_text = None if options.text is None else read_text(options.text)
        request_parameters(options)
        check_speaker_names(options)
    except ValueError as error:
        say(f"{options.program}: {_by_option(str(error), options)}")
        return WRONG
    terminal = Terminal()
    try:
        if options.live:
            return hear_live(options, terminal)
        endpoint = make_endpoint(options, terminal)
        return (print_answers if options.prints else write_files)(options, endpoint, terminal)
    except Unusable as error:
        why = _by_option(str(error), options)
        say(why if options.url else as_given(why, options))
    except BrokenPipeError:
        # Whoever reads the answers has enough of them; nor is there anything to flush at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except InTheWay as error:
        say(f"{options.program}: {error}")
        return WRONG
    except (Failed, OSError, ValueError) as error:
        say(str(error) if isinstance(error, ValueError) else reason(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; the exit status."""
    name, *given = sys.argv[1:] if arguments is None else arguments
    return run({"demo": read_demo, "transcribe": read_transcribe}[name](given))


if __name__ == "__main__":
    sys.exit(main())
