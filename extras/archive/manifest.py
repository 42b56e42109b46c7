"""Finds the recordings of a folder or a manifest, and their ids.

An id is a hash of everything that determines a result: path, size, time of change, parameters,
models, and the format of results. So a changed file or setting gives a new id.
"""

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from config import InferenceConfig
from extras.archive import storage
from whosaid.audio import ENDING
from whosaid.cli.manifest import read_manifest
from whosaid.cli.parser import did_you_mean

# Increase it if the same recordings and settings give other results.
FORM = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The size of a missing file; sizes and times have 64 bits.
MISSING, MOST = -1, 2**63


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording to transcribe: `size` in bytes (MISSING: there is no file), `modified` in
    nanoseconds since 1970 (0: unknown), `parameters` over those of the run, the user's `name` for
    it, with which the id begins, and `result`, the name of the result's files
    (extras/archive/names.py).
    """

    id: str
    path: str
    size: int
    modified: int
    parameters: Mapping[str, Any] | None = None
    name: str | None = None
    result: str = ""


def identify(
    found: Recording, models: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Recording:
    """Return the recording with its id: 20 hexadecimal digits, after its name if it has one.

    `models` are those of `whosaid.models.choice.model_names`; a folder counts by its path.
    """
    own = {**parameters, **(found.parameters or {})}
    shared = {"form": FORM, "models": dict(models)}
    found_id = digest([shared, found.path, found.size, found.modified, own])
    return replace(found, id=f"{found.name}-{found_id}" if found.name else found_id)


def digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def in_folder(folder: str, out: str) -> list[Recording]:
    """Return the recordings below a folder, by their endings, except in `out`."""
    return [
        Recording("", each.address, each.size, each.modified)
        for each in storage.find_files(folder)
        if is_recording(each.address) and not storage.parts_below(each.address, out)
    ]


def is_recording(address: str) -> bool:
    """Return whether a file's name has the ending of a recording."""
    return ENDING.fullmatch(posixpath.splitext(address)[1]) is not None


def in_manifest(
    address: str, parameters: Mapping[str, Any], allowed: Sequence[str]
) -> list[Recording]:
    """Return the recordings in a user's manifest (`whosaid.cli.manifest`). Every path, perhaps
    relative to the manifest's folder, must be under one of the `allowed` addresses. A file is
    looked up unless its entry has a `size`. Raises ValueError naming the line.
    """
    manifest = storage.name_of(address)
    try:
        text = storage.read(address).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        told = f"{manifest}: is not UTF-8 text, and its name has no ending of a recording"
        raise ValueError(told) from error
    seen: dict[str, str] = {}
    found: list[tuple[str, Recording]] = []
    try:
        for place, fields in read_manifest(text):
            each = _read_entry(place, fields, storage.parent(address), parameters, allowed)
            key = digest([each.path, each.parameters, each.name])
            if key in seen:
                raise ValueError(f"{place}: the same recording and parameters as in {seen[key]}")
            seen[key] = place
            found.append((place, each))
        return storage.in_parallel(_look_for, found)
    except ValueError as error:
        raise ValueError(f"{manifest}, {error}") from error


def _look_for(found: tuple[str, Recording]) -> Recording:
    """Return a recording with its size and time, if it can be found. Raises ValueError."""
    place, recording = found
    if recording.size != MISSING:
        return recording
    try:
        entry = storage.look(recording.path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error
    return replace(recording, size=entry.size, modified=entry.modified) if entry else recording


def _read_entry(
    place: str,
    fields: Mapping[str, Any],
    folder: str,
    parameters: Mapping[str, Any],
    allowed: Sequence[str],
) -> Recording:
    """Return the recording of an entry; its size is MISSING if none is given. Raises ValueError."""
    try:
        path, name = storage.locate(fields["path"], folder), fields.get("name")
        if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ValueError("name: letters, digits, dots, dashes and underscores, at most 100")
        if own := fields.get("parameters"):
            check_parameters({**parameters, **own})
        if not any(storage.is_under(path, each) for each in allowed):
            raise ValueError("its path is not under a folder of --allow")
        size, modified = fields.get("size", MISSING), fields.get("modified", 0)
        if not (_is_integer(size, MISSING) and _is_integer(modified, -MOST)):
            text = "size and modified: should be bytes and nanoseconds, integers of 64 bits"
            raise ValueError(text)
        return Recording("", path, size, modified, own, name)
    except (ValueError, OSError) as error:
        raise ValueError(f"{place}: {error}") from error


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Check a request's parameters like the endpoint. Raises ValueError, also for unknown names."""
    if unknown := InferenceConfig.unknown(parameters):
        nearest = did_you_mean(unknown[0], InferenceConfig.model_fields)
        raise ValueError(f"parameters: {unknown[0][:40]!a} is not a parameter{nearest}")
    InferenceConfig.read(parameters)
