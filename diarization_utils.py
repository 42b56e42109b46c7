"""Who said what: the text of a transcript given to speaker turns.

The one decision: pure functions on times and names. What found the turns and what heard the text is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from transcript import Chunk, SpeakerSegment, SpeakerTurn

# A segment is cut where its speaker is silent for longer than this, in seconds.
LONGEST_PAUSE = 2.0
# What a chunk without duration is widened to, in seconds, so that it can lie within a turn.
INSTANT = 0.01


def assign_speakers(chunks: Sequence[Chunk], turns: Sequence[SpeakerTurn]) -> list[SpeakerSegment]:
    """Give each chunk to the speaker heard longest within it, and join neighbours of one speaker.

    No chunk is lost, doubled or moved: the segments' texts, joined, are the chunks' texts, joined. A chunk that no
    turn overlaps belongs to nobody (None). A pause of more than LONGEST_PAUSE seconds cuts a segment.
    Takes O((n + m) log m) time per speaker for n chunks and m turns.
    """
    speakers = _speakers_of(chunks, turns)
    starts_segment = [
        here != before or chunk.start - previous.end > LONGEST_PAUSE
        for (before, here), (previous, chunk) in zip(pairwise(speakers), pairwise(chunks), strict=True)
    ]
    bounds = [0, *(i for i, cut in enumerate(starts_segment, 1) if cut), len(chunks)]
    return [
        SpeakerSegment(
            speakers[first],
            "".join(chunk.text for chunk in chunks[first:after]),
            chunks[first].start,
            chunks[after - 1].end,
        )
        for first, after in pairwise(bounds)
        if after > first
    ]


def _speakers_of(chunks: Sequence[Chunk], turns: Sequence[SpeakerTurn]) -> list[str | None]:
    """Name the speaker with the largest summed overlap for each chunk; a tie goes to the first to speak."""
    names = list(dict.fromkeys(turn.speaker for turn in sorted(turns, key=lambda turn: turn.start)))
    if not names or not chunks:
        return [None] * len(chunks)
    starts = np.array([chunk.start for chunk in chunks])
    ends = np.maximum([chunk.end for chunk in chunks], starts + INSTANT)
    # (speakers, chunks), seconds
    overlap = np.stack(
        [_speech_between([turn for turn in turns if turn.speaker == name], starts, ends) for name in names]
    )
    best = overlap.argmax(axis=0)
    return [names[speaker] if seconds > 0 else None for speaker, seconds in zip(best, overlap.max(axis=0), strict=True)]


def _speech_between(
    turns: Sequence[SpeakerTurn], starts: NDArray[np.float64], ends: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Measure one speaker's speech, in seconds, within each stretch.

    The speech up to a moment grows along straight lines with knots at the turns' ends, so that two interpolations
    replace a comparison of every stretch with every turn.
    """
    knots = [(0.0, 0.0)]
    for turn in sorted(turns, key=lambda turn: turn.start):
        at, spoken = knots[-1]
        begin = max(turn.start, at)
        if turn.end > begin:
            knots += [(begin, spoken), (turn.end, spoken + turn.end - begin)]
    times, seconds = np.array(knots).T
    return np.asarray(np.interp(ends, times, seconds) - np.interp(starts, times, seconds))
