"""Two other projects' rules for who said a word, written from their description, faults included.

Where the original would crash (no turn, no chunk left, a missing end) these rules do what its
authors' patch does. `turns` may overlap: neither rule knows exclusive turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise, zip_longest

import numpy as np

from whosaid.transcript import Chunk, SpeakerTurn, Word


def insanely_fast_rule(chunks: Sequence[Chunk], turns: Sequence[SpeakerTurn]) -> tuple[Word, ...]:
    """Give chunks to turns as insanely-fast-whisper does (`post_process_segments_and_transcripts`).

    Neighbouring turns of one speaker are merged; each ends where the next begins. In order, each
    merged turn takes the remaining chunks up to the one that ends nearest to its end, at least one,
    until none is left. The words of chunks after the last turn have no speaker. An end that is not
    finite counts as later than every other.
    """
    words: list[Word] = []
    remaining = list(chunks)
    for speaker, end in _merge(turns):
        if not remaining:
            break
        ends = np.nan_to_num([chunk.end for chunk in remaining], nan=np.inf)
        count = int(np.argmin(np.abs(ends - end))) + 1
        taken = chain.from_iterable(chunk.words for chunk in remaining[:count])
        words += [replace(word, speaker=speaker) for word in taken]
        del remaining[:count]
    lost = chain.from_iterable(chunk.words for chunk in remaining)
    return (*words, *(replace(word, speaker=None) for word in lost))


def whisperx_rule(words: Sequence[Word], turns: Sequence[SpeakerTurn]) -> tuple[Word, ...]:
    """Give each word to the speaker whose turns overlap it longest (`assign_word_speakers`).

    A tie goes to the speaker whose name sorts first. A word that no turn overlaps has no speaker.
    """
    return tuple(replace(word, speaker=_longest_overlap(word, turns)) for word in words)


def _merge(turns: Sequence[SpeakerTurn]) -> list[tuple[str, float]]:
    """Return the speaker and the end of each run of turns; the last run ends where its last turn
    ends.
    """
    in_time = sorted(turns, key=lambda turn: (turn.start, turn.end))
    runs = [list(run) for _, run in groupby(in_time, key=lambda turn: turn.speaker)]
    ends = [after[0].start for _, after in pairwise(runs)]
    return [
        (run[0].speaker, run[-1].end if end is None else end)
        for run, end in zip_longest(runs, ends)
    ]


def _longest_overlap(word: Word, turns: Sequence[SpeakerTurn]) -> str | None:
    seconds: dict[str, float] = defaultdict(float)
    for turn in turns:
        shared = min(word.end, turn.end) - max(word.start, turn.start)
        if shared > 0:
            seconds[turn.speaker] += shared
    return max(sorted(seconds), key=lambda speaker: seconds[speaker], default=None)
