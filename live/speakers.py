"""Who says what in a live session.

Text waits for no speaker. Where speakers are found while audio comes, a word that is final before
its time has been looked at is sent without one, and a segment follows. Where they are not, the
session's audio is kept and looked at once when no more comes. In both cases the words of every
completed text are given to speakers as those of a file are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import chain, count, takewhile
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diarization.diarizer import Diarization, Span
from diarization_utils import attribute, speaker_segments
from live.audio_buffer import AudioBuffer
from live.events import Completed, Failed, LiveEvent, Segment, SpeakersFound, Words
from payload.reference_clips import ReferenceClip
from transcript import Chunk, KnownSpeaker, SpeakerTurn, Word

if TYPE_CHECKING:
    from diarization.thread import SessionSpeakers

# Seconds around words in which turns may matter to them; `diarization_utils` looks half as far.
AROUND = 1.0

# Of the clips of known speakers, and the least similarity of a match.
OpenSpeakers = Callable[[Sequence[ReferenceClip], float | None], Awaitable["SessionSpeakers"]]


class LiveSpeakers:
    """What a `finder` hears of a session and how that reaches the client; for the event loop.

    It keeps samples as 16-bit integers: all of the session where they are looked at in the end.
    `tell` is called when there may be more to send.
    """

    def __init__(
        self, finder: SessionSpeakers, workers: Executor, tell: Callable[[], Awaitable[None]]
    ) -> None:
        self._finder, self._workers, self._tell = finder, workers, tell
        self._audio = AudioBuffer()
        self._said = SaidBy()
        self._came = asyncio.Event()
        self._ending = False
        streams = finder.missing is not None
        self._following = asyncio.create_task(self._follow()) if streams else None

    def hear(self, samples: NDArray[np.float32]) -> None:
        """More audio (n,) at 16 kHz."""
        if self._following is None or not self._following.done():  # it has failed
            self._audio.append(samples)
            self._came.set()

    def passing(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        """The events on their way to the client: words get speakers, and segments follow."""
        return self._said.passing(events)

    async def finish(self) -> list[LiveEvent]:
        """The last events, when no more audio and no more text will come. Raises EndpointError."""
        warnings = self._finder.warnings
        known: tuple[KnownSpeaker, ...] = ()
        if self._following is not None:
            self._ending = True
            self._came.set()
            await self._following
        elif speech := self._said.speech:
            loop, audio = asyncio.get_running_loop(), self._audio
            samples = await loop.run_in_executor(self._workers, audio.samples, 0, audio.stop)
            naming = await self._finder.find(samples, speech)
            known, warnings = naming.known_speakers, (*warnings, *naming.warnings)
            if naming.diarization is not None:
                self._said.known(naming.diarization, inf)
        segments = await asyncio.get_running_loop().run_in_executor(
            self._workers, self._said.passing, ()
        )
        return [*segments, SpeakersFound(known, warnings)]

    async def close(self) -> None:
        """Forget the audio and what is under way."""
        self._finder.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        """Have the finder hear the audio as it comes."""
        ending = False
        while not ending:
            await self._came.wait()
            self._came.clear()
            ending, start, stop = self._ending, self._audio.start, self._audio.stop
            if not ending and stop - start < (self._finder.missing or 0):
                continue
            samples = self._audio.samples(start, stop)
            self._audio.drop_before(stop)
            self._said.known(*await self._finder.push(samples, ending))
            await self._tell()


class SaidBy:
    """Words and turns of a session, in its seconds, and what they tell of each other."""

    def __init__(self) -> None:
        self._clock = 0.0  # up to here turns are known
        self._turns, self._exclusive = Turns(), Turns()
        self._unnamed: dict[str, list[Word]] = {}  # by item: sent without a speaker
        self._completed: list[Completed] = []  # whose words have none yet
        self._numbers = count(1)

    @property
    def speech(self) -> list[Span]:
        """The speech of the completed items that still have no speakers, in order."""
        return sorted(chain.from_iterable(each.transcript.speech for each in self._completed))

    def known(self, found: Diarization, clock: float) -> None:
        """The turns from where they were known before up to `clock`."""
        self._turns.add(found.turns)
        self._exclusive.add(found.exclusive)
        self._clock = clock

    def passing(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        """The events, words of known times with speakers, and the segments that they make due."""
        told: list[LiveEvent] = []
        for event in events:
            if isinstance(event, Words):
                told.append(self._named(event))
                continue
            if isinstance(event, Completed | Failed):
                self._unnamed.pop(event.item_id, None)
            if isinstance(event, Completed) and any(each.words for each in event.transcript.chunks):
                self._completed.append(event)
            told.append(event)
        return told + self._segments_of_words() + self._segments_of_texts()

    def _named(self, event: Words) -> Words:
        named = self._in_time(event.words)
        if rest := event.words[len(named) :]:
            self._unnamed.setdefault(event.item_id, []).extend(rest)
        return replace(event, words=(*self._with_speakers(named), *rest))

    def _segments_of_words(self) -> list[LiveEvent]:
        """Of words that were sent, and whose time has become known."""
        found: list[LiveEvent] = []
        for item, words in self._unnamed.items():
            named = self._in_time(words)
            del words[: len(named)]
            if named:
                found += self._segments(item, [_chunk(self._with_speakers(named))])
        return found

    def _segments_of_texts(self) -> list[LiveEvent]:
        """Of completed texts whose time has become known."""
        due = [each for each in self._completed if _end(each) <= self._clock]
        if not due:
            return []
        self._completed = [each for each in self._completed if each not in due]
        due.sort(key=lambda each: each.transcript.chunks[0].start)
        speech = sorted(chain.from_iterable(each.transcript.speech for each in due))
        chunks = [chunk for each in due for chunk in each.transcript.chunks]
        diarization = self._around([word for chunk in chunks for word in chunk.words])
        diarization = diarization.touching(speech)
        spoken = iter(attribute(chunks, diarization.turns, diarization.exclusive))
        found: list[LiveEvent] = []
        for each in due:
            found += self._segments(each.item_id, [next(spoken) for _ in each.transcript.chunks])
        return found

    def _in_time(self, words: Sequence[Word]) -> list[Word]:
        return list(takewhile(lambda word: word.end <= self._clock, words))

    def _with_speakers(self, words: Sequence[Word]) -> tuple[Word, ...]:
        if not words:
            return ()
        near = self._around(words)
        return attribute([_chunk(words)], near.turns, near.exclusive)[0].words

    def _around(self, words: Sequence[Word]) -> Diarization:
        """The turns that may matter to the words, which are in order."""
        start, end = words[0].start - AROUND, words[-1].end + AROUND
        return Diarization(self._turns.within(start, end), self._exclusive.within(start, end))

    def _segments(self, item: str, chunks: Sequence[Chunk]) -> list[Segment]:
        return [
            Segment(
                item, f"seg_{next(self._numbers)}", each.text, each.speaker, each.start, each.end
            )
            for each in speaker_segments(chunks)
        ]


class Turns:
    """Turns that come in parts, in order of time, joined where one goes on."""

    def __init__(self) -> None:
        self._all: list[SpeakerTurn] = []
        self._last: dict[str, int] = {}  # where each speaker's last one is

    def add(self, turns: Sequence[SpeakerTurn]) -> None:
        """More of them; those that begin where the same speaker's last one ends go on with it."""
        for turn in turns:
            place = self._last.get(turn.speaker)
            if place is not None and self._all[place].end == turn.start:
                self._all[place] = replace(self._all[place], end=turn.end)
            else:
                self._last[turn.speaker] = len(self._all)
                self._all.append(turn)

    def within(self, start: float, end: float) -> tuple[SpeakerTurn, ...]:
        """Those of which some part lies there."""
        return tuple(turn for turn in self._all if turn.start < end and turn.end > start)


def _chunk(words: Sequence[Word]) -> Chunk:
    text = "".join(word.text for word in words)
    return Chunk(text, words[0].start, words[-1].end, words=tuple(words))


def _end(completed: Completed) -> float:
    return max(word.end for chunk in completed.transcript.chunks for word in chunk.words)
