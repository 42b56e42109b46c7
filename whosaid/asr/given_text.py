"""A transcript from the client: which of its words belong to which window, and which are unspoken.

    recognised            | as you no and as | I have given you proof | |  I have the greatest
    the client's text       As you know, and as I have given you proof, dear reader, I have the ...
    forced                | As you know, and as| I have given you proof, ~~~~~~~~~~~~| I have the

The recording is recognised first. That shows how far the client's text goes in each window. The
recognised words are paired with the client's by the fewest edits; between two equal words, letter
by letter. Every segment then gets the client's words instead of its own. Its window is decoded
again with their tokens as a prefix, so that attention and probabilities are theirs.

A word much like the recognised word counts as spoken. The prefix also has the other words, which
recognition may have missed. A run of them stays if the model finds it likely enough; otherwise the
window is decoded again without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.decoding_plan import DecodingPlan, InLanguage
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import Window
from whosaid.asr.output.segments import Segment
from whosaid.asr.output.words import split_words
from whosaid.asr.recognition import finished
from whosaid.payload.named_text import TIMESTAMP
from whosaid.scheduling.steps import give_way
from whosaid.timebase import SAMPLE_RATE, TIME_PRECISION
from whosaid.transcript import Chunk, Unspoken, letters

ALIKE = 0.5  # least share of equal letters in the given and the recognised word
# The least mean log-probability of a run of words that were not recognised, but are spoken. Spoken
# runs had -1.3 or more, inserted sentences -5.4 or less (docs/decoding.md).
SPOKEN_LOGPROB = -3.0
MISHEARD_LOGPROB = -5.0  # if other words at least half as long were recognised instead
LETTERS_A_SECOND = 30  # nobody speaks faster
LARGEST_TABLE = 2**22  # pairs of letters; longer runs are too unlike, and take too long
PART = 1000  # characters that are split into words in one step
NONE = -1  # stands for no partner

Partners = NDArray[np.int32]


class Recognised(NamedTuple):
    """The text of a window, decoded with timestamps or without."""

    window: Window
    chunks: Sequence[Chunk]
    timestamps: bool


@dataclass(frozen=True, slots=True)
class GivenWord:
    """A word of the client's text: as written, as tokens, and as letters to compare."""

    text: str
    tokens: tuple[int, ...]
    letters: str


@dataclass(frozen=True, slots=True)
class GivenSegment:
    """Numbers of the words that stand between `start` and `end` seconds of a window."""

    words: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class GivenWindow:
    """A window and the words that are given for each of its segments.

    With `timestamps`, timestamps are given too. If recognition wrote none in this window, words are
    likely only without timestamps.
    """

    window: Window
    segments: tuple[GivenSegment, ...]
    timestamps: bool

    @property
    def words(self) -> list[int]:
        return [word for segment in self.segments for word in segment.words]

    def without(self, words: set[int]) -> GivenWindow:
        fewer = [
            replace(each, words=tuple(word for word in each.words if word not in words))
            for each in self.segments
        ]
        return replace(self, segments=tuple(each for each in fewer if each.words))


@dataclass(frozen=True)
class GivenText:
    """The words of a text, and the numbers of those that were `recognised`, exactly or nearly, or
    `misheard`: other words were recognised in their place.
    """

    words: Sequence[GivenWord]
    recognised: frozenset[int]
    misheard: frozenset[int]

    def fitting(self, given: GivenWindow, most: int) -> GivenWindow:
        """Return a window with no more words than `most` tokens hold and a speaker can say in it.
        If there are too many, all words that were not recognised are dropped, and then the last
        words.
        """
        tokens = [len(self.words[word].tokens) for word in given.words]
        letters = sum(len(self.words[word].letters) for word in given.words)
        if sum(tokens) <= most and letters <= LETTERS_A_SECOND * given.window.seconds:
            return given
        kept = [word for word in given.words if word in self.recognised]
        ends = np.cumsum([len(self.words[word].tokens) for word in kept])
        kept = kept[: int(np.searchsorted(ends, most, "right"))]
        return given.without(set(given.words) - set(kept))

    def segments(self, given: GivenWindow) -> list[Segment]:
        return [Segment(self._tokens(each.words), each.start, each.end) for each in given.segments]

    def prefix(self, given: GivenWindow, special_tokens: SpecialTokens) -> tuple[int, ...]:
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
        """Return the words of unlikely, unrecognised runs; `log_probs` are of text tokens."""
        left, found = iter(log_probs), set[int]()
        for recognised, run in groupby(given.words, self.recognised.__contains__):
            words = list(run)
            values = [next(left) for word in words for _ in self.words[word].tokens]
            least = MISHEARD_LOGPROB if self.misheard.issuperset(words) else SPOKEN_LOGPROB
            if not recognised and np.mean(values) < least:
                found.update(words)
        return found

    def unspoken(self, spoken: set[int]) -> tuple[Unspoken, ...]:
        """Return the runs of words that are not spoken."""
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


async def force_text(
    engine: DecodeEngine,
    schedule: Schedule,
    plan: DecodingPlan,
    text: str,
    recognised: Sequence[Recognised],
) -> tuple[list[Chunk], tuple[Unspoken, ...]]:
    """Decode windows again with the words of a client's `text` in place of the recognised words.
    Return the chunks, and the runs of words that are not spoken.
    """
    recognised = sorted(recognised, key=lambda each: each.window.start)
    words = await split_text(text, engine.models, plan.timeline.language)
    placed, windows = await place_text(words, recognised)
    chunks: list[Chunk] = []
    spoken: set[int] = set()
    for timestamps in (True, False):
        alike = [each for each in windows if each.timestamps == timestamps]
        more, more_spoken = await _force_windows(engine, schedule, plan, placed, alike)
        chunks += more
        spoken |= more_spoken
    return chunks, placed.unspoken(spoken)


async def _force_windows(
    engine: DecodeEngine,
    schedule: Schedule,
    plan: DecodingPlan,
    text: GivenText,
    windows: Sequence[GivenWindow],
) -> tuple[list[Chunk], set[int]]:
    """Decode windows that all have timestamps, or all have none, with their given words. Return the
    chunks, in no order, and the words that are spoken in them.
    """
    special_tokens = engine.models.special_tokens

    def requests(given: GivenWindow, language: InLanguage) -> list[Request]:
        if not given.segments:
            return []
        prompt = special_tokens.with_timestamps(language.prompt, given.timestamps)
        prefix, samples = text.prefix(given, special_tokens), schedule.samples(given.window)
        left, target = len(windows), schedule.target(given.window)
        key = given, language
        request = Request(key, samples, prompt, len(prefix), windows_left=left, prefix=prefix)
        return [replace(request, target=target)]

    options = replace(
        plan.options,
        timestamps=any(each.timestamps for each in windows),
        fallback=None,
        num_beams=1,
        temperature=0.0,
        assisted=False,
    )
    chunks: list[Chunk] = []
    spoken: set[int] = set()
    with engine.session(options) as session:
        for given in windows:
            language = plan.at(given.window.start)
            room = special_tokens.max_length - len(language.prompt) - 2 * len(given.segments) - 1
            session.add(requests(text.fitting(given, room), language))
        while not session.done:
            for request, result in await finished(session):
                given, language = request.key
                if unlikely := text.unlikely(given, language.reader.log_probs(result)):
                    session.add(requests(given.without(unlikely), language))
                    continue
                # The reader counts words as `split_text` has split them.
                reader = replace(language.reader, language=plan.timeline.language)
                chunks += reader.chunks(given.window, text.segments(given), request.samples, result)
                spoken.update(given.words)
                await give_way()
    return chunks, spoken


async def split_text(text: str, models: WhisperModels, language: str | None) -> list[GivenWord]:
    """Split `text` into a language's words in small steps. Joined, they are the text with a space
    before it, single spaces, and no Whisper timestamps.
    """
    found: list[GivenWord] = []
    # The tokenizer makes timestamps tokens of their own, whatever its options are.
    for part in _parts(TIMESTAMP.sub(" ", text)):
        tokens = models.tokenizer.encode(part, add_special_tokens=False, split_special_tokens=True)
        for word in split_words(tokens, models.text_of, language):
            own = tuple(tokens[word.first : word.stop])
            found.append(GivenWord(word.text, own, letters(word.text)))
        await give_way()
    return found


def _parts(text: str) -> Iterator[str]:
    """Yield `text` with plain spaces, in parts that end with a word, or after PART characters."""
    text = " " + " ".join(text.split())
    while text:
        cut = text.rfind(" ", 1, PART + 1) if len(text) > PART else len(text)
        cut = PART if cut <= 0 else cut
        yield text[:cut]
        text = text[cut:]


async def place_text(
    words: Sequence[GivenWord], recognised: Sequence[Recognised]
) -> tuple[GivenText, list[GivenWindow]]:
    """Assign the words of a text to windows; `recognised` is in order of time."""
    chunks = [(number, chunk) for number, each in enumerate(recognised) for chunk in each.chunks]
    owners = [place for place, (_, chunk) in enumerate(chunks) for _ in chunk.words]
    spelt = [letters(word.text) for _, chunk in chunks for word in chunk.words]
    partners = pair_items([each.letters for each in words], spelt)
    await give_way()
    same = [
        (place, partner)
        for place, partner in enumerate(partners.tolist())
        if partner != NONE and words[place].letters == spelt[partner]
    ]
    found, misheard = {place for place, _ in same}, set[int]()
    for (first, begin), (stop, end) in pairwise([(-1, -1), *same, (len(words), len(spelt))]):
        ours, theirs = range(first + 1, stop), range(begin + 1, end)
        found.update(_pair_letters(words, spelt, (ours, theirs), partners))
        await give_way()
        count = sum(len(spelt[number]) for number in theirs)
        if sum(len(words[number].letters) for number in ours) <= 2 * count:
            misheard.update(ours)
    segments: defaultdict[int, defaultdict[int, list[int]]]
    segments = defaultdict(lambda: defaultdict(list))
    if owners:
        for word, partner in enumerate(_filled(partners)):
            number, _ = chunks[owners[partner]]
            segments[number][owners[partner]].append(word)
    windows = []
    for number in sorted(segments):
        window, _, timestamps = recognised[number]
        begin, given = window.start / SAMPLE_RATE, list[GivenSegment]()
        for place, numbers in sorted(segments[number].items()):
            chunk = chunks[place][1]
            given.append(GivenSegment(tuple(numbers), chunk.start - begin, chunk.end - begin))
        windows.append(GivenWindow(window, tuple(given), timestamps))
    return GivenText(words, frozenset(found), frozenset(misheard)), windows


def pair_items(left: Sequence[str], right: Sequence[str]) -> Partners:
    """Return the index in `right` of each `left` item's partner, (n,), or NONE: the equal or
    replaced item, by the fewest edits (Levenshtein 1966). Partners are in order. 20,000 words take
    a tenth of a second.
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
    """Pair a run's words by letters, in `partners`. Return the words with enough equal letters."""
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
    """Return each word's partner; without one, the partner before it, else the first."""
    known = np.maximum.accumulate(partners)
    first = partners[partners != NONE][:1]
    filled: list[int] = np.where(known == NONE, first[0] if len(first) else 0, known).tolist()
    return filled
