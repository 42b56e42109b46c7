"""Reads speakers and their turns in a client's text, as the formats `txt` and `md` write them.

    SPEAKER_00: Good morning.             [00:00:03] Katie: Good morning.
    **[00:00:03] Katie:** Good morning.   Katie: Good morning.

A line begins a turn if it begins with a time in brackets, a name and a colon, or both. A text has
turns if its first line begins one and, further, any line has a time or a label such as SPEAKER_00,
or there are several lines and all begin turns, or a name begins two lines. Other lines go on with
the turn before them. Without turns the whole text is speech.
"""

import re
from collections import Counter
from typing import NamedTuple

# Whisper's timestamps are no words.
TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
MOST_NAME_WORDS = 5
LABEL = re.compile(r"(SPEAKER|CHANNEL)_\d+(_SPEAKER_\d+)?")
LINE = re.compile(
    r"(?:(?P<time>\[(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d+)?\])\s*)?"
    r"(?:(?P<name>[^\s:\uff1a\[\]][^:\uff1a]{0,63}?)(?::(?=\s|$)|\uff1a))?\s*(?P<words>.*)"
)
BOLD = re.compile(r"\*\*((?:[^*\\]|\\.)+)\*\*\s*(.*)")
ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


class GivenTurn(NamedTuple):
    """Words of one speaker, who is None if the text does not name them."""

    speaker: str | None
    text: str


class _Line(NamedTuple):
    time: str | None
    name: str | None
    words: str

    @property
    def begins(self) -> bool:
        return bool(self.time or self.name)


def read_turns(text: str) -> tuple[GivenTurn, ...]:
    """Return the turns of a text, with single spaces; none if it is plain speech."""
    written = [each for each in TIMESTAMP.sub(" ", text).splitlines() if each.strip()]
    if len(written) > 1 and written[0].startswith("# ") and BOLD.match(written[1]):
        del written[0]  # Markdown's title
    lines = [*map(_read_line, written)]
    if not lines or not lines[0].begins or not _has_turns(lines):
        return ()
    turns: list[tuple[str | None, list[str]]] = []
    for line in lines:
        if line.begins:
            turns.append((line.name, []))
        turns[-1][1].extend(line.words.split())
    return tuple(GivenTurn(name, " ".join(words)) for name, words in turns)


def spoken_text(text: str) -> str:
    """Return the words of a text that are speech."""
    turns = read_turns(text)
    return "\n".join(turn.text for turn in turns) if turns else text


def _has_turns(lines: list[_Line]) -> bool:
    if any(line.time or LABEL.fullmatch(line.name or "") for line in lines):
        return True
    names = Counter(line.name for line in lines if line.begins)
    return len(lines) > 1 and (names.total() == len(lines) or max(names.values()) > 1)


def _read_line(line: str) -> _Line:
    line = line.strip()
    bold = BOLD.fullmatch(line)
    head, text = (ESCAPED.sub(r"\1", part) for part in bold.groups()) if bold else (line, "")
    found = LINE.fullmatch(head)
    if found is None or len((found["name"] or "").split()) > MOST_NAME_WORDS:
        return _Line(None, None, line)
    time, name, words = found.group("time", "name", "words")
    if bold and words:
        return _Line(None, None, line)
    return _Line(time, name and " ".join(name.split()), words or text)
