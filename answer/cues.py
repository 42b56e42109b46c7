"""Cues, the subtitles that are on the screen at a time: made of words, not of chunks, so that one
never has two speakers, and its text is never too wide.

By default a cue is never too long either. It appears with its first word and disappears with its
last; a short one stays longer to be read, up to the next cue, and where the audio ends too soon for
that it appears earlier. No cue lasts beyond the audio. The limits are common to most style guides
(Netflix's "Timed Text Style Guide": 42 characters a line, two lines, 5/6 of a second to 7 seconds).

Who asks for a limit of openai/whisper's gets its cues (`utils.py`, `SubtitlesWriter`): one for each
of Whisper's segments, or with a width and a number of lines text that flows on until both are used
up, from the first word's beginning to the last one's end. Another speaker begins a segment.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from transcript import Word, sentence_ends_between

MAX_COLUMNS, MAX_LINES = 42, 2
MIN_SECONDS, MAX_SECONDS = 5 / 6, 7.0
TICK = 0.001  # seconds; the resolution of SRT and VTT
MAX_PAUSE = 1.0  # seconds without speech after which a new cue begins
# The same where text flows on, from one word's beginning to the next one's: openai/whisper's.
LONG_PAUSE = 3.0

Line = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Layout:
    """How subtitles look; the first four are options of openai/whisper.

    A line has at most `max_line_width` characters, name included, but for a longer word. A cue has
    at most `max_line_count` lines and, where it is made of one segment, `max_words_per_line` words.
    `highlight_words` underlines each word while it is said. `speakers` is whether cues name them.
    """

    max_line_width: int | None = None
    max_line_count: int | None = None
    max_words_per_line: int | None = None
    highlight_words: bool = False
    speakers: bool = True

    @property
    def is_limited(self) -> bool:
        """Whether cues are those of openai/whisper."""
        return (self.max_line_width, self.max_line_count, self.max_words_per_line) != (None,) * 3


DEFAULT_LAYOUT = Layout()


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle: its lines of words, when it appears and disappears, and whether its text begins
    with the speaker's name.
    """

    words: tuple[Line, ...]
    start: float
    end: float
    named: bool

    @property
    def speaker(self) -> str | None:
        """Who says it, where that is known."""
        return self.words[0][0].speaker

    @property
    def lines(self) -> tuple[str, ...]:
        """Its text."""
        return tuple(
            _join(line, self.named and place == 0) for place, line in enumerate(self.words)
        )


def make_cues(
    words: Iterable[Word],
    named: bool,
    duration: float,
    layout: Layout = DEFAULT_LAYOUT,
    segments: Collection[int] = (),
) -> list[Cue]:
    """Make cues of `words` (in order of time) within the limits above and `duration` seconds.

    With `named`, a cue begins with its speaker's name. One of Whisper's `segments` begins behind so
    many letters of all the words. Times are whole milliseconds, and cues never overlap. Each lasts
    a millisecond at least: where the audio ends, earlier cues are shortened for that, and if all of
    it is too short, cues share it equally.
    """
    shortest, longest = (0.0, inf) if layout.is_limited else (MIN_SECONDS, MAX_SECONDS)
    texts: list[tuple[Line, ...]]
    if layout.is_limited:
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
    """When each cue should appear: with its first word, or earlier if the audio ends too soon.

    The cues that begin less than `shortest` seconds before the end share the time between the end
    of the speech before them and the end of the audio.
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
    words: Iterable[Word], named: bool, layout: Layout, segments: Collection[int]
) -> Iterator[list[list[Word]]]:
    """The lines of each cue, as openai/whisper fills them."""
    width, count = layout.max_line_width or inf, layout.max_line_count or inf
    flows = inf not in (width, count)
    cue: list[list[Word]] = []
    letters = place = 0
    for word in _timed_words(words):
        before = cue[-1][-1] if cue else None
        another = before is not None and before.speaker != word.speaker
        place = 0 if another or letters in segments else place + 1
        letters += _count_letters(word.text)
        begins = another or (not flows and place % (layout.max_words_per_line or inf) == 0)
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
    """Behind how many letters of all of them each of these texts begins."""
    return frozenset(accumulate(map(_count_letters, texts), initial=0))


def _count_letters(text: str) -> int:
    return sum(map(len, text.split()))


def _timed_words(words: Iterable[Word]) -> Iterator[Word]:
    """The words without empty ones; blocks that came as one have their times by their letters."""
    for word in words:
        yield from _share_time(word, re.findall(r"\s*\S+\s*", word.text))


def _group_words(words: Iterable[Word], named: bool) -> Iterator[list[Word]]:
    """Group the words that share a cue."""
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
    """Whether `word` must not join `group`: another speaker, a pause, a sentence, or too long."""
    before = group[-1]
    return (
        word.speaker != before.speaker
        or word.start - before.end > MAX_PAUSE
        or word.end - group[0].start > MAX_SECONDS
        or sentence_ends_between(before, word)
    )


def _fill_lines(words: Line, named: bool) -> list[Line]:
    """Break words into lines of at most MAX_COLUMNS, each as full as possible."""
    lines: list[Line] = []
    first = 0
    for index in range(1, len(words)):
        name_line = named and first == 0
        if display_width(_join(words[first : index + 1], name_line)) > MAX_COLUMNS:
            lines.append(words[first:index])
            first = index
    return [*lines, words[first:]]


def _break_lines(group: Line, named: bool) -> tuple[Line, ...]:
    """One line if the words fit, else the two lines whose wider one is narrowest."""
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
    """The words without empty ones; those too wide for a line become several."""
    for word in words:
        columns = MAX_COLUMNS - display_width(name_prefix(word, named))
        yield from _share_time(word, _split_text(word.text, columns))


def _share_time(word: Word, parts: Sequence[str]) -> Iterator[Word]:
    """The parts of a word; they share its time in proportion to their letters."""
    seconds_per_letter = (word.end - word.start) / max(1, sum(map(len, parts)))
    start = word.start
    for part in parts:
        end = start + len(part) * seconds_per_letter
        yield replace(word, text=part, start=start, end=end)
        start = end


def _split_text(text: str, columns: int) -> list[str]:
    """`text` if it fits `columns`; else split at spaces, and within what is too wide for any line.

    Blocks without word times come as one long text. Parts of a quarter line fill lines well.
    """
    if display_width(text.strip()) <= columns:
        return [text] if text.strip() else []
    parts: list[str] = []
    for part in re.findall(r"\s*\S+\s*", text):
        parts += [part] if display_width(part.strip()) <= MAX_COLUMNS else _cut_up(part)
    return parts


def _cut_up(text: str) -> list[str]:
    """Parts of a quarter line each, none of which begins with a mark of the letter before."""
    parts = [""]
    for letter in text:
        if len(parts[-1]) >= MAX_COLUMNS // 4 and unicodedata.category(letter)[0] not in "MZ":
            parts.append("")
        parts[-1] += letter
    return parts


def _join(words: Line, named: bool) -> str:
    """The words on one line, after their speaker's name if `named`."""
    return name_prefix(words[0], named) + on_one_line("".join(word.text for word in words))


def name_prefix(word: Word, named: bool) -> str:
    """What stands before the first word of a cue."""
    return f"{word.speaker}: " if named and word.speaker else ""


def on_one_line(text: str) -> str:
    """Replace line breaks and tabs, which have a meaning in every format here, by spaces."""
    return " ".join(text.split())


def display_width(text: str) -> int:
    """Columns of `text` on the screen; East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
