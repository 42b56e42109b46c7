"""The manifest: which recordings there are, under which ids, in which blocks of work.

An id is a hash of all that decides a result: path, size and time of change, parameters, models, and
the form of the results. A changed file or setting is thus new work, and nothing has to be compared.
A run writes its manifest as JSON lines, because people mend theirs by hand, and it is read from
beginning to end, never searched. It lies beside the results, in the form in which a user may hand
in one of his own. What is read back of it is no more than durations and blocks: which files are
opened, and with which parameters, this run's own source decides.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from audio import ENDING
from commands.manifest import read_manifest
from commands.parser import did_you_mean
from config import InferenceConfig
from extras.archive import storage
from extras.archive.options import LONGEST

MANIFEST = "manifest.jsonl"
# Raise it when other results are to be expected of the same recordings and settings.
FORM = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A block of work: at most so many seconds of audio and so many recordings, and of a small archive
# so small a share that all workers have some until the end.
BLOCK_SECONDS, BLOCK_RECORDINGS, FEWEST_BLOCKS = 1200.0, 100, 64
# For a file whose header tells no duration: 64 kbit/s.
BYTES_A_SECOND = 8000
BLOCK_NAME = re.compile(r"[0-9a-f]{20}")
# The size of a file that is missing; sizes and times have 64 bits.
MISSING, MOST = -1, 2**63
# Files of a user's manifest that are looked at side by side: stores answer slowly.
THREADS = 16


@dataclass(frozen=True, slots=True)
class Recording:
    """One line of the manifest.

    `size` is in bytes (MISSING: there is none), `modified` in nanoseconds since 1970 (0: unknown),
    `duration` in seconds as the file's header has it. `parameters` are its own, laid over those of
    the run. `name` is what the user calls it; it begins the id. `block` is which piece of work it
    belongs to, and `result` what the files of its result are to be called (archive/names.py).
    """

    id: str
    path: str
    size: int
    modified: int
    duration: float | None = None
    parameters: Mapping[str, Any] | None = None
    name: str | None = None
    block: str = ""
    result: str = ""

    @property
    def seconds(self) -> float:
        """Its duration, estimated from its size where the header does not tell."""
        if self.duration is not None:
            return self.duration
        return min(max(self.size, 0) / BYTES_A_SECOND, LONGEST)

    def to_json(self) -> dict[str, Any]:
        """What stands in the manifest; what it has not is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class Identity:
    """Gives recordings their ids under one run's models and parameters."""

    def __init__(self, models: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        """`models` are those of `model_sources.choice.model_names`. A folder's models count by the
        folder's path: weights that change within it make nothing new.
        """
        self._shared = {"form": FORM, "models": dict(models)}
        self._parameters = dict(parameters)

    def of(self, found: Recording) -> Recording:
        """The recording with its id: 20 hexadecimal digits, after its name where it has one."""
        own = self._parameters | dict(found.parameters or {})
        facts = [self._shared, found.path, found.size, found.modified, own]
        digest = hashlib.sha256(_canonical(facts)).hexdigest()[:20]
        return replace(found, id=f"{found.name}-{digest}" if found.name else digest)


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def in_folder(folder: str, out: str) -> Iterator[Recording]:
    """The recordings in a folder and the folders within, by their endings; none of `out`."""
    for entry in storage.find_files(folder):
        if is_recording(entry.address) and not entry.address.startswith(storage.join(out, "")):
            yield Recording("", entry.address, entry.size, entry.modified)


def is_recording(address: str) -> bool:
    """Whether a file's name ends as those of recordings do."""
    name = storage.name_of(address)
    return "." in name and ENDING.fullmatch(name[name.rfind(".") :]) is not None


def in_manifest(
    address: str,
    parameters: Mapping[str, Any],
    allowed: Sequence[str],
    report: Callable[[int, int], None] = lambda done, of: None,
) -> list[Recording]:
    """The recordings that a user's manifest names, in the form of `commands.manifest`.

    A path may be relative to the manifest's folder. Whoever writes it chooses what the workers
    read, so every path must lie under one of the `allowed` addresses. If an entry has a `size`, as
    in our own manifests, the file is not looked for; of the others `report` hears how many were,
    and how many there are. Raises ValueError naming the line.
    """
    manifest = storage.name_of(address)
    try:
        text = storage.read(address).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{manifest}: is no text in UTF-8, and its name does not end as a recording's"
        ) from error
    seen: dict[bytes, str] = {}
    found: dict[str, Recording] = {}
    try:
        for place, fields in read_manifest(text):
            each = _read_entry(place, fields, storage.parent(address), parameters, allowed)
            key = hashlib.sha256(_canonical([each.path, each.parameters, each.name])).digest()
            if key in seen:
                same = f"the same recording and parameters as in {seen[key]}"
                raise ValueError(f"{place}: {same}")
            seen[key], found[f"{manifest}, {place}"] = place, each
    except ValueError as error:
        raise ValueError(f"{manifest}, {error}") from error
    missing = {place: each for place, each in found.items() if each.size == MISSING}
    if missing:
        found |= _look_for(missing, report)
    return list(found.values())


def _look_for(
    recordings: Mapping[str, Recording], report: Callable[[int, int], None]
) -> dict[str, Recording]:
    """The same with sizes and times; a file that is missing is for its record to tell."""
    found: dict[str, Recording] = {}
    report(0, len(recordings))
    with ThreadPoolExecutor(THREADS) as threads:
        try:
            looks = [threads.submit(storage.look, each.path) for each in recordings.values()]
            for (place, each), look in zip(recordings.items(), looks, strict=True):
                try:
                    entry = look.result()
                except (OSError, ValueError) as error:
                    raise ValueError(f"{place}: {error}") from error
                size, modified = (entry.size, entry.modified) if entry else (MISSING, 0)
                found[place] = replace(each, size=size, modified=modified)
                report(len(found), len(recordings))
        finally:
            threads.shutdown(cancel_futures=True)
    return found


def _read_entry(
    place: str,
    fields: Mapping[str, Any],
    folder: str,
    parameters: Mapping[str, Any],
    allowed: Sequence[str],
) -> Recording:
    """The recording of an entry; its size is MISSING if none is given. Raises ValueError."""
    try:
        path, name = storage.locate(fields["path"], folder), fields.get("name")
        if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ValueError("name: letters, digits, dots, dashes and underscores, at most 100")
        if own := fields.get("parameters"):
            check_parameters(own, parameters)
        if not any(storage.is_under(path, each) for each in allowed):
            raise ValueError("its path lies where --allow allows none")
        size, modified = fields.get("size", MISSING), fields.get("modified", 0)
        if not (_is_integer(size, MISSING) and _is_integer(modified, -MOST)):
            raise ValueError(
                "size and modified: should be bytes and nanoseconds, integers of 64 bits"
            )
        return Recording("", path, size, modified, _read_duration(fields), own, name)
    except (ValueError, OSError) as error:
        raise ValueError(f"{place}: {error}") from error


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


def _read_duration(fields: Mapping[str, Any]) -> float | None:
    duration: float | None = fields.get("duration")
    if duration is None:
        return None
    number = isinstance(duration, int | float) and not isinstance(duration, bool)
    if not (number and 0 <= duration <= LONGEST):
        raise ValueError(f"duration: should be seconds, at most {LONGEST:.0f}")
    return duration


def check_parameters(own: object, parameters: Mapping[str, Any]) -> None:
    """Check a recording's parameters over those of the run, as the endpoint will.

    Raises ValueError, also for a name that is no parameter: the endpoint would ignore it, and an
    archive is computed once.
    """
    if not isinstance(own, dict):
        raise ValueError("parameters: should be a JSON object")
    merged = {**parameters, **own}
    if unknown := InferenceConfig.unknown(merged):
        nearest = did_you_mean(unknown[0], InferenceConfig.model_fields)
        raise ValueError(f"parameters: {unknown[0][:40]!a} is not a parameter{nearest}")
    InferenceConfig.read(merged)


def deal(recordings: Iterable[Recording]) -> list[Recording]:
    """Give each recording its block, the longest first.

    The work ends with the shortest recordings, so that no worker is left alone with a long one. A
    block's name is a hash of the ids in it.
    """
    ordered = sorted(recordings, key=lambda each: (-each.seconds, each.id))
    share = sum(each.seconds for each in ordered) / FEWEST_BLOCKS
    most, fewest = min(BLOCK_SECONDS, share), max(1, len(ordered) // FEWEST_BLOCKS)
    blocks: list[list[Recording]] = []
    seconds = most
    for each in ordered:
        full = not blocks or len(blocks[-1]) >= min(BLOCK_RECORDINGS, fewest)
        if full or seconds + each.seconds > most:
            blocks.append([])
            seconds = 0.0
        blocks[-1].append(each)
        seconds += each.seconds
    return [replace(each, block=_block_name(block)) for block in blocks for each in block]


def _block_name(block: Sequence[Recording]) -> str:
    return hashlib.sha256(_canonical(sorted(each.id for each in block))).hexdigest()[:20]


def blocks_of(recordings: Iterable[Recording]) -> list[list[Recording]]:
    """The recordings by block, in the order in which each block first appears."""
    blocks: dict[str, list[Recording]] = {}
    for each in recordings:
        blocks.setdefault(each.block, []).append(each)
    return list(blocks.values())


@dataclass(frozen=True, slots=True)
class Dealt:
    """What is kept of a recording from one run to the next."""

    duration: float | None
    block: str


def load(out: str) -> dict[str, Dealt]:
    """What the manifest beside the results tells, by id; nothing where there is none.

    Raises ValueError where the file is none that `save` has written.
    """
    address = storage.join(out, MANIFEST)
    if not storage.exists(address):
        return {}
    known: dict[str, Dealt] = {}
    try:
        for line in storage.read(address).decode().split("\n"):
            if line.strip():
                fields = json.loads(line)
                id, block = fields["id"], fields["block"]
                if not (isinstance(id, str) and BLOCK_NAME.fullmatch(block)):
                    raise ValueError("is none of ours")
                known[id] = Dealt(_read_duration(fields), block)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = "is no manifest of an earlier run; name another folder, or move it away"
        raise ValueError(f"--out: {MANIFEST} there {what}") from error
    return known


def save(out: str, recordings: Iterable[Recording]) -> None:
    """Write the manifest beside the results, without the clips of known speakers."""
    lines = (json.dumps(_kept(each.to_json())) + "\n" for each in recordings)
    storage.write(storage.join(out, MANIFEST), "".join(lines).encode())


def _kept(fields: dict[str, Any]) -> dict[str, Any]:
    """A line in which a hash stands for names and voices, which are kept nowhere. What a result is
    called its entry in the index tells.
    """
    del fields["result"]
    own = fields.get("parameters") or {}
    if clips := own.get("known_speakers"):
        digest = hashlib.sha256(_canonical(clips)).hexdigest()[:20]
        fields["parameters"] = {**own, "known_speakers": f"left out, sha256 {digest}"}
    return fields
