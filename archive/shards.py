"""Shards: the results of a block of recordings in one Parquet file.

The one decision: Parquet, of which the column of ids can be read alone, so that the next run learns
what is done without reading a word of it. A row has the fields of the record, the answer as JSON in
`answer`, and a column for each format, empty where it was not asked for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any, get_args

from archive import storage
from archive.records import Record
from config import OutputFormat

ENDING = ".parquet"
FORMATS: tuple[str, ...] = get_args(OutputFormat)


def _schema() -> Any:  # noqa: ANN401
    import pyarrow as pa

    texts = ("id", "path", "status", "answer", *FORMATS)
    fields = [(name, pa.string()) for name in texts]
    numbers = [("duration", pa.float64()), ("seconds", pa.float64()), ("attempt", pa.int32())]
    return pa.schema(fields + numbers)


def _row(result: dict[str, Any]) -> dict[str, Any]:
    """One row of a result as it was written to a file of its own."""
    record, outputs = result.pop("recording"), result.pop("output", {})
    return {**record, **outputs, "answer": json.dumps(result, ensure_ascii=False)}


def add(address: str, results: Sequence[dict[str, Any]]) -> None:
    """Write a shard of these results and those that it holds already, each id once."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = {row["id"]: row for row in _read(address)}
    rows |= {row["id"]: row for row in map(_row, results)}
    ordered = [rows[id] for id in sorted(rows)]
    file = io.BytesIO()
    table = pa.Table.from_pylist(ordered, schema=_schema())
    parquet.write_table(table, file, compression="zstd")
    storage.write(address, file.getvalue())


def _read(address: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    from pyarrow import parquet

    try:
        with storage.open_file(address) as file:
            rows: list[dict[str, Any]] = parquet.read_table(file, columns=columns).to_pylist()
    except FileNotFoundError:
        return []
    return rows


def ids(address: str) -> set[str]:
    """The ids of the recordings in a shard."""
    return {row["id"] for row in _read(address, ["id"])}


def records(address: str) -> dict[str, Record]:
    """The records in a shard, by id; none where there is no shard."""
    columns = ["id", "path", "duration", "seconds", "attempt"]
    return {row["id"]: Record.read(row) for row in _read(address, columns)}
