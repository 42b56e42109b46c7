"""Assigns speakers to the words of a live session.

Text never waits for speakers. With a streaming diarizer, a word that is final before its time has
been diarized is sent without a speaker, and a segment with the speaker follows. With any other
diarizer, the session's audio is kept and diarized at its end. In both cases the words of every
completed text get speakers like the words of a file, and passages in which speakers talk at once
are decoded again before that (`whosaid.overlap`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count, takewhile
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from diarization_utils import attribute, speaker_segments, with_names
from whosaid.diarization.activity import SpeakerActivity, joined
from whosaid.diarization.diarizer import Diarization, Span, add_labels
from whosaid.errors import EndpointError
from whosaid.live.audio_buffer import AudioBuffer
from whosaid.live.events import Completed, ItemFailed, LiveEvent, SegmentEvent, SpeakersFound, Words
from whosaid.overlap import LEAST_OVERLAP, Enrol, OverlapDecoder
from whosaid.payload.parameters import ReferenceClip
from whosaid.runtime.errors import endpoint_errors
from whosaid.scheduling.steps import run_steps
from whosaid.timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from whosaid.transcript import Chunk, SpeakerTurn, Transcript, Word

if TYPE_CHECKING:
    from whosaid.asr import Recogniser
    from whosaid.diarization.thread import SessionSpeakers
    from whosaid.live.passes import PassAudio

# Seconds around a word in which turns may matter to it; `diarization_utils` looks half as far.
AROUND = 1.0

T = TypeVar("T")
# Called with the clips of known speakers, and the least similarity of a match.
OpenSpeakers = Callable[[Sequence[ReferenceClip], float | None], Awaitable["SessionSpeakers"]]


class LiveSpeakers:
    """Passes a session's audio to a `finder`, and its speakers to the client; for the event loop.
    Samples that the finder has not received are kept in 16 bits. `tell` is called for new events.
    """

    def __init__(
        self,
        finder: SessionSpeakers,
        recogniser: Recogniser,
        workers: Executor,
        tell: Callable[[], Awaitable[None]],
    ) -> None:
        self._finder, self._workers, self._tell = finder, workers, tell
        self._overlaps = OverlapDecoder(
            recogniser, lambda steps: self._work(lambda: run_steps(steps()))
        )
        self._audio = AudioBuffer()
        self._tracker = SpeakerTracker()
        self._received = asyncio.Event()
        self._ending = False
        streams = finder.missing is not None
        self._following = asyncio.create_task(self._follow()) if streams else None
        self._decoding: asyncio.Task[None] | None = None

    def push(self, samples: NDArray[np.float32]) -> None:
        if self._following is None or not self._following.done():  # done: it has failed
            self._audio.append(samples)
            self._received.set()

    def with_speakers(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        if self._following is None or self._following.done():
            events = [_without_samples(event) for event in events]
        found = self._tracker.with_speakers(events)
        if self._tracker.overlapped and (self._decoding is None or self._decoding.done()):
            self._decoding = asyncio.create_task(self._decode_overlaps())
        return found

    async def finish(self) -> list[LiveEvent]:
        """Return the last events, after the last audio and text. Raises EndpointError."""
        warnings = self._finder.warnings
        if self._following is not None:
            self._ending = True
            self._received.set()
            await self._following
            if self._decoding is not None:
                await self._decoding
        elif speech := self._tracker.speech:
            samples = await self._work(self._audio.samples, 0, self._audio.stop)
            found = await self._finder.find(samples, speech)
            if found is not None:
                self._tracker.add_turns(found, inf)
                await self._work(self._tracker.find_overlapped)
                await self._decode_overlaps(
                    samples, self._overlaps.enrolments(found.turns, samples)
                )
            segments = await self._work(self._tracker.with_speakers, ())
            labels = self._tracker.labels
            add_labels(labels, (turn.speaker for turn in found.turns) if found else ())
            naming = self._finder.name(found and found.renamed(labels))
            known, warnings = naming.known_speakers, (*warnings, *naming.warnings)
            names = {each.label or "": each.name for each in known if each.matched}
            return [*(_renamed(each, names) for each in segments), SpeakersFound(known, warnings)]
        segments = await self._work(self._tracker.with_speakers, ())
        return [*segments, SpeakersFound((), warnings)]

    async def close(self) -> None:
        self._finder.close()
        tasks = [each for each in (self._following, self._decoding) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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

    async def _decode_overlaps(
        self, samples: NDArray[np.float32] | None = None, enrol: Enrol | None = None
    ) -> None:
        """Decode the passages of items in which speakers talk at once; `samples` and enrolments are
        the session's, once it is over. An item that fails keeps its text.
        """
        while self._tracker.overlapped:
            item, final, inside = self._tracker.overlapped.popleft()
            transcript = item.transcript
            heard = final.samples if samples is None else samples[final.begin : final.stop]
            options = replace(final.options, decode=replace(final.options.decode, live=False))
            with suppress(EndpointError), endpoint_errors():
                found = await self._overlaps.decode(
                    transcript, inside, heard, options, final.begin, enrol
                )
                transcript = found if _has_words(found) else transcript
            self._tracker.add(replace(item, transcript=transcript, final=None))
            if samples is None:
                await self._tell()

    def _work(self, function: Callable[..., T], *arguments: Any) -> Awaitable[T]:  # noqa: ANN401
        return asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)


class SpeakerTracker:
    """Matches the words of a session with its speaker turns, both in seconds of the session.

    `labels` maps the diarizer's labels to SPEAKER_00, SPEAKER_01, ... in the order in which the
    words of events first name them; a label that was sent stays.
    `overlapped` are completed items in which speakers talk at once, with passes and diarization.
    Their segments wait until their new texts are added.
    """

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self._clock = 0.0  # all turns up to this second are known
        self._turns, self._exclusive = TurnBuffer(), TurnBuffer()
        self._activity: list[SpeakerActivity] = []  # in order of time
        self._unnamed: dict[str, list[Word]] = {}  # by item: words sent without a speaker
        self._completed: list[Completed] = []  # items whose words have no speakers yet
        self._due = inf  # no item of those ends before this second
        self.overlapped: deque[tuple[Completed, PassAudio, Diarization]] = deque()
        self._numbers = count(1)

    @property
    def speech(self) -> list[Span]:
        """Spans of speech in the completed items without speakers, in order."""
        return sorted(chain.from_iterable(each.transcript.speech for each in self._completed))

    def add_turns(self, found: Diarization, clock: float) -> None:
        """Add the turns between the last clock and `clock`."""
        self._turns.add(found.turns)
        self._exclusive.add(found.exclusive)
        decided = SpeakerActivity.decided(found.turns)
        self._activity.append(decided if found.activity is None else found.activity)
        self._clock = clock

    def with_speakers(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        result: list[LiveEvent] = []
        for event in events:
            if isinstance(event, Words):
                result.append(self._named(event))
                continue
            if isinstance(event, Completed | ItemFailed):
                self._unnamed.pop(event.item_id, None)
            if isinstance(event, Completed):
                self.add(event)
            result.append(event)
        self.find_overlapped()
        return self._labelled([*result, *self._segments_of_words(), *self._segments_of_texts()])

    def _labelled(self, events: Sequence[LiveEvent]) -> list[LiveEvent]:
        spoken: list[Word | SegmentEvent] = []
        for event in events:
            if isinstance(event, Words | SegmentEvent):
                spoken += event.words or ([event] if isinstance(event, SegmentEvent) else [])
        add_labels(
            self.labels, (each.speaker for each in sorted(spoken, key=lambda each: each.start))
        )
        return [_renamed(event, self.labels) for event in events]

    def add(self, item: Completed) -> None:
        if _has_words(item.transcript):
            self._completed.append(item)
            self._due = min(self._due, _end(item))

    def find_overlapped(self) -> None:
        """Move the items with known turns in which speakers talk at once to `overlapped`."""
        if self._due > self._clock:
            return
        items, self._completed = self._completed, []
        for item in items:
            final, transcript = item.final, item.transcript
            if final is not None and final.before is not None and _end(item) <= self._clock:
                begin, stop = final.begin / SAMPLE_RATE, final.stop / SAMPLE_RATE
                begin += final.before.begin
                activity = joined(self._activity, begin, stop)
                inside = Diarization(self._turns.within(begin, stop), (), activity=activity)
                inside = inside.touching(transcript.speech)
                if activity.several.sum() >= LEAST_OVERLAP * TOKENS_PER_SECOND:
                    self.overlapped.append((item, final, inside))
                    continue
            self._completed.append(item)

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
        if self._due > self._clock:
            return []
        due = [each for each in self._completed if _end(each) <= self._clock]
        self._completed = [each for each in self._completed if each not in due]
        self._due = min(map(_end, self._completed), default=inf)
        if not due:
            return []
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
        """Return the turns near the words."""
        start = min(word.start for word in words) - AROUND
        end = max(word.end for word in words) + AROUND
        return Diarization(self._turns.within(start, end), self._exclusive.within(start, end))

    def _segments(self, item: str, chunks: Sequence[Chunk]) -> list[SegmentEvent]:
        voices = any(chunk.voice for chunk in chunks)
        return [
            SegmentEvent(
                item,
                f"seg_{next(self._numbers)}",
                each.text,
                each.speaker,
                each.start,
                each.end,
                each.words if voices else (),
            )
            for each in speaker_segments(chunks)
        ]


class TurnBuffer:
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


def _renamed(event: LiveEvent, names: Mapping[str, str]) -> LiveEvent:
    """Return the event with speakers by their names, if they have any."""
    if not isinstance(event, Words | SegmentEvent):
        return event
    words = with_names(event.words, names)
    if isinstance(event, Words):
        return replace(event, words=words)
    return replace(event, words=words, speaker=names.get(event.speaker or "", event.speaker))


def _end(completed: Completed) -> float:
    """Return the second up to which turns matter to an item."""
    final = completed.final
    words = [word.end for chunk in completed.transcript.chunks for word in chunk.words]
    return max(words + ([] if final is None else [final.stop / SAMPLE_RATE]))


def _has_words(transcript: Transcript) -> bool:
    return any(chunk.words for chunk in transcript.chunks)


def _without_samples(event: LiveEvent) -> LiveEvent:
    if not isinstance(event, Completed) or event.final is None:
        return event
    return replace(event, final=replace(event.final, samples=np.zeros(0, np.float32)))
