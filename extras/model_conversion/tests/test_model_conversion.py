"""The packages of the package index give the weights of models/diarization, bit by bit."""

import shutil
from pathlib import Path

import pytest

from config import REPOSITORY, SPEAKERS_MODEL


@pytest.mark.slow
def test_the_weights_are_made_again(tmp_path: Path) -> None:
    """`convert` compares each file with SHA256SUMS."""
    pytest.importorskip("onnx")
    from extras.model_conversion.__main__ import convert

    folder = tmp_path / "diarization"
    shutil.copytree(REPOSITORY / SPEAKERS_MODEL, folder)
    weights = [*folder.glob("*/*.safetensors"), *folder.glob("*/*.npz")]
    assert len(weights) == 4
    for path in weights:
        path.unlink()
    try:
        convert(folder)
    except OSError as error:
        pytest.skip(f"the packages cannot be had here: {error}")
    assert all(path.is_file() for path in weights)
