"""Who said what: the words of a transcript given to speaker turns.

The one decision: pure functions on times and names. What found the turns and what heard the words
is not known here, and no text is read: a word goes to a speaker for when it was said, never for
what it says.

Two facts decide how. The ends of turns are less exact than those of words, so a word at the edge of
a turn, or in the middle of a very short one, is weak evidence; and people seldom take turns inside
one of Whisper's own segments, which end where sentences do. So the speakers of a segment's words
are chosen together: those who are heard for the longest time during the words, less a price for
each change (Viterbi's algorithm over the words, speakers as states).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from transcript import Chunk, SpeakerSegment, SpeakerTurn, Word

# What a change of speaker within one of Whisper's segments costs, in seconds of the new speaker's
# speech.
CHANGE_WITHIN = 0.4
# How far from a turn, in seconds, words may lie to be given to its speaker: twice the 0.25 s that
# scoring forgives.
NEAREST = 0.5
# For how long, in seconds, one speaker may be unheard amid a chunk and be taken to speak on: as
# short as the pauses that people make within a sentence, in which another seldom answers.
LONGEST_HOLE = 2.0
# The share of a word from which two voices at once make it an overlapped one.
OVERLAP_SHARE = 0.2
# A segment is cut where its speaker is silent for longer than this, in seconds.
LONGEST_PAUSE = 2.0
# What a word without duration is widened to, in seconds, so that it can lie within a turn.
INSTANT = 0.01

Seconds = NDArray[np.float64]
Stretches = tuple[Seconds, Seconds]


def attribute(
    chunks: Sequence[Chunk], turns: Sequence[SpeakerTurn], exclusive: Sequence[SpeakerTurn]
) -> tuple[Chunk, ...]:
    """Name the speaker of every word of `chunks`, and mark words spoken while another voice is
    heard.

    `exclusive` turns hold one speaker at a time and `turns` whoever is heard: a word of a speaker
    found in both counts in full, in one by half. A word in a turn always has a speaker, and so has
    one within NEAREST seconds of a turn, for which the nearest speaks most. Farther from every turn
    it is nobody's (None), unless the words with speakers that are next to it in its chunk, before
    and after, are one speaker's and at most LONGEST_HOLE seconds apart: then a hole in the
    diarization is likelier. A word without a time (NaN) follows the one before it in its chunk, the
    first ones that after them. A chunk whose words are not known is taken as a single word. No word
    is lost, doubled, moved or retimed. O((n + m) log m) per speaker for n words and m turns.
    """
    units = [chunk.words or (Word(chunk.text, chunk.start, chunk.end),) for chunk in chunks]
    named = iter(_named(units, turns, exclusive))
    return tuple(
        replace(chunk, words=tuple(next(named) for _ in unit))
        for chunk, unit in zip(chunks, units, strict=True)
    )


def speaker_segments(chunks: Sequence[Chunk]) -> list[SpeakerSegment]:
    """Join attributed words into segments of one speaker, cut also at pauses of more than
    LONGEST_PAUSE seconds.

    The segments' texts, joined, are the chunks' words, joined.
    """
    words = [word for chunk in chunks for word in chunk.words]
    cuts = [
        place
        for place, (before, word) in enumerate(pairwise(words), 1)
        if word.speaker != before.speaker or word.start - before.end > LONGEST_PAUSE
    ]
    return [
        _segment(words[first:after])
        for first, after in pairwise([0, *cuts, len(words)])
        if after > first
    ]


def segment_per_chunk(chunks: Sequence[Chunk]) -> list[SpeakerSegment]:
    """Make one segment of each attributed chunk, under the speaker who said most of it, by time.

    It lasts from the first word to the last: Whisper's own times of a chunk, which its words are
    not bound by, are rougher than theirs.
    """
    return [
        replace(_segment(chunk.words), speaker=_main_speaker(chunk.words), text=chunk.text)
        for chunk in chunks
    ]


def _segment(words: Sequence[Word]) -> SpeakerSegment:
    text = "".join(word.text for word in words)
    return SpeakerSegment(words[0].speaker, text, words[0].start, words[-1].end, tuple(words))


def _main_speaker(words: Sequence[Word]) -> str | None:
    """The speaker with the longest speech, the first of equals; nobody only where no word has a
    speaker.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for word in words:
        if word.speaker is not None:
            seconds[word.speaker] += max(word.end - word.start, INSTANT)
    return max(seconds, key=lambda speaker: seconds[speaker], default=None)


def _named(
    units: Sequence[Sequence[Word]], turns: Sequence[SpeakerTurn], exclusive: Sequence[SpeakerTurn]
) -> list[Word]:
    """The words of all `units`, those of one chunk each, with speaker and overlap."""
    words = list(chain.from_iterable(units))
    names = list(
        dict.fromkeys(
            turn.speaker for turn in sorted((*turns, *exclusive), key=lambda turn: turn.start)
        )
    )
    if not names or not words:
        return [replace(word, speaker=None, overlap=False) for word in words]
    starts = np.array([word.start for word in words], float)
    ends = np.maximum([word.end for word in words], starts + INSTANT)
    voices = [(_stretches(name, turns), _stretches(name, exclusive)) for name in names]
    # (words, speakers), seconds
    speech = np.stack(
        [sum(_speech(each, starts, ends) for each in voice) / 2 for voice in voices], axis=1
    )
    away = np.stack(
        [np.minimum(*(_distance(each, starts, ends) for each in voice)) for voice in voices], axis=1
    )
    evidence = np.nan_to_num(speech - np.minimum(away, NEAREST))
    speakers: list[str | None] = []
    for first, after in pairwise([0, *accumulate(len(unit) for unit in units)]):
        here = slice(first, after)
        likeliest = [names[speaker] for speaker in _likeliest(evidence[here])]
        speakers += _in_reach(likeliest, away[here].min(axis=1), starts[here], ends[here])
    overlap = _speech(
        _overlapped([heard for heard, _ in voices]), starts, ends
    ) >= OVERLAP_SHARE * (ends - starts)
    return [
        replace(word, speaker=speaker, overlap=bool(two))
        for word, speaker, two in zip(words, speakers, overlap, strict=True)
    ]


def _likeliest(evidence: Seconds) -> list[int]:
    """The speakers (n,) of a chunk's words: those with most `evidence` (n, speakers) in sum, less
    the price of changes.

    Viterbi's algorithm; as every change costs the same, only the best speaker so far is worth
    changing from.
    """
    stay = np.arange(evidence.shape[1])
    total, origins = evidence[0], []
    for seconds in evidence[1:]:
        leader = int(total.argmax())
        changed = total[leader] - CHANGE_WITHIN
        origins.append(np.where(total >= changed, stay, leader))
        total = np.maximum(total, changed) + seconds
    path = [int(total.argmax())]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return path[::-1]


def _in_reach(
    likeliest: Sequence[str], away: Seconds, starts: Seconds, ends: Seconds
) -> list[str | None]:
    """The speakers of a chunk's words, nobody where they are too far `away` from every turn; see
    `attribute`.
    """
    timed = np.flatnonzero(~np.isnan(away))
    if not len(timed):
        return [None] * len(away)
    reached = np.flatnonzero(away <= NEAREST).tolist()
    found: list[str | None] = [None] * len(away)
    for place in reached:
        found[place] = likeliest[place]
    for before, after in pairwise(reached):
        if likeliest[before] == likeliest[after] and starts[after] - ends[before] <= LONGEST_HOLE:
            found[before:after] = [likeliest[before]] * (after - before)
    followed = timed[np.maximum(np.searchsorted(timed, np.arange(len(away)), side="right") - 1, 0)]
    return [found[place] for place in followed]


def _stretches(name: str, turns: Sequence[SpeakerTurn]) -> Stretches:
    """Starts and ends of one speaker's speech, in order, apart from each other."""
    spans = np.array(
        sorted((turn.start, turn.end) for turn in turns if turn.speaker == name), float
    ).reshape(-1, 2)
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > reach[:-1])[: len(spans)]
    return spans[first, 0], reach[np.roll(first, -1)]


def _overlapped(voices: Sequence[Stretches]) -> Stretches:
    """The stretches in which two voices or more are heard."""
    times = np.concatenate([*(starts for starts, _ in voices), *(ends for _, ends in voices)])
    steps = np.repeat([1, -1], len(times) // 2)
    order = np.lexsort((steps, times))
    times, crowded = times[order], steps[order].cumsum() >= 2
    return times[:-1][crowded[:-1]], times[1:][crowded[:-1]]


def _speech(stretches: Stretches, starts: Seconds, ends: Seconds) -> Seconds:
    """Seconds of speech within each word.

    The speech up to a moment grows along straight lines with knots at the stretches' ends, so that
    two interpolations replace a comparison of every word with every stretch.
    """
    if not len(stretches[0]):
        return np.zeros_like(starts)
    lengths = stretches[1] - stretches[0]
    spoken = lengths.cumsum()
    knots, seconds = np.stack(stretches, 1).ravel(), np.stack((spoken - lengths, spoken), 1).ravel()
    return np.asarray(np.interp(ends, knots, seconds) - np.interp(starts, knots, seconds))


def _distance(stretches: Stretches, starts: Seconds, ends: Seconds) -> Seconds:
    """Seconds from each word to the nearest stretch; 0 where they meet."""
    after = np.searchsorted(stretches[1], starts, side="right")
    following = np.append(stretches[0], np.inf)[after] - ends
    preceding = starts - np.append(-np.inf, stretches[1])[after]
    return np.asarray(np.minimum(np.maximum(following, 0.0), preceding))
