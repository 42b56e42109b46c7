"""A transcript as a file: subtitles (SRT, VTT), tables (TSV, RTTM) and plain text.

A cue (one subtitle) is made from words, not from chunks, so that its text is never too wide, its
time never too long, and its speaker always one. It appears with its first word and disappears with
its last. A short one stays longer to be read, up to the next cue; where the audio ends too soon for
that it appears earlier. No cue lasts beyond the audio. The limits are common to most style guides
(Netflix's "Timed Text Style Guide": 42 characters a line, two lines, 5/6 of a second to 7 seconds).
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from transcript import Chunk, SpeakerSegment, SpeakerTurn, Word

MAX_COLUMNS, MAX_LINES = 42, 2
MIN_SECONDS, MAX_SECONDS = 5 / 6, 7.0
TICK = 0.001  # seconds; the resolution of SRT and VTT
MAX_PAUSE = 1.0  # seconds without speech after which a new cue begins
SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")  # noqa: RUF001  # full-width marks are meant
RECORDING = "audio"  # the file name in RTTM, as the recording has none here
# With these a cell begins that a spreadsheet computes, those of full width in some languages.
FORMULA_BEGINNINGS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
SRT_LOOKALIKES = str.maketrans("<>{}\\", "\u2039\u203a()\u2216")


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the formats are made from; times are seconds within an audio of `duration`."""

    duration: float
    chunks: Sequence[Chunk]
    segments: Sequence[SpeakerSegment] = ()
    turns: Sequence[SpeakerTurn] = ()

    @property
    def blocks(self) -> list[SpeakerSegment]:
        """The segments by speaker or, without any, the chunks as segments of no speaker."""
        if self.segments:
            return list(self.segments)
        return [
            SpeakerSegment(None, chunk.text, chunk.start, chunk.end, chunk.words)
            for chunk in self.chunks
        ]

    @property
    def words(self) -> list[Word]:
        """All words; a block without word times counts as one word."""
        words: list[Word] = []
        for block in self.blocks:
            words += block.words or (Word(block.text, block.start, block.end, block.speaker),)
        return words


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle: its speaker where known, its lines, and when it appears and disappears."""

    speaker: str | None
    lines: tuple[str, ...]
    start: float
    end: float


def render(name: str, rendering: Rendering) -> str:
    """The transcript in the format `name`, a key of FORMATS: every word once, in order."""
    return FORMATS[name](rendering)


def make_cues(words: Iterable[Word], named: bool, duration: float) -> list[Cue]:
    """Make cues of `words` (in order of time) within the limits above and `duration` seconds.

    With `named`, a cue begins with its speaker's name. Times are whole milliseconds, and cues never
    overlap. Each lasts a millisecond at least: where the audio ends, earlier cues are shortened for
    that, and if all of it is too short, cues share it equally.
    """
    groups = list(_group_words(_split_words(words, named), named))
    tick = min(TICK, duration / max(1, len(groups)))
    starts = [*_start_times(groups, duration), duration]
    made: list[Cue] = []
    for index, group in enumerate(groups):
        following = len(groups) - index - 1
        previous_end = made[-1].end if made else 0.0
        start = max(previous_end, min(starts[index], duration - (following + 1) * tick))
        spoken_until = min(group[-1].end, start + MAX_SECONDS)
        read_until = max(spoken_until, start + MIN_SECONDS)
        end = max(start + tick, min(read_until, starts[index + 1]))
        end = min(round(end, 3), duration - following * tick)
        made.append(Cue(group[0].speaker, _break_lines(group, named), start, end))
    return made


def _start_times(groups: Sequence[Sequence[Word]], duration: float) -> list[float]:
    """When each cue should appear: with its first word, or earlier if the audio ends too soon.

    The cues that begin less than MIN_SECONDS before the end share the time between the end of the
    speech before them and the end of the audio.
    """
    starts = [group[0].start for group in groups]
    on_time = sum(start <= duration - MIN_SECONDS for start in starts)
    late = starts[on_time:]
    speech_end = 0.0
    if on_time:
        speech_end = min(groups[on_time - 1][-1].end, starts[on_time - 1] + MAX_SECONDS, duration)
    share = min(MIN_SECONDS, (duration - speech_end) / max(1, len(late)))
    earlier = [
        min(start, duration - (len(late) - index) * share) for index, start in enumerate(late)
    ]
    return [round(start, 3) for start in (*starts[:on_time], *earlier)]


def _group_words(words: Iterable[Word], named: bool) -> Iterator[list[Word]]:
    """Group the words that share a cue."""
    group: list[Word] = []
    for word in words:
        if group and (
            _begins_cue(group, word) or len(_fill_lines([*group, word], named)) > MAX_LINES
        ):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _begins_cue(group: Sequence[Word], word: Word) -> bool:
    """Whether `word` must not join `group`: another speaker, a pause, a sentence, or too long."""
    before = group[-1]
    return (
        word.speaker != before.speaker
        or word.start - before.end > MAX_PAUSE
        or word.end - group[0].start > MAX_SECONDS
        or before.text.rstrip().endswith(SENTENCE_ENDS)
    )


def _fill_lines(words: Sequence[Word], named: bool) -> list[str]:
    """Break words into lines of at most MAX_COLUMNS, each as full as possible."""
    lines: list[str] = []
    first = 0
    for index in range(1, len(words)):
        name_line = named and first == 0
        if display_width(_join(words[first : index + 1], name_line)) > MAX_COLUMNS:
            lines.append(_join(words[first:index], name_line))
            first = index
    return [*lines, _join(words[first:], named and first == 0)]


def _break_lines(group: Sequence[Word], named: bool) -> tuple[str, ...]:
    """One line if the words fit, else the two lines whose wider one is narrowest."""
    lines = _fill_lines(group, named)
    if len(lines) == 1:
        return tuple(lines)
    splits = [
        (_join(group[:index], named), _join(group[index:], False)) for index in range(1, len(group))
    ]
    return min(splits, key=lambda split: max(map(display_width, split)))


def _split_words(words: Iterable[Word], named: bool) -> Iterator[Word]:
    """The words without empty ones; those too wide for a line become several.

    The parts of a word share its time in proportion to their letters.
    """
    for word in words:
        parts = _split_text(word.text, MAX_COLUMNS - display_width(_name_prefix(word, named)))
        seconds_per_letter = (word.end - word.start) / max(1, sum(map(len, parts)))
        start = word.start
        for part in parts:
            end = start + len(part) * seconds_per_letter
            yield replace(word, text=part, start=start, end=end)
            start = end


def _split_text(text: str, columns: int) -> list[str]:
    """`text` if it fits `columns`; else split at spaces, and within what is still too wide.

    Blocks without word times come as one long text. Parts of a quarter line fill lines well.
    """
    if display_width(text.strip()) <= columns:
        return [text] if text.strip() else []
    parts: list[str] = []
    for part in re.findall(r"\s*\S+\s*", text):
        if display_width(part.strip()) <= columns:
            parts.append(part)
        else:
            parts += re.findall(rf"\s*\S{{1,{MAX_COLUMNS // 4}}}\s*", part)
    return parts


def _join(words: Sequence[Word], named: bool) -> str:
    """The words on one line, after their speaker's name if `named`."""
    return _name_prefix(words[0], named) + _on_one_line("".join(word.text for word in words))


def _name_prefix(word: Word, named: bool) -> str:
    return f"{word.speaker}: " if named and word.speaker else ""


def _on_one_line(text: str) -> str:
    """Replace line breaks and tabs, which have a meaning in every format here, by spaces."""
    return " ".join(text.split())


def display_width(text: str) -> int:
    """Columns of `text` on the screen; East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _srt(rendering: Rendering) -> str:
    """SubRip, which has no escapes.

    Players take `<b>` for a tag, `{...}` and backslashes for SubStation codes, and `-->` for a line
    of times. VLC decodes `&lt;`; MPC-HC and pysubs2 print it. So these characters are replaced by
    similar ones of the same width.
    """
    blocks = []
    for number, cue in enumerate(make_cues(rendering.words, True, rendering.duration), 1):
        times = f"{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}"
        text = "\n".join(cue.lines).translate(SRT_LOOKALIKES)
        blocks.append(f"{number}\n{times}\n{text}\n")
    return "\n".join(blocks)


def _vtt(rendering: Rendering) -> str:
    """WebVTT with voice tags; escapes keep text from being read as tags or as a line of times."""
    blocks = ["WEBVTT\n"]
    for cue in make_cues(rendering.words, False, rendering.duration):
        voice = f"<v {_escape(cue.speaker)}>" if cue.speaker else ""
        text = "\n".join(_escape(line) for line in cue.lines)
        blocks.append(f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{voice}{text}\n")
    return "\n".join(blocks)


def _tsv(rendering: Rendering) -> str:
    """The columns of openai/whisper (start and end in milliseconds, text), then the speaker.

    Fields are quoted where CSV readers need it. Spreadsheets open such files and would compute what
    was said, or a speaker's name; an apostrophe in front keeps it text (OWASP's "CSV Injection").
    """
    file = io.StringIO()
    rows = csv.writer(file, delimiter="\t", lineterminator="\n")
    rows.writerow(("start", "end", "text", "speaker"))
    for block in rendering.blocks:
        times = (_milliseconds(block.start), _milliseconds(block.end))
        rows.writerow((*times, _cell(block.text), _cell(block.speaker or "")))
    return file.getvalue()


def _cell(text: str) -> str:
    line = _on_one_line(text)
    return f"'{line}" if line.startswith(FORMULA_BEGINNINGS) else line


def _rttm(rendering: Rendering) -> str:
    """NIST's Rich Transcription Time Marked: all speaker turns, overlapping ones too.

    Its fields end at spaces, so that names have underscores there.
    """
    lines = []
    for turn in rendering.turns:
        times = f"{turn.start:.3f} {turn.end - turn.start:.3f}"
        name = "_".join(turn.speaker.split())
        lines.append(f"SPEAKER {RECORDING} 1 {times} <NA> <NA> {name} <NA> <NA>\n")
    return "".join(lines)


def _txt(rendering: Rendering) -> str:
    """A line for each block, after its speaker's name if known."""
    lines = []
    for block in rendering.blocks:
        name = f"{block.speaker}: " if block.speaker else ""
        lines.append(f"{name}{_on_one_line(block.text)}\n")
    return "".join(lines)


def _clock(seconds: float, separator: str) -> str:
    """Hours, minutes, seconds and, after `separator`, milliseconds: 00:01:02,345."""
    rest, milliseconds = divmod(_milliseconds(seconds), 1000)
    minutes, seconds_left = divmod(rest, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds_left:02d}{separator}{milliseconds:03d}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


FORMATS: dict[str, Callable[[Rendering], str]] = {
    "srt": _srt,
    "vtt": _vtt,
    "tsv": _tsv,
    "rttm": _rttm,
    "txt": _txt,
}
