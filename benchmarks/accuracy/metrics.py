"""How wrong a transcript with speakers is: words, speakers, times, turns, each by the measure the
field uses.

The one decision: everything is counted scene by scene and summed later, and truth and answer are
aligned once, so that every rule about speakers is judged on the same recognised words.
"""

from __future__ import annotations

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
from pyannote.metrics.diarization import DiarizationErrorRate
from scipy.optimize import linear_sum_assignment

from demo.build.diarization_error import annotation
from transcript import SpeakerTurn, Word

# Seconds around each true boundary that are not scored, half of them on each side
# (pyannote.metrics).
COLLAR = 0.25
# A word heard further than this from every spoken one, in seconds, was heard where nobody speaks.
NEAR = 0.5
# Beyond this many seconds it does not matter how far apart two aligned words are.
FAR = 5.0
# What two sums of the same prices may differ by.
ROUNDING = 1e-9
NOT_SPOKEN = re.compile(r"[^\w' ]")

Step = tuple[int | None, int | None]


@dataclass(frozen=True)
class Count:
    """Errors out of what could be wrong; counts add, rates do not."""

    errors: float
    total: float

    @property
    def rate(self) -> float:
        """Errors of the total; 0 of nothing is 0."""
        return self.errors / self.total if self.total else 0.0


def plain(text: str) -> str:
    """A word as it is compared: lower case, no punctuation, no space around it."""
    return NOT_SPOKEN.sub("", text.casefold()).strip()


def recognition_errors(truth: Sequence[Word], heard: Sequence[Word]) -> Count:
    """Word errors (jiwer) in the order of time, speakers left out; errors of no truth count too."""
    if not truth:
        return Count(len(heard), 0)
    found = jiwer.process_words(_text(truth), _text(heard))
    return Count(found.substitutions + found.deletions + found.insertions, len(truth))


def cp_errors(truth: Sequence[Word], given: Sequence[Word]) -> Count:
    """Word errors of each speaker's own text under the best mapping of speakers (meeteval's cpWER).

    A word that was given to nobody counts as not said, which is one error and not two.
    """
    said = _by_speaker(truth)
    heard = _by_speaker(word for word in given if word.speaker is not None)
    if not said or not heard:
        return Count(sum(word.speaker is not None for word in given) or len(truth), len(truth))
    found = cp_word_error_rate(said, heard, reference_sort=False, hypothesis_sort=False)
    return Count(found.errors, found.length)


def align(truth: Sequence[Word], heard: Sequence[Word]) -> list[Step]:
    """Indices of words aligned with the fewest errors (Levenshtein) and, of all such ways, nearest
    in time.

    None stands for no word: (3, None) was not heard, (None, 3) was not said. The price of being far
    apart is so small that all of it together is less than one error, hence the edits are
    Levenshtein's.
    """
    said, found = [plain(word.text) for word in truth], [plain(word.text) for word in heard]
    same = np.array([[here == there for there in found] for here in said], bool).reshape(
        len(said), len(found)
    )
    apart = np.abs(_middles(truth)[:, None] - _middles(heard)[None]).clip(0, FAR) / FAR
    price = np.where(same, 0.0, 1.0) + apart / (2 + min(same.shape))
    totals = _totals(price)

    def came_from(origin: float) -> bool:
        return bool(abs(totals[row, column] - origin) < ROUNDING)

    steps: list[Step] = []
    row, column = len(said), len(found)
    while row or column:
        if row and column and came_from(totals[row - 1, column - 1] + price[row - 1, column - 1]):
            row, column = row - 1, column - 1
            steps.append((row, column))
        elif row and came_from(totals[row - 1, column] + 1):
            row -= 1
            steps.append((row, None))
        else:
            column -= 1
            steps.append((None, column))
    return steps[::-1]


def recognised(
    truth: Sequence[Word], heard: Sequence[Word], steps: Sequence[Step]
) -> list[tuple[int, int]]:
    """The steps whose word was heard as it was said."""
    pairs = [(here, there) for here, there in steps if here is not None and there is not None]
    return [
        (here, there)
        for here, there in pairs
        if plain(truth[here].text) == plain(heard[there].text)
    ]


def best_mapping(pairs: Iterable[tuple[str | None, str | None]]) -> dict[str, str]:
    """Who each given speaker is, so that most words are right; one is at most one (Hungarian
    algorithm).
    """
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for said_by, given_to in pairs:
        if said_by is not None and given_to is not None:
            counts[given_to, said_by] += 1
    found, known = sorted({pair[0] for pair in counts}), sorted({pair[1] for pair in counts})
    table = np.array([[counts[name, speaker] for speaker in known] for name in found]).reshape(
        len(found), len(known)
    )
    return {
        found[row]: known[column]
        for row, column in zip(*linear_sum_assignment(table, maximize=True), strict=True)
    }


def speaker_errors(
    truth: Sequence[Word], given: Sequence[Word], pairs: Sequence[tuple[int, int]]
) -> Count:
    """Correctly recognised words (`pairs` of indices) that are given to another speaker, or to
    nobody.
    """
    named = [(truth[here].speaker, given[there].speaker) for here, there in pairs]
    mapping = best_mapping(named)
    wrong = sum(given_to is None or mapping.get(given_to) != said_by for said_by, given_to in named)
    return Count(wrong, len(named))


def boundary_errors(
    truth: Sequence[Word], heard: Sequence[Word], pairs: Sequence[tuple[int, int]]
) -> NDArray[np.float64]:
    """(words, 2): by how many seconds each recognised word starts and ends too late; below zero,
    too early.
    """
    late = [(heard[b].start - truth[a].start, heard[b].end - truth[a].end) for a, b in pairs]
    return np.array(late, float).reshape(-1, 2)


def diarization_errors(
    truth: Sequence[SpeakerTurn], found: Sequence[SpeakerTurn], duration: float
) -> Count:
    """Seconds of missed speech, false alarm and confusion out of the speech; overlapped speech
    counts for each voice.

    COLLAR seconds around each true boundary are left out.
    """
    metric = DiarizationErrorRate(collar=COLLAR, skip_overlap=False)
    uem = Timeline([Segment(0, duration)])
    parts = metric(annotation(truth), annotation(found), uem=uem, detailed=True)
    wrong = parts["confusion"] + parts["missed detection"] + parts["false alarm"]
    return Count(float(wrong), float(parts["total"]))


def talked_over(start: float, end: float, turns: Iterable[SpeakerTurn]) -> bool:
    """Whether two turns are under way at once between two moments, in seconds."""
    heard = [turn for turn in turns if turn.start < end and start < turn.end]
    return any(
        min(one.end, two.end, end) > max(one.start, two.start, start)
        for one, two in combinations(heard, 2)
    )


def words_in_silence(truth: Sequence[Word], heard: Sequence[Word]) -> int:
    """How many words are heard more than NEAR seconds from every word that is said."""
    return sum(
        all(word.start - said.end > NEAR or said.start - word.end > NEAR for said in truth)
        for word in heard
        if plain(word.text)
    )


def _totals(price: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n + 1, m + 1): the least price of aligning the first words; one word left out costs 1.

    A row at a time: what is left out of the answer adds one a column, so it is a running minimum
    after taking that off.
    """
    rows, columns = price.shape
    steps = np.arange(columns + 1.0)
    totals = np.empty((rows + 1, columns + 1))
    totals[0] = steps
    for row in range(rows):
        above = totals[row]
        best = np.append(above[0] + 1, np.minimum(above[1:] + 1, above[:-1] + price[row]))
        totals[row + 1] = np.minimum.accumulate(best - steps) + steps
    return totals


def _middles(words: Sequence[Word]) -> NDArray[np.float64]:
    return np.array([(word.start + word.end) / 2 for word in words], float)


def _text(words: Iterable[Word]) -> str:
    return " ".join(filter(None, (plain(word.text) for word in words)))


def _by_speaker(words: Iterable[Word]) -> dict[str, str]:
    spoken: dict[str, list[Word]] = defaultdict(list)
    for word in words:
        spoken[str(word.speaker)].append(word)
    return {speaker: _text(said) for speaker, said in spoken.items()}
