"""Renders tables: TSV, and RTTM for speaker turns."""

import csv
import io
from pathlib import PurePath

from whosaid.answer.phrases import on_one_line
from whosaid.answer.rendering import Rendering, as_field
from whosaid.answer.subtitles import milliseconds

RECORDING = "audio"  # in RTTM, if the request names none
# A spreadsheet evaluates cells that begin with these characters; in some languages, full-width too.
FORMULA_BEGINNINGS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def render_tsv(rendering: Rendering) -> str:
    """Render the columns of openai/whisper (start and end in milliseconds, text) and the speaker.

    A cell that a spreadsheet would compute begins with an apostrophe (OWASP's "CSV Injection").
    """
    file = io.StringIO()
    rows = csv.writer(file, delimiter="\t", lineterminator="\n")
    rows.writerow(("start", "end", "text", "speaker"))
    for block in rendering.blocks:
        times = (milliseconds(block.start), milliseconds(block.end))
        rows.writerow((*times, as_cell(block.text), as_cell(block.speaker or "")))
    return file.getvalue()


def as_cell(text: str) -> str:
    line = on_one_line(text)
    return f"'{line}" if line.startswith(FORMULA_BEGINNINGS) else line


def render_rttm(rendering: Rendering) -> str:
    """Render all speaker turns as NIST's Rich Transcription Time Marked.

    Fields end at spaces, so names have underscores instead.
    """
    name = rendering.layout.recording_name
    recording = as_field(PurePath(name or "").stem) or RECORDING
    lines = []
    for turn in rendering.turns:
        times = f"{turn.start:.3f} {turn.end - turn.start:.3f}"
        name = as_field(turn.speaker)
        channel = (turn.channel or 0) + 1  # NIST counts from 1
        lines.append(f"SPEAKER {recording} {channel} {times} <NA> <NA> {name} <NA> <NA>\n")
    return "".join(lines)
