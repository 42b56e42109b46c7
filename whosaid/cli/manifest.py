"""A manifest lists recordings: JSON lines with an object for each, or one JSON list of them.

The extras and the benchmarks read the same form, and each uses the fields that it needs
(extras/archive/README.md).
"""

import json
from collections.abc import Iterator
from typing import Any

from whosaid.cli.parser import did_you_mean

EXAMPLE = '{"path": "talk.wav", "text": "what is said", "parameters": {"language": "de"}}'
HELP = (
    f"A manifest has a line {EXAMPLE} for each recording, or is one JSON list of such objects. Only"
    " the path is required; extras/archive/README.md has the other fields."
)
# `audio` means `path`, and `language` means `parameters.language`.
FIELDS = (
    *("path", "audio", "text", "reference", "language", "parameters", "name"),
    *("id", "size", "modified", "duration", "block"),
)


def read_manifest(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (position, fields) of each recording; a position is `line 3`, in a list `entry 3`.

    Every recording has a `path`. A language is in its `parameters`, which are left out if empty.
    Raises ValueError that begins with the position and tells what to write.
    """
    if text.lstrip().startswith("["):
        for number, entry in enumerate(_decoded(text, "line {}"), 1):
            yield (place := f"entry {number}"), _fields(place, entry)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield (place := f"line {number}"), _fields(place, _decoded(line, place))


def _decoded(text: str, place: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = place.format(getattr(error, "lineno", 1))
        told = f"{where}: is not JSON; write a line {EXAMPLE} for each recording, or one JSON list"
        raise ValueError(told) from error


def _fields(place: str, entry: object) -> dict[str, Any]:
    fields = dict(entry) if isinstance(entry, dict) else {}
    if "audio" in fields and "path" not in fields:
        fields["path"] = fields.pop("audio")
    if not isinstance(fields.get("path"), str):
        raise ValueError(f'{place}: should be an object with a "path", such as {EXAMPLE}')
    if unknown := [key for key in fields if key not in FIELDS or key == "audio"]:
        nearest = did_you_mean(unknown[0], FIELDS)
        raise ValueError(f"{place}: {unknown[0][:40]!a} is none of {', '.join(FIELDS)}{nearest}")
    for name in ("text", "reference", "language"):
        if not isinstance(fields.get(name), str | None):
            raise ValueError(f"{place}: {name}: should be text, such as in {EXAMPLE}")
    language, parameters = fields.pop("language", None), fields.pop("parameters", None) or {}
    if not isinstance(parameters, dict):
        raise ValueError(f"{place}: parameters: should be a JSON object, such as in {EXAMPLE}")
    if language:
        parameters = {"language": language, **parameters}
    return fields | ({"parameters": parameters} if parameters else {})
