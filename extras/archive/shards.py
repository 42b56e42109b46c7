"""Shards: the results of many recordings in one Parquet file.

Of Parquet the column of ids can be read alone, so that the next run learns what is done without
reading a word of it. A row has the fields of the record, the answer as JSON in `answer`, and a
column for each format, empty if it was not asked for.

The driver gathers results from files of their own at the end of a run, and a shard is never
changed. A result's files are deleted after the shard that holds it was written, so each result lies
in at least one file at any time, whoever gathers at once and wherever a run is stopped. An entry of
the index is deleted before the files that it names; what a stopped run leaves of both is deleted by
the next one.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from config import OutputFormat
from extras.archive import storage
from extras.archive.manifest import Recording
from extras.archive.records import Record
from extras.archive.storage import PARALLEL, join

ENDING = ".parquet"
RESULTS, INDEX, SHARDS = "results", "index", "shards"
FORMATS: tuple[str, ...] = get_args(OutputFormat)
# A shard has at most so many recordings and seconds of audio: it is held in memory.
SHARD_RECORDINGS, SHARD_SECONDS = 1000, 100 * 3600.0

Row = dict[str, Any]


def result_address(out: str, name: str, ending: str) -> str:
    """Return where a file of the result called `name` lies."""
    return join(out, RESULTS, *f"{name}.{ending}".split("/"))


def ids_in(out: str) -> set[str]:
    """Return the ids of the recordings in all shards. Raises OSError."""
    found = storage.find_files(join(out, SHARDS))
    addresses = [each.address for each in found if each.address.endswith(ENDING)]
    with ThreadPoolExecutor(PARALLEL) as threads:
        return {row["id"] for rows in threads.map(_read_ids, addresses) for row in rows}


def _read_ids(address: str) -> list[Row]:
    return read(address, ["id"])


@storage.patient
def read(address: str, columns: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a shard. Raises OSError."""
    from pyarrow import parquet

    with storage.open_file(address) as file:
        rows: list[Row] = parquet.read_table(file, columns=columns).to_pylist()
    return rows


def write(out: str, rows: Sequence[Row]) -> None:
    """Write a shard, whose name tells which recordings it holds. Raises OSError."""
    import pyarrow as pa
    from pyarrow import parquet

    texts = ("id", "path", "name", "sha256", "status", "answer", *FORMATS)
    span = pa.struct([("start", pa.float64()), ("end", pa.float64())])
    schema = [*((name, pa.string()) for name in texts), ("unwritten", pa.list_(span))]
    schema += [("duration", pa.float64()), ("seconds", pa.float64()), ("attempt", pa.int32())]
    schema += [("size", pa.int64()), ("modified", pa.int64())]
    file = io.BytesIO()
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: row["id"]), pa.schema(schema))
    parquet.write_table(table, file, compression="zstd")
    ids = "\n".join(sorted(row["id"] for row in rows))
    name = hashlib.sha256(ids.encode()).hexdigest()[:20] + ENDING
    storage.write(join(out, SHARDS, name), file.getvalue())


def gather(out: str, recordings: Sequence[Recording]) -> None:
    """Move the results of these recordings into shards. Raises OSError."""
    entries = {storage.name_of(each.address) for each in storage.find_files(join(out, INDEX))}
    found = [each for each in recordings if f"{each.id}.json" in entries]
    if not found:
        return
    held = ids_in(out)
    files = {each.address for each in storage.find_files(join(out, RESULTS))}
    with ThreadPoolExecutor(PARALLEL) as threads:
        for ids in _portions(found):
            results = [each for each in threads.map(lambda id: _find(out, id, files), ids) if each]
            if rows := [row for row, _ in results if row["id"] not in held]:
                write(out, rows)
            gathered = held.union(row["id"] for row in rows).intersection(ids)
            list(threads.map(storage.delete, [join(out, INDEX, f"{id}.json") for id in gathered]))
            list(threads.map(storage.delete, [each for _, own in results for each in own]))


def _portions(recordings: Sequence[Recording]) -> Iterator[list[str]]:
    """Yield the ids for one shard after the other."""
    ids: list[str] = []
    seconds = 0.0
    for each in sorted(recordings, key=lambda each: each.id):
        if len(ids) == SHARD_RECORDINGS or (ids and seconds + each.seconds > SHARD_SECONDS):
            yield ids
            ids, seconds = [], 0.0
        ids.append(each.id)
        seconds += each.seconds
    yield ids


def _find(out: str, id: str, files: set[str]) -> tuple[Row, list[str]] | None:
    """Return the row of a result and the addresses of its files; None if another run has gathered
    it meanwhile, or its name belongs to another result now.
    """
    try:
        entry = Record.read(json.loads(storage.read(join(out, INDEX, f"{id}.json"))))
        address = result_address(out, entry.result, "json")
        answer = json.loads(storage.read(address))
        record, output = answer.pop("recording"), answer.pop("output", {})
        if record["id"] != id:
            return None
        # A run without shards writes formats beside the JSON.
        texts = {each: result_address(out, entry.result, each) for each in FORMATS}
        beside = {each: text for each, text in texts.items() if text in files}
        output |= {each: storage.read(text).decode() for each, text in beside.items()}
    except FileNotFoundError:
        return None
    row = {**record, **output, "answer": json.dumps(answer, ensure_ascii=False)}
    return row, [*beside.values(), address]
