"""The output place: results, records of failures, and attempts, each named by a recording's id.

    manifest.jsonl           which recordings there are (archive/manifest.py)
    results/ID.json          the endpoint's answer, with its record under "recording"
    results/ID.srt, ...      the formats asked for, written before the json
    shards/BLOCK.parquet     the results of a block of work, instead of the two above
    errors/ID.json           the record of a recording that failed
    attempts/ID.N            the N-th attempt is running, or its process has died

The one decision: a recording is done when its json, its shard or its error is there, and each of
these appears whole, last, and in the same place whoever writes it. Nothing else is remembered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from archive import shards, storage
from archive.records import Record

RESULTS, SHARDS, ERRORS, ATTEMPTS = "results", "shards", "errors", "attempts"
# Files of a store that are read or deleted at once.
PARALLEL = 16


class Results:
    """The output place at the address `out`; with `in_shards` results are gathered in shards."""

    def __init__(self, out: str, in_shards: bool = False) -> None:
        self.out, self.in_shards = out, in_shards

    def _address(self, kind: str, name: str) -> str:
        return storage.join(self.out, kind, name)

    def _names(self, kind: str, ending: str) -> list[str]:
        """What the files of a kind are called, without their ending."""
        entries = storage.find_files(storage.join(self.out, kind))
        names = (storage.name_of(entry.address) for entry in entries)
        return [name.removesuffix(ending) for name in names if name.endswith(ending)]

    def finished(self) -> set[str]:
        """The ids of all recordings that have a result or the record of an error."""
        ids = {*self._names(RESULTS, ".json"), *self._names(ERRORS, ".json")}
        for block in self._names(SHARDS, shards.ENDING):
            ids |= shards.ids(self._address(SHARDS, block + shards.ENDING))
        return ids

    def find(self, id: str) -> Record | None:
        """The record of a recording whose result or error lies in a file of its own."""
        for kind in (RESULTS, ERRORS):
            try:
                content = json.loads(storage.read(self._address(kind, f"{id}.json")))
            except FileNotFoundError:
                continue
            return Record.read(content["recording"] if kind == RESULTS else content)
        return None

    def write(self, record: Record, answer: dict[str, Any]) -> None:
        """Write a result: its formats first, its json last. Raises OSError."""
        body = {"recording": record.to_json(), **answer}
        if not self.in_shards:
            for name, text in body.pop("output", {}).items():
                storage.write(self._address(RESULTS, f"{record.id}.{name}"), text.encode())
        content = json.dumps(body, indent=None if self.in_shards else 2, ensure_ascii=False)
        storage.write(self._address(RESULTS, f"{record.id}.json"), f"{content}\n".encode())

    def write_error(self, record: Record) -> None:
        """Write the record of a recording that failed. Raises OSError."""
        content = json.dumps(record.to_json(), indent=2, ensure_ascii=False)
        storage.write(self._address(ERRORS, f"{record.id}.json"), f"{content}\n".encode())

    def gather(self, block: str, ids: Iterable[str]) -> None:
        """Move the results of a block's recordings into its shard, beside what is there.

        Results are read before the shard, and deleted after it is written: of two who gather the
        same block, each finds every result in one place or the other.
        """
        rows = {}
        for id in ids:
            try:
                rows[id] = json.loads(storage.read(self._address(RESULTS, f"{id}.json")))
            except FileNotFoundError:
                continue
        if not rows:
            return
        shards.add(self._address(SHARDS, block + shards.ENDING), list(rows.values()))
        for id in rows:
            storage.delete(self._address(RESULTS, f"{id}.json"))

    def in_shard(self, block: str) -> dict[str, Record]:
        """The records in a block's shard, by id; none where there is no shard."""
        if not self.in_shards:
            return {}
        return shards.records(self._address(SHARDS, block + shards.ENDING))

    def errors(self) -> list[Record]:
        """The records of all recordings that failed."""
        addresses = [self._address(ERRORS, f"{id}.json") for id in self._names(ERRORS, ".json")]
        with ThreadPoolExecutor(PARALLEL) as threads:
            return [Record.read(json.loads(each)) for each in threads.map(storage.read, addresses)]

    def forget_errors(self, ids: Iterable[str]) -> None:
        """Delete the records of errors and the attempts of these recordings."""
        wanted = set(ids)
        addresses = [self._address(ERRORS, f"{id}.json") for id in wanted]
        addresses += [address for id, address in self._attempts() if id in wanted]
        with ThreadPoolExecutor(PARALLEL) as threads:
            list(threads.map(storage.delete, addresses))

    def begin(self, id: str, run: str, most: int) -> int | None:
        """Mark one more attempt of the run called `run`; its number, or None after `most`.

        What was marked stays until `end`: the process of an attempt that did not come so far died.
        """
        for number in range(1, most + 1):
            address = self._address(ATTEMPTS, f"{id}.{number}")
            if not storage.exists(address):
                storage.write(address, run.encode())
                return number
        return None

    def end(self, id: str, attempt: int) -> None:
        """Take back the marks of all attempts up to this one."""
        for number in range(attempt, 0, -1):
            storage.delete(self._address(ATTEMPTS, f"{id}.{number}"))

    def withdraw(self, run: str) -> None:
        """Take back what a run that was told to stop was trying, as if it had not begun."""
        latest: dict[str, str] = {}
        for id, address in sorted(self._attempts()):
            latest[id] = address
        for address in latest.values():
            if storage.read(address) == run.encode():
                storage.delete(address)

    def _attempts(self) -> Iterator[tuple[str, str]]:
        for entry in storage.find_files(storage.join(self.out, ATTEMPTS)):
            yield storage.name_of(entry.address).rpartition(".")[0], entry.address
