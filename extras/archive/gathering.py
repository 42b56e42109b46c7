"""Gathers results from files of their own into shards, one a group (archive/shards.py).

The driver alone gathers, at the end of a run, and a shard is never changed. Who gathers a group
reads its results and older shards, writes one new shard of all of it, whose name tells which
recordings it holds, and deletes only then what he has read. So each result lies in at least one
file at any time, whoever gathers at once and wherever he is stopped. Two who gather at once may
leave two shards of one group, which the next one makes one again. Groups follow from hashes, and
recordings are computed by length: no group is complete much before the run is.

An entry of the index is deleted before the files that it names: a worker that writes the same
result meanwhile, and its entry last, leaves at worst an entry whose files are gone. Its result lies
in the shard, and whoever gathers next deletes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from extras.archive import shards, storage
from extras.archive.records import Record
from extras.archive.results import INDEX, PARALLEL, RESULTS, SHARDS, names_in, result_address
from extras.archive.retries import patiently


@dataclass(frozen=True, slots=True)
class Found:
    """A result in files of its own: its row of a shard, and the addresses of the files."""

    row: dict[str, Any]
    files: Sequence[str]


def gather(out: str, ids: Iterable[str], groups: int) -> None:
    """Move the results of these recordings into shards, of so many groups. Raises OSError."""
    found: dict[str, list[str]] = {}
    for id in set(ids).intersection(names_in(storage.join(out, INDEX), ".json")):
        found.setdefault(shards.group_of(id, groups), []).append(id)
    older: dict[str, list[str]] = {}
    for name in names_in(storage.join(out, SHARDS), shards.ENDING):
        older.setdefault(name.rpartition("-")[0], []).append(name)
    mine = f"-of-{groups:05}"
    several = {group for group, names in older.items() if len(names) > 1 and group.endswith(mine)}
    files = _result_files(out) if found else frozenset()
    for group in sorted({*found, *several}):
        _gather_group(out, group, sorted(found.get(group, [])), older.get(group, []), files)


def _result_files(out: str) -> frozenset[str]:
    """The addresses of all files of results."""
    folder = storage.join(out, RESULTS)
    return patiently(lambda: frozenset(each.address for each in storage.find_files(folder)))


def _gather_group(
    out: str, group: str, ids: Sequence[str], older: Sequence[str], files: frozenset[str]
) -> None:
    addresses = {name: storage.join(out, SHARDS, name + shards.ENDING) for name in older}
    with ThreadPoolExecutor(PARALLEL) as threads:
        found = list(filter(None, threads.map(lambda id: _read_result(out, id, files), ids)))
        rows = {each.row["id"]: each.row for each in found}
        held = dict(zip(addresses, threads.map(shards.read, addresses.values()), strict=True))
        rows |= {row["id"]: row for each in held.values() for row in each}
        if not rows:
            return
        name = shards.name_of(group, rows)
        if not held.get(name):
            shards.write(storage.join(out, SHARDS, name + shards.ENDING), rows)
        entries = [storage.join(out, INDEX, f"{id}.json") for id in ids if id in rows]
        gathered = [address for each in found for address in each.files]
        gathered += [addresses[each] for each in held if held[each] and each != name]
        list(threads.map(_delete, entries))
        list(threads.map(_delete, gathered))


def _read_result(out: str, id: str, files: frozenset[str]) -> Found | None:
    """A result; None where another one has gathered it meanwhile, or its name is another's now. The
    formats lie beside the json where a run without shards has written it.
    """
    try:
        entry = patiently(storage.read, storage.join(out, INDEX, f"{id}.json"))
        name = Record.read(json.loads(entry)).result
        address = result_address(out, name, "json")
        result = json.loads(patiently(storage.read, address))
        if result["recording"]["id"] != id:
            return None
        addresses = {each: result_address(out, name, each) for each in shards.FORMATS}
        beside = {each: text for each, text in addresses.items() if text in files}
        for each, text in beside.items():
            content = patiently(storage.read, text).decode()
            result["output"] = {**result.get("output", {}), each: content}
    except FileNotFoundError:
        return None
    return Found(shards.row_of(result), [*beside.values(), address])


def _delete(address: str) -> None:
    patiently(storage.delete, address)
