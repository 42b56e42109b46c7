"""Renames speakers of an existing answer: `--speaker-names SPEAKER_00=Anna`.

Names replace the labels in the answer and its files, without a new transcription. Characters that a
format cannot hold are replaced as in `answer.subtitles`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from html import escape
from typing import Any

from whosaid.answer.subtitles import FORMULA_BEGINNINGS, SRT_LOOKALIKES


def with_speaker_names(answer: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer with labels replaced by `names`, which maps labels to names.

    If `names` has an unknown label, a warning lists the existing ones.
    """
    channels = answer.get("channels") or ()
    there = dict.fromkeys([*labels(answer), *(each["name"] for each in channels)])
    renamed: dict[str, Any] = in_objects(dict(answer), names)
    if channels:
        renamed["channels"] = [
            each | {"name": names.get(each["name"], each["name"])} for each in channels
        ]
    if voices := answer.get("voices"):
        renamed["voices"] = {names.get(label, label): each for label, each in voices.items()}
    if names and (output := answer.get("output")):
        renamed["output"] = {name: _in_file(name, text, names) for name, text in output.items()}
    if warnings := warnings_of(names, there):
        renamed["warnings"] = [*(renamed.get("warnings") or ()), *warnings]
    return renamed


def warnings_of(names: Mapping[str, str], there: Collection[str]) -> list[str]:
    """Return a warning if a key of `names` is not among the labels `there`."""
    missing = [label for label in names if label not in there]
    instead = f"the speakers are {', '.join(there)}" if there else "no speaker was found"
    return [f"--speaker-names: no {', '.join(missing)}; {instead}"] if missing else []


def labels(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield every `speaker` in a JSON value, with repetitions."""
    if isinstance(value, list):
        for each in value:
            yield from labels(each)
    elif isinstance(value, dict):
        if isinstance(label := value.get("speaker"), str):
            yield label
        for each in value.values():
            yield from labels(each)


def in_objects(value: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401
    """Return a JSON value with other names under every `speaker`."""
    if isinstance(value, list):
        return [in_objects(each, names) for each in value]
    if not names or not isinstance(value, dict):
        return value
    changed = {key: in_objects(each, names) for key, each in value.items()}
    if isinstance(label := value.get("speaker"), str):
        changed["speaker"] = names.get(label, label)
    return changed


def _in_file(format: str, text: str, names: Mapping[str, str]) -> str:
    if format == "tsv":
        return _in_table(text, names)
    if format not in PLACES:
        return text
    before, written, after = PLACES[format]
    shown = {written(label): written(name) for label, name in names.items()}
    labels = "|".join(re.escape(label) for label in sorted(shown, key=len, reverse=True))
    return re.sub(
        rf"(?m)({before})({labels})(?={after})", lambda found: found[1] + shown[found[2]], text
    )


def _in_table(text: str, names: Mapping[str, str]) -> str:
    """Rename in TSV from `answer.subtitles`, which has the speaker in the last column."""
    shown = {_cell(label): _cell(name) for label, name in names.items()}
    file = io.StringIO()
    rows = csv.writer(file, delimiter="\t", lineterminator="\n")
    for *others, speaker in csv.reader(io.StringIO(text), delimiter="\t"):
        rows.writerow((*others, shown.get(speaker, speaker)))
    return file.getvalue()


def _cell(name: str) -> str:
    return f"'{name}" if name.startswith(FORMULA_BEGINNINGS) else name


# For each format, patterns for the text before and after a label, and a function that escapes a
# name.
PLACES: dict[str, tuple[str, Callable[[str], str], str]] = {
    "txt": ("^", str, ": "),
    "srt": (r"^[\d:,]+ --> [\d:,]+\n", lambda name: name.translate(SRT_LOOKALIKES), ": "),
    "vtt": ("^<v ", lambda name: escape(name, quote=False), ">"),
    "rttm": (r"^SPEAKER(?: \S+){6} ", lambda name: "_".join(name.split()), " "),
}
