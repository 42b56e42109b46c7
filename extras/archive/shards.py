"""Shards: the results of many recordings in one Parquet file.

Of Parquet the column of ids can be read alone, so that the next run learns what is done without
reading a word of it. A row has the fields of the record, the answer as JSON in `answer`, and a
column for each format, empty where it was not asked for.

Which group a recording belongs to follows from a hash of its id and from the number of groups, a
power of two that follows from the size of the archive. An archive that grows keeps its groups until
it has outgrown them; then new results go into smaller groups, and older shards stay as they are.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from config import OutputFormat
from extras.archive import storage
from extras.archive.retries import patiently

ENDING = ".parquet"
FORMATS: tuple[str, ...] = get_args(OutputFormat)
# A group has at most about so many recordings and seconds of audio: one is held in memory.
GROUP_RECORDINGS, GROUP_SECONDS = 1000, 100 * 3600.0


def number_of_groups(recordings: int, seconds: float) -> int:
    """How many groups an archive of so many recordings and seconds of audio has."""
    wanted = max(recordings / GROUP_RECORDINGS, seconds / GROUP_SECONDS, 1.0)
    return 1 << math.ceil(math.log2(wanted))


def group_of(id: str, groups: int) -> str:
    """The name of a recording's group."""
    digest = hashlib.sha256(id.encode()).digest()
    return f"{int.from_bytes(digest[:8]) % groups:05}-of-{groups:05}"


def name_of(group: str, ids: Iterable[str]) -> str:
    """The name of the shard of a group that holds these recordings: never that of another set."""
    digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:20]
    return f"{group}-{digest}"


def row_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """One row of a result as it was written to a file of its own."""
    answer = {key: value for key, value in result.items() if key not in ("recording", "output")}
    columns = {**result["recording"], **result.get("output", {})}
    return {**columns, "answer": json.dumps(answer, ensure_ascii=False)}


def _schema() -> Any:  # noqa: ANN401
    import pyarrow as pa

    texts = ("id", "path", "name", "sha256", "status", "answer", *FORMATS)
    fields = [(name, pa.string()) for name in texts]
    numbers = [("duration", pa.float64()), ("seconds", pa.float64()), ("attempt", pa.int32())]
    numbers += [("size", pa.int64()), ("modified", pa.int64())]
    span = pa.struct([("start", pa.float64()), ("end", pa.float64())])
    return pa.schema([*fields, *numbers, ("unwritten", pa.list_(span))])


def write(address: str, rows: Mapping[str, dict[str, Any]]) -> None:
    """Write a shard of these rows by id. Raises OSError."""
    import pyarrow as pa
    from pyarrow import parquet

    file = io.BytesIO()
    table = pa.Table.from_pylist([rows[id] for id in sorted(rows)], schema=_schema())
    parquet.write_table(table, file, compression="zstd")
    patiently(storage.write, address, file.getvalue())


def read(address: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a shard; none where there is no shard any more. Raises OSError."""
    try:
        return patiently(_read, address, columns)
    except FileNotFoundError:
        return []


def _read(address: str, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    from pyarrow import parquet

    with storage.open_file(address) as file:
        rows: list[dict[str, Any]] = parquet.read_table(file, columns=columns).to_pylist()
    return rows


def ids(address: str) -> set[str]:
    """The ids of the recordings in a shard."""
    return {row["id"] for row in read(address, ["id"])}
