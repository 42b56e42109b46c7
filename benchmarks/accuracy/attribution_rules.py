"""The two rules people use today to say who said what, to be measured beside ours.

Written from their description. Each keeps its known faults, because the comparison is with what it
does; only where it would crash (no turn, no chunk left, a missing end) it does what its authors'
patch does. `turns` is what pyannote returns as `speaker_diarization`, overlaps included: neither
rule knows exclusive turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Word


def insanely_fast_rule(
    chunks: Sequence[Chunk], turns: Sequence[SpeakerTurn]
) -> list[SpeakerSegment]:
    """Give chunks to turns as insanely-fast-whisper does (`post_process_segments_and_transcripts`).

    Neighbouring turns of one speaker are merged; each ends where the next begins. In order, each
    merged turn takes the remaining chunks up to the one that ends nearest to its end, at least one,
    until none is left. Chunks after the last turn are lost. An end that is not finite counts as
    later than every other. Segments have their chunks' words, with the segment's speaker.
    """
    segments: list[SpeakerSegment] = []
    remaining = list(chunks)
    for turn in _merge(turns):
        if not remaining:
            break
        ends = np.nan_to_num([chunk.end for chunk in remaining], nan=np.inf)
        taken = remaining[: int(np.argmin(np.abs(ends - turn.end))) + 1]
        words = [replace(word, speaker=turn.speaker) for chunk in taken for word in chunk.words]
        text = "".join(chunk.text for chunk in taken)
        segments.append(
            SpeakerSegment(turn.speaker, text, taken[0].start, taken[-1].end, tuple(words))
        )
        del remaining[: len(taken)]
    return segments


def insanely_fast_rule_on_words(
    words: Sequence[Word], turns: Sequence[SpeakerTurn]
) -> tuple[Word, ...]:
    """Apply insanely-fast-whisper's rule with every word as a chunk of its own, as its
    `--timestamp word` does.

    Words that are lost come back with the speaker None: the answer has every word in order.
    """
    chunks = [Chunk(word.text, word.start, word.end, words=(word,)) for word in words]
    segments = insanely_fast_rule(chunks, turns)
    given = [word for segment in segments for word in segment.words]
    return (*given, *(replace(word, speaker=None) for word in words[len(given) :]))


def whisperx_rule(
    words: Sequence[Word], turns: Sequence[SpeakerTurn], fill_nearest: bool = False
) -> tuple[Word, ...]:
    """Give each word to the speaker whose turns overlap it longest, as WhisperX's
    `assign_word_speakers` does.

    A tie goes to the speaker whose name sorts first. A word that no turn overlaps has no speaker,
    or with `fill_nearest` that of the turn nearest in time.
    """
    return tuple(
        replace(word, speaker=_longest_overlap(word, turns, fill_nearest)) for word in words
    )


def _merge(turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
    """Join neighbours of one speaker; a turn ends where the next begins, the last where its last
    part ends.
    """
    in_time = sorted(turns, key=lambda turn: (turn.start, turn.end))
    bounds = [0]
    for place, (before, here) in enumerate(pairwise(in_time), 1):
        if here.speaker != before.speaker:
            bounds.append(place)
    bounds.append(len(in_time))
    merged: list[SpeakerTurn] = []
    for first, after in pairwise(bounds):
        if after > first:
            end = in_time[after].start if after < len(in_time) else in_time[-1].end
            merged.append(SpeakerTurn(in_time[first].speaker, in_time[first].start, end))
    return merged


def _longest_overlap(word: Word, turns: Sequence[SpeakerTurn], fill_nearest: bool) -> str | None:
    seconds: dict[str, float] = defaultdict(float)
    for turn in turns:
        shared = min(word.end, turn.end) - max(word.start, turn.start)
        if shared > 0:
            seconds[turn.speaker] += shared
    if seconds:
        return max(sorted(seconds), key=lambda speaker: seconds[speaker])
    if not fill_nearest or not turns:
        return None
    return min(turns, key=lambda turn: max(turn.start - word.end, word.start - turn.end)).speaker
