"""Finds the recordings of a command line, and writes the files of each.

A run may be interrupted and started again: a file is written under another name and then renamed,
so existing files are complete. The JSON file with the answer is always written. It describes its
recording and how it was made (`answer.kept`), so the next run knows which recordings are done.

Files of the same names may be the user's own, for example the texts of a data set. A file is
overwritten only if the JSON file beside it is an answer and keeps the same text. Therefore the
files of an answer are removed before its JSON file is replaced.
"""

from __future__ import annotations

import json
import os
import secrets
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from whosaid.answer import kept
from whosaid.audio import ENDING
from whosaid.transcribe.client import Failed
from whosaid.transcribe.options import FORMATS
from whosaid.transcribe.speaker_names import with_speaker_names

# Bytes of a name without its ending: file systems take 255, and ".json" is the longest of FORMATS.
LONGEST_STEM = 250
# Keys of every answer.
ANSWER = frozenset(("text", "chunks", "speakers", "duration"))


class InTheWay(Failed):
    """An existing file at an output's path may be the user's own."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A file, and the path of its outputs without their ending."""

    path: Path
    stem: Path

    @property
    def name(self) -> str:
        """Return the file's name; a replacement character stands for a byte that is not UTF-8."""
        return os.fsencode(self.path.name).decode(errors="replace")

    def output(self, name: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{name}")

    def kept_answer(self) -> dict[str, Any] | None:
        """Return the answer in the JSON file; None if there is no such file or answer."""
        try:
            answer = json.loads(self.output("json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        ours = isinstance(answer, dict) and ("made_with" in answer or answer.keys() >= ANSWER)
        return answer if ours else None

    def described(self, data: bytes) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": len(data),
            "modified": self.path.stat().st_mtime_ns,
            "sha256": sha256(data).hexdigest(),
            "path_sha256": self.path_digest,
        }

    def is_of(self, answer: dict[str, Any]) -> bool:
        """Return whether the answer is for this recording in its current state. Raises OSError."""
        status = self.path.stat()
        return kept.is_of(
            answer, status.st_size, status.st_mtime_ns, self.is_place_of(answer), self._digest
        )

    def is_place_of(self, answer: dict[str, Any]) -> bool:
        """Return whether the answer is of a recording at this path, changed or not. Answers beside
        the recording are if they have its name, because folders are moved; so are answers that tell
        no path.
        """
        told = answer.get("recording")
        told = told if isinstance(told, dict) else {}
        if self.stem.parent == self.path.parent:
            return told.get("name") in (None, self.name)
        return told.get("path_sha256") in (None, self.path_digest)

    @property
    def path_digest(self) -> str:
        return kept.path_digest(str(self.path.parent.resolve() / self.path.name))

    def _digest(self) -> str:
        with self.path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()

    def in_the_way(self, formats: Iterable[str]) -> Path | None:
        """Return an existing file at an output's path that may be the user's own."""
        there = [name for name in formats if os.path.lexists(self.output(name))]
        if not there:
            return None
        answer = self.kept_answer()
        texts = {} if answer is None else _output(answer)
        known = {"json"} if answer is not None else set()
        known |= {name for name in there if _says(self.output(name), texts.get(name))}
        return next((self.output(name) for name in there if name not in known), None)

    def remove_outdated(self, answer: dict[str, Any], keep: Path | None) -> list[str]:
        """Remove our files that differ from this answer's, but not `keep`; return their formats."""
        new, old = _output(answer), _output(self.kept_answer() or {})
        removed = []
        for name in FORMATS:
            path = self.output(name)
            outdated = old.get(name) != new.get(name) and _says(path, old.get(name))
            if outdated and (keep is None or path.resolve() != keep.resolve()):
                path.unlink(missing_ok=True)
                removed.append(name)
        return removed


def find_recordings(named: Sequence[Path], output: Path | None) -> list[Recording]:
    """Return the named files and those in the named folders, each once, in order.

    Outputs stand beside a file or, under `output`, at the file's path below the common folder of
    all names. Recordings with outputs of one name keep their endings. Raises Failed for a name that
    does not exist, and for a folder without recordings or one that cannot be read.
    """
    found: dict[Path, tuple[Path, Path]] = {}  # with the folder for outputs, by resolved folder
    tops = []
    for path in named:
        if not path.exists():
            raise Failed(f"{path}: there is no such file or folder")
        named_folder = path if path.is_dir() else path.parent
        tops.append(named_folder.resolve())
        files = [path]
        if path.is_dir():
            files = [each for each in _visible(path) if ENDING.fullmatch(each.suffix)]
        if not files:
            raise Failed(f"{path}: has no recordings")
        for file in files:
            below = tops[-1] / file.parent.relative_to(named_folder)
            found.setdefault(file.parent.resolve() / file.name, (file, below))
    top = Path(os.path.commonpath(tops))
    placed = [
        (file, file.parent if output is None else output / below.relative_to(top))
        for file, below in found.values()
    ]
    stems = Counter((folder.resolve(), _folded(file.stem)) for file, folder in placed)
    return [
        Recording(file, folder / fitting(file.stem if alone else file.name))
        for file, folder in placed
        for alone in [stems[folder.resolve(), _folded(file.stem)] == 1]
    ]


def refuse_collisions(recordings: Sequence[Recording], output: Path | None) -> None:
    """Raise InTheWay if an output is also another recording's, or would overwrite a recording.

    Names, and folders under `output`, differ only if they differ on file systems that ignore case.
    """

    def place(path: Path) -> tuple[str, str]:
        folder = str(path.parent.resolve())
        return folder if output is None else _folded(folder), _folded(path.name)

    writers: dict[tuple[str, str], Recording] = {}
    for each in recordings:
        for name in FORMATS:
            path = each.output(name)
            other = writers.setdefault(place(path), each)
            if other is not each:
                raise InTheWay(
                    f"{other.path} and {each.path}: both would write {path}; rename one of them,"
                    " or transcribe it in another run with another --output-dir"
                )
    for each in recordings:
        if writer := writers.get(place(each.path)):
            raise InTheWay(
                f"{each.path}: would be overwritten by an output of {writer.path}; --output-dir"
                " writes elsewhere"
            )


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def fitting(name: str) -> str:
    """Return the name, shortened by a digest if an ending would not fit."""
    data = os.fsencode(name)
    if len(data) <= LONGEST_STEM:
        return name
    digest = sha256(data).hexdigest()[:16]
    return f"{data[: LONGEST_STEM - 17].decode(errors='ignore')}-{digest}"


def _visible(folder: Path) -> list[Path]:
    """Return the files in a folder and below it that are not hidden, in order. Links are followed,
    but no folder is read twice. Raises Failed for a folder that cannot be read.
    """
    found: list[Path] = []
    read: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        folders.sort()
        folders[:] = [name for name in folders if not name.startswith(".")]
        if (real := os.path.realpath(place)) in read:
            folders.clear()
            continue
        read.add(real)
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _raise(error: OSError) -> None:
    raise Failed(f"{error.filename}: {error.strerror}") from error


def left_out(named: Sequence[Path]) -> list[Path]:
    """Return files in the named folders that may be recordings despite their names."""
    return [
        file
        for folder in named
        if folder.is_dir()
        for file in _visible(folder)
        if not ENDING.fullmatch(file.suffix)
        and file.suffix.removeprefix(".").lower() not in FORMATS
        and (guess_type(file.name)[0] or "audio/").startswith(("audio/", "video/"))
    ]


def asked_formats(formats: Sequence[str], speakers: bool) -> list[str]:
    """Return the `output` of a request: all formats, because the JSON file keeps them, except RTTM
    without `speakers`, unless it is one of `formats`.
    """
    always = [name for name in FORMATS if name != "rttm" or speakers]
    return [name for name in dict.fromkeys((*always, *formats)) if name != "json"]


def as_texts(answer: dict[str, Any], formats: Sequence[str]) -> dict[str, str]:
    texts = {"json": json.dumps(answer, indent=2, ensure_ascii=False) + "\n", **_output(answer)}
    if missing := [name for name in formats if name not in texts]:
        raise Failed(f"the server did not send {', '.join(missing)}")
    return {name: texts[name] for name in formats}


def write_outputs(
    recording: Recording,
    answer: dict[str, Any],
    formats: Sequence[str],
    keep: Path | None = None,
) -> None:
    """Write the JSON file, which identifies the other files as ours, and then every format.

    Outputs of a replaced answer, except `keep`, are removed first, and written again if this answer
    has them. Raises Failed, OSError.
    """
    texts = as_texts(answer, ["json", *formats, *_output(answer)])
    recording.stem.parent.mkdir(parents=True, exist_ok=True)
    outdated = recording.remove_outdated(answer, keep)
    for name in dict.fromkeys(("json", *formats, *outdated)):
        if name in texts:
            write_file(recording.output(name), texts[name])


def rename_speakers(recording: Recording, names: Mapping[str, str]) -> list[str]:
    """Rewrite a kept answer and its files with names in place of labels; return the warnings. A
    file without the answer's text is not changed. Raises Failed, OSError.
    """
    answer = recording.kept_answer()
    if answer is None or not recording.is_of(answer):
        return []
    texts, before = _output(answer), answer.get("warnings") or []
    ours = [name for name in FORMATS if _says(recording.output(name), texts.get(name))]
    renamed = with_speaker_names(answer, names)
    warnings = renamed.get("warnings") or []
    write_outputs(recording, {**renamed, "warnings": before}, ["json", *ours])
    return [each for each in warnings if each not in before]


@dataclass(frozen=True, slots=True)
class Work:
    """A run's work for a recording: `write` these formats, after transcription or from the kept
    answer. `why` is the reason to transcribe it again. `edited` files were edited by the user, and
    stay.

    Answers are read only when needed, because those of all recordings do not fit in memory.
    """

    recording: Recording
    write: Sequence[str]
    transcribes: bool = True
    why: str = ""
    edited: Sequence[Path] = ()

    def write_kept(self, request: kept.Request) -> None:
        """Write the formats from the kept answer. Raises Failed, OSError, ValueError."""
        answer = self.recording.kept_answer()
        laid_out = {} if answer is None else request.laid_out(answer, self.write)
        if _output(laid_out).keys() < {*self.write}:
            raise Failed(f"{self.recording.output('json')}: has changed meanwhile")
        write_outputs(self.recording, laid_out, self.write)


def needed_work(
    recording: Recording, request: kept.Request, formats: Sequence[str], anew: bool
) -> Work:
    """Return the work that gives the recording `formats` of the `request`; all of it if `anew`."""
    formats = [name for name in formats if name != "json"]
    answer = None if anew else recording.kept_answer()
    if answer is None:
        return Work(recording, ["json", *formats])
    why = request.why_not(answer)
    if not why and not recording.is_of(answer):
        why = kept.CHANGED
    if why:
        return Work(recording, ["json", *formats], why=why)
    texts, before = _output(request.laid_out(answer, formats)), _output(answer)
    if missing := [name for name in formats if name not in texts]:
        why = f"does not give {', '.join(missing)}"
        return Work(recording, ["json", *formats], why=why)
    there = [name for name in formats if os.path.lexists(recording.output(name))]
    others = [name for name in there if not _says(recording.output(name), texts[name])]
    edited = [recording.output(name) for name in others if texts[name] == before.get(name)]
    changed = [name for name in others if texts[name] != before.get(name)]
    write = [name for name in formats if name not in there or name in changed]
    return Work(recording, write, False, edited=edited)


def refuse_to_overwrite(works: Iterable[Work], way_out: str) -> None:
    """Raise InTheWay for a file that may be the user's own or answers another recording."""
    for each in works:
        recording = each.recording
        if path := recording.in_the_way(each.write):
            raise InTheWay(f"{path} exists and was not written by this program; {way_out}")
        answer = recording.kept_answer() if each.transcribes else None
        if answer and not recording.is_place_of(answer) and not recording.is_of(answer):
            told = answer["recording"]
            raise InTheWay(
                f"{recording.output('json')} is the answer to another recording, {told['name']},"
                f" and not to {recording.path}; {way_out}"
            )


def _output(answer: dict[str, Any]) -> dict[str, str]:
    output = answer.get("output")
    return output if isinstance(output, dict) else {}


def _says(path: Path, text: object) -> bool:
    try:
        return isinstance(text, str) and path.read_bytes() == text.encode(errors="surrogatepass")
    except OSError:
        return False


def write_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file atomically, through a temporary name that fits every file system."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(opened, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
