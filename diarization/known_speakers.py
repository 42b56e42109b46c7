"""Gives speakers the names of known people who sound like them, or leaves them unnamed.

"Nobody" is a choice like every name. Speakers and names are assigned one to one so that the sum of
similarities is largest, and a speaker may go to nobody for the threshold. So no stranger gets a
name because it is the nearest, and a pair that falls through never displaces a good one, as it
would if pairs were thrown out after they were made.

Similarity is the cosine of embeddings, without calibration. It depends on the model, the channel
and the length of speech: see docs/benchmarks/voices.md and speakers.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from diarization.diarizer import Diarization, Span, Vector
from transcript import KnownSpeaker, SpeakerTurn

# A name has to be so much more similar than the next one.
MARGIN = 0.05
MIN_SECONDS_ALONE = 2.0
MOST_LABELS = 8  # that a warning names
NO_THRESHOLD = (
    "known_speakers: nobody is named, because known_speaker_threshold is not given and none is"
    " known for the voices of this diarization model"
)

Similarities = NDArray[np.float64]  # (speakers, names)


@dataclass(frozen=True, slots=True)
class KnownVoices:
    """The names that a client gave, in its order, and of each the unit vectors of its clips.

    `vectors` is empty where nobody looks for speakers. `same_voice` is from which similarity on the
    diarizer's embeddings are taken for one voice, None where nobody knows.
    """

    names: tuple[str, ...] = ()
    vectors: Mapping[str, Sequence[Vector]] = field(default_factory=dict, repr=False, compare=False)
    warnings: tuple[str, ...] = ()
    same_voice: float | None = None


@dataclass(frozen=True, slots=True)
class Naming:
    """A diarization with names, what is told of each name, and warnings."""

    diarization: Diarization | None
    known_speakers: tuple[KnownSpeaker, ...] = ()
    warnings: tuple[str, ...] = ()


def name_speakers(
    diarization: Diarization | None, known: KnownVoices, threshold: float | None = None
) -> Naming:
    """Call the speakers who sound like a known one by its name; others keep their label.

    `threshold` is the least similarity of a match, None for that of the embedding model; where that
    is not known, nobody is named. Who speaks less than
    MIN_SECONDS_ALONE while nobody else does is not compared, nor is who has no usable embedding.
    """
    if diarization is None or not known.vectors:
        return Naming(diarization, tuple(map(KnownSpeaker, known.names)), known.warnings)
    seconds = seconds_alone(diarization.turns)
    found = sorted(seconds, key=lambda label: -seconds[label])
    vectors = {label: unit(diarization.voices.get(label, ())) for label in found}
    labels = [
        each for each in found if vectors[each] is not None and seconds[each] >= MIN_SECONDS_ALONE
    ]
    rows = [vectors[label] for label in labels]
    similar = similarities(rows, [unit(np.mean(known.vectors[name], 0)) for name in known.names])
    least = known.same_voice if threshold is None else threshold
    pairs = {} if least is None else assign(similar, least)
    names = {labels[row]: known.names[column] for row, column in pairs.items()}
    told = tuple(_tell(known.names, labels, similar, pairs))
    warnings = known.warnings + _left_out([each for each in found if each not in labels])
    if least is None:
        warnings += (NO_THRESHOLD,)
    return Naming(replace(diarization.renamed(names), voices={}), told, warnings)


def assign(similar: Similarities, threshold: float) -> dict[int, int]:
    """The name (column) of each speaker (row) who gets one; at most one each.

    Every speaker may also go to a column of its own that is worth the threshold. Accepted is a pair
    of at least the threshold whose name is MARGIN more similar than that speaker's next one.
    """
    speakers, names = similar.shape
    nobody = np.full((speakers, speakers), threshold)
    rows, columns = linear_sum_assignment(np.hstack([similar, nobody]), maximize=True)
    pairs = {}
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if column < names and similar[row, column] >= threshold:
            others = np.delete(similar[row], column)
            if similar[row, column] - others.max(initial=-np.inf) >= MARGIN:
                pairs[row] = column
    return pairs


def similarities(speakers: Sequence[Vector | None], names: Sequence[Vector | None]) -> Similarities:
    """Cosines of unit vectors, (speakers, names); -1 where one is None."""
    result = np.full((len(speakers), len(names)), -1.0)
    for row, speaker in enumerate(speakers):
        for column, name in enumerate(names):
            if speaker is not None and name is not None:
                result[row, column] = float(speaker @ name)
    return result


def unit(vector: Vector | Sequence[float]) -> Vector | None:
    """The vector at length 1; None where it has no direction: empty, zero or not finite."""
    row = np.asarray(vector, np.float64)
    norm = float(np.linalg.norm(row))
    return row / norm if np.isfinite(norm) and norm > 0 else None


def seconds_alone(turns: Sequence[SpeakerTurn]) -> dict[str, float]:
    """How long each speaker speaks while nobody else does, in the order of first turns."""
    seconds = dict.fromkeys((turn.speaker for turn in turns), 0.0)
    for label, spans in spans_alone(turns).items():
        seconds[label] = sum(end - start for start, end in spans)
    return seconds


def spans_alone(turns: Sequence[SpeakerTurn]) -> dict[str, list[Span]]:
    """When each speaker speaks while nobody else does."""
    alone: defaultdict[str, list[Span]] = defaultdict(list)
    for label, span in _alone(turns):
        alone[label].append(span)
    return alone


def _alone(turns: Sequence[SpeakerTurn]) -> Iterator[tuple[str, Span]]:
    events = [(turn.start, 1, turn.speaker) for turn in turns]
    events += [(turn.end, -1, turn.speaker) for turn in turns]
    speaking: Counter[str] = Counter()
    before = 0.0
    for time, step, label in sorted(events):
        if len(speaking) == 1 and time > before:
            yield next(iter(speaking)), (before, time)
        speaking[label] += step
        if not speaking[label]:
            del speaking[label]
        before = time


def alike(known: Mapping[str, Sequence[Vector]], same_voice: float) -> list[tuple[int, int]]:
    """Places of names whose clips are as similar as those of one voice."""
    means = [unit(np.mean(vectors, 0)) for vectors in known.values()]
    similar = similarities(means, means)
    return [pair for pair in combinations(range(len(means)), 2) if similar[pair] >= same_voice]


def _tell(
    names: Sequence[str], labels: Sequence[str], similar: Similarities, pairs: Mapping[int, int]
) -> Iterator[KnownSpeaker]:
    """Each name with its speaker or, unmatched, the most similar one."""
    rows = {column: row for row, column in pairs.items()}
    for column, name in enumerate(names):
        if not labels:
            yield KnownSpeaker(name)
            continue
        row = rows.get(column, int(np.argmax(similar[:, column])))
        similarity = float(similar[row, column])
        yield KnownSpeaker(name, labels[row], similarity, column in rows)


def _left_out(labels: Sequence[str]) -> tuple[str, ...]:
    if not labels:
        return ()
    shown = ", ".join(sorted(labels)[:MOST_LABELS])
    more = f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else ""
    return (
        f"known_speakers: too little speech without others to compare {shown}{more}, "
        f"at least {MIN_SECONDS_ALONE:g} s",
    )
