"""A transcript as a file: subtitles (srt, vtt), tables (tsv, rttm) and plain text.

The one decision: a subtitle is made from words, not from chunks, so that it is never longer on the
screen or in letters than a reader can take and never holds two speakers. It comes with the speech
and goes with it, except that a short one is given time to be read: it stays longer, up to the next
one, and where the audio ends too soon for that it comes sooner. None is shown past the end of the
audio. The limits are those that most style guides share (Netflix's "Timed Text Style Guide": 42
characters a line, two lines, 5/6 of a second to 7 seconds).
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from transcript import Chunk, SpeakerSegment, SpeakerTurn, Word

LINE_WIDTH, LINES = 42, 2
LEAST_SECONDS, MOST_SECONDS = 5 / 6, 7.0
TICK = 0.001  # the shortest time that the formats can tell
PAUSE = 1.0  # seconds without speech after which a subtitle is cleared
SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")  # noqa: RUF001  # full-width marks are meant
RECORDING = "audio"  # what rttm calls the file, which has no name here
SRT_LOOKALIKES = str.maketrans("<>{}\\", "\u2039\u203a()\u2216")


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the formats draw on: chunks and segments with their words, and the speaker turns.

    Times are seconds within an audio of `duration`.
    """

    duration: float
    chunks: Sequence[Chunk]
    segments: Sequence[SpeakerSegment] = ()
    turns: Sequence[SpeakerTurn] = ()

    @property
    def passages(self) -> list[SpeakerSegment]:
        """What is read at a stretch: segments by speaker, or the chunks where nobody was told
        apart.
        """
        unnamed = [
            SpeakerSegment(None, chunk.text, chunk.start, chunk.end, chunk.words)
            for chunk in self.chunks
        ]
        return list(self.segments) or unnamed

    @property
    def words(self) -> list[Word]:
        """Every word; a passage whose words were not timed counts as one."""
        return [word for passage in self.passages for word in passage.words or (_whole(passage),)]


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle: its speaker where one is known, its lines, when it appears and when it goes."""

    speaker: str | None
    lines: tuple[str, ...]
    start: float
    end: float


def render(form: str, rendering: Rendering) -> str:
    """The transcript as text in `form`, one of FORMS: every word once, in order, with its
    speaker.
    """
    return FORMS[form](rendering)


def cues(words: Iterable[Word], named: bool, duration: float) -> list[Cue]:
    """Subtitles for `words` in order of time, within the limits above and an audio of `duration`
    seconds.

    `named` begins each with its speaker's name. Times are whole milliseconds and none overlaps
    another. Each has a millisecond at least, taken from those before it where the audio is over;
    audio too short for that is shared out.
    """
    found: list[Cue] = []
    groups = list(_groups(_pieces(words, named), named))
    tick = min(TICK, duration / max(1, len(groups)))
    wanted = [*_wanted(groups, duration), duration]
    for place, group in enumerate(groups):
        to_come = len(groups) - place - 1
        start = max(
            found[-1].end if found else 0.0, min(wanted[place], duration - (to_come + 1) * tick)
        )
        spoken = min(group[-1].end, start + MOST_SECONDS)
        end = max(start + tick, min(max(spoken, start + LEAST_SECONDS), wanted[place + 1]))
        found.append(
            Cue(
                group[0].speaker,
                _lines(group, named),
                start,
                min(round(end, 3), duration - to_come * tick),
            )
        )
    return found


def _wanted(groups: Sequence[Sequence[Word]], duration: float) -> list[float]:
    """When each should come: with its first word, or, where the audio would end before it is read,
    sooner.

    Those that begin at the very end share the time that the speech before them leaves.
    """
    starts = [group[0].start for group in groups]
    on_time = sum(start <= duration - LEAST_SECONDS for start in starts)
    late = starts[on_time:]
    cleared = (
        min(groups[on_time - 1][-1].end, starts[on_time - 1] + MOST_SECONDS, duration)
        if on_time
        else 0.0
    )
    share = min(LEAST_SECONDS, (duration - cleared) / max(1, len(late)))
    sooner = [
        min(start, duration - (len(late) - place) * share) for place, start in enumerate(late)
    ]
    return [round(start, 3) for start in (*starts[:on_time], *sooner)]


def _groups(words: Iterable[Word], named: bool) -> Iterator[list[Word]]:
    """Words that are shown together."""
    group: list[Word] = []
    for word in words:
        if group and (_parted(group, word) or len(_filled([*group, word], named)) > LINES):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _parted(group: Sequence[Word], word: Word) -> bool:
    """Whether `word` begins something new, or would keep the group too long on the screen."""
    before = group[-1]
    return (
        word.speaker != before.speaker
        or word.start - before.end > PAUSE
        or word.end - group[0].start > MOST_SECONDS
        or before.text.rstrip().endswith(SENTENCE_ENDS)
    )


def _filled(words: Sequence[Word], named: bool) -> list[str]:
    """Lines, each filled before the next is begun."""
    lines, begun = [], 0
    for place in range(1, len(words)):
        if width(_text(words[begun : place + 1], named and not begun)) > LINE_WIDTH:
            lines.append(_text(words[begun:place], named and not begun))
            begun = place
    return [*lines, _text(words[begun:], named and not begun)]


def _lines(group: Sequence[Word], named: bool) -> tuple[str, ...]:
    """One line, or two of widths as equal as the words allow."""
    filled = _filled(group, named)
    if len(filled) == 1:
        return tuple(filled)
    splits = [
        (_text(group[:place], named), _text(group[place:], False)) for place in range(1, len(group))
    ]
    return min(splits, key=lambda pair: max(map(width, pair)))


def _pieces(words: Iterable[Word], named: bool) -> Iterator[Word]:
    """The words, without empty ones; what a line does not hold is cut into pieces that share its
    time by letters.
    """
    for word in words:
        parts = _parts(word.text, LINE_WIDTH - width(_name(word, named)))
        seconds = (word.end - word.start) / max(1, sum(map(len, parts)))
        start = word.start
        for part in parts:
            end = start + len(part) * seconds
            yield replace(word, text=part, start=start, end=end)
            start = end


def _parts(text: str, room: int) -> list[str]:
    """`text` where it fits into `room` columns; else cut at its spaces, and inside only what is
    still too wide.

    A passage whose words were not timed comes as one text. A quarter of a line as a piece fills
    lines well.
    """
    if width(text.strip()) <= room:
        return [text] if text.strip() else []
    return [
        part
        for piece in re.findall(r"\s*\S+\s*", text)
        for part in (
            [piece]
            if width(piece.strip()) <= room
            else re.findall(rf"\s*\S{{1,{LINE_WIDTH // 4}}}\s*", piece)
        )
    ]


def _text(words: Sequence[Word], named: bool) -> str:
    """The words on one line, behind their speaker's name where it is wanted."""
    return _name(words[0], named) + _plain("".join(word.text for word in words))


def _name(word: Word, named: bool) -> str:
    return f"{word.speaker}: " if named and word.speaker else ""


def _plain(text: str) -> str:
    """`text` on one line: every format here gives line breaks and tabs a meaning of its own."""
    return " ".join(text.split())


def width(text: str) -> int:
    """Columns of `text` on the screen: ideographs and the like take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _whole(passage: SpeakerSegment) -> Word:
    return Word(passage.text, passage.start, passage.end, passage.speaker)


def _srt(rendering: Rendering) -> str:
    """SubRip, which has no escapes.

    Players take `<b>` for a tag, `{...}` and a backslash for SubStation's codes and `-->` for a
    time line. VLC undoes `&lt;`, MPC-HC and pysubs2 show it as it stands. So these characters
    become others that look like them, as wide.
    """
    blocks = [
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n"
        + "".join(f"{line.translate(SRT_LOOKALIKES)}\n" for line in cue.lines)
        for number, cue in enumerate(cues(rendering.words, True, rendering.duration), 1)
    ]
    return "\n".join(blocks)


def _vtt(rendering: Rendering) -> str:
    """WebVTT with voices; its escapes keep text from being read as tags or as a time line."""
    blocks = ["WEBVTT\n"]
    for cue in cues(rendering.words, False, rendering.duration):
        voice = f"<v {_escaped(cue.speaker)}>" if cue.speaker else ""
        text = "\n".join(_escaped(line) for line in cue.lines)
        blocks.append(f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{voice}{text}\n")
    return "\n".join(blocks)


def _tsv(rendering: Rendering) -> str:
    """Milliseconds and text as openai/whisper writes them, and the speaker behind; quoted for csv
    readers.
    """
    file = io.StringIO()
    rows = csv.writer(file, delimiter="\t", lineterminator="\n")
    rows.writerow(("start", "end", "text", "speaker"))
    for passage in rendering.passages:
        times = (_milliseconds(passage.start), _milliseconds(passage.end))
        rows.writerow((*times, _plain(passage.text), passage.speaker or ""))
    return file.getvalue()


def _rttm(rendering: Rendering) -> str:
    """NIST's Rich Transcription Time Marked: the turns, overlapped ones included."""
    return "".join(
        f"SPEAKER {RECORDING} 1 {turn.start:.3f} {turn.end - turn.start:.3f} <NA> <NA> {turn.speaker} <NA> <NA>\n"
        for turn in rendering.turns
    )


def _txt(rendering: Rendering) -> str:
    return "".join(
        f"{passage.speaker}: {_plain(passage.text)}\n"
        if passage.speaker
        else f"{_plain(passage.text)}\n"
        for passage in rendering.passages
    )


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds; `point` stands before the last."""
    rest, thousandths = divmod(_milliseconds(seconds), 1000)
    minutes, seconds_left = divmod(rest, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds_left:02d}{point}{thousandths:03d}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


FORMS: dict[str, Callable[[Rendering], str]] = {
    "srt": _srt,
    "vtt": _vtt,
    "tsv": _tsv,
    "rttm": _rttm,
    "txt": _txt,
}
