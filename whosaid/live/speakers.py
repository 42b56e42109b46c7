"""Assigns speakers to the words of a live session.

Text never waits for speakers. With a streaming diarizer, a word that is final before its time has
been diarized is sent without a speaker, and a segment with the speaker follows. With any other
diarizer, the session's audio is kept and diarized at its end. In both cases the words of every
completed text get speakers like the words of a file.
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

from diarization_utils import attribute, speaker_segments
from whosaid.diarization.diarizer import Diarization, Span
from whosaid.live.audio_buffer import AudioBuffer
from whosaid.live.events import Completed, Failed, LiveEvent, Segment, SpeakersFound, Words
from whosaid.payload.parameters import ReferenceClip
from whosaid.transcript import Chunk, KnownSpeaker, SpeakerTurn, Word

if TYPE_CHECKING:
    from whosaid.diarization.thread import SessionSpeakers

# Seconds around a word in which turns may matter to it; `diarization_utils` looks half as far.
AROUND = 1.0

# Called with the clips of known speakers, and the least similarity of a match.
OpenSpeakers = Callable[[Sequence[ReferenceClip], float | None], Awaitable["SessionSpeakers"]]


class LiveSpeakers:
    """Passes a session's audio to a `finder`, and its speakers to the client; for the event loop.

    Samples that the finder has not received are kept as 16-bit integers. Without a streaming
    diarizer these are the whole session. `tell` is called when there may be new events.
    """

    def __init__(
        self, finder: SessionSpeakers, workers: Executor, tell: Callable[[], Awaitable[None]]
    ) -> None:
        self._finder, self._workers, self._tell = finder, workers, tell
        self._audio = AudioBuffer()
        self._tracker = SpeakerTracker()
        self._received = asyncio.Event()
        self._ending = False
        streams = finder.missing is not None
        self._following = asyncio.create_task(self._follow()) if streams else None

    def push(self, samples: NDArray[np.float32]) -> None:
        if self._following is None or not self._following.done():  # done: it has failed
            self._audio.append(samples)
            self._received.set()

    def with_speakers(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        return self._tracker.with_speakers(events)

    async def finish(self) -> list[LiveEvent]:
        """Return the last events, after the last audio and text. Raises EndpointError."""
        warnings = self._finder.warnings
        known: tuple[KnownSpeaker, ...] = ()
        if self._following is not None:
            self._ending = True
            self._received.set()
            await self._following
        elif speech := self._tracker.speech:
            loop, audio = asyncio.get_running_loop(), self._audio
            samples = await loop.run_in_executor(self._workers, audio.samples, 0, audio.stop)
            naming = await self._finder.find(samples, speech)
            known, warnings = naming.known_speakers, (*warnings, *naming.warnings)
            if naming.diarization is not None:
                self._tracker.add_turns(naming.diarization, inf)
        segments = await asyncio.get_running_loop().run_in_executor(
            self._workers, self._tracker.with_speakers, ()
        )
        return [*segments, SpeakersFound(known, warnings)]

    async def close(self) -> None:
        self._finder.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        ending = False
        while not ending:
            await self._received.wait()
            self._received.clear()
            ending, start, stop = self._ending, self._audio.start, self._audio.stop
            if not ending and stop - start < (self._finder.missing or 0):
                continue
            samples = self._audio.samples(start, stop)
            self._audio.drop_before(stop)
            self._tracker.add_turns(*await self._finder.push(samples, ending))
            await self._tell()


class SpeakerTracker:
    """Matches the words of a session with its speaker turns, both in seconds of the session."""

    def __init__(self) -> None:
        self._clock = 0.0  # all turns up to this second are known
        self._turns, self._exclusive = Turns(), Turns()
        self._unnamed: dict[str, list[Word]] = {}  # by item: words sent without a speaker
        self._completed: list[Completed] = []  # items whose words have no speakers yet
        self._numbers = count(1)

    @property
    def speech(self) -> list[Span]:
        """Spans of speech in the completed items without speakers, in order."""
        return sorted(chain.from_iterable(each.transcript.speech for each in self._completed))

    def add_turns(self, found: Diarization, clock: float) -> None:
        """Add the turns between the last clock and `clock`."""
        self._turns.add(found.turns)
        self._exclusive.add(found.exclusive)
        self._clock = clock

    def with_speakers(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        result: list[LiveEvent] = []
        for event in events:
            if isinstance(event, Words):
                result.append(self._named(event))
                continue
            if isinstance(event, Completed | Failed):
                self._unnamed.pop(event.item_id, None)
            if isinstance(event, Completed) and any(each.words for each in event.transcript.chunks):
                self._completed.append(event)
            result.append(event)
        return result + self._segments_of_words() + self._segments_of_texts()

    def _named(self, event: Words) -> Words:
        named = self._in_time(event.words)
        if rest := event.words[len(named) :]:
            self._unnamed.setdefault(event.item_id, []).extend(rest)
        return replace(event, words=(*self._with_speakers(named), *rest))

    def _segments_of_words(self) -> list[LiveEvent]:
        """Return segments for words sent without a speaker that are now before the clock."""
        found: list[LiveEvent] = []
        for item, words in self._unnamed.items():
            named = self._in_time(words)
            del words[: len(named)]
            if named:
                found += self._segments(item, [_chunk(self._with_speakers(named))])
        return found

    def _segments_of_texts(self) -> list[LiveEvent]:
        """Return segments for the completed items that are now before the clock."""
        due = [each for each in self._completed if _end(each) <= self._clock]
        if not due:
            return []
        self._completed = [each for each in self._completed if each not in due]
        due.sort(key=lambda each: each.transcript.chunks[0].start)
        speech = sorted(chain.from_iterable(each.transcript.speech for each in due))
        chunks = [chunk for each in due for chunk in each.transcript.chunks]
        diarization = self._around([word for chunk in chunks for word in chunk.words])
        diarization = diarization.touching(speech)
        attributed = iter(attribute(chunks, diarization.turns, diarization.exclusive))
        found: list[LiveEvent] = []
        for each in due:
            own = [next(attributed) for _ in each.transcript.chunks]
            found += self._segments(each.item_id, own)
        return found

    def _in_time(self, words: Sequence[Word]) -> list[Word]:
        return list(takewhile(lambda word: word.end <= self._clock, words))

    def _with_speakers(self, words: Sequence[Word]) -> tuple[Word, ...]:
        if not words:
            return ()
        near = self._around(words)
        return attribute([_chunk(words)], near.turns, near.exclusive)[0].words

    def _around(self, words: Sequence[Word]) -> Diarization:
        """Return the turns near the words, which are in order."""
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
    """Collects turns that come in parts, in order of time; parts of one turn are joined."""

    def __init__(self) -> None:
        self._all: list[SpeakerTurn] = []
        self._last: dict[str, int] = {}  # index of each speaker's last turn

    def add(self, turns: Sequence[SpeakerTurn]) -> None:
        """Add turns. A turn that begins at the end of its speaker's last turn extends that turn."""
        for turn in turns:
            index = self._last.get(turn.speaker)
            if index is not None and self._all[index].end == turn.start:
                self._all[index] = replace(self._all[index], end=turn.end)
            else:
                self._last[turn.speaker] = len(self._all)
                self._all.append(turn)

    def within(self, start: float, end: float) -> tuple[SpeakerTurn, ...]:
        """Return the turns that overlap `start` to `end`."""
        return tuple(turn for turn in self._all if turn.start < end and turn.end > start)


def _chunk(words: Sequence[Word]) -> Chunk:
    text = "".join(word.text for word in words)
    return Chunk(text, words[0].start, words[-1].end, words=tuple(words))


def _end(completed: Completed) -> float:
    return max(word.end for chunk in completed.transcript.chunks for word in chunk.words)
