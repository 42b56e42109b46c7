"""Gathers results from files of their own into shards, one a group (archive/shards.py).

The one decision: the driver alone gathers, at the end of a run, and a shard is never changed. Who
gathers a group reads its results and older shards, writes one new shard of all of it, whose name
tells which recordings it holds, and deletes only then what he has read. So each result lies in at
least one file at any time, whoever gathers at once and wherever he is stopped. Two who gather at
once may leave two shards of one group, which the next one makes one again. Groups follow from
hashes, and recordings are computed by length: no group is complete much before the run is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from archive import shards, storage
from archive.results import PARALLEL, RESULTS, SHARDS, names_in
from archive.retries import patiently


def gather(out: str, ids: Iterable[str], groups: int) -> None:
    """Move the results of these recordings into shards, of so many groups. Raises OSError."""
    found: dict[str, dict[str, list[str]]] = {}
    for id, endings in _results(out, set(ids)).items():
        found.setdefault(shards.group_of(id, groups), {})[id] = endings
    older: dict[str, list[str]] = {}
    for name in names_in(storage.join(out, SHARDS), shards.ENDING):
        older.setdefault(name.rpartition("-")[0], []).append(name)
    mine = f"-of-{groups:05}"
    several = {group for group, names in older.items() if len(names) > 1 and group.endswith(mine)}
    for group in sorted({*found, *several}):
        _gather_group(out, group, found.get(group, {}), older.get(group, []))


def _results(out: str, wanted: set[str]) -> dict[str, list[str]]:
    """The results that lie in files of their own, by id: the formats beside the json, which a run
    without shards has written.
    """
    endings: dict[str, list[str]] = {}
    for name in names_in(storage.join(out, RESULTS)):
        id, _, ending = name.rpartition(".")
        if id in wanted:
            endings.setdefault(id, []).append(ending)
    return {
        id: [each for each in found if each in shards.FORMATS]
        for id, found in endings.items()
        if "json" in found
    }


def _gather_group(
    out: str, group: str, found: Mapping[str, Sequence[str]], older: Sequence[str]
) -> None:
    addresses = {name: storage.join(out, SHARDS, name + shards.ENDING) for name in older}
    with ThreadPoolExecutor(PARALLEL) as threads:
        results = threads.map(lambda item: _read_result(out, *item), found.items())
        rows = {row["id"]: row for row in results if row}
        moved = list(rows)
        held = dict(zip(addresses, threads.map(shards.read, addresses.values()), strict=True))
        rows |= {row["id"]: row for each in held.values() for row in each}
        if not rows:
            return
        name = shards.name_of(group, rows)
        if not held.get(name):
            shards.write(storage.join(out, SHARDS, name + shards.ENDING), rows)
        texts = [storage.join(out, RESULTS, f"{id}.{each}") for id in moved for each in found[id]]
        files = [storage.join(out, RESULTS, f"{id}.json") for id in moved]
        files += [addresses[each] for each in held if held[each] and each != name]
        list(threads.map(_delete, texts))
        list(threads.map(_delete, files))


def _read_result(out: str, id: str, formats: Sequence[str]) -> dict[str, Any] | None:
    """The row of a result; None where another one has gathered it meanwhile."""
    try:
        result = json.loads(patiently(storage.read, storage.join(out, RESULTS, f"{id}.json")))
        for each in formats:
            text = patiently(storage.read, storage.join(out, RESULTS, f"{id}.{each}")).decode()
            result["output"] = {**result.get("output", {}), each: text}
    except FileNotFoundError:
        return None
    return shards.row_of(result)


def _delete(address: str) -> None:
    patiently(storage.delete, address)
