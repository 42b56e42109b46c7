"""models/diarization, the pyannote pipeline for real speech: its files are those that were
published, and it finds speakers offline."""

import hashlib
import importlib.resources
from pathlib import Path

import pytest
import torch
from pyannote.core import Annotation, Segment, Timeline
from pyannote.database.util import load_rttm
from pyannote.metrics.diarization import DiarizationErrorRate

from config import REPOSITORY, SPEAKERS_MODEL
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.diarization import load_diarizer
from whosaid.diarization.diarizer import Diarizer, SpeakerHints
from whosaid.runtime.errors import loading, verify_checksums

FOLDER = REPOSITORY / SPEAKERS_MODEL
SAMPLE = Path(str(importlib.resources.files("pyannote.audio"))) / "sample"
LISTED = "c471382fc3a3efcc47710aab0a21b7c10b0286b70aac51caa94ea0f1386ffea2"


@pytest.fixture(scope="module")
def diarizer() -> Diarizer:
    with loading("DIARIZATION_MODEL", str(FOLDER)):
        return load_diarizer(str(FOLDER), None, None, torch.device("cpu"))


def test_all_files_are_those_that_were_published():
    verify_checksums(FOLDER)
    sums = (FOLDER / "SHA256SUMS").read_bytes()
    assert hashlib.sha256(sums).hexdigest() == LISTED
    listed = {line.split("  ")[1] for line in sums.decode().splitlines()}
    files = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()]
    assert {name for name in files if not name.endswith((".md", ".txt"))} == {*listed, "SHA256SUMS"}


def test_no_file_is_a_pickle_or_large():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    kinds = {".safetensors", ".npz", ".json", ".yaml", ".md", ".txt", ""}
    assert {path.suffix for path in files} == kinds
    assert max(path.stat().st_size for path in files) < 50 * 10**6


def test_licences_and_authors_stand_beside_the_weights():
    notice = (FOLDER / "README.md").read_text(encoding="utf-8")
    for due in ("Hervé Bredin", "WeSpeaker", "BUT Speech@FIT", "CC BY 4.0", "changes"):
        assert due in notice
    assert "Copyright (c) 2023 CNRS" in (FOLDER / "LICENSE-MIT.txt").read_text(encoding="utf-8")
    creative_commons = (FOLDER / "LICENSE-CC-BY-4.0.txt").read_text(encoding="utf-8")
    assert "Attribution 4.0 International" in creative_commons


@pytest.mark.slow
def test_two_people_on_a_telephone_are_told_apart(diarizer):
    """A stretch of pyannote.audio's sample in which both speak; its turns are beside it."""
    start, stop = 6, 16
    audio = decode_audio((SAMPLE / "sample.wav").read_bytes(), 16_000, AudioLimits(60, 2**22))
    samples = audio.samples[start * 16_000 : stop * 16_000]
    found = diarizer.diarize(samples, SpeakerHints(num_speakers=2))
    turns = Annotation()
    for track, turn in enumerate(found.turns):
        turns[Segment(start + turn.start, start + turn.end), track] = turn.speaker
    (reference,) = load_rttm(SAMPLE / "sample.rttm").values()
    rate = DiarizationErrorRate(collar=0.5, skip_overlap=True)
    assert rate(reference, turns, uem=Timeline([Segment(start, stop)])) <= 0.05
