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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from config import (
    REPOSITORY,
    InferenceConfig,
    ModelSettings,
    WrongParameter,
    misspelt_variables,
)
from whosaid.answer import kept
from whosaid.cli.options import option_name, parameters
from whosaid.cli.parser import FAILED, INTERRUPTED, WRONG, did_you_mean
from whosaid.models.choice import as_given, choose, loaded_models, model_names
from whosaid.payload.parameters import check_name
from whosaid.server.settings import ServerSettings
from whosaid.transcribe.client import Client, Failed, Unusable
from whosaid.transcribe.options import STANDARD_INPUT, read_demo, read_transcribe
from whosaid.transcribe.printing import show
from whosaid.transcribe.recordings import (
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
from whosaid.transcribe.screen import Run, Terminal, notes
from whosaid.transcribe.speaker_names import with_speaker_names

if TYPE_CHECKING:
    from whosaid.transcribe.local import LocalEndpoint

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
PARALLEL = 4


@dataclass(frozen=True, slots=True)
class Job:
    """The request for every recording, and the formats of its answer.

    `text` is the file of a given text. `names` maps speakers' labels to names.
    """

    endpoint: Client | LocalEndpoint
    parameters: dict[str, Any]
    formats: Sequence[str]
    text: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def answered(
        self, path: Path, run: Run, recording: Recording | None = None
    ) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield the answer and the seconds it took. An answer for the files of a `recording` has
        the recording's description and how it was made.

        Raises Failed, OSError.
        """
        run.begin(path)
        data = path.read_bytes()
        described = None if recording is None else recording.described(data)
        self.endpoint.prepare(data)
        started = time.monotonic()
        advance = partial(run.advance, path)
        with self.endpoint.transcribed(data, self.parameters, advance) as answer:
            seconds = time.monotonic() - started
            answer = with_speaker_names(answer, self.names)
            if described is not None:
                made = kept.Request(self.endpoint.models, self.parameters).to_json()
                answer = {"recording": described, "made_with": made, **answer}
            yield answer, seconds

    def write(self, recording: Recording, run: Run) -> None:
        """Transcribe a recording into its files, or show the failure. Raises Unusable."""
        path = recording.path
        with shown_failures(path, run):
            with self.answered(path, run, recording) as (answer, seconds):
                write_outputs(recording, answer, self.formats, keep=self.text)
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
    if isinstance(error, Failed):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _duration(answer: dict[str, Any]) -> float | None:
    seconds = answer.get("duration")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None


def write_all(job: Job, recordings: Sequence[Recording], parallel: int, run: Run) -> None:
    """Transcribe the recordings, `parallel` at a time. Raises Unusable after those that have begun.

    Threads are daemons, so that Ctrl+C ends the process at once: no file is half written. Models of
    this process compute in this thread.
    """
    waiting = deque(recordings)
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

    count = min(parallel, len(recordings))
    if parallel == 1:
        work()
    else:
        for _ in range(count):
            threading.Thread(target=work, daemon=True).start()
    for error in [ended.get() for _ in range(count)]:
        if error is not None:
            raise error


def write_files(options: Namespace, endpoint: Client | LocalEndpoint, terminal: Terminal) -> int:
    found = find_recordings(options.recordings, options.output_dir)
    refuse_collisions(found, options.output_dir)
    _tell_left_out(options.recordings)
    formats = options.output_format
    _keep_text(options.text, found, formats)
    request = kept.Request(endpoint.models, kept_parameters(options, endpoint.models or {}))
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
    failures = [told for each in works if (told := _write_kept(each, request))]
    left = [each.recording for each in works if each.transcribes]
    sizes = {each.path: each.path.stat().st_size for each in left} | {
        path: 0 for path, _ in failures
    }
    job = Job(endpoint, dict(request.parameters), formats, options.text, names)
    with terminal.shown(sizes, len(found) - len(sizes)) as run:
        for path, why in failures:
            run.fail(path, why)
        write_all(job, left, 1 if options.url is None else options.parallel or PARALLEL, run)
    return FAILED if run.failures else 0


def kept_parameters(options: Namespace, models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request to these models whose answer is kept."""
    given = request_parameters(options)
    speakers = options.channels == "separate"
    if InferenceConfig.read(given).tells_voices_apart:
        speakers |= bool(models.get("diarization_model") or models.get("diarization"))
    return kept.for_keeping({**given, "output": asked_formats(options.output_format, speakers)})


def _write_kept(work: Work, request: kept.Request) -> tuple[Path, str] | None:
    try:
        if work.write and not work.transcribes:
            work.write_kept(request)
    except (Failed, OSError, ValueError) as error:
        return work.recording.path, reason(error)
    return None


def _tell_left_out(named: Sequence[Path]) -> None:
    if files := left_out(named):
        says = "skipped because of their names; name a file to transcribe it"
        say(f"{files[0]}{_and_more(files[1:])}: {says}")


def _tell_again(works: Sequence[Work]) -> None:
    again = sorted((each for each in works if each.why), key=lambda each: each.why)
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
    if text is not None and text.resolve() in written:
        raise Failed(f"{text}: would be overwritten; --output-dir writes elsewhere")


def print_answers(options: Namespace, endpoint: Client | LocalEndpoint, terminal: Terminal) -> int:
    found = find_recordings(options.recordings, None)
    _tell_left_out(options.recordings)
    names = dict(options.speaker_names or ())
    formats = options.output_format or ()
    job = Job(endpoint, request_parameters(options), formats, names=names)
    status = 0
    for path in [each.path for each in found]:
        with (
            terminal.shown({path: 0}) as run,
            shown_failures(path, run),
            job.answered(path, run) as (answer, seconds),
        ):
            texts = as_texts(answer, formats)
        if run.failures:
            status = FAILED
        elif formats:
            sys.stdout.write("".join(texts.values()))
        else:
            if len(found) > 1:
                print(f"{os.fsencode(path).decode(errors='replace')}:")
            show(answer, seconds, Console())
    return status


def request_parameters(options: Namespace) -> dict[str, Any]:
    """Return the parameters of every request. Raises WrongParameter."""
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
        raise WrongParameter("", f"--parameters: {unknown[0]!a} is not a parameter{nearest}")
    InferenceConfig.read(given)
    return given


def check_options(options: Namespace) -> None:
    """Read the text, and check every parameter and name. Raises WrongParameter."""
    options.given_text = None if options.text is None else read_text(options.text)
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
    say(f"Loading {loaded_models(options, settings)} ...")
    return settings


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
    if not options.live:
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
        say(str(error) if isinstance(error, ValueError) else reason(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; return the exit status."""
    name, *given = sys.argv[1:] if arguments is None else arguments
    return run({"demo": read_demo, "transcribe": read_transcribe}[name](given))


if __name__ == "__main__":
    sys.exit(main())
