"""`python -m archive`: the command line, and the order of the steps.

The one decision: whatever can be wrong is found before the cluster starts, and a run for which
nothing is missing starts none. At the end the manifest is held against the records: what has
neither a result nor the record of an error is named, and the exit status tells.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from archive import durations, manifest, shards, storage
from archive.cluster import Cluster, ClusterError
from archive.gathering import gather
from archive.manifest import Dealt, Recording
from archive.progress import Progress, failure_table
from archive.results import Results
from archive.worker import Handler, Task, load_handler, without_token
from config import InferenceConfig, ModelSettings
from errors import EndpointError

FORMATS = ("json", *shards.FORMATS)
WRONG, UNFINISHED, INTERRUPTED = 2, 1, 130
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


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ends the process with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m archive",
        description="Transcribe every recording of an archive on a Ray cluster, by default one on"
        " this machine. What is done is left alone: a run may be stopped and started again.",
        epilog="The models come from ASR_MODEL and the other variables of the endpoint, the keys of"
        " object stores from theirs. The exit status is 0 when every recording has a result or the"
        " record of an error, 1 when some have neither, 2 for wrong settings.",
    )
    add = parser.add_argument
    add("source", metavar="MANIFEST_OR_FOLDER", help="a folder, or JSON lines; a path or a URL")
    add("--out", required=True, metavar="FOLDER_OR_BUCKET", help="where results are written")
    add("--address", metavar="RAY", help="a running cluster; default: one on this machine")
    add("--parameters", default="{}", metavar="JSON", help="of every request, as in docs/api.md")
    add("--formats", default="json", help=f"of {','.join(FORMATS)}; json is always written")
    add("--shards", action="store_true", help="results in Parquet files of many recordings")
    add("--allow", action="append", default=[], metavar="PREFIX", help="where a manifest's paths")
    add("--actors", type=int, metavar="N", help="workers; default: one a GPU, or by cores")
    add("--deadline", type=float, metavar="SECONDS", help="for one recording; default: by duration")
    add("--retry-errors", action="store_true", help="try again what has the record of an error")
    options = parser.parse_args(arguments)
    if options.actors is not None and options.actors < 1:
        parser.error("--actors: at least 1")
    if options.deadline is not None and not 0 < options.deadline <= durations.LONGEST:
        parser.error(f"--deadline: more than 0 seconds, at most {durations.LONGEST:.0f}")
    return options


def check_packages() -> None:
    """Whether what archives need more than the endpoint is installed. Raises WrongInput."""
    if missing := [name for name in ("pyarrow", "ray") if find_spec(name) is None]:
        what = " and ".join(missing)
        raise WrongInput(f"no {what}: scripts/setup --archive installs it")


def read_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """The parameters of every request, formats included. Raises ValueError."""
    try:
        parameters = json.loads(options.parameters)
    except ValueError as error:
        raise ValueError("--parameters: is not JSON") from error
    manifest.check_parameters(parameters, {})
    named = [each.strip() for each in options.formats.split(",") if each.strip()]
    if unknown := [each for each in named if each not in FORMATS]:
        raise ValueError(f"--formats: {unknown[0]!a} is none of {', '.join(FORMATS)}")
    output = [*InferenceConfig.read(parameters).output, *named]
    if formats := [each for each in dict.fromkeys(output) if each != "json"]:
        parameters["output"] = formats
    return dict(parameters)


def prepare(options: argparse.Namespace, make_handler: Callable[..., Handler]) -> Archive:
    """Check everything, and find the recordings. Raises WrongInput."""
    try:
        settings = without_token(ModelSettings.from_environment())
        parameters = read_parameters(options)
        source, out = read_places(options)
        known = manifest.load(out)
        identity = manifest.Identity(settings, parameters)
        found = map(identity.of, find(source, out, parameters, options.allow))
        recordings = {each.id: each for each in found}
    except FileNotFoundError as error:
        raise WrongInput(f"{options.source}: there is no such file or folder") from error
    except (EndpointError, OSError, ValueError) as error:
        raise WrongInput(str(error)) from error
    if not recordings:
        raise WrongInput(f"{options.source}: there is no recording in it")
    task = Task(
        out=out,
        settings=settings,
        parameters=parameters,
        run=uuid.uuid4().hex,
        make_handler=make_handler,
        deadline=options.deadline,
        in_shards=options.shards,
    )
    dealt = complete(list(recordings.values()), known, out)
    return Archive(dealt, task, Results(out, options.shards))


def read_places(options: argparse.Namespace) -> tuple[str, str]:
    """The addresses of the source and of the output place. Raises ValueError."""
    out, source = storage.locate(options.out), storage.locate(options.source)
    if out.startswith("hf://"):
        raise ValueError("--out: hf:// is only read: every file written would be a commit")
    if source == storage.join(out, manifest.MANIFEST):
        raise ValueError(f"--out: {manifest.MANIFEST} there is the source; name another folder")
    return source, out


def find(
    source: str, out: str, parameters: dict[str, Any], allow: Sequence[str]
) -> list[Recording]:
    """The recordings of a folder or a manifest, without ids. Raises ValueError, OSError."""
    if not storage.is_folder(source):
        allowed = [storage.parent(source), *map(storage.locate, allow)]
        return manifest.in_manifest(source, parameters, allowed, teller("looking at"))
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
            print(f"{what} {of} files{f': {done}' if done else ''}", file=sys.stderr)

    return tell


def compute(archive: Archive, left: Sequence[Recording], options: argparse.Namespace) -> set[str]:
    """Compute what is left on the cluster; the ids of which records came. Raises ClusterError."""
    done_before = len(archive.recordings) - len(left)
    seen: set[str] = set()
    print("starting the cluster" if options.address is None else "connecting", file=sys.stderr)
    device = archive.task.settings["device"]
    with Cluster(options.address, device, options.actors) as cluster:
        signal.signal(signal.SIGTERM, _interrupt)  # after Ray, which sets one of its own
        told = f"{len(left)} recordings, {done_before} more done before: {cluster.pool()}"
        print(told, file=sys.stderr)
        progress = Progress(left, done_before)
        try:
            for record in cluster.run(archive.task, manifest.blocks_of(left)):
                seen.add(record.id)
                progress.add(record)
        finally:
            progress.close()
    print(progress.summary())
    return seen


def report(archive: Archive, unfinished: Sequence[Recording]) -> int:
    """Print what failed and what is without any record; the exit status."""
    ids = {each.id for each in archive.recordings}
    failed = archive.results.errors(ids)
    if failed:
        print(f"{len(failed)} of {len(ids)} recordings failed:\n{failure_table(failed)}")
    for each in unfinished[:MOST_NAMED]:
        print(f"no record: {ascii(each.path)[1:-1]}", file=sys.stderr)
    if unfinished:
        print(f"{len(unfinished)} recordings have no record; start again", file=sys.stderr)
    return UNFINISHED if unfinished else 0


def transcribe(archive: Archive, options: argparse.Namespace) -> int:
    """Do what is missing, and say how it went; the exit status."""
    if options.retry_errors:
        archive.results.forget_errors(each.id for each in archive.recordings)
    finished = archive.results.finished()
    left = [each for each in archive.recordings if each.id not in finished]
    if not left:
        collect(archive)
        print(f"all {len(archive.recordings)} recordings were done before.")
        return report(archive, [])
    try:
        seen = compute(archive, left, options)
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
    return report(archive, unfinished)


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


def main(
    arguments: Sequence[str] | None = None, make_handler: Callable[..., Handler] = load_handler
) -> int:
    """Run the command; the exit status. `make_handler` is called in each worker with the settings,
    and returns what answers requests there.
    """
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        check_packages()
        return transcribe(prepare(options, make_handler), options)
    except WrongInput as error:
        print(f"python -m archive: {error}", file=sys.stderr)
        return WRONG
    except OSError as error:
        print(f"python -m archive: {error}", file=sys.stderr)
        return UNFINISHED
    except KeyboardInterrupt:
        return INTERRUPTED


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
