"""Which recordings are meant, and the files that are written for each.

A run may stop anywhere and be started again: a file is written under another name and then renamed,
so that what exists is complete, and a recording whose files all exist and are no older than it is
left alone.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audio.recording_files import ENDING
from transcribe.client import Failed
from transcribe.options import FORMATS


@dataclass(frozen=True, slots=True)
class Recording:
    """A file to be sent, and the path of its outputs without their ending."""

    path: Path
    stem: Path

    def output(self, name: str) -> Path:
        """Where the format `name` is written."""
        return self.stem.with_name(f"{self.stem.name}.{name}")

    def is_done(self, formats: Iterable[str]) -> bool:
        """Whether all outputs exist and none is older than the recording."""
        recorded = self.path.stat().st_mtime
        paths = [self.output(name) for name in formats]
        return all(path.is_file() and path.stat().st_mtime >= recorded for path in paths)


def find_recordings(named: Sequence[Path], output: Path | None) -> list[Recording]:
    """The files named and those in the folders named, each once, in order.

    Outputs stand beside a file, or under `output` as the file stands under the folder that was
    named. Where two would share a name, theirs keep the recordings' endings. Raises Failed for what
    does not exist, or holds none.
    """
    found: dict[Path, Path] = {}
    for path in named:
        if not path.exists():
            raise Failed(f"{path}: there is no such file or folder")
        top = path if path.is_dir() else path.parent
        if not (files := list(_files(path))):
            raise Failed(f"{path}: there is no recording in it")
        for file in files:
            folder = file.parent if output is None else output / file.parent.relative_to(top)
            found.setdefault(file, folder)
    stems = Counter((folder, file.stem) for file, folder in found.items())
    return [
        Recording(file, folder / (file.stem if stems[folder, file.stem] == 1 else file.name))
        for file, folder in found.items()
    ]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if ENDING.fullmatch(file.suffix) and not hidden and file.is_file():
            yield file


def asked_formats(formats: Sequence[str]) -> list[str]:
    """What a request's `output` names. A JSON file keeps all texts, so that others can be written
    later without hearing the recording again; RTTM tells of speakers alone, and there may be none.
    """
    kept = [name for name in FORMATS if name != "rttm"] if "json" in formats else []
    return [name for name in dict.fromkeys((*kept, *formats)) if name != "json"]


def as_texts(answer: dict[str, Any], formats: Sequence[str]) -> dict[str, str]:
    """The answer in every format. Raises Failed where the server sent none of one."""
    texts = {"json": json.dumps(answer, indent=2, ensure_ascii=False) + "\n", **_output(answer)}
    missing = [name for name in formats if name not in texts]
    if missing:
        raise Failed(f"the server did not send {', '.join(missing)}")
    return {name: texts[name] for name in formats}


def write_outputs(recording: Recording, answer: dict[str, Any], formats: Sequence[str]) -> None:
    """Write every format, each at once. Raises Failed, OSError."""
    texts = as_texts(answer, formats)
    recording.stem.parent.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _write(recording.output(name), text)


def complete(recording: Recording, formats: Sequence[str]) -> bool:
    """Write formats that are missing from a JSON file of the recording's; whether all are there."""
    if recording.is_done(formats):
        return True
    if not recording.is_done(["json"]):
        return False
    try:
        answer = json.loads(recording.output("json").read_text(encoding="utf-8"))
        missing = [name for name in formats if not recording.is_done([name])]
        write_outputs(recording, answer, missing)
    except (Failed, OSError, ValueError, TypeError, AttributeError):
        return False
    return True


def _output(answer: dict[str, Any]) -> dict[str, str]:
    output = answer.get("output")
    return output if isinstance(output, dict) else {}


def _write(path: Path, text: str) -> None:
    """Write a file that is either whole or not there. No two threads write the same."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
