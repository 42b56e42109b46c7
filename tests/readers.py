"""The files of an answer as the libraries read them that people open such files with."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pysubs2
import webvtt
from pyannote.database.util import load_rttm


def read_srt(text: str) -> list[pysubs2.SSAEvent]:
    """The events that pysubs2 reads.

    It takes digits on the last line of a file for a cue's number, so that a last cue is added here.
    """
    closed = f"{text}\n0\n99:00:00,000 --> 99:00:01,000\nend\n"
    *events, last = pysubs2.SSAFile.from_string(closed, format_="srt").events
    assert last.plaintext == "end"
    return events


def read_vtt(text: str) -> list[webvtt.Caption]:
    """The captions that webvtt-py reads."""
    captions: list[webvtt.Caption] = webvtt.from_string(text).captions
    return captions


def read_tsv(text: str) -> list[dict[str, str]]:
    """The rows that Python's own reader finds."""
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t"))


def read_rttm(text: str) -> list[tuple[str, float, float]]:
    """The turns that pyannote.database reads: speaker, start and end."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audio.rttm"
        file.write_text(text)
        found = load_rttm(str(file))
    turns = found["audio"].itertracks(yield_label=True) if text else ()
    return [(speaker, part.start, part.end) for part, _, speaker in turns]
