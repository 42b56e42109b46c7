"""Into which groups recordings fall, and what a shard holds."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("pyarrow")

from extras.archive import shards

IDS = [f"call-{number:05}" for number in range(4000)]


def test_groups_are_of_about_a_thousand_recordings_or_a_hundred_hours():
    assert [shards.number_of_groups(count, 0) for count in (0, 1000, 1001, 4000, 10**6)] == [
        1,
        1,
        2,
        4,
        1024,
    ]
    assert shards.number_of_groups(100, 3600 * 250) == 4
    sizes = Counter(shards.group_of(id, 4) for id in IDS)
    assert sorted(sizes) == [f"0000{n}-of-00004" for n in range(4)]
    assert max(sizes.values()) < 1150


def test_the_name_of_a_shard_tells_its_recordings_apart():
    name = shards.name_of("00000-of-00001", IDS)
    assert name == shards.name_of("00000-of-00001", reversed(IDS))
    assert name != shards.name_of("00000-of-00001", IDS[:-1])
    assert name.rpartition("-")[0] == "00000-of-00001"


def test_rows_are_read_as_they_were_written(tmp_path):
    address = str(tmp_path / "shards" / "a.parquet")
    record = {"id": "a", "path": "/in/a.wav", "status": "done", "code": "", "attempt": 2}
    record |= {"duration": 2.0, "seconds": 0.5}
    row = shards.row_of({"recording": record, "output": {"srt": "1\n"}, "text": " ü"})
    shards.write(address, {"a": row})
    (found,) = shards.read(address)
    assert json.loads(found["answer"]) == {"text": " ü"}
    assert (found["srt"], found["vtt"], found["status"]) == ("1\n", None, "done")
    assert (found["attempt"], found["duration"], found["seconds"]) == (2, 2.0, 0.5)
    assert shards.ids(address) == {"a"}
    assert shards.read(str(tmp_path / "none.parquet")) == []
