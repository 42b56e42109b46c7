"""A transcript as a file: subtitles (SRT, VTT), tables (TSV, RTTM) and plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from answer.cues import (
    DEFAULT_LAYOUT,
    Cue,
    Layout,
    make_cues,
    name_prefix,
    on_one_line,
    segment_starts,
)
from transcript import Chunk, SpeakerSegment, SpeakerTurn, Word, by_channel

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
    layout: Layout = DEFAULT_LAYOUT

    @property
    def blocks(self) -> list[SpeakerSegment]:
        """The segments by speaker or, without any, the chunks as segments of no speaker."""
        if self.segments:
            return list(self.segments)
        return [
            SpeakerSegment(
                None, chunk.text, chunk.start, chunk.end, chunk.words, channel=chunk.channel
            )
            for chunk in self.chunks
        ]

    @property
    def words(self) -> list[Word]:
        """All words; a block without word times counts as one word."""
        words: list[Word] = []
        for block in self.blocks:
            words += block.words or (Word(block.text, block.start, block.end, block.speaker),)
        return words

    @property
    def channels(self) -> list[Rendering]:
        """The same of each channel alone, without turns."""
        chunks, segments = by_channel(self.chunks), by_channel(self.segments)
        return [
            replace(self, chunks=chunks[each], segments=segments[each], turns=())
            for each in dict.fromkeys([*chunks, *segments])
        ]

    def cues(self, named: bool) -> list[Cue]:
        """All words as subtitles, by their starts; those of one channel never overlap. With
        `named`, their texts begin with the speaker's name.
        """
        named = named and self.layout.speakers
        cues = [
            cue
            for each in self.channels
            for cue in make_cues(
                each.words,
                named,
                each.duration,
                each.layout,
                segment_starts(chunk.text for chunk in each.chunks),
            )
        ]
        return sorted(cues, key=lambda cue: cue.start)


def render(name: str, rendering: Rendering) -> str:
    """The transcript in the format `name`, a key of FORMATS: every word once, in order."""
    return FORMATS[name](rendering)


def _srt(rendering: Rendering) -> str:
    """SubRip, which has no escapes.

    Players take `<b>` for a tag, `{...}` and backslashes for SubStation codes, and `-->` for a line
    of times. VLC decodes `&lt;`; MPC-HC and pysubs2 print it. So these characters are replaced by
    similar ones of the same width.
    """
    blocks = []
    shown = _shown(rendering, True, lambda text: text.translate(SRT_LOOKALIKES))
    for number, (start, end, _, text) in enumerate(shown, 1):
        blocks.append(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n")
    return "\n".join(blocks)


def _vtt(rendering: Rendering) -> str:
    """WebVTT with voice tags; escapes keep text from being read as tags or as a line of times."""
    blocks = ["WEBVTT\n"]
    for start, end, speaker, text in _shown(rendering, False, _escape):
        voice = f"<v {_escape(speaker)}>" if speaker and rendering.layout.speakers else ""
        blocks.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{voice}{text}\n")
    return "\n".join(blocks)


def _shown(
    rendering: Rendering, named: bool, escape: Callable[[str], str]
) -> list[tuple[int, int, str | None, str]]:
    """Each text that is on the screen for a while: from and to which millisecond, and whose it is.

    A cue is one text or, where words are highlighted, one for each word and pause in it. They are
    in order of their starts: those of channels that speak at once alternate.
    """
    shown: list[tuple[int, int, str | None, str]] = []
    for cue in rendering.cues(named):
        spans: Iterator[tuple[int, int, int | None]]
        spans = iter([(_milliseconds(cue.start), _milliseconds(cue.end), None)])
        if rendering.layout.highlight_words:
            spans = _moments(cue)
        shown += (
            (start, end, cue.speaker, _cue_text(cue, spoken, escape))
            for start, end, spoken in spans
        )
    return sorted(shown, key=lambda text: text[0])


def _moments(cue: Cue) -> Iterator[tuple[int, int, int | None]]:
    """From and to which millisecond each word of a cue is spoken, and between them none."""
    first, last = _milliseconds(cue.start), _milliseconds(cue.end)
    now = first
    for place, word in enumerate(word for line in cue.words for word in line):
        start = min(max(now, _milliseconds(word.start)), last)
        end = min(max(start, _milliseconds(word.end)), last)
        if start == end:
            continue
        if start > now:
            yield now, start, None
        yield start, end, place
        now = end
    if now < last or now == first:
        yield now, last, None


def _cue_text(cue: Cue, spoken: int | None, escape: Callable[[str], str]) -> str:
    """The lines of a cue, in which the word at the place `spoken` is underlined."""
    lines: list[str] = []
    place = 0
    for line in cue.words:
        text = ""
        for word in line:
            said = escape(word.text)
            bare = said.strip()
            text += said.replace(bare, f"<u>{bare}</u>", 1) if place == spoken else said
            place += 1
        lines.append(escape(name_prefix(line[0], cue.named and not lines)) + on_one_line(text))
    return "\n".join(lines)


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
    line = on_one_line(text)
    return f"'{line}" if line.startswith(FORMULA_BEGINNINGS) else line


def _rttm(rendering: Rendering) -> str:
    """NIST's Rich Transcription Time Marked: all speaker turns, overlapping ones too.

    Its fields end at spaces, so that names have underscores there.
    """
    lines = []
    for turn in rendering.turns:
        times = f"{turn.start:.3f} {turn.end - turn.start:.3f}"
        name = "_".join(turn.speaker.split())
        channel = (turn.channel or 0) + 1  # counted from 1, says NIST
        lines.append(f"SPEAKER {RECORDING} {channel} {times} <NA> <NA> {name} <NA> <NA>\n")
    return "".join(lines)


def _txt(rendering: Rendering) -> str:
    """A line for each block, after its speaker's name if known."""
    lines = []
    for block in rendering.blocks:
        name = f"{block.speaker}: " if block.speaker else ""
        lines.append(f"{name}{on_one_line(block.text)}\n")
    return "".join(lines)


def _clock(time: int, separator: str) -> str:
    """Hours, minutes, seconds and, after `separator`, milliseconds of so many: 00:01:02,345."""
    rest, milliseconds = divmod(time, 1000)
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
