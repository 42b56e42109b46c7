"""A run of `python -m archive`: the order of its steps.

Whatever can be wrong is found before the cluster starts, and a run for which nothing is missing
starts none. At the end the manifest is held against the records: what has neither a result nor the
record of an error is named, and the exit status tells.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from answer.kept import for_keeping
from archive import durations, manifest, shards, storage
from archive.cluster import Cluster, ClusterError, LoadError
from archive.gathering import gather
from archive.manifest import Dealt, Recording
from archive.names import name_results
from archive.progress import Progress, counted, failure_table
from archive.results import PARALLEL, Results
from archive.worker import Handler, Task, load_handler, without_token
from commands.options import option_name
from commands.parser import FAILED, INTERRUPTED, WRONG
from config import InferenceConfig, ModelSettings
from errors import EndpointError, StartError
from model_sources.choice import MODEL_OPTIONS, Screen, as_given, choose, model_names

__all__ = ["load_handler", "run"]
# How many recordings without any record, or with unreadable names, are named.
MOST_NAMED = 10
# Seconds between two lines about what takes long before the cluster starts.
TELL_S = 10.0


class WrongInput(Exception):
    """A setting, an argument or a line of the manifest is wrong; one line."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What is to be done: the recordings, and what is the same for all of them."""

    recordings: Sequence[Recording]
    task: Task
    results: Results


def find_models(options: argparse.Namespace, speakers: bool) -> dict[str, str | None]:
    """The names of the models of a run, by the rules of `scripts/transcribe`. Raises ValueError."""
    return model_names(options, speakers=speakers)


def find_settings(options: argparse.Namespace, models: Mapping[str, str | None]) -> ModelSettings:
    """The settings of a run with these `models`. On this machine they are downloaded, so that what
    is wrong is known before the cluster starts. Raises EndpointError, ValueError.
    """
    if options.address is not None and not options.embedded:
        named = {field: name for field, name in models.items() if field in MODEL_OPTIONS and name}
        return ModelSettings.for_models(**named)
    speakers = models["diarization_model"] is not None
    return choose(options, Screen(say, nullcontext), speakers=speakers)


def say(line: str) -> None:
    """Tell the user something that is no result."""
    print(line, file=sys.stderr, flush=True)


def read_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of every request, formats included. Raises ValueError, which calls a parameter
    as the user did.
    """
    parameters = dict(options.parameters)
    try:
        manifest.check_parameters(parameters, {})
    except ValueError as error:
        name, _, wrong = str(error).partition(": ")
        option = "--parameters" if name == "parameters" else option_name(name, options)
        raise ValueError(f"{option}: {wrong}") from error
    output = [*InferenceConfig.read(parameters).output, *options.formats]
    if formats := [each for each in dict.fromkeys(output) if each != "json"]:
        parameters["output"] = formats
    return for_keeping(parameters)


def wants_speakers(parameters: Mapping[str, Any], recordings: Iterable[Recording]) -> bool:
    """Whether speakers are to be told apart in any recording."""
    if InferenceConfig.read(parameters).diarize:
        return True
    own = (each.parameters for each in recordings)
    return any(each and "diarize" in each and InferenceConfig.read(each).diarize for each in own)


def prepare(options: argparse.Namespace, make_handler: Callable[..., Handler]) -> Archive:
    """Check everything but the models, and find the recordings. Raises WrongInput."""
    try:
        parameters = read_parameters(options)
        source, out = read_places(options)
        known = manifest.load(out)
        places = read_from(source, options.allow)
        all_found = find(source, out, parameters, places)
        models = find_models(options, wants_speakers(parameters, all_found))
        identity = manifest.Identity(models, parameters)
        recordings = {each.id: each for each in map(identity.of, all_found)}
    except FileNotFoundError as error:
        raise WrongInput(f"{options.source}: there is no such file or folder") from error
    except (EndpointError, OSError, ValueError) as error:
        raise WrongInput(str(error)) from error
    if not recordings:
        raise WrongInput(f"{options.source}: there is no recording in it")
    task = Task(
        out=out,
        settings={},
        parameters=parameters,
        run=uuid.uuid4().hex,
        make_handler=make_handler,
        deadline=options.deadline,
        in_shards=options.shards,
        models=models,
    )
    dealt = complete(name_results(list(recordings.values()), places), known, out)
    return Archive(dealt, task, Results(out, options.shards))


def with_models(archive: Archive, options: argparse.Namespace) -> Archive:
    """The archive with the settings of its models. Raises WrongInput."""
    try:
        settings = without_token(find_settings(options, archive.task.models))
    except (EndpointError, OSError, ValueError) as error:
        raise WrongInput(str(error).removeprefix(f"{StartError.code}: ")) from error
    return replace(archive, task=replace(archive.task, settings=settings))


def reuse(archive: Archive, left: Sequence[Recording]) -> list[Recording]:
    """The recordings of which no answer of an earlier run gives what is asked for; why is told."""

    def look(recording: Recording) -> tuple[bool, str]:
        return archive.results.reuse(recording, archive.task.request_for(recording))

    with ThreadPoolExecutor(PARALLEL) as threads:
        looked = list(zip(left, threads.map(look, left), strict=True))
    again = [(each, why) for each, (done, why) in looked if not done]
    if done := len(looked) - len(again):
        say(f"{counted(done)} done from the answers that are there")
    for why, number in Counter(why for _, why in again if why).most_common():
        say(f"{counted(number)} transcribed again; the answer there {why}")
    return [each for each, _ in again]


def read_places(options: argparse.Namespace) -> tuple[str, str]:
    """The addresses of the source and of the output place. Raises ValueError."""
    out, source = storage.locate(options.out), storage.locate(options.source)
    if out.startswith("hf://"):
        raise ValueError("--out: hf:// is only read: every file written would be a commit")
    if source == storage.join(out, manifest.MANIFEST):
        raise ValueError(f"--out: {manifest.MANIFEST} there is the source; name another folder")
    return source, out


def read_from(source: str, allow: Sequence[str]) -> list[str]:
    """Where the recordings lie: the folder, or that of the file and what is allowed beside it."""
    if storage.is_folder(source):
        return [source]
    return [storage.parent(source), *map(storage.locate, allow)]


def find(
    source: str, out: str, parameters: dict[str, Any], places: Sequence[str]
) -> list[Recording]:
    """The recordings of a folder or a manifest, or the one that is named itself, without ids.

    Raises ValueError, OSError.
    """
    if source not in places and manifest.is_recording(source):
        entry = storage.look(source)
        if entry is None:
            raise FileNotFoundError(source)
        return [Recording("", source, entry.size, entry.modified)]
    if source not in places:
        return manifest.in_manifest(source, parameters, places, teller("looking at"))
    found = list(manifest.in_folder(source, out))
    unreadable = [each.path for each in found if not storage.is_utf8(each.path)]
    if unreadable:
        print(f"left out, as their names are not UTF-8: {len(unreadable)}", file=sys.stderr)
    for path in unreadable[:MOST_NAMED]:
        print(f"left out: {ascii(path)[1:-1]}", file=sys.stderr)
    return [each for each in found if storage.is_utf8(each.path)]


def complete(
    recordings: Sequence[Recording], known: Mapping[str, Dealt], out: str
) -> list[Recording]:
    """The recordings with durations and blocks, those of `known` where they stand there; the others
    are looked at, and the manifest is written again.
    """
    old = [
        replace(each, duration=known[each.id].duration, block=known[each.id].block)
        for each in recordings
        if each.id in known
    ]
    new = [each for each in recordings if each.id not in known]
    missing = [each.path for each in new if each.duration is None]
    if missing:
        tell = teller("reading the headers of")
        tell(0, len(missing))
        told = durations.read_durations(missing, lambda done: tell(done, len(missing)))
        new = [replace(each, duration=told.get(each.path, each.duration)) for each in new]
    dealt = old + manifest.deal(new)
    dealt.sort(key=lambda each: (-each.seconds, each.id))
    if new or len(dealt) < len(known):
        manifest.save(out, dealt)
    return dealt


def teller(what: str) -> Callable[[int, int], None]:
    """Tells on stderr what is done with how many files, and now and then how many were."""
    next_time = 0.0

    def tell(done: int, of: int) -> None:
        nonlocal next_time
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + TELL_S
            files = "file" if of == 1 else "files"
            print(f"{what} {of} {files}{f': {done}' if done else ''}", file=sys.stderr)

    return tell


def compute(archive: Archive, left: Sequence[Recording], options: argparse.Namespace) -> set[str]:
    """Compute what is left on the cluster; the ids of which records came. Raises ClusterError."""
    done_before = len(archive.recordings) - len(left)
    seen: set[str] = set()
    print("starting the cluster" if options.address is None else "connecting", file=sys.stderr)
    device = archive.task.settings["device"]
    with Cluster(options.address, device, options.actors) as cluster:
        signal.signal(signal.SIGTERM, _interrupt)  # after Ray, which sets one of its own
        before = f", {done_before} done before" if done_before else ""
        print(f"{counted(len(left))} to do{before}: {cluster.pool()}", file=sys.stderr)
        progress = Progress(left, done_before)
        try:
            for record in cluster.run(archive.task, manifest.blocks_of(left)):
                seen.add(record.id)
                progress.add(record)
        finally:
            progress.close()
    print(progress.summary())
    return seen


def report(archive: Archive, unfinished: Sequence[Recording], options: argparse.Namespace) -> int:
    """Print what failed and what is without any record; the exit status."""
    ids = {each.id for each in archive.recordings}
    failed = archive.results.errors(ids)
    if failed:
        print(f"{len(failed)} of {counted(len(ids))} failed:\n{failure_table(failed)}")
    for each in unfinished[:MOST_NAMED]:
        print(f"no record: {ascii(each.path)[1:-1]}", file=sys.stderr)
    if unfinished:
        has = "has" if len(unfinished) == 1 else "have"
        print(f"{counted(len(unfinished))} {has} no record; start again", file=sys.stderr)
    return FAILED if unfinished or (failed and not options.ignore_errors) else 0


def transcribe(archive: Archive, options: argparse.Namespace) -> int:
    """Do what is missing, and say how it went; the exit status."""
    if options.retry_errors:
        archive.results.forget_errors(each.id for each in archive.recordings)
    finished = archive.results.finished()
    left = [each for each in archive.recordings if each.id not in finished]
    if finished:
        left = reuse(archive, left)
    if not left:
        collect(archive)
        were = "was" if len(archive.recordings) == 1 else "were"
        print(f"{counted(len(archive.recordings))} {were} done before, and nothing is left.")
        return report(archive, [], options)
    archive = with_models(archive, options)
    try:
        seen = compute(archive, left, options)
    except LoadError as error:
        withdraw(archive, left)
        reason = str(error).removeprefix(f"{StartError.code}: ")
        raise WrongInput(as_given(reason, options)) from error
    except (ClusterError, OSError) as error:
        print(f"python -m archive: {error}", file=sys.stderr)
        withdraw(archive, left)
        seen = set()
    except KeyboardInterrupt:
        withdraw(archive, left)
        print("stopped; start again to go on", file=sys.stderr)
        return INTERRUPTED
    else:
        collect(archive)
    unfinished = [each for each in left if each.id not in seen]
    if unfinished:
        finished = archive.results.finished()
        unfinished = [each for each in unfinished if each.id not in finished]
    return report(archive, unfinished, options)


def collect(archive: Archive) -> None:
    """Gather results into shards, where shards are asked for."""
    if archive.results.in_shards:
        ids = [each.id for each in archive.recordings]
        groups = shards.number_of_groups(len(ids), sum(each.seconds for each in archive.recordings))
        print("gathering results into shards", file=sys.stderr)
        gather(archive.results.out, ids, groups)


def withdraw(archive: Archive, left: Sequence[Recording]) -> None:
    """After a run that did not come to its end: what was being computed is not to blame, nor what
    could not be read, which is soon tried again. What its processes died of before stays marked,
    and so does everything when the driver is killed.
    """
    archive.results.withdraw(archive.task.run)
    archive.results.forget_unread({each.id for each in left})


def run(options: argparse.Namespace, make_handler: Callable[..., Handler]) -> int:
    """Do what the command line says; the exit status. `make_handler` is called in each worker with
    the settings, and returns what answers requests there.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return transcribe(prepare(options, make_handler), options)
    except WrongInput as error:
        print(f"python -m archive: {error}", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"python -m archive: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
