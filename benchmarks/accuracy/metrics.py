"""How wrong a transcript with speakers is: words, speakers, times and turns, each by the measure
the field uses.

Errors are counted scene by scene and added later. Reference and hypothesis are aligned once, so
that every rule about speakers is judged on the same recognised words.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import jiwer
import numpy as np
from meeteval.wer import cp_word_error_rate
from numpy.typing import NDArray
from pyannote.core import Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate
from scipy.optimize import linear_sum_assignment

from tests.support.dialogue import annotation
from whosaid.transcript import SpeakerTurn, Word

# Seconds around each true boundary that are not scored, half of them on each side, as in
# pyannote.metrics.
COLLAR = 0.25
# A recognised word further than this from every spoken one, in seconds, is in silence.
NEAR = 0.5
# Beyond this many seconds it does not matter how far apart two aligned words are.
FAR = 5.0
# In how many states, of 2 bytes, all orders of several people's words may be looked at.
MAX_STATES = 10**7
# What two sums of the same costs may differ by.
ROUNDING = 1e-9
PUNCTUATION = re.compile(r"[^\w' ]")

# Indices of a word of the reference and of the hypothesis that are aligned; None for no word.
Step = tuple[int | None, int | None]


@dataclass(frozen=True)
class Count:
    """Errors out of what could be wrong; counts can be added, rates cannot."""

    errors: float
    total: float

    @property
    def rate(self) -> float:
        """Errors of the total; 0 of nothing is 0."""
        return self.errors / self.total if self.total else 0.0


@dataclass(frozen=True)
class DiarizationParts:
    """Seconds of each kind of error, and of speech, where overlapped speech counts for each voice.

    Parts of several recordings can be added.
    """

    missed: float
    false_alarm: float
    confusion: float
    total: float

    @property
    def count(self) -> Count:
        """All errors out of the speech: the diarization error rate."""
        return Count(self.missed + self.false_alarm + self.confusion, self.total)


def normalize(text: str) -> str:
    """A word as it is compared: lower case, no punctuation, no space around it."""
    return PUNCTUATION.sub("", text.casefold()).strip()


def word_errors(reference: Sequence[Word], hypothesis: Sequence[Word]) -> Count:
    """Word errors (jiwer) in order of time, without speakers; errors of no reference count too."""
    if not reference:
        return Count(len(hypothesis), 0)
    found = jiwer.process_words(_join(reference), _join(hypothesis))
    return Count(found.substitutions + found.deletions + found.insertions, len(reference))


def cp_word_errors(reference: Sequence[Word], hypothesis: Sequence[Word]) -> Count:
    """Word errors of each speaker's own text under the best mapping of speakers (meeteval's cpWER).

    A word without a speaker counts as missing, which is one error and not two.
    """
    expected = _text_by_speaker(reference)
    found = _text_by_speaker(word for word in hypothesis if word.speaker is not None)
    if not expected or not found:
        extra = sum(word.speaker is not None for word in hypothesis)
        return Count(extra or len(reference), len(reference))
    errors = cp_word_error_rate(expected, found, reference_sort=False, hypothesis_sort=False)
    return Count(errors.errors, errors.length)


def fewest_word_errors(reference: Sequence[Word], hypothesis: Sequence[Word]) -> Count | None:
    """Word errors of a text whose speakers are not looked at. Words of different people are in the
    order that gives the fewest, each one's own in that of `reference`. So no way to give words to
    speakers has a lower cpWER, and what people say at once but is written once counts as missing.

    Memory grows with the product of the speakers' numbers of words: None beyond MAX_STATES.
    """
    spoken = [text.split() for text in _text_by_speaker(reference).values()]
    sizes = [len(words) + 1 for words in spoken]
    if math.prod(sizes) > MAX_STATES:
        return None
    # Errors of the words so far against the first i of one speaker, the first j of another and so
    # on, less i + j + ...: a word that was said and not written then costs nothing.
    least = np.zeros(sizes, np.int16)
    for word in _join(hypothesis).split():
        following = least + 1  # nobody said it
        for axis, words in enumerate(spoken):  # it is for the next word of one speaker
            before, after = (np.moveaxis(each, axis, -1) for each in (least, following))
            right = np.array([each == word for each in words], np.int16)
            np.minimum(after[..., 1:], before[..., :-1] - right, out=after[..., 1:])
        for axis in range(len(spoken)):
            np.minimum.accumulate(following, axis=axis, out=following)
        least = following
    total = sum(map(len, spoken))
    return Count(total + int(least.flat[-1]), total)


def align(reference: Sequence[Word], hypothesis: Sequence[Word]) -> list[Step]:
    """Indices of words aligned with the fewest edits (Levenshtein) and, of all such alignments,
    nearest in time.

    (3, None) is a missing word, (None, 3) an extra one. The cost of distance in time is so small
    that all of it together is less than one edit, so the number of edits is Levenshtein's.
    """
    expected = [normalize(word.text) for word in reference]
    found = [normalize(word.text) for word in hypothesis]
    equal = np.array([[here == there for there in found] for here in expected], bool)
    equal = equal.reshape(len(expected), len(found))
    apart = np.abs(_middles(reference)[:, None] - _middles(hypothesis)[None]).clip(0, FAR) / FAR
    cost = np.where(equal, 0.0, 1.0) + apart / (2 + min(equal.shape))
    totals = _total_costs(cost)

    def came_from(total: float) -> bool:
        return bool(abs(totals[row, column] - total) < ROUNDING)

    steps: list[Step] = []
    row, column = len(expected), len(found)
    while row or column:
        if row and column and came_from(totals[row - 1, column - 1] + cost[row - 1, column - 1]):
            row, column = row - 1, column - 1
            steps.append((row, column))
        elif row and came_from(totals[row - 1, column] + 1):
            row -= 1
            steps.append((row, None))
        else:
            column -= 1
            steps.append((None, column))
    return steps[::-1]


def correct_words(
    reference: Sequence[Word], hypothesis: Sequence[Word], steps: Sequence[Step]
) -> list[tuple[int, int]]:
    """The aligned pairs of words whose texts are equal."""
    pairs = [(here, there) for here, there in steps if here is not None and there is not None]
    return [
        (here, there)
        for here, there in pairs
        if normalize(reference[here].text) == normalize(hypothesis[there].text)
    ]


def best_mapping(pairs: Iterable[tuple[str | None, str | None]]) -> dict[str, str]:
    """From found speakers to true ones, one to one, so that most words are right (Hungarian
    algorithm). `pairs` are true and found speaker of each word.
    """
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for true, found in pairs:
        if true is not None and found is not None:
            counts[found, true] += 1
    rows, columns = sorted({pair[0] for pair in counts}), sorted({pair[1] for pair in counts})
    table = np.array([[counts[row, column] for column in columns] for row in rows])
    table = table.reshape(len(rows), len(columns))
    assigned = zip(*linear_sum_assignment(table, maximize=True), strict=True)
    return {rows[row]: columns[column] for row, column in assigned}


def speaker_errors(
    reference: Sequence[Word], hypothesis: Sequence[Word], pairs: Sequence[tuple[int, int]]
) -> Count:
    """Correctly recognised words (`pairs` of indices) that have another speaker, or none."""
    speakers = [(reference[here].speaker, hypothesis[there].speaker) for here, there in pairs]
    mapping = best_mapping(speakers)
    wrong = sum(found is None or mapping.get(found) != true for true, found in speakers)
    return Count(wrong, len(speakers))


def boundary_errors(
    reference: Sequence[Word], hypothesis: Sequence[Word], pairs: Sequence[tuple[int, int]]
) -> NDArray[np.float64]:
    """(words, 2): by how many seconds each recognised word starts and ends too late; negative for
    too early.
    """
    errors = []
    for here, there in pairs:
        true, found = reference[here], hypothesis[there]
        errors.append((found.start - true.start, found.end - true.end))
    return np.array(errors, float).reshape(-1, 2)


def diarization_errors(
    reference: Sequence[SpeakerTurn], hypothesis: Sequence[SpeakerTurn], duration: float
) -> Count:
    """Seconds of missed speech, false alarm and confusion out of the speech.

    Overlapped speech counts for each voice. COLLAR seconds around each true boundary are left out.
    """
    return diarization_parts(reference, hypothesis, duration, COLLAR).count


def diarization_parts(
    reference: Sequence[SpeakerTurn],
    hypothesis: Sequence[SpeakerTurn],
    duration: float,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> DiarizationParts:
    """The parts of the diarization error rate of a recording of `duration` seconds.

    `collar` seconds around each true boundary are left out, half on each side, as pyannote.metrics
    has it, and with `skip_overlap` the time in which several people speak.
    """
    metric = DiarizationErrorRate(collar=collar, skip_overlap=skip_overlap)
    uem = Timeline([Segment(0, duration)])
    parts = metric(annotation(reference), annotation(hypothesis), uem=uem, detailed=True)
    names = ("missed detection", "false alarm", "confusion", "total")
    return DiarizationParts(*(float(parts[name]) for name in names))


def jaccard_errors(
    reference: Sequence[SpeakerTurn], hypothesis: Sequence[SpeakerTurn], duration: float
) -> Count:
    """The Jaccard error of each speaker, summed, out of their number: every speaker counts alike,
    however little they say.
    """
    metric: DiarizationErrorRate = JaccardErrorRate()  # type: ignore[no-untyped-call]
    uem = Timeline([Segment(0, duration)])
    parts = metric(annotation(reference), annotation(hypothesis), uem=uem, detailed=True)
    return Count(float(parts["speaker error"]), float(parts["speaker count"]))


def is_overlapped(start: float, end: float, turns: Iterable[SpeakerTurn]) -> bool:
    """Whether two turns overlap somewhere between two times, in seconds."""
    active = [turn for turn in turns if turn.start < end and start < turn.end]
    return any(
        min(one.end, two.end, end) > max(one.start, two.start, start)
        for one, two in combinations(active, 2)
    )


def count_words_in_silence(reference: Sequence[Word], hypothesis: Sequence[Word]) -> int:
    """How many recognised words are more than NEAR seconds from every spoken one."""

    def is_far(word: Word, spoken: Word) -> bool:
        return word.start - spoken.end > NEAR or spoken.start - word.end > NEAR

    words = [word for word in hypothesis if normalize(word.text)]
    return sum(all(is_far(word, spoken) for spoken in reference) for word in words)


def _total_costs(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n + 1, m + 1): the least cost of aligning the first words; a word left out costs 1.

    Computed a row at a time: leaving out words of the hypothesis adds 1 a column, so it is a
    running minimum after subtracting that.
    """
    rows, columns = cost.shape
    steps = np.arange(columns + 1.0)
    totals = np.empty((rows + 1, columns + 1))
    totals[0] = steps
    for row in range(rows):
        above = totals[row]
        best = np.append(above[0] + 1, np.minimum(above[1:] + 1, above[:-1] + cost[row]))
        totals[row + 1] = np.minimum.accumulate(best - steps) + steps
    return totals


def _middles(words: Sequence[Word]) -> NDArray[np.float64]:
    return np.array([(word.start + word.end) / 2 for word in words], float)


def _join(words: Iterable[Word]) -> str:
    return " ".join(filter(None, (normalize(word.text) for word in words)))


def _text_by_speaker(words: Iterable[Word]) -> dict[str, str]:
    spoken: dict[str, list[Word]] = defaultdict(list)
    for word in words:
        spoken[str(word.speaker)].append(word)
    return {speaker: _join(theirs) for speaker, theirs in spoken.items()}
