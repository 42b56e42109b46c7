"""Runs the steps of `python -m extras.archive`.

Wrong input is reported before the cluster starts. If the cluster fails, the run lists every
recording that has neither a result nor an error's record; then the exit status is not 0.
"""

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from config import InferenceConfig, ModelSettings
from extras.archive import manifest, storage
from extras.archive.cluster import Cluster, ClusterError, LoadError
from extras.archive.manifest import Recording
from extras.archive.names import name_results
from extras.archive.progress import Progress, counted, failure_table
from extras.archive.records import Record
from extras.archive.results import Results
from extras.archive.worker import Task, load_handler, without_token
from whosaid.answer.kept import for_keeping
from whosaid.cli.options import option_name
from whosaid.cli.parser import FAILED, INTERRUPTED, WRONG
from whosaid.errors import EndpointError, StartError
from whosaid.models.choice import MODEL_OPTIONS, as_given, choose, model_names

# The most recordings to list that have no record, or unreadable names.
MOST_NAMED = 10


class WrongInput(Exception):
    """A setting, an argument or a line of the manifest is wrong; one line."""


@dataclass(slots=True)
class Archive:
    """The command line, the recordings to transcribe, and their common task. `aside` are the names
    of results that could not replace a file, and so have ids.
    """

    options: argparse.Namespace
    recordings: Sequence[Recording]
    task: Task
    results: Results
    aside: list[str] = field(default_factory=list)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def read_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return every request's parameters and formats. Raises ValueError with the option's name."""
    parameters = dict(options.parameters)
    try:
        manifest.check_parameters(parameters)
    except ValueError as error:
        name, _, wrong = str(error).partition(": ")
        option = "--parameters" if name == "parameters" else option_name(name, options)
        raise ValueError(f"{option}: {wrong}") from error
    output = [*InferenceConfig.read(parameters).output, *options.formats]
    if formats := [each for each in dict.fromkeys(output) if each != "json"]:
        parameters["output"] = formats
    return for_keeping(parameters)


def wants_speakers(parameters: Mapping[str, Any], recordings: Iterable[Recording]) -> bool:
    own = [each.parameters for each in recordings if "diarize" in (each.parameters or {})]
    return any(InferenceConfig.read(each).diarize for each in (parameters, *filter(None, own)))


def prepare(options: argparse.Namespace) -> Archive:
    """Check everything but the models, and find the recordings. Raises WrongInput."""
    try:
        parameters = read_parameters(options)
        out, source = storage.locate(options.out), storage.locate(options.source)
        if out.startswith("hf://"):
            text = "--out: hf:// is read-only here, because every written file would be a commit"
            raise ValueError(text)
        places = [source]  # contain the recordings
        if not storage.is_folder(source):
            places = [storage.parent(source), *map(storage.locate, options.allow)]
        found = find(source, out, parameters, places)
        models = model_names(options, speakers=wants_speakers(parameters, found))
    except FileNotFoundError as error:
        raise WrongInput(f"{options.source}: there is no such file or folder") from error
    except (EndpointError, OSError, ValueError) as error:
        raise WrongInput(str(error)) from error
    if not found:
        raise WrongInput(f"{options.source}: has no recordings")
    identified = [manifest.identify(each, models, parameters) for each in found]
    unique = list({each.id: each for each in identified}.values())
    task = Task(
        out=out,
        settings={},
        parameters=parameters,
        make_handler=load_handler,
        deadline=options.deadline,
        models=models,
    )
    return Archive(options, name_results(unique, places), task, Results(out))


def find(
    source: str, out: str, parameters: dict[str, Any], places: Sequence[str]
) -> list[Recording]:
    """Return the source's recordings, without ids. Raises ValueError, OSError."""
    if source not in places:
        if not manifest.is_recording(source):
            return manifest.in_manifest(source, parameters, places)
        entry = storage.look(source)
        if entry is None:
            raise FileNotFoundError(source)
        return [Recording("", source, entry.size, entry.modified)]
    found = manifest.in_folder(source, out)
    unreadable = [each.path for each in found if not storage.is_utf8(each.path)]
    if unreadable:
        named = ", ".join(ascii(path)[1:-1] for path in unreadable[:MOST_NAMED])
        say(f"left out {counted(len(unreadable))} whose names are not UTF-8: {named}")
    return [each for each in found if storage.is_utf8(each.path)]


def reuse(archive: Archive, left: Sequence[Recording]) -> list[Recording]:
    """Return the recordings for which no earlier answer suffices, and print why."""

    def look(recording: Recording) -> Record | str:
        return archive.results.reuse(recording, archive.task.request_for(recording))

    looked = list(zip(left, storage.in_parallel(look, left), strict=True))
    again = [(each, why) for each, why in looked if isinstance(why, str)]
    reused = [(each.result, found) for each, found in looked if isinstance(found, Record)]
    archive.aside += [found.result for name, found in reused if found.result != name]
    if done := len(reused):
        say(f"{counted(done)} made from existing answers")
    for why, number in Counter(why for _, why in again if why).most_common():
        say(f"{counted(number)} transcribed again, because the answer {why}")
    return [each for each, _ in again]


def compute(archive: Archive, left: Sequence[Recording]) -> None:
    """Transcribe the rest on the cluster, and print the progress. Raises ClusterError, OSError."""
    options = archive.options
    say("starting the cluster" if options.address is None else "connecting")
    with Cluster(archive.task, options.address, options.actors) as cluster:
        # After Ray, which sets its own handler.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        before = len(archive.recordings) - len(left)
        done = f", {before} done before" if before else ""
        say(f"{counted(len(left))} to do{done}: {cluster.pool}")
        progress, names = Progress(left), {each.id: each.result for each in left}
        for record in cluster.run(left):
            progress.add(record)
            if record.result not in ("", names[record.id]):
                archive.aside.append(record.result)
    print(progress.summary())


def report(archive: Archive, unfinished: Sequence[Recording] = ()) -> int:
    """Print names with ids, failures and recordings without a record; return the exit status."""
    if aside := archive.aside:
        why = "the name ends with an id, because another recording's file or yours has its own"
        say(f"{counted(len(aside))}, {', '.join(sorted(aside)[:MOST_NAMED])}: {why}")
    ids = {each.id for each in archive.recordings}
    failed = archive.results.errors(ids)
    if failed:
        print(f"{len(failed)} of {counted(len(ids))} failed:\n{failure_table(failed)}")
    for each in unfinished[:MOST_NAMED]:
        say(f"no record: {ascii(each.path)[1:-1]}")
    if unfinished:
        say(f"{counted(len(unfinished))} without a record; run again")
    return FAILED if unfinished or (failed and not archive.options.ignore_errors) else 0


def transcribe(archive: Archive) -> int:
    """Transcribe missing recordings, and print a summary; return the exit status."""
    results = archive.results
    if archive.options.retry_errors:
        results.forget_errors(each.id for each in archive.recordings)
    finished = results.finished()
    left = [each for each in archive.recordings if each.id not in finished]
    if finished:
        left = reuse(archive, left)
    if not left:
        print(f"{counted(len(archive.recordings))} done before; nothing is left.")
        return report(archive)
    archive.task = replace(archive.task, settings=model_settings(archive))
    unfinished: list[Recording] = []
    try:
        compute(archive, left)
    except LoadError as error:
        reason = str(error).removeprefix(f"{StartError.code}: ")
        raise WrongInput(as_given(reason, archive.options)) from error
    except (ClusterError, OSError) as error:
        say(f"python -m extras.archive: {error}")
        finished = results.finished()
        unfinished = [each for each in left if each.id not in finished]
    except KeyboardInterrupt:
        say("stopped; run again to continue")
        return INTERRUPTED
    return report(archive, unfinished)


def model_settings(archive: Archive) -> dict[str, Any]:
    """Return the models' settings for the workers. Models are downloaded to this machine, so that
    errors appear before the cluster starts. Raises WrongInput.
    """
    models, options = archive.task.models, archive.options
    try:
        if options.address is not None and not options.embedded:
            named = {field: models[field] for field in MODEL_OPTIONS if models[field]}
            settings = ModelSettings.for_models(**named)
        else:
            settings = choose(options, say, speakers=models["diarization_model"] is not None)
    except (EndpointError, OSError, ValueError) as error:
        raise WrongInput(str(error).removeprefix(f"{StartError.code}: ")) from error
    return without_token(settings)


def run(options: argparse.Namespace) -> int:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return transcribe(prepare(options))
    except WrongInput as error:
        say(f"python -m extras.archive: {error}")
        return WRONG
    except OSError as error:
        say(f"python -m extras.archive: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
