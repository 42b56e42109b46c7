"""Finds the recordings of a command line, and writes the files of each.

A run may be interrupted and started again: a file is written under another name and then renamed,
so existing files are complete. The JSON file with the answer is always written. It describes its
recording and how it was made (`answer.kept`), so the next run knows which recordings are done.

Files of the same names may be the user's own, for example the texts of a data set. A file is
overwritten only if the JSON file beside it is an answer and keeps the same text. Therefore the
files of an answer are removed before its JSON file is replaced.
"""

import json
import os
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from itertools import chain, combinations
from mimetypes import guess_type
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whosaid.answer import kept
from whosaid.answer.formats import file_bytes
from whosaid.answer.speaker_names import BY_LABEL, Names, name_speakers
from whosaid.audio import ENDING
from whosaid.runtime.files import write_file
from whosaid.transcribe.client import Failed
from whosaid.transcribe.options import FORMATS, STANDARD_INPUT

# Bytes of a name without its ending: file systems take 255, and ".json" is the longest of FORMATS.
LONGEST_STEM = 250
# Bytes of a file's beginning that tell video from source code, which has no zero bytes: packets of
# MPEG-TS, even if they are empty, have a sync byte every 188, 192 or 204 bytes.
BEGINNING = 8192
MPEG_TS = re.compile(rb"(?s)(G.{187}){5}|(G.{191}){5}|(G.{203}){5}")
# The ending of the file that keeps what an interrupted run has decoded (`transcribe.partial`).
PARTIAL = "partial.jsonl"
# Keys of every answer.
ANSWER = frozenset(("text", "chunks", "speakers", "duration"))


class InTheWay(Failed):
    """An existing file at an output's path may be the user's own."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A file, and its outputs' path without ending; `piped` is standard input's content (`-`).
    `others` are the files of other speakers in the same conversation.
    """

    path: Path
    stem: Path
    piped: bytes | None = None
    others: tuple[Path, ...] = ()

    @property
    def place(self) -> Path:
        return self.stem.parent.resolve() / self.stem.name

    @property
    def size_and_time(self) -> tuple[int, int]:
        """Return the bytes, and the time of change in nanoseconds; 0 if there is none."""
        if self.piped is not None:
            return len(self.piped), 0
        statuses = [path.stat() for path in (self.path, *self.others)]
        return sum(each.st_size for each in statuses), max(each.st_mtime_ns for each in statuses)

    def read(self) -> list[bytes]:
        if self.piped is not None:
            return [self.piped]
        return [path.read_bytes() for path in (self.path, *self.others)]

    @property
    def name(self) -> str:
        """Return the file's name; a replacement character stands for a byte that is not UTF-8."""
        return os.fsencode(self.path.name).decode(errors="replace")

    def output(self, name: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{name}")

    def check_folder(self) -> None:
        """Raise Failed if outputs cannot be written, before hours of work."""
        folder = next(each for each in self.stem.absolute().parents if each.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Failed(f"{folder}: is read-only; --output-dir writes elsewhere")

    def kept_answer(self) -> dict[str, Any] | None:
        """Return the answer in the JSON file; None if there is no such file or answer."""
        try:
            answer = json.loads(self.output("json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        ours = isinstance(answer, dict) and ("made_with" in answer or answer.keys() >= ANSWER)
        return answer if ours else None

    def described(self, files: Iterable[bytes]) -> dict[str, Any]:
        size, digest = 0, sha256()
        for data in files:
            size += len(data)
            digest.update(data)
        others = {"others": [each.name for each in self.others]} if self.others else {}
        return {
            "name": self.name,
            **others,
            "size": size,
            "modified": self.size_and_time[1],
            "sha256": digest.hexdigest(),
            "path_sha256": self.path_digest,
        }

    def is_of(self, answer: dict[str, Any]) -> bool:
        """Return whether the answer is for this recording in its current state. Raises OSError."""
        return kept.is_of(answer, *self.size_and_time, self.is_place_of(answer), self._digest)

    def is_place_of(self, answer: dict[str, Any]) -> bool:
        """Return whether the answer is of a recording at this path, changed or not. Answers beside
        the recording are if they have its name, because folders are moved; so are answers that tell
        no path.
        """
        told = answer.get("recording")
        told = told if isinstance(told, dict) else {}
        others = [each.name for each in self.others]
        if self.piped is not None or told.get("others", others) != others:
            return False
        if self.stem.parent == self.path.parent:
            return told.get("name") in (None, self.name)
        return told.get("path_sha256") in (None, self.path_digest)

    @property
    def path_digest(self) -> str:
        return kept.path_digest(str(self.path.parent.resolve() / self.path.name))

    def _digest(self) -> str:
        if self.piped is not None:
            return sha256(self.piped).hexdigest()
        digest = sha256()
        for path in (self.path, *self.others):
            with path.open("rb") as file:
                file_digest(file, lambda: digest)
        return digest.hexdigest()

    def in_the_way(self, formats: Iterable[str]) -> list[str]:
        """Return the formats whose output may be the user's own file."""
        there = [name for name in formats if os.path.lexists(self.output(name))]
        if not there:
            return []
        answer = self.kept_answer()
        texts, known = ({}, set()) if answer is None else (_output(answer), {"json"})
        known |= {name for name in there if _says(self.output(name), texts.get(name))}
        return [name for name in there if name not in known]

    def corrected(self, again: bool) -> Path | None:
        """Return the TXT file, among the outputs or beside the recording, whose text the answer
        does not have; `again` also one that the answer was made with.
        """
        if self.piped is not None:
            return None
        path, answer = self.output("txt"), self.kept_answer() or {}
        if path.exists() and not _says(path, _output(answer).get("txt")):
            return path
        beside = replace(self, stem=self.path.with_name(self.stem.name))
        found = None if beside.stem == self.stem else beside.corrected(again=True)
        return found or (path if again and path.exists() and kept.is_corrected(answer) else None)

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


def find_recordings(
    named: Sequence[Path], output: Path | None, tracks: Sequence[Path] | None = None
) -> list[Recording]:
    """Return the named files and those in the named folders, each once, in order. Outputs stand
    beside a file or, at its path below a named folder, under `output`; if two files would share
    outputs there, at their paths below the common folder of all names. Recordings with outputs of
    one name keep their endings, unless one has its answer without. `tracks` are files of one
    recording. Raises Failed for a name that does not exist, and for a folder without recordings or
    one that cannot be read.
    """
    # The file, the folder for outputs below `output`, and the file's folder; by resolved path.
    found: dict[Path, tuple[Path, Path, Path]] = {}
    tops, piped = [], []
    for path in named:
        if path == STANDARD_INPUT:
            piped.append(Recording(path, (output or Path()) / "stdin", _standard_input()))
            continue
        if _is_broken(path):
            continue  # `unreadable` names it
        if not path.exists():
            raise Failed(f"{path}: there is no such file or folder")
        named_folder = path if path.is_dir() else path.parent
        tops.append(named_folder.resolve())
        files = [path]
        if path.is_dir():
            files = [each for each in _visible(path) if each.is_file() and _is_recording(each)]
        if not files:
            raise Failed(f"{path}: has no recordings")
        for file in files:
            below = file.parent.relative_to(named_folder)
            found.setdefault(file.parent.resolve() / file.name, (file, below, tops[-1] / below))
    sources: dict[str, set[Path]] = defaultdict(set)
    for file, below, folder in found.values():
        sources[_folded(str(below / file.stem))].add(folder)
    placed = []
    for file, below, folder in found.values():
        if len(sources[_folded(str(below / file.stem))]) > 1:
            below = folder.relative_to(os.path.commonpath(tops))
        placed.append((file, file.parent if output is None else output / below))
    stems = Counter((folder.resolve(), _folded(file.stem)) for file, folder in placed)
    recordings = [
        short
        if stems[folder.resolve(), _folded(file.stem)] == 1
        or ("recording" in (answer := short.kept_answer() or {}) and short.is_place_of(answer))
        else replace(short, stem=folder / fitting(file.name))
        for file, folder in placed
        for short in [Recording(file, folder / fitting(file.stem))]
    ]
    if tracks:
        if missing := [path for path in tracks if not path.is_file()]:
            raise Failed(f"{missing[0]}: there is no such file")
        recordings = [replace(each, others=tuple(tracks[1:])) for each in recordings]
    return recordings + piped


def _standard_input() -> bytes:
    """Read standard input, without Python's reader, whose lock a daemon thread must not hold."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
        return file.read()


def collisions(recordings: Sequence[Recording]) -> dict[Path, str]:
    """Return, by path, why recordings cannot have outputs: they would share or overwrite files."""
    reasons: dict[Path, str] = {}
    alike: dict[str, list[Recording]] = defaultdict(list)
    for each in recordings:
        alike[_folded(str(each.place))].append(each)
    for pair in chain.from_iterable(combinations(group, 2) for group in alike.values()):
        if _is_one_file(*(each.place for each in pair)):
            for each, other in (pair, pair[::-1]):
                told = f"{other.path} would have the same outputs, {each.output('json')}"
                reasons[each.path] = f"{told}; another --output-dir for one of them avoids that"
    files = {each.path.resolve(): each.path for each in recordings}
    for each in recordings:
        for name in FORMATS:
            if overwritten := files.get(each.output(name).resolve()):
                told = f"its output would overwrite the recording {overwritten}"
                reasons[each.path] = f"{told}; --output-dir writes elsewhere"
    return reasons


def _is_one_file(first: Path, second: Path) -> bool:
    """Return whether the file system takes the paths, which differ at most by case or Unicode form,
    for one. If it cannot be asked in a temporary folder, outputs cannot be written either.
    """
    if first == second:
        return True
    common = Path(os.path.commonpath((first, second)))
    there = next(each for each in (common, *common.parents) if each.is_dir())
    with suppress(OSError), TemporaryDirectory(prefix=".", dir=there) as folder:
        one, other = (Path(folder, each.relative_to(there)) for each in (first, second))
        one.mkdir(parents=True)
        return other.exists()
    return False


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
    """Return what is in a folder and below it, but no folders and nothing hidden, in order. Links
    are followed, but no folder is read twice. Raises Failed for a folder that cannot be read.
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
    return sorted(found)


def _is_recording(file: Path) -> bool:
    """Return whether a file's name is a recording's, and not that of source code in TypeScript."""
    if file.suffix.lower() not in (".ts", ".mts"):
        return ENDING.fullmatch(file.suffix) is not None
    try:
        with file.open("rb") as opened:
            beginning = opened.read(BEGINNING)
    except OSError:  # shown when it is transcribed
        return True
    return b"\0" in beginning or bool(MPEG_TS.search(beginning) and not beginning.isascii())


def _raise(error: OSError) -> None:
    raise Failed(f"{error.filename}: {error.strerror}") from error


def left_out(named: Sequence[Path]) -> list[Path]:
    """Return files in the named folders that may be recordings despite their names."""
    return [
        file
        for file in _in_folders(named)
        if file.is_file()
        and not ENDING.fullmatch(file.suffix)
        and file.suffix.removeprefix(".").lower() not in FORMATS
        and not file.name.endswith(f".{PARTIAL}")
        and (guess_type(file.name)[0] or "audio/").startswith(("audio/", "video/"))
    ]


def unreadable(named: Sequence[Path]) -> list[str]:
    """Return lines about broken links, and what else has a recording's name but is no file."""
    inside = [each for each in _in_folders(named) if ENDING.fullmatch(each.suffix)]
    return [
        f"{path}: {'is a link to a file that does not exist' if _is_broken(path) else 'is no file'}"
        for path in [*filter(_is_broken, named), *inside]
        if _is_broken(path) or not path.is_file()
    ]


def _is_broken(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _in_folders(named: Sequence[Path]) -> list[Path]:
    return [path for folder in named if folder.is_dir() for path in _visible(folder)]


def asked_formats(formats: Sequence[str], speakers: bool) -> list[str]:
    """Return the `output` of a request: all formats, because the JSON file keeps them, except
    documents, and except RTTM without `speakers`, unless it is one of `formats`.
    """
    always = [name for name in FORMATS if name != "rttm" or speakers]
    return requested(dict.fromkeys((*always, *formats)))


def requested(formats: Iterable[str]) -> list[str]:
    """Return the formats that the endpoint makes; the others follow from its answer."""
    return [name for name in formats if name != "json" and name not in kept.DOCUMENTS]


def as_texts(answer: dict[str, Any], formats: Sequence[str]) -> dict[str, str]:
    texts = {"json": json.dumps(answer, indent=2, ensure_ascii=False) + "\n", **_output(answer)}
    if missing := [name for name in formats if name not in texts]:
        raise Failed(f"the server did not send {', '.join(missing)}")
    return {name: texts[name] for name in formats}


def write_outputs(
    recording: Recording, answer: dict[str, Any], formats: Sequence[str], keep: Path | None = None
) -> None:
    """Write the JSON file, which identifies the other files as ours, and then every format. First
    remove the outputs, except `keep`, of a replaced answer. Raises Failed, OSError.
    """
    texts = as_texts(answer, ["json", *formats, *_output(answer)])
    recording.stem.parent.mkdir(parents=True, exist_ok=True)
    outdated = recording.remove_outdated(answer, keep)
    for name in dict.fromkeys(("json", *formats, *outdated)):
        if name in texts:
            write_file(recording.output(name), file_bytes(name, texts[name]))


def rename_speakers(recording: Recording, names: Names) -> tuple[int, list[str]]:
    """Rewrite a kept answer and its files with names in place of labels; return the number of files
    and the warnings. A file without the answer's text is not changed. Raises Failed, OSError.
    """
    answer = recording.kept_answer()
    if answer is None or not recording.is_of(answer):
        return 0, []
    texts, before = _output(answer), answer.get("warnings") or []
    ours = [name for name in FORMATS if _says(recording.output(name), texts.get(name))]
    made = answer.get("made_with") or {}
    renamed = name_speakers(answer, names, made.get("parameters") or {})
    warnings = [each for each in renamed.get("warnings") or () if each not in before]
    renamed["warnings"] = before
    if {**renamed, BY_LABEL: None} == {**answer, "warnings": before, BY_LABEL: None}:
        return 0, warnings
    write_outputs(recording, renamed, ["json", *ours])
    return 1 + len(ours), warnings


@dataclass(frozen=True, slots=True)
class RecordingWork:
    """A run's work for a recording: `write` these formats, after transcription or from the kept
    answer. `why` is the reason to transcribe it again. `edited` files were edited by the user, and
    stay. `spared` has a line for every file that cannot be overwritten. `text` is the file with the
    user's text, which stays.

    Answers are read only when needed, because those of all recordings do not fit in memory.
    """

    recording: Recording
    write: Sequence[str]
    transcribes: bool = True
    why: str = ""
    edited: Sequence[Path] = ()
    spared: Sequence[str] = ()
    text: Path | None = None

    @property
    def is_refused(self) -> bool:
        return self.transcribes and not self.write

    def write_kept(self, request: kept.RunRequest) -> None:
        """Write the formats from the kept answer. Raises Failed, OSError, ValueError."""
        answer = self.recording.kept_answer()
        laid_out = {} if answer is None else request.laid_out(answer, self.write)
        if _output(laid_out).keys() < {*self.write}:
            raise Failed(
                f"{self.recording.output('json')}: was changed by another program during this run"
            )
        write_outputs(self.recording, laid_out, self.write)


def needed_work(
    recording: Recording, request: kept.RunRequest, formats: Sequence[str], anew: bool
) -> RecordingWork:
    """Return the work that gives the recording `formats` of the `request`; all of it if `anew`."""
    formats = [name for name in formats if name != "json"]
    answer = None if anew else recording.kept_answer()
    if answer is None:
        return RecordingWork(recording, ["json", *formats])
    why = request.why_not(answer)
    if not why and not recording.is_of(answer):
        why = kept.CHANGED
    if why and kept.is_corrected(answer) and request.parameters.get("text") is None:
        told = f"{recording.output('json')}: holds your text, and {why}; --force writes another"
        return RecordingWork(recording, [], spared=[told])
    if why:
        return RecordingWork(recording, ["json", *formats], why=why)
    texts, before = _output(request.laid_out(answer, formats)), _output(answer)
    if missing := [name for name in formats if name not in texts]:
        why = f"does not give {', '.join(missing)}"
        return RecordingWork(recording, ["json", *formats], why=why)
    there = [name for name in formats if os.path.lexists(recording.output(name))]
    others = [name for name in there if not _says(recording.output(name), texts[name])]
    edited = [recording.output(name) for name in others if texts[name] == before.get(name)]
    changed = [name for name in others if texts[name] != before.get(name)]
    write = [name for name in formats if name not in there or name in changed]
    return RecordingWork(recording, write, False, edited=edited)


def sparing(work: RecordingWork, way_out: str) -> RecordingWork:
    """Return the work without files that may be the user's or another recording's answer."""
    recording = work.recording
    if work.is_refused:
        return work
    own = recording.in_the_way(work.write)
    spared = [f"{recording.output(name)}: its text is not this program's" for name in own]
    answer = recording.kept_answer() if work.transcribes else None
    if answer and not recording.is_place_of(answer) and not recording.is_of(answer):
        of = answer.get("recording") or {"name": "which it does not name"}
        told = ", ".join(("is the answer to another recording", of["name"], *of.get("others", ())))
        told = f"{told}, and not to {recording.path}" if recording.piped is None else told
        own, spared = ["json"], [f"{recording.output('json')}: {told}"]
    write = [] if "json" in own else [name for name in work.write if name not in own]
    return replace(work, write=write, spared=[f"{each}; {way_out}" for each in spared])


def _output(answer: dict[str, Any]) -> dict[str, str]:
    output = answer.get("output")
    return output if isinstance(output, dict) else {}


def _says(path: Path, text: object) -> bool:
    try:
        return isinstance(text, str) and path.read_bytes() == file_bytes(path.suffix[1:], text)
    except (OSError, ValueError):
        return False
