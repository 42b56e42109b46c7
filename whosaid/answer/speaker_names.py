"""Renames speakers of an existing answer: `--speaker-names SPEAKER_00=Anna`, or `Anna,Bob` in the
order in which they first speak.

The answer's `speaker_names` keeps which label got which name. Characters that a format cannot hold
are replaced as in `answer.subtitles`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from whosaid.answer import kept
from whosaid.answer.rendering import as_field
from whosaid.answer.subtitles import SRT_LOOKALIKES

# Pairs of a label, or "" for the next speaker, and a name.
Names = Sequence[tuple[str, str]]
BY_LABEL = "speaker_names"  # the key of an answer's names
NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


def names_by_label(names: Names, there: Collection[str]) -> dict[str, str]:
    """Return names by label. Names without a label go to the labels `there`, in order."""
    nameless = [name for label, name in names if not label]
    order = [*there, *(f"speaker {n + 1}" for n in range(len(there), len(nameless)))]
    return dict(zip(order, nameless, strict=False)) | {key: name for key, name in names if key}


def name_speakers(
    answer: Mapping[str, Any], names: Names, parameters: Mapping[str, Any] = NO_PARAMETERS
) -> dict[str, Any]:
    """Return the answer to a request with `parameters`, with names. A label that got a name before
    stands for it, unless another label has that name too.
    """
    shown, now = speakers_of(answer), dict[str, str]()
    before: dict[str, str] = answer.get(BY_LABEL) or {each: each for each in shown}
    given = names_by_label(names, shown)
    for label, name in given.items():
        called = label if label in shown else before.get(label, label)
        same = {given.get(each) for each, other in before.items() if other == called}
        now[label if same - {name} else called] = name
    renamed = with_speaker_names(answer, now, parameters)
    if given and before:
        renamed[BY_LABEL] = {label: now.get(called, called) for label, called in before.items()}
    return renamed


def speakers_of(answer: Mapping[str, Any]) -> dict[str, None]:
    """Return the answer's speakers, in the order in which they first speak, and channels."""
    channels = [each["name"] for each in answer.get("channels") or ()]
    return dict.fromkeys([*labels(answer.get("speakers")), *labels(answer), *channels])


def with_speaker_names(
    answer: Mapping[str, Any],
    names: Mapping[str, str],
    parameters: Mapping[str, Any] = NO_PARAMETERS,
) -> dict[str, Any]:
    """Return the answer with labels replaced by `names`, which maps labels to names.

    If `names` has an unknown label, a warning lists the existing ones.
    """
    channels = answer.get("channels") or ()
    there = speakers_of(answer)
    renamed: dict[str, Any] = in_objects(dict(answer), names)
    if channels:
        renamed["channels"] = [
            each | {"name": names.get(each["name"], each["name"])} for each in channels
        ]
    if voices := answer.get("voices"):
        renamed["voices"] = {names.get(label, label): each for label, each in voices.items()}
    if names and (output := answer.get("output")):
        texts = kept.rendered(renamed, output.keys(), kept.layout_of(parameters))
        left = PLACES.keys() & output.keys() - texts.keys()
        patched = {name: _in_file(name, output[name], names) for name in left}
        renamed["output"] = {**output, **patched, **texts}
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
    if isinstance(value, dict) and isinstance(label := value.get("speaker"), str):
        yield label
    for each in value.values() if isinstance(value, dict) else value or ():
        if isinstance(each, dict | list):
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
    before, written, after = PLACES[format]
    shown = {written(label): written(name) for label, name in names.items()}
    labels = "|".join(re.escape(label) for label in sorted(shown, key=len, reverse=True))
    return re.sub(
        rf"(?m)({before})({labels})(?={after})", lambda found: found[1] + shown[found[2]], text
    )


# For each format that an answer may not suffice to make, patterns for the text before and after a
# label, and a function that escapes a name.
PLACES: dict[str, tuple[str, Callable[[str], str], str]] = {
    "srt": (r"^[\d:,]+ --> [\d:,]+\n", lambda name: name.translate(SRT_LOOKALIKES), ": "),
    "vtt": ("^<v ", lambda name: escape(name, quote=False), ">"),
    "rttm": (r"^SPEAKER(?: \S+){6} ", as_field, " "),
}
