"""The interface of diarizers: samples and hints in, immutable speaker turns out.

Nothing here depends on the model, which `diarization.load_diarizer` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from whosaid.diarization.activity import SpeakerActivity
from whosaid.payload.parameters import Voice
from whosaid.timebase import merged
from whosaid.transcript import SpeakerTurn

MARGIN = 0.2  # seconds that a turn may extend beyond detected speech

Span = tuple[float, float]  # start and end, seconds
Vector = NDArray[np.floating[Any]]  # (dimension,), of any norm
# Called with the share of the work that is done, if it is known.
Pause = Callable[..., None]


class DiarizationCancelled(Exception):
    """Raised by a `pause` after the client has left. Never reaches a client."""


@dataclass(frozen=True, slots=True)
class SpeakerHints:
    """The client's hints on the number of speakers."""

    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None


@dataclass(frozen=True, slots=True)
class Diarization:
    """Speaker turns in order of time, in seconds.

    `turns` may overlap. `exclusive` has one speaker at a time and decides the speaker of a chunk;
    it equals `turns` if the pipeline does not compute it (`legacy: true`). `hints` are the
    request's. `voices` maps every speaker that the pipeline found to an embedding, even if all
    turns of that speaker were cut. An embedding may be zero or NaN; some pipelines (`legacy: true`)
    have none. Embeddings identify people, so they are neither printed nor stored. `most_speakers`
    is the largest number of speakers that the model distinguishes, None if unlimited. `answered`
    are the voices that the client asked for. `activity` is None if the pipeline only has decisions.
    """

    turns: tuple[SpeakerTurn, ...]
    exclusive: tuple[SpeakerTurn, ...]
    hints: SpeakerHints = SpeakerHints()
    voices: Mapping[str, Vector] = field(default_factory=dict, repr=False, compare=False)
    most_speakers: int | None = None
    answered: Mapping[str, Voice] = field(default_factory=dict, repr=False, compare=False)
    activity: SpeakerActivity | None = field(default=None, repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings if the number of speakers contradicts the hints or is the model's maximum."""
        found = len({turn.speaker for turn in self.turns})
        lowest = self.hints.num_speakers or self.hints.min_speakers or 0
        highest = self.hints.num_speakers or self.hints.max_speakers or found
        warnings = []
        if not lowest <= found <= highest:
            warnings.append(f"speaker hints could not be met: {found} found")
        if found == self.most_speakers:
            warnings.append(f"{found} speakers were found, the most that the model can distinguish")
        return tuple(warnings)

    def renamed(self, names: Mapping[str, str]) -> Diarization:
        """Return a copy with `names` for labels, without activity and without others' voices."""

        def rename(turns: Sequence[SpeakerTurn]) -> tuple[SpeakerTurn, ...]:
            return tuple(
                replace(turn, speaker=names.get(turn.speaker, turn.speaker)) for turn in turns
            )

        voices = {names[label]: voice for label, voice in self.voices.items() if label in names}
        return replace(
            self,
            turns=rename(self.turns),
            exclusive=rename(self.exclusive),
            voices=voices,
            answered={names.get(label, label): each for label, each in self.answered.items()},
            activity=None,
        )

    def touching(self, speech: Sequence[Span]) -> Diarization:
        """Return a copy without turns more than MARGIN away from all of `speech`, spans in order:
        noise taken for a speaker. Others keep their ends; to cut turns to speech cost 1.4 points of
        diarization error on real conversations.
        """
        starts, ends = _with_margin(speech)
        starts.append(inf)

        def kept(turns: Sequence[SpeakerTurn]) -> tuple[SpeakerTurn, ...]:
            return tuple(
                each for each in turns if starts[bisect_right(ends, each.start)] < each.end
            )

        return replace(self, turns=kept(self.turns), exclusive=kept(self.exclusive))

    def exclusive_spans(self, speech: Sequence[Span] = ((0.0, inf),)) -> dict[str, list[Span]]:
        """Return the spans in which each speaker has the turn, cut to `speech`, spans in order,
        plus MARGIN on both sides.
        """
        spans = [*zip(*_with_margin(speech), strict=True)]
        found: defaultdict[str, list[Span]] = defaultdict(list)
        for turn in self.exclusive:
            for start, end in spans:
                if start < turn.end and turn.start < end:
                    found[turn.speaker].append((max(turn.start, start), min(turn.end, end)))
        return found


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The optional features of a diarizer.

    `hints`: it uses the number of speakers. `voices`: it embeds speakers, so that known speakers
    can be named. `same_voice`: the least cosine at which two of its embeddings count as one voice;
    None if never measured. `streams`: it is fast enough for live audio. `voice_model`: a name that
    no other weights of an embedding network have, "" if unknown; `dimension` is the length of its
    embeddings. `early`: it can begin before a recording is decoded.
    """

    hints: bool
    voices: bool
    same_voice: float | None = None
    streams: bool = False
    voice_model: str = ""
    dimension: int = 0
    early: bool = False


class DiarizationStream(Protocol):
    """Diarizes live audio; for one thread at a time."""

    @property
    def clock(self) -> float:
        """Second up to which all turns are known."""

    @property
    def missing(self) -> int:
        """Number of samples until `push` can return more turns."""

    def push(
        self, samples: NDArray[np.float32], last: bool = False, pause: Pause = lambda *_: None
    ) -> Diarization:
        """Add samples, float32 (n,) at 16 kHz. Return the turns between the clock before the call
        and the clock after it, cut at both. With `last`, all remaining turns become known.

        Raises the errors of `Diarizer.diarize`; the stream cannot be used afterwards.
        """


class EarlyDiarization(Protocol):
    """Diarizes one recording, and begins while it is decoded; for one thread at a time."""

    def hear(self, samples: NDArray[np.float32], pause: Pause = lambda *_: None) -> None:
        """Do what needs no more than the first `samples` (n,), which begin with those of earlier
        calls and do not change. Raises the errors of `Diarizer.diarize`.
        """

    def diarize(
        self, samples: NDArray[np.float32], hints: SpeakerHints, pause: Pause = lambda *_: None
    ) -> Diarization:
        """Return the result of `Diarizer.diarize` for the whole recording; call this once."""


class Diarizer(ABC):
    """Loaded diarization models, called with one waveform at a time, from any thread. Their
    `capabilities` are constant; a model implements only the methods that these need.
    """

    capabilities: Capabilities

    @abstractmethod
    def diarize(
        self, samples: NDArray[np.float32], hints: SpeakerHints, pause: Pause = lambda *_: None
    ) -> Diarization:
        """Find the speaker turns of `samples`, float32 (n,) at 16 kHz.

        Audio without speech has no turns. Hints that cannot be met give a warning, not an error.
        `pause` is called between two batches of work. It may raise DiarizationCancelled, which
        passes through, and may diarize another recording meanwhile. Raises ModelError, or
        OutOfMemory if even the smallest batch does not fit.
        """

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        """Return the embedding (dimension,) of the voice in `spans` (seconds); NaN if too short.
        Requires `capabilities.voices`. Raises ModelError or OutOfMemory.
        """
        raise NotImplementedError

    def stream(self) -> DiarizationStream:
        """Open a stream of live audio. Requires `capabilities.streams`."""
        raise NotImplementedError

    def start_early(self) -> EarlyDiarization:
        """Start a recording that is being decoded. Requires `capabilities.early`."""
        raise NotImplementedError


def add_labels(labels: dict[str, str], speakers: Iterable[str | None]) -> None:
    """Map each new speaker, in order, to the next of SPEAKER_00, SPEAKER_01, ..."""
    for speaker in filter(None, speakers):
        labels.setdefault(speaker, f"SPEAKER_{len(labels):02d}")


def _with_margin(speech: Sequence[Span]) -> tuple[list[float], list[float]]:
    starts, ends = merged([(start - MARGIN, end + MARGIN) for start, end in speech])
    return starts.tolist(), ends.tolist()
