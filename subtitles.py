"""A transcript as a file: subtitles (srt, vtt), tables (tsv, rttm) and plain text.

The one decision: a subtitle is made from words, not from chunks, so that it is never longer on the screen or in letters
than a reader can take, never holds two speakers, and starts and ends with speech. The limits are those that most style
guides share (Netflix's "Timed Text Style Guide": 42 characters a line, two lines, 5/6 of a second to 7 seconds).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from transcript import Chunk, SpeakerSegment, SpeakerTurn, Word

LINE_WIDTH, LINES = 42, 2
LEAST_SECONDS, MOST_SECONDS = 5 / 6, 7.0
PAUSE = 1.0  # seconds without speech after which a subtitle is cleared
SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")  # noqa: RUF001  # full-width marks are meant
RECORDING = "audio"  # what rttm calls the file, which has no name here


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the formats draw on, times in seconds: chunks and segments with their words, and the speaker turns."""

    chunks: Sequence[Chunk]
    segments: Sequence[SpeakerSegment] = ()
    turns: Sequence[SpeakerTurn] = ()

    @property
    def passages(self) -> list[SpeakerSegment]:
        """What is read at a stretch: segments by speaker, or the chunks where nobody was told apart."""
        unnamed = [SpeakerSegment(None, chunk.text, chunk.start, chunk.end, chunk.words) for chunk in self.chunks]
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
    """The transcript as text in `form`, one of FORMS: every word once, in order, with its speaker."""
    return FORMS[form](rendering)


def cues(words: Iterable[Word], named: bool) -> list[Cue]:
    """Subtitles for `words` in order of time, within the limits above; none overlaps another.

    `named` begins each with its speaker's name.
    """
    found: list[Cue] = []
    groups = list(_groups(_pieces(words), named))
    starts = [*(group[0].start for group in groups), float("inf")]
    for group, latest in zip(groups, starts[1:], strict=True):
        start = max(group[0].start, found[-1].end if found else 0.0)
        # A short one stays a little longer, but leaves before the next one comes.
        spoken = min(group[-1].end, start + MOST_SECONDS)
        end = max(spoken, min(start + LEAST_SECONDS, latest), start + 0.001)
        found.append(Cue(group[0].speaker, _lines(group, named), start, end))
    return found


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
    splits = [(_text(group[:place], named), _text(group[place:], False)) for place in range(1, len(group))]
    return min(splits, key=lambda pair: max(map(width, pair)))


def _pieces(words: Iterable[Word]) -> Iterator[Word]:
    """The words; one wider than half a line is cut into pieces that share its time by letters."""
    for word in words:
        letters = word.text.strip()
        parts = [letters[at : at + LINE_WIDTH // 4] for at in range(0, len(letters), LINE_WIDTH // 4)]
        if width(letters) <= LINE_WIDTH // 2:
            parts = [letters] if letters else []
        step = (word.end - word.start) / max(1, len(parts))
        for number, part in enumerate(parts):
            start = word.start + number * step
            yield Word(part if number else _space(word) + part, start, start + step, word.speaker)


def _space(word: Word) -> str:
    return word.text[: len(word.text) - len(word.text.lstrip())]


def _text(words: Sequence[Word], named: bool) -> str:
    """The words on one line; no line break within, and nothing that a player takes for a time line."""
    name = f"{words[0].speaker}: " if named and words[0].speaker else ""
    return name + _plain("".join(word.text for word in words))


def _plain(text: str) -> str:
    return " ".join(text.replace("-->", "->").split())


def width(text: str) -> int:
    """Columns of `text` on the screen: ideographs and the like take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _whole(passage: SpeakerSegment) -> Word:
    return Word(passage.text, passage.start, passage.end, passage.speaker)


def _srt(rendering: Rendering) -> str:
    blocks = [
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n" + "\n".join(cue.lines) + "\n"
        for number, cue in enumerate(cues(rendering.words, named=True), 1)
    ]
    return "\n".join(blocks)


def _vtt(rendering: Rendering) -> str:
    blocks = ["WEBVTT\n"]
    for cue in cues(rendering.words, named=False):
        voice = f"<v {_escaped(cue.speaker)}>" if cue.speaker else ""
        text = "\n".join(_escaped(line) for line in cue.lines)
        blocks.append(f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{voice}{text}\n")
    return "\n".join(blocks)


def _tsv(rendering: Rendering) -> str:
    """Milliseconds and text as openai/whisper writes them, and the speaker behind."""
    rows = [
        f"{_milliseconds(passage.start)}\t{_milliseconds(passage.end)}\t{_plain(passage.text)}\t{passage.speaker or ''}"
        for passage in rendering.passages
    ]
    return "".join(f"{row}\n" for row in ("start\tend\ttext\tspeaker", *rows))


def _rttm(rendering: Rendering) -> str:
    """NIST's Rich Transcription Time Marked: the turns, overlapped ones included."""
    return "".join(
        f"SPEAKER {RECORDING} 1 {turn.start:.3f} {turn.end - turn.start:.3f} <NA> <NA> {turn.speaker} <NA> <NA>\n"
        for turn in rendering.turns
    )


def _txt(rendering: Rendering) -> str:
    return "".join(
        f"{passage.speaker}: {_plain(passage.text)}\n" if passage.speaker else f"{_plain(passage.text)}\n"
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


FORMS: dict[str, Callable[[Rendering], str]] = {"srt": _srt, "vtt": _vtt, "tsv": _tsv, "rttm": _rttm, "txt": _txt}
