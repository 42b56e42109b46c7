"""Folders, and a bucket of an S3 server on loopback, asked through Arrow's client."""

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
        ("S3://bucket/a b%25?.wav", "s3://bucket/a b%25?.wav"),
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
    ("text", "reason"),
    [
        ("", "neither a path nor a URL"),
        ("a\0b", "neither a path nor a URL"),
        ("caf\udce9.wav", "UTF-8"),
        ("http://host/a.wav", "none of"),
        ("s3:///a.wav", "needs a bucket"),
        ("s3://key:secret@bucket/a.wav", "not have credentials: each machine has its own$"),
        ("s3://key@bucket/a.wav", "not have credentials"),
        ("abfs://box:password@account/a", "not have credentials"),
        ("s3://bucket/../other/a.wav", r"without \.\."),
    ],
)
def test_malformed_addresses_and_credentials_are_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        locate(text)


def test_relative_paths_lie_beside_a_manifest():
    assert locate("a.wav", "/srv/calls") == "/srv/calls/a.wav"
    assert locate("sub/a b.wav", "s3://bucket/x") == "s3://bucket/x/sub/a b.wav"
    with pytest.raises(ValueError, match=r"\.\."):
        locate("../a.wav", "s3://bucket/x")


@pytest.mark.parametrize(
    ("address", "folder", "under"),
    [
        ("s3://bucket/a/b.wav", "s3://bucket/a", True),
        ("s3://bucket/a/b.wav", "s3://bucket", True),
        ("s3://bucket/ab.wav", "s3://bucket/a", False),
        ("s3://bucket2/a.wav", "s3://bucket", False),
        ("/bucket/a", "s3://bucket", False),
        ("in/a.wav", "in", True),
        ("in/../a.wav", "in", False),
        ("in/link.wav", "in", False),
        ("in2/a.wav", "in", False),
    ],
)
def test_an_address_lies_under_its_folder(tmp_path, monkeypatch, address, folder, under):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.wav").symlink_to("/etc/passwd")
    assert storage.is_under(address, folder) == under


def test_files_are_written_found_read_and_deleted(out):
    assert list(storage.find_files(out)) == []
    names = ["a b%.txt", "sub/ü#?.txt", ".hidden", ".folder/c"]
    addresses = [storage.join(out, name) for name in names]
    for address in addresses:
        storage.write(address, address.encode())
    assert storage.is_folder(out)
    assert not storage.is_folder(addresses[0])
    found = {entry.address: entry for entry in storage.find_files(out)}
    assert found.keys() == set(addresses[:2])
    assert found[addresses[0]] == storage.look(addresses[0])
    assert found[addresses[0]].size == len(addresses[0])
    assert found[addresses[0]].modified > 0
    storage.write(addresses[0], b"other")
    assert storage.read(addresses[0]) == b"other"
    for _ in range(2):
        storage.delete(addresses[0])
    assert storage.look(addresses[0]) is None
    with pytest.raises(FileNotFoundError):
        storage.read(addresses[0])


def test_an_object_is_called_as_its_address(bucket):
    storage.write("s3://calls/a b%20/ü#?.txt", b"1")
    listed = bucket.list_objects_v2(Bucket="calls", Prefix="a b")
    # Arrow keeps a folder, as an empty object, of which it has deleted a file.
    assert "a b%20/ü#?.txt" in [each["Key"] for each in listed["Contents"]]


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


def test_a_failed_write_leaves_the_file_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    storage.write(str(path), b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        storage.write(str(path), b"after")
    assert [each.name for each in Path(tmp_path).iterdir()] == ["a.txt"]
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("faults", "tries"),
    [
        ([OSError("AWS Error SLOW_DOWN"), OSError(errno.EIO, ""), TimeoutError()], 4),
        ([OSError("down")] * 5, 4),
        ([OSError(errno.ENOSPC, "")], 1),
        ([FileNotFoundError()], 1),
    ],
)
def test_passing_faults_are_retried_and_lasting_ones_raised(monkeypatch, faults, tries):
    slept: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", slept.append)
    left = list(faults)

    def operation() -> str:
        if left:
            raise left.pop(0)
        return "done"

    if len(faults) < tries:
        assert patient(operation)() == "done"
    else:
        with pytest.raises(OSError) as raised:  # noqa: PT011
            patient(operation)()
        assert raised.value is faults[tries - 1]
    assert slept == list(PAUSES[: tries - 1])
