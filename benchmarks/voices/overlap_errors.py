"""Counts word errors inside and outside overlapped speech, of the text alone and by speaker.

Words are normalised one by one, so that each keeps its time. A reference word is overlapped if
another speaker's turn covers a fifth of it, an inserted word if two speakers' turns do.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

import numpy as np
from meeteval.wer import greedy_orc_word_error_rate, mimo_word_error_rate
from meeteval.wer.wer.time_constrained import align, tcp_word_error_rate

from benchmarks.counts import Count
from whosaid.transcript import SpeakerTurn, Word

TEXT, BY_SPEAKER, IN_TIME = ("text alone", "cpWER", "tcpWER")
INSIDE, OUTSIDE = PARTS = ("inside", "outside")
COVERED = 0.2  # of a word's time
COLLAR = 5.0  # seconds, of tcpWER
ANY_TIME = 1e6  # a collar that excludes nothing
FRAMES = 100  # per second

# A word as meeteval has it.
Segment = dict[str, Any]
Streams = dict[str, list[Segment]]


def word_errors(
    reference: Sequence[Word],
    turns: Sequence[SpeakerTurn],
    found: Sequence[Word],
    normalize: Callable[[str], str],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return errors of the `found` words by measure and part.

    The reference is words in order of time with their speakers, and `turns`. The text alone has no
    errors of speakers or of the order of utterances: the better of MIMO-WER of one stream and
    ORC-WER of the found speakers' streams. By speaker, words without a speaker count as missing.
    """
    true = _segments(mark_overlap(reference, turns), normalize)
    given = _segments(mark_overlap(found, turns), normalize)
    spoken = [each for each in given if each["speaker"]]
    return {
        TEXT: _counts(_text_pairs(_utterances(true, turns), given)),
        BY_SPEAKER: _counts(_speaker_pairs(true, spoken, ANY_TIME)),
        IN_TIME: _counts(_speaker_pairs(true, spoken, COLLAR)),
    }


def mark_overlap(words: Sequence[Word], turns: Sequence[SpeakerTurn]) -> list[Word]:
    """Return the words with `overlap` set: another speaker speaks during a word of one of the
    turns' speakers, or two speakers speak during any other word.
    """
    ends = [each.end for each in words] + [each.end for each in turns]
    frames = round(FRAMES * max(ends)) + 2
    speaks = {turn.speaker: np.zeros(frames, bool) for turn in turns}
    for turn in turns:
        speaks[turn.speaker][round(FRAMES * turn.start) : round(FRAMES * turn.end)] = True
    number = sum(speaks.values(), np.zeros(frames, int))
    marked = []
    for word in words:
        start = round(FRAMES * word.start)
        during = slice(start, max(round(FRAMES * word.end), start + 1))
        if word.speaker in speaks:
            overlapped = number[during] - speaks[word.speaker][during] >= 1
        else:
            overlapped = number[during] >= 2
        marked.append(replace(word, overlap=bool(overlapped.mean() >= COVERED)))
    return marked


def _segments(words: Iterable[Word], normalize: Callable[[str], str]) -> list[Segment]:
    return [
        {
            "session_id": "",
            "speaker": word.speaker or "",
            "words": text,
            "start_time": word.start,
            "end_time": max(word.end, word.start),
            "inside": word.overlap,
        }
        for word in words
        for text in normalize(word.text).split()
    ]


def _utterances(true: Sequence[Segment], turns: Sequence[SpeakerTurn]) -> list[list[Segment]]:
    """Return each speaker's words by the turn nearest to them, in order of time."""

    def turn_of(word: Segment) -> tuple[float, str]:
        middle = (word["start_time"] + word["end_time"]) / 2
        own = [turn for turn in turns if turn.speaker == word["speaker"]]
        nearest = min(own, key=lambda turn: max(turn.start - middle, middle - turn.end))
        return nearest.start, nearest.speaker

    return [list(words) for _, words in groupby(sorted(true, key=turn_of), key=turn_of)]


def _text_pairs(utterances: Sequence[list[Segment]], given: list[Segment]) -> list[Any]:
    """Return aligned words, regardless of speakers, in the order of utterances with the fewest
    errors.
    """
    by_speaker: dict[str, list[list[Segment]]] = defaultdict(list)
    for each in utterances:
        by_speaker[each[0]["speaker"]].append(each)
    texts = {speaker: [_text(each) for each in own] for speaker, own in by_speaker.items()}
    orders = mimo_word_error_rate(texts, {"": _text(given)}, False, False).assignment
    in_order = [word for speaker, _ in orders for word in by_speaker[speaker].pop(0)]
    one = _align(in_order, given, ANY_TIME)
    streams = _streams(given)
    if len(streams) < 2:
        return one
    found = {speaker: _text(words) for speaker, words in streams.items()}
    chosen = greedy_orc_word_error_rate([_text(each) for each in utterances], found, False, False)
    assigned: Streams = {speaker: [] for speaker in streams}
    for speaker, each in zip(chosen.assignment, utterances, strict=True):
        assigned[speaker] += each
    several = [
        pair
        for speaker, words in streams.items()
        for pair in _align(assigned[speaker], words, ANY_TIME)
    ]
    return min(one, several, key=lambda pairs: sum(map(_is_error, pairs)))


def _speaker_pairs(true: list[Segment], given: list[Segment], collar: float) -> list[Any]:
    """Return aligned words of each speaker and of the matched found speaker."""
    reference, found = _streams(true), _streams(given)
    if not found:
        return _align(true, [], collar)
    assignment = tcp_word_error_rate(true, given, collar=collar).assignment
    return [
        pair
        for speaker, other in assignment
        for pair in _align(reference.get(speaker, []), found.get(other, []), collar)
    ]


def _align(true: list[Segment], given: list[Segment], collar: float) -> list[Any]:
    if not true:
        return [(None, each) for each in given]
    sort: Any = "segment" if collar != ANY_TIME else False
    order = {"reference_sort": sort, "hypothesis_sort": sort}
    return list(align(true, given, collar=collar, style="seglst", **order))


def _counts(pairs: Sequence[Any]) -> dict[str, dict[str, float]]:
    counted = {}
    for part in PARTS:
        own = [pair for pair in pairs if (pair[0] or pair[1])["inside"] == (part == INSIDE)]
        words = sum(true is not None for true, _ in own)
        counted[part] = asdict(Count(sum(map(_is_error, own)), words))
    return counted


def _is_error(pair: Any) -> bool:  # noqa: ANN401
    true, found = pair
    return true is None or found is None or true["words"] != found["words"]


def _streams(words: Iterable[Segment]) -> Streams:
    streams: Streams = defaultdict(list)
    for each in words:
        streams[each["speaker"]].append(each)
    return dict(streams)


def _text(words: Iterable[Segment]) -> str:
    return " ".join(each["words"] for each in words)
