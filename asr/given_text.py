"""A text that the client has: which of its words stands in which window, and which are not spoken.

    heard (recognised)    | as you no and as | I have given you proof | |  I have the greatest
    the client's text       As you know, and as I have given you proof, dear reader, I have the ...
    forced                | As you know, and as| I have given you proof, ~~~~~~~~~~~~| I have the

The recording is recognised first, which tells how far the text goes in each window, however long
the recording is and whatever it lacks or has besides. Its words are then paired with the client's
by the fewest edits, those between two equal words letter by letter, and every segment gets the
client's words instead of its own. The window is read once more with these tokens given: attention
and probabilities are then of the client's words.

A word much like what was heard is spoken. The others, which recognition may have missed,
are given too, and a run of them stays if the model then finds it likely enough; otherwise the
window is read again without it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.checkpoint.special_tokens import SpecialTokens
from asr.frontend.windows import Window
from asr.output.segments import Segment
from asr.output.words import split_words
from timebase import SAMPLE_RATE, TIME_PRECISION
from transcript import Chunk, Unspoken

ALIKE = 0.5  # equal letters, as a share of those of the given word and of what was heard for it
# The mean log-probability of a run of words that were not heard, but are spoken: those had -1.3 or
# more, sentences put in between -5.4 or less (docs/decoding.md).
SPOKEN_LOGPROB = -3.0
MISHEARD_LOGPROB = -5.0  # where something else was heard instead, of half the length at least
LETTERS_A_SECOND = 30  # nobody speaks faster
LARGEST_TABLE = 2**22  # pairs of letters; longer runs are unlike each other, and take too long
TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
PART = 1000  # characters that are split into words at once
NONE = -1  # the partner of a word that has none

Partners = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GivenWord:
    """A word of the client's text as it is written, its tokens, and its letters to compare."""

    text: str
    tokens: tuple[int, ...]
    letters: str


@dataclass(frozen=True, slots=True)
class GivenSegment:
    """The words of the text, by number, that are read from `start` to `end` seconds of a window."""

    words: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class GivenWindow:
    """A window and what is given in each of its segments.

    `timestamps` says whether recognition wrote some, which are then given, too: where it wrote
    none, words are likely only without them.
    """

    window: Window
    segments: tuple[GivenSegment, ...]
    timestamps: bool

    @property
    def words(self) -> list[int]:
        """Of all segments."""
        return [word for segment in self.segments for word in segment.words]

    def without(self, words: set[int]) -> GivenWindow:
        """The same with fewer words; segments that lose all of theirs go."""
        fewer = [
            replace(each, words=tuple(word for word in each.words if word not in words))
            for each in self.segments
        ]
        return replace(self, segments=tuple(each for each in fewer if each.words))


@dataclass(frozen=True)
class GivenText:
    """The words of a text, which of them were `heard` by recognition, and where something else
    was heard `instead`.
    """

    words: Sequence[GivenWord]
    heard: frozenset[int]
    instead: frozenset[int]

    def fitting(self, given: GivenWindow, most: int) -> GivenWindow:
        """What somebody can say in a window, in at most so many tokens: without the words that were
        not heard where all are too many, and without the last ones.
        """
        tokens = [len(self.words[word].tokens) for word in given.words]
        letters = sum(len(self.words[word].letters) for word in given.words)
        if sum(tokens) <= most and letters <= LETTERS_A_SECOND * given.window.seconds:
            return given
        kept = [word for word in given.words if word in self.heard]
        ends = np.cumsum([len(self.words[word].tokens) for word in kept])
        kept = kept[: int(np.searchsorted(ends, most, "right"))]
        return given.without(set(given.words) - set(kept))

    def segments(self, given: GivenWindow) -> list[Segment]:
        """What stands in a window, as if it had been recognised."""
        return [Segment(self._tokens(each.words), each.start, each.end) for each in given.segments]

    def prefix(self, given: GivenWindow, special_tokens: SpecialTokens) -> tuple[int, ...]:
        """All tokens of a window."""
        tokens: list[int] = []
        for each in given.segments:
            text = self._tokens(each.words)
            times = [
                special_tokens.timestamp_begin + int(second / TIME_PRECISION + 0.5)
                for second in (each.start, each.end)
            ]
            tokens += [times[0], *text, times[1]] if given.timestamps else text
        return tuple(tokens)

    def unlikely(self, given: GivenWindow, log_probs: Sequence[float]) -> set[int]:
        """The words in runs that nobody heard and that are unlikely, too; `log_probs` are those of
        the text's tokens.
        """
        left, found = iter(log_probs), set[int]()
        for heard, run in groupby(given.words, self.heard.__contains__):
            words = list(run)
            values = [next(left) for word in words for _ in self.words[word].tokens]
            instead = self.instead.issuperset(words)
            if not heard and np.mean(values) < (MISHEARD_LOGPROB if instead else SPOKEN_LOGPROB):
                found.update(words)
        return found

    def unspoken(self, spoken: set[int]) -> tuple[Unspoken, ...]:
        """The runs of words that are not among the `spoken` ones."""
        found, before = [], 0
        for is_spoken, run in groupby(range(len(self.words)), spoken.__contains__):
            words = list(run)
            if is_spoken:
                before += len(words)
            else:
                found.append(Unspoken(tuple(self.words[word].text for word in words), before))
        return tuple(found)

    def _tokens(self, words: Iterable[int]) -> tuple[int, ...]:
        return tuple(token for word in words for token in self.words[word].tokens)


class Heard(NamedTuple):
    """What was recognised in a window, with timestamps or without."""

    window: Window
    chunks: Sequence[Chunk]
    timestamps: bool


def split_text(
    text: str, models: WhisperModels, language: str | None
) -> Generator[None, None, list[GivenWord]]:
    """The words of a `text` in the `language` of this code, in small steps.

    Joined, they are the text with one space for each stretch of white space, and one before it, and
    without Whisper's timestamps.
    """
    found: list[GivenWord] = []
    # Tokens of their own, whatever the tokenizer is told.
    for part in _parts(TIMESTAMP.sub(" ", text)):
        tokens = models.tokenizer.encode(part, add_special_tokens=False, split_special_tokens=True)
        for word in split_words(tokens, models.text_of, language):
            found.append(
                GivenWord(word.text, tuple(tokens[word.first : word.stop]), _letters(word.text))
            )
        yield
    return found


def _parts(text: str) -> Iterator[str]:
    """`text` with plain spaces, in parts that end where a word does, or after PART characters."""
    text = " " + " ".join(text.split())
    while text:
        cut = text.rfind(" ", 1, PART + 1) if len(text) > PART else len(text)
        cut = PART if cut <= 0 else cut
        yield text[:cut]
        text = text[cut:]


def _letters(text: str) -> str:
    """What is compared of a word: letters, digits and marks, without case or width."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(each for each in folded if unicodedata.category(each)[0] in "LMN")


def place_text(
    words: Sequence[GivenWord], heard: Sequence[Heard]
) -> Generator[None, None, tuple[GivenText, list[GivenWindow]]]:
    """Which of a text's words stand in which of the windows that were `heard`, in order of time;
    in small steps.
    """
    chunks = [(number, chunk) for number, each in enumerate(heard) for chunk in each.chunks]
    owners = [place for place, (_, chunk) in enumerate(chunks) for _ in chunk.words]
    letters = [_letters(word.text) for _, chunk in chunks for word in chunk.words]
    partners = pair_items([each.letters for each in words], letters)
    yield
    same = [
        (place, partner)
        for place, partner in enumerate(partners.tolist())
        if partner != NONE and words[place].letters == letters[partner]
    ]
    found, instead = {place for place, _ in same}, set[int]()
    for (first, begin), (stop, end) in pairwise([(-1, -1), *same, (len(words), len(letters))]):
        run = range(first + 1, stop), range(begin + 1, end)
        found.update(_pair_letters(words, letters, run, partners))
        yield
        ours, theirs = (
            sum(map(len, each))
            for each in ([words[n].letters for n in run[0]], [letters[n] for n in run[1]])
        )
        if ours <= 2 * theirs:
            instead.update(run[0])
    segments: defaultdict[int, defaultdict[int, list[int]]]
    segments = defaultdict(lambda: defaultdict(list))
    if owners:
        for word, partner in enumerate(_filled(partners)):
            number, _ = chunks[owners[partner]]
            segments[number][owners[partner]].append(word)
    text = GivenText(words, frozenset(found), frozenset(instead))
    windows = []
    for number in sorted(segments):
        window = heard[number].window
        given = [
            _segment(window, chunks[place][1], numbers)
            for place, numbers in sorted(segments[number].items())
        ]
        windows.append(GivenWindow(window, tuple(given), heard[number].timestamps))
    return text, windows


def _segment(window: Window, chunk: Chunk, words: Sequence[int]) -> GivenSegment:
    start, end = (time - window.start / SAMPLE_RATE for time in (chunk.start, chunk.end))
    return GivenSegment(tuple(words), start, end)


def pair_items(left: Sequence[str], right: Sequence[str]) -> Partners:
    """Return for each item of `left` (n,) the place of its partner in `right`: the equal item, or
    the one that it replaces, by the fewest edits (Levenshtein 1966). NONE if it has no partner.

    Partners are in order. 20,000 words take a tenth of a second.
    """
    from rapidfuzz.distance import Levenshtein  # not above: scripts/gpu-check runs without it

    partners = np.full(len(left), NONE, np.int32)
    for edit in Levenshtein.opcodes(left, right):
        if edit.tag in ("equal", "replace"):
            partners[edit.src_start : edit.src_end] = range(edit.dest_start, edit.dest_end)
    return partners


def _pair_letters(
    words: Sequence[GivenWord], letters: Sequence[str], run: tuple[range, range], partners: Partners
) -> list[int]:
    """Pair the words of a run letter by letter, in `partners`. Return the words that share enough
    letters with what was recognised.
    """
    ours = [(number, each) for number in run[0] for each in words[number].letters]
    theirs = [(number, each) for number in run[1] for each in letters[number]]
    if not ours or not theirs or len(ours) * len(theirs) > LARGEST_TABLE:
        return []
    equal = defaultdict[int, list[int]](list)
    pairs = pair_items([each for _, each in ours], [each for _, each in theirs])
    for (number, letter), partner in zip(ours, pairs.tolist(), strict=True):
        if partner != NONE and theirs[partner][1] == letter:
            equal[number].append(theirs[partner][0])
    partners[run[0].start : run[0].stop] = NONE
    found = []
    for number, places in equal.items():
        partners[number] = places[0]
        both = len(words[number].letters) + sum(len(letters[each]) for each in set(places))
        if 2 * len(places) >= ALIKE * both:
            found.append(number)
    return found


def _filled(partners: Partners) -> list[int]:
    """Each word's partner, or the one before it, or where there is none the first."""
    known = np.maximum.accumulate(partners)
    first = partners[partners != NONE][:1]
    filled: list[int] = np.where(known == NONE, first[0] if len(first) else 0, known).tolist()
    return filled
