"""A package index that is a folder of wheels made here."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(
    folder: Path, requirement: str, files: Mapping[str, bytes], python: str = ">=3"
) -> Path:
    """The wheel of `requirement`, NAME==VERSION, with those files, for a Python of that range."""
    name, version = requirement.split("==")
    known_as = f"{name.replace('-', '_')}-{version}"
    about = f"{known_as}.dist-info"
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n"
    file = folder / f"{known_as}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
        wheel.writestr(f"{about}/METADATA", said)
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return file
