"""Divides words into subtitle cues, each with its lines and times.

Cues are made of words, not of chunks, so that a cue has one speaker and no line is too wide. By
default a cue is shown from the start of its first word to the end of its last. A short cue stays up
to the next cue, so that it can be read; at the end of the audio it appears earlier. The limits are
those of most style guides (Netflix's "Timed Text Style Guide": 42 characters a line, two lines, 5/6
of a second to 7 seconds).

If a client sets one of openai/whisper's limits, cues are openai/whisper's (`utils.py`,
`SubtitlesWriter`): one cue for each segment, and a change of speaker starts a segment. If the
client sets both a width and a number of lines, text flows on until a cue is full.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from config import InferenceConfig
from whosaid.transcript import Word, sentence_ends_between

MAX_COLUMNS, MAX_LINES = 42, 2
MIN_SECONDS, MAX_SECONDS = 5 / 6, 7.0
TICK = 0.001  # seconds; the resolution of SRT and VTT
MAX_PAUSE = 1.0  # seconds without speech after which a new cue begins
LONG_PAUSE = 3.0  # seconds between starts of words; openai/whisper's limit for text that flows on

# openai/whisper's limits. A line has at most so many characters, name included, unless one word is
# longer. A cue has at most so many lines and, if made of one segment, so many words.
LIMITS = ("max_line_width", "max_line_count", "max_words_per_line")
# The parameters that lay subtitles out.
LAYOUT = (*LIMITS, "highlight_words", "subtitle_speakers")

Line = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle, shown from `start` to `end` seconds; `named` puts the speaker's name first."""

    words: tuple[Line, ...]
    start: float
    end: float
    named: bool

    @property
    def speaker(self) -> str | None:
        return self.words[0][0].speaker

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(
            _join(line, self.named and number == 0) for number, line in enumerate(self.words)
        )


def make_cues(
    words: Iterable[Word],
    named: bool,
    duration: float,
    layout: InferenceConfig,
    segments: Collection[int],
) -> list[Cue]:
    """Return cues within `duration` seconds for `words`, which must be sorted by time.

    `segments` are the numbers of letters after which Whisper's segments begin (`segment_starts`).
    Times are whole milliseconds, and cues never overlap. Each cue lasts a millisecond or more; at
    the end of the audio, earlier cues are shortened for this. If the whole audio is too short, cues
    share it equally.
    """
    shortest, longest = MIN_SECONDS, MAX_SECONDS
    texts: list[tuple[Line, ...]]
    if any(getattr(layout, name) is not None for name in LIMITS):
        shortest, longest = 0.0, inf
        texts = [tuple(lines) for lines in _fill_cues(words, named, layout, segments)]
    else:
        texts = [_break_lines(group, named) for group in _group_words(words, named)]
    groups = [[word for line in lines for word in line] for lines in texts]
    tick = min(TICK, duration / max(1, len(groups)))
    starts = [*_start_times(groups, duration, shortest, longest), duration]
    made: list[Cue] = []
    for index, group in enumerate(groups):
        following = len(groups) - index - 1
        previous_end = made[-1].end if made else 0.0
        start = max(previous_end, min(starts[index], duration - (following + 1) * tick))
        spoken_until = min(group[-1].end, start + longest)
        read_until = max(spoken_until, start + shortest)
        end = max(start + tick, min(read_until, starts[index + 1]))
        end = min(round(end, 3), duration - following * tick)
        made.append(Cue(texts[index], start, end, named))
    return made


def _start_times(
    groups: Sequence[Line], duration: float, shortest: float, longest: float
) -> list[float]:
    """Return the start of each cue: its first word's, or earlier at the end of the audio.

    Cues that begin less than `shortest` seconds before the end share the time from the end of the
    speech before them to the end of the audio.
    """
    starts = [group[0].start for group in groups]
    on_time = sum(start <= duration - shortest for start in starts)
    late = starts[on_time:]
    speech_end = 0.0
    if on_time:
        speech_end = min(groups[on_time - 1][-1].end, starts[on_time - 1] + longest, duration)
    share = min(shortest, (duration - speech_end) / max(1, len(late)))
    earlier = [
        min(start, duration - (len(late) - index) * share) for index, start in enumerate(late)
    ]
    return [round(start, 3) for start in (*starts[:on_time], *earlier)]


def _fill_cues(
    words: Iterable[Word], named: bool, layout: InferenceConfig, segments: Collection[int]
) -> Iterator[list[list[Word]]]:
    """Yield the lines of each cue as openai/whisper fills them."""
    width, count = layout.max_line_width or inf, layout.max_line_count or inf
    flows = inf not in (width, count)
    cue: list[list[Word]] = []
    letters = in_segment = 0
    for word in _timed_words(words):
        before = cue[-1][-1] if cue else None
        another = before is not None and before.speaker != word.speaker
        in_segment = 0 if another or letters in segments else in_segment + 1
        letters += _count_letters(word.text)
        begins = another or (not flows and in_segment % (layout.max_words_per_line or inf) == 0)
        pause = flows and before is not None and word.start - before.start > LONG_PAUSE
        longer = len(_join([*cue[-1], word], named and len(cue) == 1)) if cue else 0
        if cue and (begins or pause or (longer > width and len(cue) >= count)):
            yield cue
            cue = []
        if not cue or longer > width:
            cue.append([])
        cue[-1].append(word)
    if cue:
        yield cue


def segment_starts(texts: Iterable[str]) -> frozenset[int]:
    """Return the number of letters, without spaces, that precede each text."""
    return frozenset(accumulate(map(_count_letters, texts), initial=0))


def _count_letters(text: str) -> int:
    return sum(map(len, text.split()))


def _timed_words(words: Iterable[Word]) -> Iterator[Word]:
    """Yield single words; the words of a block without word times share its time."""
    for word in words:
        yield from _share_time(word, re.findall(r"\s*\S+\s*", word.text))


def _group_words(words: Iterable[Word], named: bool) -> Iterator[list[Word]]:
    group: list[Word] = []
    for word in _split_words(words, named):
        if group and (
            _begins_cue(group, word) or len(_fill_lines([*group, word], named)) > MAX_LINES
        ):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _begins_cue(group: Line, word: Word) -> bool:
    before = group[-1]
    return (
        word.speaker != before.speaker
        or word.start - before.end > MAX_PAUSE
        or word.end - group[0].start > MAX_SECONDS
        or sentence_ends_between(before, word)
    )


def _fill_lines(words: Line, named: bool) -> list[Line]:
    """Break words greedily into lines of at most MAX_COLUMNS."""
    lines: list[Line] = []
    first = 0
    for index in range(1, len(words)):
        name_line = named and first == 0
        if display_width(_join(words[first : index + 1], name_line)) > MAX_COLUMNS:
            lines.append(words[first:index])
            first = index
    return [*lines, words[first:]]


def _break_lines(group: Line, named: bool) -> tuple[Line, ...]:
    """Return one line if the words fit, else the two lines whose wider line is narrowest."""
    lines = _fill_lines(group, named)
    if len(lines) == 1:
        return tuple(lines)
    splits = [(group[:index], group[index:]) for index in range(1, len(group))]
    return min(
        splits,
        key=lambda split: max(
            display_width(_join(split[0], named)), display_width(_join(split[1], False))
        ),
    )


def _split_words(words: Iterable[Word], named: bool) -> Iterator[Word]:
    """Drop empty words, and split words that are too wide for a line."""
    for word in words:
        columns = MAX_COLUMNS - display_width(name_prefix(word, named))
        yield from _share_time(word, _split_text(word.text, columns))


def _share_time(word: Word, parts: Sequence[str]) -> Iterator[Word]:
    """Yield the parts as words that share the time of `word` in proportion to their letters."""
    seconds_per_letter = (word.end - word.start) / max(1, sum(map(len, parts)))
    start = word.start
    for part in parts:
        end = start + len(part) * seconds_per_letter
        yield replace(word, text=part, start=start, end=end)
        start = end


def _split_text(text: str, columns: int) -> list[str]:
    """Split text wider than `columns` at spaces, and its parts that are too wide for any line.

    A block without word times is one long text.
    """
    if display_width(text.strip()) <= columns:
        return [text] if text.strip() else []
    parts: list[str] = []
    for part in re.findall(r"\s*\S+\s*", text):
        parts += [part] if display_width(part.strip()) <= MAX_COLUMNS else _cut_up(part)
    return parts


def _cut_up(text: str) -> list[str]:
    """Cut text into quarter lines, which fill lines well; never cut before a combining mark."""
    parts = [""]
    for letter in text:
        if len(parts[-1]) >= MAX_COLUMNS // 4 and unicodedata.category(letter)[0] not in "MZ":
            parts.append("")
        parts[-1] += letter
    return parts


def _join(words: Line, named: bool) -> str:
    """Return the words on one line, after their speaker's name if `named`."""
    return name_prefix(words[0], named) + on_one_line("".join(word.text for word in words))


def name_prefix(word: Word, named: bool) -> str:
    return f"{word.speaker}: " if named and word.speaker else ""


def on_one_line(text: str) -> str:
    """Join the words with single spaces: line breaks and tabs are syntax in every format."""
    return " ".join(text.split())


def display_width(text: str) -> int:
    """Return the width of `text` in columns; East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
