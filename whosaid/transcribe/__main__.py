"""Prints answers for scripts/demo, and writes files for scripts/transcribe.

Both use models in this process or, with `--url`, a server. Everything but the answers goes to
stderr, one line for every failure.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from config import REPOSITORY, InferenceConfig, ModelSettings, WrongParameter, misspelt_variables
from whosaid.answer import kept
from whosaid.answer.formats import file_bytes
from whosaid.answer.speaker_names import Names, name_speakers
from whosaid.cli.options import option_name, parameters
from whosaid.cli.parser import FAILED, INTERRUPTED, WRONG, did_you_mean
from whosaid.models.choice import as_given, choose, loaded_models, model_names
from whosaid.payload.parameters import check_name
from whosaid.server.settings import ServerSettings
from whosaid.transcribe.client import Client, Failed, Unusable
from whosaid.transcribe.options import BESIDE, STANDARD_INPUT, read_demo, read_transcribe
from whosaid.transcribe.printing import show
from whosaid.transcribe.recordings import (
    InTheWay,
    Recording,
    RecordingWork,
    as_texts,
    asked_formats,
    collisions,
    find_recordings,
    left_out,
    needed_work,
    rename_speakers,
    requested,
    sparing,
    unreadable,
    write_outputs,
)
from whosaid.transcribe.screen import Run, Terminal, clock, notes

if TYPE_CHECKING:
    from whosaid.transcribe.local import LocalEndpoint

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
PARALLEL = 4
WAY_OUT = "--force overwrites it, --output-dir writes elsewhere"


@dataclass(frozen=True, slots=True)
class TranscriptionJob:
    """The request for every recording; `text` is the file of a given text."""

    endpoint: Client | LocalEndpoint
    parameters: dict[str, Any]
    formats: Sequence[str] = ()
    text: Path | None = None
    names: Names = ()
    force: bool = False

    @contextmanager
    def answered(
        self, recording: Recording, run: Run, kept_in_file: bool = False
    ) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield the answer, described if it is `kept_in_file`, and the seconds it took. Decoded
        windows are then kept until the block ends without an error. Raises Failed, OSError.
        """
        path = recording.path
        run.begin(path)
        files = recording.read()
        self.endpoint.prepare(files, partial(run.load, path))
        request = kept.RunRequest(self.endpoint.models, self.parameters)
        described = recording.described(files) if kept_in_file else None
        begun = None
        if described is not None:
            begun = self.endpoint.partial_answer(recording, described, request)
        run.work(path, self.endpoint.first_stage, begun, self.endpoint.jobs)
        started = time.monotonic()
        advance = partial(run.advance, path)
        with self.endpoint.transcribed(files, self.parameters, advance, begun) as answer:
            seconds = time.monotonic() - started
            answer = name_speakers(answer, self.names, self.parameters)
            named = {"recording_name": recording.name, **self.parameters}
            answer = kept.with_documents(answer, self.formats, named)
            if described is not None:
                answer = {"recording": described, "made_with": request.to_json(), **answer}
            yield answer, seconds
        if begun is not None:
            begun.remove()

    def write(self, work: RecordingWork, run: Run) -> None:
        """Transcribe a recording into its files, or show the failure. Raises Unusable."""
        path, job = work.recording.path, self
        with shown_failures(path, run):
            if work.text is not None:
                parameters = {**self.parameters, "text": read_text(work.text)}
                job = replace(self, parameters=parameters, text=work.text)
            with job.answered(work.recording, run, kept_in_file=True) as (answer, seconds):
                left = work if self.force else sparing(work, WAY_OUT)  # files may be new meanwhile
                if left.write:
                    write_outputs(left.recording, answer, left.write, keep=job.text)
                if left.spared:
                    raise InTheWay(left.spared[0])
            run.finish(path, _duration(answer), seconds, notes(answer))


@contextmanager
def shown_failures(path: Path, run: Run) -> Iterator[None]:
    """Show an error of a recording in the block; only Unusable ends the run."""
    try:
        yield
    except Unusable:
        raise
    except Exception as error:
        run.fail(path, reason(error))


def reason(error: Exception) -> str:
    if isinstance(error, Failed | WrongParameter):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _duration(answer: dict[str, Any]) -> float | None:
    seconds = answer.get("duration")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None


def write_all(
    job: TranscriptionJob, works: Sequence[RecordingWork], parallel: int, run: Run
) -> None:
    """Transcribe recordings, `parallel` at a time, in daemon threads, which Ctrl+C ends at once, or
    with models here in this one. Raises Unusable after those that have begun.
    """
    waiting = deque(works)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            with suppress(IndexError):
                while True:
                    job.write(waiting.popleft(), run)
            ended.put(None)
        except BaseException as error:  # rich ends the process if nobody reads its lines
            waiting.clear()
            ended.put(error)

    count = min(parallel, len(works))
    if parallel == 1:
        work()
    else:
        for _ in range(count):
            threading.Thread(target=work, daemon=True).start()
    for error in [ended.get() for _ in range(count)]:
        if error is not None:
            raise error


def write_files(options: Namespace, endpoint: Client | LocalEndpoint, terminal: Terminal) -> int:
    found = find_recordings(options.recordings, options.output_dir, options.tracks)
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)  # before hours of work
    _tell_left_out(options.recordings)
    formats = options.output_format
    _keep_text(options.text, found, formats)
    request = kept.RunRequest(endpoint.models, kept_parameters(options, endpoint.models or {}))
    failures = collisions(found)
    works = []
    for each in found:
        if each.path not in failures:
            try:
                works.append(_prepared(each, request, options))
            except Exception as error:  # a JSON file may hold anything
                failures[each.path] = reason(error)
    _tell_again(works)
    failures |= {each.recording.path: each.spared[0] for each in works if each.is_refused}
    failures |= _write_kept(works, request)
    left = [each for each in works if each.transcribes and each.write]
    sizes = {each.recording.path: each.recording.size_and_time[0] for each in left}
    sizes |= dict.fromkeys(failures, 0)
    skipped = [line for each in works if not each.is_refused for line in each.spared]
    skipped += unreadable(options.recordings)
    names = options.speaker_names or ()
    parameters = dict(request.parameters)
    job = TranscriptionJob(endpoint, parameters, formats, options.text, names, options.force)
    with terminal.shown(sizes, len(found) - len(sizes), skipped) as run:
        for path, why in failures.items():
            run.fail(path, why)
        write_all(job, left, 1 if options.url is None else options.parallel or PARALLEL, run)
    return FAILED if run.failures or skipped else 0


def _prepared(recording: Recording, request: kept.RunRequest, options: Namespace) -> RecordingWork:
    """Rename a kept answer's speakers; return the work left. Raises Failed, OSError, ValueError."""
    formats = options.output_format
    path = recording.corrected(options.force) if options.text == BESIDE else None
    text = None if path is None else read_text(path)
    if text is not None:
        request = replace(request, parameters={**request.parameters, "text": text})
        InferenceConfig.read(request.parameters)
        if path == recording.output("txt"):
            formats = [name for name in formats if name != "txt"]
    anew = options.force or options.text not in (None, BESIDE)
    if options.speaker_names and not anew:
        files, warnings = rename_speakers(recording, options.speaker_names)
        if files:
            say(f"{recording.path}: renamed in {files} file{'s' if files > 1 else ''}")
        for warning in warnings:
            say(f"{recording.path}: warning: {warning}")
    work = needed_work(recording, request, formats, anew)
    if work.write:
        recording.check_folder()
    if text is not None:
        work = replace(work, text=path, why="")
    return work if options.force else sparing(work, WAY_OUT)


def kept_parameters(options: Namespace, models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request to these models whose answer is kept."""
    given = request_parameters(options)
    speakers = options.channels == "separate"
    if InferenceConfig.read(given).tells_voices_apart:
        speakers |= bool(models.get("diarization_model") or models.get("diarization"))
    return kept.for_keeping({**given, "output": asked_formats(options.output_format, speakers)})


def _write_kept(works: Iterable[RecordingWork], request: kept.RunRequest) -> dict[Path, str]:
    """Write formats from kept answers, and say so; return the failures."""
    failures = {}
    for each in works:
        if each.write and not each.transcribes:
            try:
                each.write_kept(request)
                say(f"{each.recording.path}: {', '.join(each.write)} written")
            except Exception as error:
                failures[each.recording.path] = reason(error)
    return failures


def _tell_left_out(named: Sequence[Path]) -> None:
    if files := left_out(named):
        says = "skipped because of their names; name a file to transcribe it"
        say(f"{files[0]}{_and_more(files[1:])}: {says}")


def _tell_again(works: Sequence[RecordingWork]) -> None:
    again = sorted((each for each in works if each.why and each.write), key=lambda each: each.why)
    for why, same in groupby(again, key=lambda each: each.why):
        first, *others = (each.recording.path for each in same)
        say(f"{first}{_and_more(others)}: transcribed again, because the answer {why}")
    if edited := [path for each in works for path in each.edited]:
        are = "stay as they are" if edited[1:] else "stays as it is"
        says = "the text there is not this program's; --force overwrites it"
        say(f"{edited[0]}{_and_more(edited[1:])}: {are}, because {says}")


def _and_more(others: Sequence[Path]) -> str:
    return f" and {len(others)} more" if others else ""


def _keep_text(text: Path | None, found: Sequence[Recording], formats: Sequence[str]) -> None:
    """Raise Failed if an output would overwrite the given text."""
    written = [each.output(name).resolve() for each in found for name in formats]
    if text not in (None, BESIDE) and text.resolve() in written:
        raise Failed(f"{text}: would be overwritten; --output-dir writes elsewhere")


def print_answers(options: Namespace, endpoint: Client | LocalEndpoint, terminal: Terminal) -> int:
    found = find_recordings(options.recordings, None)
    _tell_left_out(options.recordings)
    formats = options.output_format or ()
    names = options.speaker_names or ()
    job = TranscriptionJob(endpoint, request_parameters(options), formats, names=names)
    skipped = unreadable(options.recordings)
    status = FAILED if skipped else 0
    for recording in found:
        path = recording.path
        with (
            terminal.shown({path: 0}) as run,
            shown_failures(path, run),
            job.answered(recording, run) as (answer, seconds),
        ):
            texts = as_texts(answer, formats)
        if run.failures:
            status = FAILED
        elif formats:
            for name, text in texts.items():
                sys.stdout.flush()
                sys.stdout.buffer.write(file_bytes(name, text))
            for note in notes(answer):
                say(f"{path}: {note}")
        else:
            if len(found) > 1:
                print(f"{os.fsencode(path).decode(errors='replace')}:")
            show(answer, seconds, Console())
    for line in skipped:
        say(f"skipped: {line}")
    return status


def request_parameters(options: Namespace) -> dict[str, Any]:
    """Return the parameters of every request. Raises WrongParameter."""
    given = parameters(options)
    formats = options.output_format or ()
    if asked := asked_formats(formats, False) if "json" in formats else requested(formats):
        given["output"] = asked
    if options.given_text is not None:
        given["text"] = options.given_text
    if options.assistant is not None:
        given["assisted"] = True
    if unknown := InferenceConfig.unknown(given):
        nearest = did_you_mean(unknown[0], InferenceConfig.model_fields)
        raise WrongParameter("", f"--parameters: {unknown[0]!a} is not a parameter{nearest}")
    InferenceConfig.read(given)
    return given


def check_options(options: Namespace) -> None:
    """Read the text, and check every parameter and name. Raises WrongParameter."""
    options.given_text = None if options.text in (None, BESIDE) else read_text(options.text)
    request_parameters(options)
    try:
        for _, name in options.speaker_names or ():
            check_name(name)
    except ValueError as error:
        raise WrongParameter("speaker_names", str(error)) from error


def read_text(file: Path) -> str:
    """Return the text of a file or of standard input. Raises WrongParameter."""
    try:
        data = sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise WrongParameter("text", f"{file}: {reason}") from error


def make_endpoint(options: Namespace, terminal: Terminal) -> Client | LocalEndpoint:
    if options.url is not None:
        key = ServerSettings.from_environment().api_key
        return Client(options.url, key.get_secret_value() if key else None, jobs=options.job)
    from whosaid.transcribe.local import LocalEndpoint

    names = model_names(options, is_bundled(options), options.diarize is not False)
    return LocalEndpoint(lambda: choose_models(options, terminal), names)


def choose_models(options: Namespace, terminal: Terminal) -> ModelSettings:
    """Choose the command line's models, and announce their load. Raises StartError."""
    speakers = options.diarize is not False
    settings = choose(options, say, is_bundled(options), speakers, terminal.without_bars)
    if "max_audio_seconds" in settings.model_fields_set:
        say(f"MAX_AUDIO_SECONDS: longer recordings than {clock(settings.max_audio_seconds)} fail")
    if "max_audio_bytes" in settings.model_fields_set:
        say(f"MAX_AUDIO_BYTES: files of more than {settings.max_audio_bytes:,} bytes fail")
    say(f"Loading {loaded_models(options, settings)} ...")
    return settings


def print_microphones() -> int:
    """Print the names, or say that there are none. Raises Unusable."""
    from whosaid.transcribe.live_audio import microphones

    names = microphones()
    for name in names:
        print(name)
    if not names:
        say("ffmpeg finds no microphone")
    return 0 if names else FAILED


def is_bundled(options: Namespace) -> bool:
    return [path.resolve() for path in options.recordings] == [CONVERSATION]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _by_option(error: Failed | WrongParameter, options: Namespace) -> str:
    """Return the reason, with the option's name in place of the wrong parameter's."""
    param = (error.param or "").partition("[")[0]
    if param in {*InferenceConfig.model_fields, "speaker_names"}:
        return f"{option_name(param, options)}: {error.reason}"
    return str(error)


def run(options: Namespace) -> int:
    if not (options.live or options.list_microphones):
        options.recordings = options.recordings or [CONVERSATION]
    for line in misspelt_variables(ModelSettings, ServerSettings):
        say(line)
    try:
        check_options(options)
    except WrongParameter as error:
        say(f"{options.program}: {_by_option(error, options)}")
        return WRONG
    terminal = Terminal()
    try:
        if options.list_microphones:
            return print_microphones()
        if options.live:
            from whosaid.transcribe.live import transcribe_live

            return transcribe_live(options, partial(choose_models, options, terminal), say)
        endpoint = make_endpoint(options, terminal)
        return (print_answers if options.prints else write_files)(options, endpoint, terminal)
    except Unusable as error:
        why = _by_option(error, options)
        say(why if options.url else as_given(why, options))
    except BrokenPipeError:
        # The reader has closed the pipe; leave nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except InTheWay as error:
        say(f"{options.program}: {error}")
        return WRONG
    except (Failed, OSError, ValueError) as error:
        say(reason(error) if isinstance(error, Failed) else str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; return the exit status."""
    name, *given = sys.argv[1:] if arguments is None else arguments
    return run({"demo": read_demo, "transcribe": read_transcribe}[name](given))


if __name__ == "__main__":
    sys.exit(main())
