"""What a diarizer is to the endpoint: samples and hints go in, frozen turns come out.

Which models find the turns is decided by `diarization.loading`, and told by nothing else here.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from transcript import SpeakerTurn

MARGIN = 0.2  # seconds that a turn may extend beyond detected speech

Span = tuple[float, float]  # start and end, seconds
Vector = NDArray[np.floating[Any]]  # (dimension,), of any length


class DiarizationCancelled(Exception):
    """`diarize` was stopped by its `cancelled` event; no client is ever told of it."""


@dataclass(frozen=True, slots=True)
class SpeakerHints:
    """What the client knows about the number of speakers; None where it knows nothing."""

    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None


@dataclass(frozen=True, slots=True)
class Diarization:
    """Speaker turns in order of time, in seconds.

    `turns` may overlap. `exclusive` has one speaker at a time and decides who said a chunk;
    pipelines that do not compute it (before pyannote 4, or `legacy: true`) have `turns` there.
    `hints` are those of the request. `voices` has an embedding for each speaker that the pipeline
    found, in `turns` or cut out of them; some may be zero or NaN, and pipelines that tell none
    (`legacy: true`) leave it empty. It identifies people, so that it is neither printed nor kept.
    `most_speakers` is how many the models tell apart, None for any number.
    """

    turns: tuple[SpeakerTurn, ...]
    exclusive: tuple[SpeakerTurn, ...]
    hints: SpeakerHints = SpeakerHints()
    voices: Mapping[str, Vector] = field(default_factory=dict, repr=False, compare=False)
    most_speakers: int | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings where the number of speakers in `turns` does not meet the hints, and where it is
        the most that can be.
        """
        found = len({turn.speaker for turn in self.turns})
        lowest = self.hints.num_speakers or self.hints.min_speakers or 0
        highest = self.hints.num_speakers or self.hints.max_speakers or found
        told = []
        if not lowest <= found <= highest:
            told.append(f"speaker hints could not be met: {found} found")
        if found == self.most_speakers:
            told.append(f"{found} speakers were found, the most that the diarization model knows")
        return tuple(told)

    def renamed(self, names: Mapping[str, str]) -> Diarization:
        """Replace the speakers' labels by `names`. Labels without a name stay, but lose their
        voice.
        """

        def rename(turns: Sequence[SpeakerTurn]) -> tuple[SpeakerTurn, ...]:
            return tuple(
                replace(turn, speaker=names.get(turn.speaker, turn.speaker)) for turn in turns
            )

        voices = {names[label]: voice for label, voice in self.voices.items() if label in names}
        return replace(
            self, turns=rename(self.turns), exclusive=rename(self.exclusive), voices=voices
        )

    def numbered(self, labels: dict[str, str]) -> Diarization:
        """Call the speakers SPEAKER_00, SPEAKER_01, ... in the order in which they first speak.

        `labels` maps the pipeline's labels of earlier speakers to these; new speakers are added.
        """
        for turn in sorted((*self.turns, *self.exclusive), key=lambda turn: turn.start):
            labels.setdefault(turn.speaker, f"SPEAKER_{len(labels):02d}")
        return self.renamed(labels)

    def touching(self, speech: Sequence[Span]) -> Diarization:
        """Keep the turns in which detected `speech`, spans in order, is heard; a turn apart from
        all speech is noise taken for a speaker.

        Turns keep their ends, which diarizers know better than a detector: cut to speech, as by
        `within`, they had 1.4 points more of diarization errors on real conversations.
        """
        spans = _merge_with_margin(speech)
        ends = [end for _, end in spans]

        def kept(turns: Sequence[SpeakerTurn]) -> tuple[SpeakerTurn, ...]:
            after = ((turn, bisect_right(ends, turn.start)) for turn in turns)
            return tuple(
                turn for turn, next_ in after if next_ < len(spans) and spans[next_][0] < turn.end
            )

        return replace(self, turns=kept(self.turns), exclusive=kept(self.exclusive))

    def within(self, speech: Sequence[Span]) -> Diarization:
        """Keep what lies in detected `speech`, spans in order; noise taken for a speaker goes.

        A turn may extend MARGIN seconds beyond speech, and is split where speech pauses for longer
        than two margins.
        """
        spans = _merge_with_margin(speech)
        return replace(self, turns=_clip(self.turns, spans), exclusive=_clip(self.exclusive, spans))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a diarizer can do beside finding turns.

    `hints`: it can be told the number of speakers. `voices`: it embeds them, so that known ones can
    be named. `same_voice`: from which cosine on two of its embeddings are taken for one voice; None
    where that was never measured. `streams`: it keeps up with people who speak.
    """

    hints: bool
    voices: bool
    same_voice: float | None = None
    streams: bool = False


class DiarizationStream(Protocol):
    """Who speaks in audio that is still coming; for one thread at a time."""

    @property
    def clock(self) -> float:
        """Up to this second all turns are known."""

    @property
    def missing(self) -> int:
        """So many samples from now on more is known."""

    def push(
        self,
        samples: NDArray[np.float32],
        last: bool = False,
        cancelled: threading.Event | None = None,
    ) -> Diarization:
        """Hear more samples, float32 (n,) at 16 kHz: the turns of the seconds that the clock has
        passed in this call, cut at both ends. After the `last` ones all are known.

        Raises what `Diarizer.diarize` raises, and is of no use afterwards.
        """


class Diarizer(Protocol):
    """Loaded models that find who speaks when; one waveform at a time, in any thread."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; the same for its whole life."""

    def diarize(
        self,
        samples: NDArray[np.float32],
        hints: SpeakerHints,
        cancelled: threading.Event | None = None,
        between: Callable[[], None] | None = None,
    ) -> Diarization:
        """Find the speaker turns of `samples`, float32 (n,) at 16 kHz.

        Audio without speech has no turns. Hints that the audio or the models cannot meet are not an
        error: the result has a warning. Once another thread sets `cancelled` it ends soon.
        `between` is called between two batches of work, and may diarize something else meanwhile.
        Raises DiarizationCancelled, ModelError, or OutOfMemory if the least amount of work at a
        time does not fit.
        """

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        """The voice heard in `spans` (seconds) of `samples`, as it embeds speakers: (dimension,).

        For diarizers whose `capabilities` say that they have voices. It may be NaN where the spans
        are too short. Raises ModelError or OutOfMemory.
        """

    def stream(self) -> DiarizationStream:
        """A stream of its own, for diarizers whose `capabilities` say that they stream."""


def _merge_with_margin(speech: Sequence[Span]) -> list[Span]:
    """Extend each span by MARGIN on both sides and merge those that then touch."""
    merged: list[Span] = []
    for speech_start, speech_end in speech:
        start, end = speech_start - MARGIN, speech_end + MARGIN
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _clip(turns: Sequence[SpeakerTurn], spans: Sequence[Span]) -> tuple[SpeakerTurn, ...]:
    """The parts of `turns` inside `spans` (sorted, disjoint), sorted by start."""
    span_ends = [end for _, end in spans]
    clipped: list[SpeakerTurn] = []
    for turn in turns:
        first = bisect_right(span_ends, turn.start)
        clipped += _clip_turn(turn, islice(spans, first, None))
    return tuple(sorted(clipped, key=lambda turn: turn.start))


def _clip_turn(turn: SpeakerTurn, spans: Iterator[Span]) -> Iterator[SpeakerTurn]:
    """The parts of one turn inside `spans`, which all end after it starts."""
    for start, end in spans:
        if start >= turn.end:
            return
        yield SpeakerTurn(turn.speaker, max(turn.start, start), min(turn.end, end))
