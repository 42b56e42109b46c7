"""Assigns a transcript's words to speakers, by the times of words and speaker turns.

`attribute` gives every word a speaker; `speaker_segments` and `segment_per_chunk` join words to
segments. All functions are pure and use only times and names, never the text.

The ends of turns are less exact than the ends of words, and speakers seldom change within one of
Whisper's segments. So Viterbi's algorithm chooses the speakers of all words of a segment together:
it maximises the speech during the words, minus a cost for each change of speaker.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from whosaid.timebase import likeliest_path, merged
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Word, by_channel

# All in seconds, except MIN_OVERLAP.
# Cost of a change of speaker within a chunk, in speech of the new speaker. A word counts at most
# this much: a longer word is often stretched over speech that Whisper did not write, such as the
# end of another speaker's sentence.
CHANGE_COST = 0.4
# A word is assigned to a turn up to this far away: twice the usual collar (0.25 s) of diarization
# scores.
MAX_DISTANCE = 0.5
# A gap of up to this length in a speaker's turns within a chunk is filled: pauses within a sentence
# are as long, and another speaker seldom answers in them.
MAX_GAP = 2.0
MIN_OVERLAP = 0.2  # a word is overlapped if two speakers speak during this share of it
MAX_PAUSE = 2.0  # a longer pause ends a speaker segment
MIN_DURATION = 0.01  # a word without duration counts as this long, so that it can lie in a turn

Seconds = NDArray[np.float64]
Intervals = tuple[Seconds, Seconds]  # starts and ends, each (n,), in order and disjoint


def attribute(
    chunks: Sequence[Chunk], turns: Sequence[SpeakerTurn], exclusive: Sequence[SpeakerTurn]
) -> tuple[Chunk, ...]:
    """Assign every word of `chunks` to a speaker, and mark words during which two speakers speak,
    by their turns or by words of chunks with a `voice`.

    `turns` may overlap; `exclusive` turns have one speaker at a time. Each contributes half of the
    speech during a word, which counts for at most CHANGE_COST. Outside of turns, nearer turns count
    more.

    - A word in a turn, or within MAX_DISTANCE of a turn, gets a speaker.
    - A word farther from every turn gets None. Exception: the nearest assigned words before and
      after it in its chunk have the same speaker, with at most MAX_GAP between them. Then a gap in
      the diarization is likelier, and the word gets this speaker.
    - A word without a time (NaN) gets the speaker of the word before it in its chunk or, at the
      chunk's start, of the first word with a time.
    - A chunk without words counts as one word.
    - The words of a chunk with a `voice` are this speaker's, whatever the turns.

    No word is lost, doubled, moved or retimed. Takes O((n + m) log m) for each speaker, with n
    words and m turns.
    """
    units = [chunk.words or (as_word(chunk),) for chunk in chunks]
    words = iter(_attribute_words(units, turns, exclusive, with_voices(turns, chunks)))
    return tuple(
        replace(chunk, words=tuple(_spoken_by(chunk.voice, next(words)) for _ in unit))
        for chunk, unit in zip(chunks, units, strict=True)
    )


def _spoken_by(voice: str | None, word: Word) -> Word:
    return word if voice is None else replace(word, speaker=voice)


def with_voices(turns: Sequence[SpeakerTurn], chunks: Sequence[Chunk]) -> list[SpeakerTurn]:
    """Return the turns by time, with the words of a `voice`, joined within MAX_DISTANCE."""
    spoken: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for chunk in chunks:
        if chunk.voice is not None:
            timed = (word for word in chunk.words if word.end > word.start)  # no NaN
            spoken[chunk.voice] += ((word.start, word.end) for word in timed)
    extended = [turn for turn in turns if turn.speaker not in spoken]
    for speaker, words in spoken.items():
        between = [
            (before[1], after[0])
            for before, after in pairwise(sorted(words))
            if 0 < after[0] - before[1] <= MAX_DISTANCE
        ]
        own = [(turn.start, turn.end) for turn in turns if turn.speaker == speaker]
        spans = zip(*merged([*own, *words, *between]), strict=True)
        extended += [SpeakerTurn(speaker, float(start), float(end)) for start, end in spans]
    return sorted(extended, key=lambda turn: (turn.start, turn.end))


def with_names(words: Iterable[Word], names: Mapping[str, str]) -> tuple[Word, ...]:
    """Return the words with speakers by their names; a speaker without a name keeps the label."""
    return tuple(
        replace(word, speaker=names.get(word.speaker or "", word.speaker)) for word in words
    )


def as_word(chunk: Chunk) -> Word:
    return Word(chunk.text, chunk.start, chunk.end, language=chunk.language)


def speaker_segments(chunks: Sequence[Chunk]) -> list[SpeakerSegment]:
    """Join attributed words to segments of one speaker and one language, sorted by start.

    A pause ends a segment if it is longer than MAX_PAUSE or has a word on another channel. The
    joined texts of a channel's segments are the joined texts of its words.
    """
    channels = by_channel(chunks)
    segments: list[SpeakerSegment] = []
    for channel, own in channels.items():
        others = [word for each in chunks if each.channel != channel for word in each.words]
        segments += _join(own, sorted((word.start, word.end) for word in others), channel)
    return segments if len(channels) < 2 else sorted(segments, key=lambda each: each.start)


def during(words: Sequence[Word], others: Iterable[Word]) -> list[bool]:
    """Return, for each of `words`, whether `others` overlap at least MIN_OVERLAP of it."""
    starts = np.array([word.start for word in words], float)
    ends = np.maximum([word.end for word in words], starts + MIN_DURATION)
    seconds = _speech_seconds(merged([(word.start, word.end) for word in others]), starts, ends)
    return [bool(each) for each in seconds >= MIN_OVERLAP * (ends - starts)]


def seconds_spoken(
    spans: Sequence[tuple[float, float]], turns: Sequence[SpeakerTurn]
) -> tuple[Seconds, Seconds]:
    """Return the seconds of each span (n,) with a speaker, and with two speakers or more (n,)."""
    starts, ends = np.array(spans, float).reshape(-1, 2).T
    speakers = [_intervals_of(name, turns) for name in _speakers_in_order(turns)]
    several = _overlap(speakers) if speakers else merged([])
    anybody = merged([(turn.start, turn.end) for turn in turns])
    return _speech_seconds(anybody, starts, ends), _speech_seconds(several, starts, ends)


def _join(
    chunks: Sequence[Chunk], others: Sequence[tuple[float, float]], channel: int | None
) -> list[SpeakerSegment]:
    """Return a channel's segments; `others` are (start, end) of other channels' words, sorted."""
    groups: list[list[Word]] = []
    for word in chain.from_iterable(chunk.words for chunk in chunks):
        if groups and _continues(groups[-1][-1], word, others):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [segment_of(group, channel) for group in groups]


def _continues(before: Word, word: Word, others: Sequence[tuple[float, float]]) -> bool:
    same = (word.speaker, word.language) == (before.speaker, before.language)
    pause = slice(bisect_left(others, (before.end,)), bisect_left(others, (word.start,)))
    between = any(end <= word.start for _, end in others[pause])
    # A time of NaN makes this comparison false: there is no pause.
    return same and not between and not word.start - before.end > MAX_PAUSE


def segment_per_chunk(chunks: Sequence[Chunk]) -> list[SpeakerSegment]:
    """Return a segment for each attributed chunk, with the speaker who speaks longest in it.

    A segment lasts from its first word to its last, because word times are more exact than the
    chunk's.
    """
    return [
        replace(
            segment_of(each.words, each.channel), speaker=_main_speaker(each.words), text=each.text
        )
        for each in chunks
    ]


def segment_of(words: Sequence[Word], channel: int | None = None) -> SpeakerSegment:
    text = "".join(word.text for word in words)
    first, last = words[0], words[-1]
    return SpeakerSegment(
        first.speaker, text, first.start, last.end, tuple(words), first.language, channel
    )


def _main_speaker(words: Sequence[Word]) -> str | None:
    """Return the speaker whose words last longest, the first if equal; None without speakers."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for word in words:
        if word.speaker is not None:
            seconds[word.speaker] += max(word.end - word.start, MIN_DURATION)
    return max(seconds, key=lambda speaker: seconds[speaker], default=None)


def _attribute_words(
    units: Sequence[Sequence[Word]],
    turns: Sequence[SpeakerTurn],
    exclusive: Sequence[SpeakerTurn],
    extended: Sequence[SpeakerTurn],
) -> list[Word]:
    """Return the words of all units, one for each chunk, with speaker, and overlap by the
    `extended` turns. Evidence is a speaker's seconds during a word, minus the seconds to the
    nearest turn.
    """
    words = list(chain.from_iterable(units))
    names = _speakers_in_order([*turns, *exclusive])
    if not names or not words:
        return [replace(word, speaker=None, overlap=False) for word in words]
    starts = np.array([word.start for word in words], float)
    ends = np.maximum([word.end for word in words], starts + MIN_DURATION)
    all_intervals = [_intervals_of(name, turns) for name in names]
    exclusive_intervals = [_intervals_of(name, exclusive) for name in names]
    speech, distance = np.empty((2, len(words), len(names)))
    for index, both in enumerate(zip(all_intervals, exclusive_intervals, strict=True)):
        speech[:, index] = sum(_speech_seconds(each, starts, ends) for each in both) / 2
        distance[:, index] = np.minimum(*(_distances(each, starts, ends) for each in both))
    speech *= (CHANGE_COST / np.maximum(CHANGE_COST, ends - starts))[:, None]
    evidence = np.nan_to_num(speech - np.minimum(distance, MAX_DISTANCE))
    speakers: list[str | None] = []
    for first, after in pairwise([0, *accumulate(len(unit) for unit in units)]):
        unit = slice(first, after)
        likeliest = [names[index] for index in likeliest_path(evidence[unit], CHANGE_COST)]
        nearest = distance[unit].min(axis=1)
        speakers += _unassign_distant(likeliest, nearest, starts[unit], ends[unit])
    several = _overlap([_intervals_of(name, extended) for name in names])
    overlap_seconds = _speech_seconds(several, starts, ends)
    overlapped = overlap_seconds >= MIN_OVERLAP * (ends - starts)
    return [
        replace(word, speaker=speaker, overlap=bool(overlap))
        for word, speaker, overlap in zip(words, speakers, overlapped, strict=True)
    ]


def _speakers_in_order(turns: Sequence[SpeakerTurn]) -> list[str]:
    """Return each speaker once, by start of the first turn."""
    by_start = sorted(turns, key=lambda turn: turn.start)
    return list(dict.fromkeys(turn.speaker for turn in by_start))


def _unassign_distant(
    likeliest: Sequence[str], distance: Seconds, starts: Seconds, ends: Seconds
) -> list[str | None]:
    """Return the speakers of a chunk's n words, None for words too far from every turn
    (`attribute`). `distance` (n,) is in seconds to the nearest turn, NaN without a time.
    """
    timed = np.flatnonzero(~np.isnan(distance))
    if not len(timed):
        return [None] * len(distance)
    near = np.flatnonzero(distance <= MAX_DISTANCE).tolist()
    speakers: list[str | None] = [None] * len(distance)
    for index in near:
        speakers[index] = likeliest[index]
    for before, after in pairwise(near):
        if likeliest[before] == likeliest[after] and starts[after] - ends[before] <= MAX_GAP:
            speakers[before:after] = [likeliest[before]] * (after - before)
    # For each word, the last word with a time up to it, else the first word with a time.
    positions = np.searchsorted(timed, np.arange(len(distance)), side="right") - 1
    return [speakers[index] for index in timed[np.maximum(positions, 0)]]


def _intervals_of(name: str, turns: Sequence[SpeakerTurn]) -> Intervals:
    return merged([(turn.start, turn.end) for turn in turns if turn.speaker == name])


def _overlap(speakers: Sequence[Intervals]) -> Intervals:
    """Return the intervals in which two or more of `speakers` speak."""
    starts = np.concatenate([starts for starts, _ in speakers])
    ends = np.concatenate([ends for _, ends in speakers])
    times = np.concatenate([starts, ends])
    steps = np.repeat([1, -1], len(starts))
    order = np.lexsort((steps, times))  # at equal times, ends come first
    times, speaking = times[order], steps[order].cumsum()
    several = speaking[:-1] >= 2
    return times[:-1][several], times[1:][several]


def _speech_seconds(intervals: Intervals, starts: Seconds, ends: Seconds) -> Seconds:
    """Return the seconds of speech during each word. The speech up to a moment is piecewise linear
    in time, so two interpolations suffice.
    """
    if not len(intervals[0]):
        return np.zeros_like(starts)
    lengths = intervals[1] - intervals[0]
    total = np.cumsum(lengths)
    knots = np.stack(intervals, 1).ravel()
    seconds = np.stack((total - lengths, total), 1).ravel()
    return np.asarray(np.interp(ends, knots, seconds) - np.interp(starts, knots, seconds))


def _distances(intervals: Intervals, starts: Seconds, ends: Seconds) -> Seconds:
    """Return the seconds from each word to the nearest interval, 0 if they overlap."""
    following = np.searchsorted(intervals[1], starts, side="right")
    to_following = np.append(intervals[0], np.inf)[following] - ends
    to_preceding = starts - np.append(-np.inf, intervals[1])[following]
    return np.asarray(np.minimum(np.maximum(to_following, 0.0), to_preceding))
