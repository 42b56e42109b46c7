"""Which recordings are meant, and the files that are written for each.

A run may stop anywhere and be started again: a file is written under another name and then renamed,
so that what exists is complete, and a recording whose files all exist and are no older than it is
left alone.

Files of the same names may be somebody's own, as the texts of a data set. What is there is written
over only where it is surely this program's: where the JSON file beside it is an answer, and keeps
the same text. So that this stays so, what an answer wrote is removed before its JSON file is
replaced.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from audio.recording_files import ENDING
from transcribe.client import Failed
from transcribe.options import FORMATS

# Bytes of a name without its ending: file systems take 255, and ".json" is the longest of FORMATS.
LONGEST_STEM = 250
# What every answer has.
ANSWER = frozenset(("text", "chunks", "speakers", "duration"))


class InTheWay(Failed):
    """A file stands in the place of an output, and may be somebody's own."""


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

    def kept_answer(self) -> dict[str, Any] | None:
        """The answer in the JSON file that is there; None where there is none."""
        try:
            answer = json.loads(self.output("json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) and answer.keys() >= ANSWER else None

    def in_the_way(self, formats: Iterable[str]) -> Path | None:
        """A file in the place of one of these outputs that is not surely this program's."""
        there = [name for name in formats if os.path.lexists(self.output(name))]
        if not there:
            return None
        answer = self.kept_answer()
        texts = {} if answer is None else _output(answer)
        for name in there:
            path = self.output(name)
            known = answer is not None if name == "json" else _says(path, texts.get(name))
            if not known:
                return path
        return None

    def remove_outdated(self, answer: dict[str, Any], keep: Path | None) -> None:
        """Remove what is surely this program's now, and would not be beside the JSON file of this
        answer; `keep` is no such file, whatever it says.
        """
        new, old = _output(answer), _output(self.kept_answer() or {})
        for name in FORMATS:
            path = self.output(name)
            outdated = old.get(name) != new.get(name) and _says(path, old.get(name))
            if outdated and (keep is None or path.resolve() != keep.resolve()):
                path.unlink(missing_ok=True)


def find_recordings(named: Sequence[Path], output: Path | None) -> list[Recording]:
    """The files named and those in the folders named, each once, in order.

    Outputs stand beside a file, or under `output` as the file stands under the folder that was
    named. Where two would share a name, theirs keep the recordings' endings. Raises Failed for what
    does not exist, or holds none.
    """
    found: dict[Path, tuple[Path, Path]] = {}  # by the folder that it is in, however it was named
    for path in named:
        if not path.exists():
            raise Failed(f"{path}: there is no such file or folder")
        top = path if path.is_dir() else path.parent
        if not (files := list(_files(path))):
            raise Failed(f"{path}: there is no recording in it")
        for file in files:
            folder = file.parent if output is None else output / file.parent.relative_to(top)
            found.setdefault(file.parent.resolve() / file.name, (file, folder))
    stems = Counter((folder.resolve(), file.stem) for file, folder in found.values())
    return [
        Recording(file, folder / fitting(file.stem if alone else file.name))
        for file, folder in found.values()
        for alone in [stems[folder.resolve(), file.stem] == 1]
    ]


def fitting(name: str) -> str:
    """The name, or one that leaves room for an ending: its begin and a digest of it."""
    data = os.fsencode(name)
    if len(data) <= LONGEST_STEM:
        return name
    digest = sha256(data).hexdigest()[:16]
    return f"{data[: LONGEST_STEM - 17].decode(errors='ignore')}-{digest}"


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if ENDING.fullmatch(file.suffix) and not hidden and file.is_file():
            yield file


def left_out(named: Sequence[Path]) -> list[Path]:
    """The files in the folders named that are not taken for recordings and may be some: whose names
    are neither an output's nor those of texts, pictures, documents.
    """
    folders = [path for path in named if path.is_dir()]
    return [
        file
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not ENDING.fullmatch(file.suffix)
        and file.suffix.removeprefix(".").lower() not in FORMATS
        and (guess_type(file.name)[0] or "audio/").startswith(("audio/", "video/"))
        and file.is_file()
    ]


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


def write_outputs(
    recording: Recording,
    answer: dict[str, Any],
    formats: Sequence[str],
    keep: Path | None = None,
) -> None:
    """Write every format, each at once; first JSON, which tells whose the others are. Outputs of
    the answer that it replaces are removed before, but not the file `keep`. Raises Failed, OSError.
    """
    texts = as_texts(answer, formats)
    recording.stem.parent.mkdir(parents=True, exist_ok=True)
    if "json" in texts:
        recording.remove_outdated(answer, keep)
    for name in sorted(texts, key=lambda each: each != "json"):
        _write(recording.output(name), texts[name])


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does for a recording: `write` the formats that are missing, `from_kept` answer, or
    all after hearing it. The answer is read when it is written: those of all recordings are too
    much for the memory.
    """

    recording: Recording
    write: Sequence[str]
    from_kept: bool = False

    @property
    def hears(self) -> bool:
        """Whether the recording has to be heard."""
        return not self.from_kept and bool(self.write)

    def write_kept(self) -> None:
        """Write the formats from the kept answer. Raises Failed, OSError, ValueError."""
        answer = self.recording.kept_answer()
        if answer is None:
            raise Failed(f"{self.recording.output('json')}: was changed meanwhile")
        write_outputs(self.recording, answer, self.write)


def needed_work(recording: Recording, formats: Sequence[str], anew: bool) -> Work:
    """What is to be done where nothing but `formats` is wanted; `anew` all of it."""
    if not anew and recording.is_done(formats):
        return Work(recording, ())
    if not anew and recording.is_done(["json"]):
        answer = recording.kept_answer() or {}
        missing = [name for name in formats if not recording.is_done([name])]
        if answer and all(isinstance(_output(answer).get(name), str) for name in missing):
            return Work(recording, missing, from_kept=True)
    return Work(recording, formats)


def refuse_to_overwrite(works: Iterable[Work], way_out: str) -> None:
    """Raises InTheWay, which ends with the `way_out`, for a file that may be somebody's own."""
    for each in works:
        if path := each.recording.in_the_way(each.write):
            raise InTheWay(f"{path}: is there already, and maybe not from this program; {way_out}")


def _output(answer: dict[str, Any]) -> dict[str, str]:
    output = answer.get("output")
    return output if isinstance(output, dict) else {}


def _says(path: Path, text: object) -> bool:
    """Whether the file has this text."""
    try:
        return isinstance(text, str) and path.read_bytes() == text.encode(errors="surrogatepass")
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    """Write a file that is either whole or not there. Its other name is no longer than its own may
    be.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
