"""Divides words into subtitle cues, each with its lines and times.

Cues are made of words, so that a cue has one speaker and no line is too wide. By default a cue is
shown from the start of its first word to the end of its last, and in the silence around them for as
long as it takes to read. Of all divisions within the limits of most style guides (Netflix's "Timed
Text Style Guide"), that of the least cost is made.

If a client sets one of openai/whisper's limits, cues are openai/whisper's (`utils.py`,
`SubtitlesWriter`): one cue for each segment, and a change of speaker starts a segment. If the
client sets both a width and a number of lines, text flows on until a cue is full.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, starmap, zip_longest
from math import inf

from config import InferenceConfig
from whosaid.answer.phrases import (
    MAX_COLUMNS,
    Phrase,
    count_letters,
    display_width,
    on_one_line,
    phrases_of,
    share_time,
    split_word,
)
from whosaid.transcript import Word, sentence_ends_between

MAX_LINES = 2
MIN_SECONDS, MAX_SECONDS = 5 / 6, 7.0
TICK = 0.001  # seconds; the resolution of SRT and VTT
MAX_PAUSE = 1.0  # seconds without speech after which a new cue begins
MAX_LEAD = 0.5  # seconds that a cue begins before its speech so that it can be read
READABLE = 17 / 20  # share of the time to read that most readers need
# Costs of a cue, beside 1: it ends after a comma, or elsewhere within a sentence; it is too short
# (plus the missing share), too fast to be read (times the missing share), long (times the square of
# its share of all columns), one word, or one word of a sentence; it has two sentences, and a pause
# between them (times its seconds).
CLAUSE, WITHIN, SHORT, FAST, LONG = 1, 3, 6, 8, 2
WORD_ALONE, PART_ALONE, SENTENCES, PAUSE = 1, 6, 1.5, 4
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
    """Return cues within `duration` seconds for `words`, which must be sorted by time. `segments`
    are the numbers of letters after which Whisper's segments begin (`segment_starts`). Times are
    whole milliseconds, at least one for each cue, and cues never overlap; at the end of the audio,
    earlier cues are shortened, or all of them share it.
    """
    shortest, longest = MIN_SECONDS, MAX_SECONDS
    texts: list[tuple[tuple[Line, ...], float]]
    if any(getattr(layout, name) is not None for name in LIMITS):
        shortest, longest = 0.0, inf
        texts = [(tuple(lines), 0.0) for lines in _fill_cues(words, named, layout, segments)]
    else:
        texts = [*_lay_out(words, named, duration)]
    groups = [[word for line in lines for word in line] for lines, _ in texts]
    tick = min(TICK, duration / max(1, len(groups)))
    needs = [min(longest, max(shortest, seconds)) for _, seconds in texts]
    starts = [*_start_times(groups, needs, duration, shortest, longest), duration]
    made: list[Cue] = []
    for index, (group, (lines, _)) in enumerate(zip(groups, texts, strict=True)):
        following = len(groups) - index - 1
        previous_end = made[-1].end if made else 0.0
        start = max(previous_end, min(starts[index], duration - (following + 1) * tick))
        spoken_until = min(group[-1].end, start + longest)
        read_until = max(spoken_until, start + needs[index])
        end = max(start + tick, min(read_until, starts[index + 1]))
        end = min(round(end, 3), duration - following * tick)
        made.append(Cue(lines, start, end, named))
    return made


def _start_times(
    groups: Sequence[Line], needs: Sequence[float], duration: float, shortest: float, longest: float
) -> list[float]:
    """Return the start of each cue: its first word's, or earlier, in the silence before it: as
    needed for `shortest` seconds, and by up to MAX_LEAD for its entry of `needs`. The last cues
    share the time from the end of the speech before them.
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
    starts = [*starts[:on_time], *earlier, duration]
    for index in range(on_time - 1, -1, -1):
        start, following, free, read = starts[index], starts[index + 1], 0.0, 0.0
        if index:
            before = starts[index - 1]
            free = max(groups[index - 1][-1].end, before + shortest)
            read = max(free, before + needs[index - 1])
        read = max(read, start - MAX_LEAD, following - needs[index])
        starts[index] = min(start, max(free, following - shortest), read)
    return [round(start, 3) for start in starts[:-1]]


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
        letters += count_letters(word.text)
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
    return frozenset(accumulate(map(count_letters, texts), initial=0))


def _timed_words(words: Iterable[Word]) -> Iterator[Word]:
    """Yield single words; the words of a block without word times share its time."""
    for word in words:
        yield from share_time(word, re.findall(r"\s*\S+\s*", word.text))


def _lay_out(
    words: Iterable[Word], named: bool, duration: float
) -> Iterator[tuple[tuple[Line, ...], float]]:
    """Yield the lines of each cue, and the seconds in which it is read."""
    runs: list[list[Word]] = []
    for word in _fitting_words(words, named):
        before = runs[-1][-1] if runs else None
        if before is None or word.speaker != before.speaker or word.start - before.end > MAX_PAUSE:
            runs.append([])
        runs[-1].append(word)
    spoken_until = 0.0
    for run, following in zip_longest(runs, runs[1:]):
        name = display_width(name_prefix(run[0], named))
        phrases = phrases_of(run, max(MAX_COLUMNS - name, MAX_COLUMNS // 4))
        deadline = following[0].start if following else duration
        for cue in _Division(phrases, name, spoken_until, deadline).cues():
            yield _break_lines(cue, name), sum(each.seconds for each in cue)
            spoken_until = max(run[-1].end, cue[0].words[0].start + MIN_SECONDS)


def _fitting_words(words: Iterable[Word], named: bool) -> Iterator[Word]:
    """Yield the words, too wide ones in parts; none is empty, and spaces stand before words."""
    space = ""
    for word in words:
        for part in split_word(word, MAX_COLUMNS - display_width(name_prefix(word, named))):
            text = space + part.text
            space = text[len(text.rstrip()) :]
            if text.strip():
                yield replace(part, text=text.rstrip())


class _Division:
    """Divides the `phrases` of one speaker, whose name is `name` wide, into cues of the least cost.
    The cue before needs the time until `spoken_until`; other speech begins at `deadline`.
    """

    def __init__(
        self, phrases: Sequence[Phrase], name: int, spoken_until: float, deadline: float
    ) -> None:
        self._phrases, self._name = phrases, name
        self._starts = [*(each.words[0].start for each in phrases), deadline]
        self._ends = [spoken_until, *(each.words[-1].end for each in phrases)]
        self._breaks = [0.0, *starmap(_break_cost, pairwise(phrases)), 0.0]

    def cues(self) -> list[Sequence[Phrase]]:
        """Return the cues of the least total cost, by dynamic programming over their ends."""
        least = [0.0] + [inf] * len(self._phrases)
        begins = [0] * len(least)
        for first in range(len(self._phrases)):
            for after, cost in self._costs(first):
                if least[first] + cost < least[after]:
                    least[after], begins[after] = least[first] + cost, first
        ends = [len(self._phrases)]
        while ends[-1]:
            ends.append(begins[ends[-1]])
        return [self._phrases[first:after] for first, after in pairwise(ends[::-1])]

    def _costs(self, first: int) -> Iterator[tuple[int, float]]:
        """Yield each end of a cue that begins with phrase `first`, and the cue's cost."""
        lines, columns, total, seconds, joined = 1, self._name, 0, 0.0, 0.0
        for last in range(first, len(self._phrases)):
            phrase, after = self._phrases[last], last + 1
            added = phrase.columns + (phrase.spaced and last > first)
            if last > first:
                if columns + added > MAX_COLUMNS:
                    lines, columns, added = lines + 1, 0, phrase.columns
                if lines > MAX_LINES or self._ends[after] - self._starts[first] > MAX_SECONDS:
                    return
                if not self._breaks[last]:
                    joined += SENTENCES + PAUSE * max(0.0, self._starts[last] - self._ends[last])
            columns, total, seconds = columns + added, total + added, seconds + phrase.seconds
            yield after, joined + self._cost(first, after, total, seconds)

    def _cost(self, first: int, after: int, columns: int, seconds: float) -> float:
        """Return the cost of a cue of phrases `first` to before `after`."""
        start, shown = self._starts[first], self._starts[after] - self._starts[first]
        # Later silences are for the cues before them.
        silence = 0.0 if first else max(0.0, start - self._ends[0])
        short = max(0.0, 1 - (shown + silence) / MIN_SECONDS)
        needed = max(TICK, min(seconds, MAX_SECONDS))
        fast = max(0.0, READABLE - (shown + min(silence, MAX_LEAD)) / needed)
        cost = 1 + self._breaks[after] + (short > TICK) * (SHORT + short) + FAST * fast
        if after - first == 1 and columns <= MAX_COLUMNS // 2:
            cost += PART_ALONE if self._breaks[first] or self._breaks[after] else WORD_ALONE
        # Parts of a long sentence become similarly long.
        return cost + LONG * (columns / (MAX_LINES * MAX_COLUMNS)) ** 2


def _break_cost(before: Phrase, after: Phrase) -> float:
    """Return the cost of a cue that ends with one phrase; none between sentences."""
    word, following = before.words[-1], after.words[0]
    continues = following.text.strip()[:1].islower()
    if sentence_ends_between(word, following) and not continues:
        return 0.0
    last = word.text.strip()[-1]
    return CLAUSE if unicodedata.category(last)[0] == "P" and last != "-" else WITHIN


def _break_lines(phrases: Sequence[Phrase], name: int) -> tuple[Line, ...]:
    """Return one line if the phrases fit, else the two lines whose wider line is narrowest."""
    splits = [(phrases[:index], phrases[index:]) for index in range(1, len(phrases))]
    if name + _width(phrases) <= MAX_COLUMNS or not splits:
        splits = [(phrases, [])]
    lines = min(splits, key=lambda split: max(name + _width(split[0]), _width(split[1])))
    return tuple([word for phrase in line for word in phrase.words] for line in lines if line)


def _width(phrases: Sequence[Phrase]) -> int:
    return sum(each.columns for each in phrases) + sum(each.spaced for each in phrases[1:])


def _join(words: Line, named: bool) -> str:
    """Return the words on one line, after their speaker's name if `named`."""
    return name_prefix(words[0], named) + on_one_line("".join(word.text for word in words))


def name_prefix(word: Word, named: bool) -> str:
    return f"{on_one_line(word.speaker)}: " if named and word.speaker else ""
