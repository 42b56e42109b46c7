"""Folders, and a bucket of an S3 server on loopback: moto's, in a process of its own, asked through
Arrow's client and checked with Amazon's.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from extras.archive import storage
from extras.archive.storage import PAUSES, locate, patient


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/calls/", "s3://bucket/calls"),
        ("S3://bucket/a b%25.wav", "s3://bucket/a%20b%25.wav"),
        ("s3://bucket?region=eu-west-1", "s3://bucket?region=eu-west-1"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
        ("hf://datasets/owner/name", "hf://datasets/owner/name"),
        ("file:///srv/a%20b", "/srv/a b"),
        ("/srv/../srv/a#b?c.wav", "/srv/a#b?c.wav"),
    ],
)
def test_addresses_have_one_form(text, address):
    assert locate(text) == address
    assert locate(address) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\0b",
        "caf\udce9.wav",
        "s3://bucket/caf\udce9.wav",
        "http://host/a.wav",
        "s3://",
        "s3:///a.wav",
        "s3://key:secret@bucket/a.wav",
        "s3://key@bucket/a.wav",
        "abfs://box:password@account/a",
        "s3://bucket/a?secret_key=x",
        "s3://bucket/../other/a.wav",
        "s3://bucket/%2e%2e/other/a.wav",
    ],
)
def test_what_is_no_address_or_holds_credentials_is_refused(text):
    with pytest.raises(ValueError, match=r"\w") as raised:
        locate(text)
    assert "secret" not in str(raised.value).replace("credentials", "")


def test_relative_paths_lie_beside_a_manifest():
    assert locate("a.wav", "/srv/calls") == "/srv/calls/a.wav"
    assert locate("sub/a b.wav", "s3://bucket/x?region=y") == "s3://bucket/x/sub/a%20b.wav?region=y"
    with pytest.raises(ValueError, match=r"\.\."):
        locate("../a.wav", "s3://bucket/x")


def test_what_lies_under_what(tmp_path):
    assert storage.is_under("s3://bucket/a/b.wav", "s3://bucket/a")
    assert storage.is_under("s3://bucket/a/b.wav", "s3://bucket")
    assert not storage.is_under("s3://bucket/ab.wav", "s3://bucket/a")
    assert not storage.is_under("s3://bucket2/a.wav", "s3://bucket")
    assert not storage.is_under("s3://bucket/a?endpoint_override=other", "s3://bucket")
    assert not storage.is_under("/bucket/a", "s3://bucket")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.wav").symlink_to("/etc/passwd")
    inside = str(tmp_path / "in")
    assert storage.is_under(f"{inside}/a.wav", inside)
    assert not storage.is_under(f"{inside}/../a.wav", inside)
    assert not storage.is_under(f"{inside}/link.wav", inside)
    assert not storage.is_under(f"{inside}2/a.wav", inside)


def exercise(top: str) -> None:
    """All that is asked of a place, on a folder that does not exist yet."""
    assert list(storage.find_files(top)) == []
    names = ["a b%.txt", "sub/ü#?.txt", ".hidden", ".folder/c"]
    addresses = [storage.join(top, *name.split("/")) for name in names]
    for address in addresses:
        storage.write(address, address.encode())
    assert storage.is_folder(top)
    assert not storage.is_folder(addresses[0])
    found = {entry.address: entry for entry in storage.find_files(top)}
    assert found.keys() == set(addresses[:2])
    assert found[addresses[0]] == storage.look(addresses[0])
    assert found[addresses[0]].size == len(addresses[0])
    assert found[addresses[0]].modified > 0
    assert [storage.name_of(address) for address in addresses[:2]] == ["a b%.txt", "ü#?.txt"]
    assert storage.parent(addresses[0]) == top
    storage.write(addresses[0], b"other")
    assert storage.read(addresses[0]) == b"other"
    with storage.open_file(addresses[0]) as file:
        file.seek(2)
        assert file.read(2) == b"he"
    for _ in range(2):
        storage.delete(addresses[0])
    assert storage.look(addresses[0]) is None
    with pytest.raises(FileNotFoundError):
        storage.read(addresses[0])


def test_a_folder(tmp_path):
    exercise(str(tmp_path / "new" / "folder"))


def test_links_are_followed_but_not_in_circles(tmp_path):
    """A link to a file and one to a folder elsewhere are files here; links that lead up, to
    themselves or nowhere, and a pipe, are none.
    """
    top, other = tmp_path / "in", tmp_path / "other"
    for path in (top / "sub" / "a.wav", other / "b.wav", other / "deep" / "c.wav"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"123")
    links = {"d.wav": other / "b.wav", "elsewhere": other, "nowhere.wav": tmp_path / "none"}
    for name, target in links.items():
        (top / name).symlink_to(target)
    (top / "self.wav").symlink_to(top / "self.wav")
    (top / "sub" / "up").symlink_to(top)
    (other / "deep" / "back").symlink_to(other)
    os.mkfifo(top / "pipe.wav")
    found = {os.path.relpath(entry.address, top) for entry in storage.find_files(str(top))}
    assert found == {"sub/a.wav", "d.wav", "elsewhere/b.wav", "elsewhere/deep/c.wav"}


def test_names_that_are_not_utf8_are_found_and_told_apart(tmp_path):
    latin = os.fsencode(tmp_path) + "/café.wav".encode("latin-1")
    Path(os.fsdecode(latin)).write_bytes(b"123")
    (tmp_path / "café.wav").write_bytes(b"12345")
    found = {storage.is_utf8(entry.address): entry for entry in storage.find_files(str(tmp_path))}
    assert os.fsencode(found[False].address) == latin
    assert found[True] == storage.look(str(tmp_path / "café.wav"))


def test_a_bucket(bucket):
    client, address = bucket
    exercise(f"{address}/new folder".replace(" ", "%20"))
    listed = client.list_objects_v2(Bucket="calls", Prefix="new folder/")
    keys = [each["Key"] for each in listed["Contents"]]
    # Arrow keeps a folder, as an empty object, of which it has deleted a file.
    keys = sorted(key for key in keys if not key.endswith("/"))
    assert keys == ["new folder/.folder/c", "new folder/.hidden", "new folder/sub/ü#?.txt"]


def test_a_bucket_by_its_endpoint_in_the_url(bucket, monkeypatch):
    client, address = bucket
    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    storage.write(f"{address}/a.txt?endpoint_override={endpoint}&scheme=http", b"by URL")
    assert client.get_object(Bucket="calls", Key="a.txt")["Body"].read() == b"by URL"


def test_what_is_written_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    storage.write(str(path), b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        storage.write(str(path), b"after")
    assert [each.name for each in Path(tmp_path).iterdir()] == ["a.txt"]
    assert path.read_bytes() == b"before"


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", seconds.append)
    return seconds


def failing(faults: list[OSError]):
    """Raises each of them, then returns its arguments."""

    def operation(*arguments: object) -> tuple[object, ...]:
        if faults:
            raise faults.pop(0)
        return arguments

    return operation


@pytest.mark.parametrize("times", range(len(PAUSES) + 1))
def test_what_passes_is_tried_again(slept, times):
    faults = [OSError("AWS Error SLOW_DOWN"), OSError(errno.EIO, ""), TimeoutError()][:times]
    assert patient(failing(faults))(1, 2) == (1, 2)
    assert slept == list(PAUSES[:times])


def test_the_last_fault_is_raised(slept):
    faults = [OSError(str(number)) for number in range(len(PAUSES) + 2)]
    with pytest.raises(OSError, match=f"^{len(PAUSES)}$"):
        patient(failing(faults))()
    assert slept == list(PAUSES)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT])
def test_what_lasts_is_raised_at_once(slept, number):
    with pytest.raises(OSError) as raised:  # noqa: PT011
        patient(failing([OSError(number, "")]))()
    assert (raised.value.errno, slept) == (number, [])
