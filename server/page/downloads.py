"""The files that a person takes away: the JSON answer, subtitles, tables and plain text.

The one decision: they are what the API answers to `output`, made by the same code, so that the page
has no formats of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from config import InferenceConfig
from response import Answer, response
from server.page.speaker_names import rename

FORMATS = ("json", "srt", "vtt", "txt", "tsv", "rttm")


def make_files(answer: Answer, config: InferenceConfig, names: Mapping[str, str]) -> dict[str, str]:
    """The text of every file, by its format; RTTM only where speakers were told apart.

    Fields of RTTM end at spaces, so names have underscores there.
    """
    outputs = [name for name in FORMATS if name not in ("json", "rttm")]
    body = response(rename(answer, names), config.model_copy(update={"output": outputs}))
    files: dict[str, str] = body.pop("output")
    if answer.turns is not None:
        joined = {speaker: re.sub(r"\s", "_", name) for speaker, name in names.items()}
        turns = config.model_copy(update={"output": ["rttm"]})
        files["rttm"] = response(rename(answer, joined), turns)["output"]["rttm"]
    files["json"] = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    return {name: files[name] for name in FORMATS if name in files}


def file_stem(recording: str | Path) -> str:
    """A recording's file name without its ending, for the names of the downloads."""
    return Path(recording).stem.strip(". ") or "recording"
