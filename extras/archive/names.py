"""Names the files of results: the recording's name, in the recording's folders.

`talks/monday.mp3` becomes `talks/monday.json`. If two names of a run are equal, both keep their
endings (`monday.mp3.json`), and names that are still equal get digests of what differs.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from extras.archive import storage
from extras.archive.manifest import Recording, digest
from extras.archive.options import FORMATS

# UTF-8 bytes of one part of a name; file systems allow 255, and temporary names need some of them.
LONGEST_PART = 150
# A folder named like a result's file could block that file.
LIKE_A_FILE = re.compile(rf".*\.({'|'.join(FORMATS)})", re.IGNORECASE | re.DOTALL)
# Digits of a digest or id after a name that is not unique.
DIGITS = 20


def name_results(recordings: Sequence[Recording], places: Sequence[str]) -> list[Recording]:
    """Return the recordings with names for their results, relative to the one of `places` that
    contains them. Names differ even if case is ignored.
    """
    parts = {each.id: _parts(each, places) for each in recordings}
    names = {
        id: "/".join((*folders, file.rpartition(".")[0] or file))
        for id, (*folders, file) in parts.items()
    }
    whole = {id: "/".join(each) for id, each in parts.items()}
    keys = {each.id: digest([each.path, each.parameters, each.name]) for each in recordings}
    for longer in (whole, {id: with_id(name, keys[id]) for id, name in whole.items()}):
        names = _lengthened(names, longer)
    return [replace(each, result=names[each.id]) for each in recordings]


def with_id(name: str, id: str) -> str:
    """Return the name of a result whose own name is taken."""
    return f"{name}-{id[-DIGITS:]}"


def _lengthened(names: Mapping[str, str], longer: Mapping[str, str]) -> dict[str, str]:
    """Return names by id; names that are not unique are replaced by the longer ones."""
    keys = {id: unicodedata.normalize("NFC", name).casefold() for id, name in names.items()}
    counts = Counter(keys.values())
    return {id: longer[id] if counts[keys[id]] > 1 else name for id, name in names.items()}


def _parts(recording: Recording, places: Sequence[str]) -> list[str]:
    """Return folders and file, valid on any file system; a user's name has no folder."""
    if recording.name is not None:
        return [f"{recording.name}.{digest([recording.path, recording.parameters])}"]
    below = [storage.parts_below(recording.path, place) for place in places]
    shortest = min((each for each in below if each), key=len, default=None)
    *folders, file = shortest or [storage.name_of(recording.path)]
    cleaned = [_clean(each) for each in folders if each]
    folders = [f"{each}_" if LIKE_A_FILE.fullmatch(each) else each for each in cleaned]
    return [*folders, _clean(file)]


def _clean(part: str) -> str:
    """Return a name without control characters and backslashes, not hidden, and not too long."""
    visible = "".join("_" if unicodedata.category(c) == "Cc" or c == "\\" else c for c in part)
    if visible.startswith("."):
        visible = f"_{visible[1:]}"
    return visible.encode()[:LONGEST_PART].decode(errors="ignore")
