"""The manifest: which recordings there are, under which ids, in which blocks of work.

The one decision: an id is a hash of all that decides a result: path, size and time of change,
parameters, models, and the form of the results. A changed file or setting is thus new work, and
nothing has to be compared. The manifest is JSON lines, because people write and mend theirs by
hand, and it is read from beginning to end, never searched. It lies beside the results, in the form
in which a user may hand in one of his own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from archive import storage
from config import InferenceConfig, ModelReference

MANIFEST = "manifest.jsonl"
# Raise it when other results are to be expected of the same recordings and settings.
FORM = 1
# What is looked for in folders, as `scripts/transcribe` does; a manifest may name anything.
ENDING = re.compile(
    r"\.(3gp|aac|ac3|aiff?|amr|asf|au|avi|caf|flac|flv|m4[abv]|mk[av]|mov|mp[234]|mpeg|mpga?|og[agv]"
    r"|opus|spx|tta|w64|wav|web[am]|wm[av]|wv)",
    re.IGNORECASE,
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEYS = {"path", "name", "parameters", "id", "size", "modified", "duration", "block"}
# A block of work: at most so many seconds of audio and so many recordings, and of a small archive
# so small a share that all workers have some until the end.
BLOCK_SECONDS, BLOCK_RECORDINGS, FEWEST_BLOCKS = 1200.0, 100, 64
# For a file whose header tells no duration: 64 kbit/s.
BYTES_A_SECOND = 8000


@dataclass(frozen=True, slots=True)
class Recording:
    """One line of the manifest.

    `size` is in bytes, `modified` in nanoseconds since 1970 (0: unknown), `duration` in seconds as
    the file's header has it. `parameters` are its own, laid over those of the run. `name` is what
    the user calls it; it begins the id. `block` is which piece of work it belongs to.
    """

    id: str
    path: str
    size: int
    modified: int
    duration: float | None = None
    parameters: Mapping[str, Any] | None = None
    name: str | None = None
    block: str = ""

    @property
    def seconds(self) -> float:
        """Its duration, estimated from its size where the header does not tell."""
        return self.size / BYTES_A_SECOND if self.duration is None else self.duration

    def to_json(self) -> dict[str, Any]:
        """What stands in the manifest; what it has not is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


class Identity:
    """Gives recordings their ids under one run's settings and parameters."""

    def __init__(self, settings: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        """`settings` are all fields of ModelSettings but the token. A folder's models count by the
        folder's path: weights that change within it make nothing new.
        """
        models = {
            name: [model.name, model.revision]
            for name, model in settings.items()
            if isinstance(model, ModelReference)
        }
        shared = {"form": FORM, "models": models, "dtype": settings.get("dtype")}
        self._shared, self._parameters = shared, dict(parameters)

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
        name = storage.name_of(entry.address)
        ending = ENDING.fullmatch(name[name.rfind(".") :]) if "." in name else None
        if ending and not entry.address.startswith(storage.join(out, "")):
            yield Recording("", entry.address, entry.size, entry.modified)


def in_manifest(
    address: str, parameters: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[Recording]:
    """The recordings that a user's manifest names.

    A line is an object with `path`, which may be relative to the manifest's folder, and maybe
    `name` and `parameters`. Whoever writes it chooses what the workers read, so every path must lie
    under one of the `allowed` addresses. Where `size` stands in a line, as in our own manifests,
    the file is not looked for. Raises ValueError naming the line.
    """
    text = storage.read(address).decode("utf-8-sig")
    seen: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = _read_line(line, storage.parent(address), parameters, allowed)
            key = hashlib.sha256(_canonical([found.path, found.parameters, found.name])).digest()
            if key in seen:
                raise ValueError(f"the same recording and parameters as in line {seen[key]}")
        except (ValueError, OSError) as error:
            raise ValueError(f"{storage.name_of(address)}, line {number}: {error}") from error
        seen[key] = number
        yield found


def _read_line(
    line: str, folder: str, parameters: Mapping[str, Any], allowed: Sequence[str]
) -> Recording:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError("is not JSON") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("path"), str):
        raise ValueError('should be an object with a "path"')
    if unknown := [key for key in fields if key not in KEYS]:
        raise ValueError(f"{unknown[0][:40]!a} is none of {', '.join(sorted(KEYS))}")
    path, name, own = storage.locate(fields["path"], folder), fields.get("name"), None
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ValueError("name: letters, digits, dots, dashes and underscores, at most 100")
    if fields.get("parameters"):
        own = fields["parameters"]
        check_parameters(own, parameters)
    if not any(storage.is_under(path, each) for each in allowed):
        raise ValueError("its path lies where --allow allows none")
    duration = fields.get("duration")
    if duration is not None and not (isinstance(duration, int | float) and duration >= 0):
        raise ValueError("duration: should be seconds")
    return Recording("", path, *_size_and_time(fields, path), duration, own, name)


def _size_and_time(fields: Mapping[str, Any], path: str) -> tuple[int, int]:
    """As the line says, else as the file system does; -1 for a file that is missing, which is for
    the record to tell.
    """
    if "size" in fields:
        numbers = fields["size"], fields.get("modified", 0)
        if not all(isinstance(number, int) for number in numbers):
            raise ValueError("size and modified: should be integers")
        return numbers
    entry = storage.look(path)
    return (entry.size, entry.modified) if entry else (-1, 0)


def check_parameters(own: object, parameters: Mapping[str, Any]) -> None:
    """Check a recording's parameters over those of the run, as the endpoint will.

    Raises ValueError, also for a name that is no parameter: the endpoint would ignore it, and an
    archive is computed once.
    """
    if not isinstance(own, dict):
        raise ValueError("parameters: should be a JSON object")
    merged = {**parameters, **own}
    if unknown := InferenceConfig.unknown(merged):
        raise ValueError(f"parameters: {unknown[0][:40]!a} is none")
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


def load(out: str) -> dict[str, Recording]:
    """The manifest that lies beside the results, by id; nothing where there is none."""
    address = storage.join(out, MANIFEST)
    if not storage.exists(address):
        return {}
    lines = storage.read(address).decode().splitlines()
    recordings = (Recording(**json.loads(line)) for line in lines)
    return {each.id: each for each in recordings}


def save(out: str, recordings: Iterable[Recording]) -> None:
    """Write the manifest beside the results."""
    lines = (json.dumps(each.to_json(), ensure_ascii=False) + "\n" for each in recordings)
    storage.write(storage.join(out, MANIFEST), "".join(lines).encode())
