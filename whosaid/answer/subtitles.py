"""Renders an answer as a file: subtitles (SRT, VTT), tables (TSV, RTTM) and plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from config import InferenceConfig
from whosaid.answer.cues import Cue, make_cues, name_prefix, on_one_line, segment_starts
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Word, by_voice

RECORDING = "audio"  # the recording's name in RTTM
# A spreadsheet evaluates cells that begin with these characters; in some languages, full-width too.
FORMULA_BEGINNINGS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
SRT_LOOKALIKES = str.maketrans("<>{}\\", "\u2039\u203a()\u2216")


@dataclass(frozen=True, slots=True)
class Rendering:
    """The content of all formats; times are seconds, within `duration`. `layout` are the parameters
    of a request.
    """

    duration: float
    chunks: Sequence[Chunk]
    segments: Sequence[SpeakerSegment] = ()
    turns: Sequence[SpeakerTurn] = ()
    layout: InferenceConfig = field(default_factory=InferenceConfig)

    @property
    def blocks(self) -> list[SpeakerSegment]:
        """Return the speakers' segments; without any, the chunks as segments without a speaker."""
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
        """Return all words; a block without word times is one Word."""
        words: list[Word] = []
        for block in self.blocks:
            words += block.words or (Word(block.text, block.start, block.end, block.speaker),)
        return words

    @property
    def voices(self) -> list[Rendering]:
        """Return one rendering for each channel and voice, without turns."""
        segments = by_voice(self.segments)
        return [
            replace(
                self,
                chunks=[_spoken_by(voice, each) for each in self.chunks if each.channel == channel],
                segments=segments.get((channel, voice), ()),
                turns=(),
            )
            for channel, voice in [*segments] or [*by_voice(self.chunks)]
        ]

    def cues(self, named: bool) -> list[Cue]:
        """Return the cues of all words, sorted by start; cues of one voice never overlap.

        With `named`, texts begin with the speaker's name if the layout shows names.
        """
        named = named and self.layout.subtitle_speakers
        cues = [
            cue
            for each in self.voices
            for cue in make_cues(
                each.words,
                named,
                each.duration,
                each.layout,
                segment_starts(chunk.text for chunk in each.chunks),
            )
        ]
        return sorted(cues, key=lambda cue: cue.start)


def _spoken_by(voice: str | None, chunk: Chunk) -> Chunk:
    """Return the chunk with the words of a voice, or with all words if voices do not overlap."""
    if voice is None:
        return chunk
    words = tuple(word for word in chunk.words if (word.speaker or "") == voice)
    return replace(chunk, words=words, text="".join(word.text for word in words))


def _srt(rendering: Rendering) -> str:
    """Render SubRip, which has no escapes.

    Players read `<b>` as a tag, `{...}` and backslashes as SubStation codes, and `-->` as a line of
    times. VLC decodes `&lt;`; MPC-HC and pysubs2 print it. So these characters are replaced by
    similar ones of the same width.
    """
    blocks = []
    shown = _shown(rendering, True, lambda text: text.translate(SRT_LOOKALIKES))
    for number, (start, end, _, text) in enumerate(shown, 1):
        blocks.append(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n")
    return "\n".join(blocks)


def _vtt(rendering: Rendering) -> str:
    """Render WebVTT with voice tags; escapes keep players from taking text for tags or times."""
    blocks = ["WEBVTT\n"]
    for start, end, speaker, text in _shown(rendering, False, _escape):
        voice = f"<v {_escape(speaker)}>" if speaker and rendering.layout.subtitle_speakers else ""
        blocks.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{voice}{text}\n")
    return "\n".join(blocks)


def _shown(
    rendering: Rendering, named: bool, escape: Callable[[str], str]
) -> list[tuple[int, int, str | None, str]]:
    """Return (first millisecond, last, speaker, text) of each text on the screen, by start.

    A cue is one text or, if words are highlighted, one text for each word and pause. Texts of
    channels that speak at once alternate.
    """
    shown: list[tuple[int, int, str | None, str]] = []
    for cue in rendering.cues(named):
        shown += (
            (start, end, cue.speaker, _cue_text(cue, spoken, escape))
            for start, end, spoken in _moments(cue, rendering.layout.highlight_words)
        )
    return sorted(shown, key=lambda text: text[0])


def _moments(cue: Cue, by_word: bool) -> Iterator[tuple[int, int, int | None]]:
    """Yield (first ms, last ms, index) of the words of a cue; the index of a pause is None. The cue
    is one pause unless `by_word`.
    """
    first, last = _milliseconds(cue.start), _milliseconds(cue.end)
    now = first
    words = [word for line in cue.words for word in line] if by_word else []
    for index, word in enumerate(words):
        start = min(max(now, _milliseconds(word.start)), last)
        end = min(max(start, _milliseconds(word.end)), last)
        if start == end:
            continue
        if start > now:
            yield now, start, None
        yield start, end, index
        now = end
    if now < last or now == first:
        yield now, last, None


def _cue_text(cue: Cue, spoken: int | None, escape: Callable[[str], str]) -> str:
    """Return the lines of a cue, with the word at index `spoken` underlined."""
    lines: list[str] = []
    index = 0
    for line in cue.words:
        text = ""
        for word in line:
            escaped = escape(word.text)
            bare = escaped.strip()
            text += escaped.replace(bare, f"<u>{bare}</u>", 1) if index == spoken else escaped
            index += 1
        lines.append(escape(name_prefix(line[0], cue.named and not lines)) + on_one_line(text))
    return "\n".join(lines)


def _tsv(rendering: Rendering) -> str:
    """Render the columns of openai/whisper (start and end in milliseconds, text) and the speaker.

    A cell that a spreadsheet would compute begins with an apostrophe (OWASP's "CSV Injection").
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
    """Render all speaker turns as NIST's Rich Transcription Time Marked.

    Fields end at spaces, so names have underscores instead.
    """
    lines = []
    for turn in rendering.turns:
        times = f"{turn.start:.3f} {turn.end - turn.start:.3f}"
        name = "_".join(turn.speaker.split())
        channel = (turn.channel or 0) + 1  # NIST counts from 1
        lines.append(f"SPEAKER {RECORDING} {channel} {times} <NA> <NA> {name} <NA> <NA>\n")
    return "".join(lines)


def _txt(rendering: Rendering) -> str:
    """Render each block as a line, which begins with the speaker's name if it is known."""
    lines = []
    for block in rendering.blocks:
        name = f"{block.speaker}: " if block.speaker else ""
        lines.append(f"{name}{on_one_line(block.text)}\n")
    return "".join(lines)


def _clock(time: int, separator: str) -> str:
    """Format milliseconds as 00:01:02,345 with this `separator`."""
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
