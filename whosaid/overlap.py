"""Decodes windows in which speakers talk at once again, once for each speaker.

If voices overlap, Whisper writes only one of them. In a track of a window, the samples in which
only other speakers speak are zero:

    window      [                     ]
    turns       A  ########   ###            B        ######    ####
    track A        ########   ###    ..               ..#### ...
    track B        ...##...          ####

The words of a track are its speaker's, and the tracks' chunks replace the window's. Silencing
others is a baseline of Polok et al., "DiCoW" (arXiv 2501.00114). A conditioned encoder reads the
whole window, and a mask tells it when the speaker speaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diarization_utils import seconds_spoken
from whosaid.runtime.shortest_first import in_one_step
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN, merged
from whosaid.transcript import Chunk, DecodeStats, SpeakerTurn, Transcript, Unwritten, Word

if TYPE_CHECKING:
    from whosaid.asr import ChunkReader, Job, Recogniser, Transcription, TranscriptionOptions
    from whosaid.asr.frontend.target_speaker import Enrolment

LEAST_OVERLAP = 1.0  # seconds in a window
# Share of a window's speech. With more overlap too little of each speaker is alone. Chosen on a
# meeting and nine mixtures: up to a share of 0.15 errors fell, from 0.27 to 0.43 they rose, and
# above that they did either.
MOST_OVERLAP = 0.2
# openai/whisper's thresholds for texts that are decoded again.
LEAST_LOGPROB, MOST_COMPRESSION = -1.0, 2.4
# Words in a row that a looping text repeats. Chosen on mixtures of other voices than those of
# docs/benchmarks/overlap.md.
REPEATED = 6
SAME_MOMENT = 0.3  # most seconds between the middles of one word in two tracks
TRACKS_AT_ONCE = 48  # of up to 30 s, 2 MB each
ROUNDING = 1e-6  # seconds
STARTS_PER_SECOND = 10  # of spans that may be a speaker's enrolment, as for SE-DiCoW

Span = tuple[float, float]  # start and end in seconds
# Runs the coroutine that a function returns in another thread.
Prepare = Callable[[Callable[[], Coroutine[Any, None, Any]]], Awaitable[Any]]
Enrol = Callable[[str], "Enrolment"]  # returns a speaker's enrolment


class Track(NamedTuple):
    """One speaker's track of a window from `start` to `stop` seconds, with all turns in it."""

    speaker: str
    start: float
    stop: float
    turns: tuple[SpeakerTurn, ...]

    @property
    def window(self) -> Span:
        return self.start, self.stop

    def cut(self, samples: NDArray[np.float32], first: int = 0) -> NDArray[np.float32]:
        """Return the track's samples of a recording, `samples` (n,) at 16 kHz from its sample
        `first` on.
        """
        track = self.whole(samples, first).copy()
        own, others = self._active(len(track))
        track[others & ~own] = 0
        return track

    def whole(self, samples: NDArray[np.float32], first: int = 0) -> NDArray[np.float32]:
        """Return the window's samples of a recording, with all speakers."""
        start, stop = (round(each * SAMPLE_RATE) - first for each in (self.start, self.stop))
        return samples[start:stop]

    @property
    def mask(self) -> NDArray[np.float32]:
        """The mask (frames, 4) by which a conditioned encoder follows the speaker in the window
        (`asr.frontend.target_speaker`).
        """
        frames = round((self.stop - self.start) * SAMPLE_RATE) // SAMPLES_PER_TOKEN
        own, others = self._active(frames * SAMPLES_PER_TOKEN)
        classes = np.stack([~own & ~others, own & ~others, others & ~own, own & others], axis=-1)
        return classes.reshape(frames, SAMPLES_PER_TOKEN, 4).mean(axis=1, dtype=np.float32)

    def _active(self, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the samples (count,) in which the speaker speaks, and in which others do."""
        own, others = np.zeros((2, count), bool)
        first = round(self.start * SAMPLE_RATE)
        for turn in self.turns:
            start, stop = (round(each * SAMPLE_RATE) - first for each in (turn.start, turn.end))
            active = own if turn.speaker == self.speaker else others
            active[max(0, start) : max(0, stop)] = True
        return own, others


@dataclass(frozen=True)
class OverlapDecoder:
    """Decodes windows in which speakers talk at once with a `recogniser`; for the event loop."""

    recogniser: Recogniser
    prepare: Prepare

    async def decode(
        self,
        transcript: Transcript,
        turns: Sequence[SpeakerTurn],
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        first: int = 0,
        enrol: Enrol | None = None,
    ) -> Transcript:
        """Return the transcript of `samples` (n,), which begin with sample `first` of a recording.
        If there are such windows, the texts of each speaker replace theirs. By default the speakers
        enrol from `samples`.
        """
        transcriber = self.recogniser.transcriber
        duration = (first + len(samples)) / SAMPLE_RATE
        find = partial(overlapped_windows, transcript.chunks, turns, duration)
        little = find(MOST_OVERLAP)
        windows = find(1.0) if transcriber.conditioned else little
        tracks = find_tracks(windows, turns)
        if not tracks:
            return transcript
        if not options.multilingual:
            options = replace(options, language=transcript.language)
        enrol = enrol or self.enrolments(turns, samples, first)

        async def start(track: Track, follow: bool) -> Transcription:
            if not follow:
                return await transcriber.start(track.cut(samples, first), options)
            enrolment = enrol(track.speaker) if transcriber.enrols else None
            heard = track.whole(samples, first)
            return await transcriber.start(heard, options, track.mask, enrolment=enrolment)

        # Low-rank updates of a plain encoder help only if silencing others leaves too little.
        by_turns = [] if transcriber.always_conditioned else little
        followed = [track for track in tracks if track.window not in by_turns]
        starts = [partial(start, track, track in followed) for track in tracks]
        texts = dict(zip(tracks, await self._transcribe(starts), strict=True))
        unclear = [track for track in followed if doubtful(texts[track])]
        # With much overlap, silencing is no way out: the whole window keeps its text.
        again = [track for track in unclear if track.window in little]
        kept = {track.window for track in unclear} - {*little}
        silenced = await self._transcribe([partial(start, track, False) for track in again])
        reader = transcriber.reader(transcript.language)
        texts |= {track: without_loops(texts[track], reader) for track in followed}
        texts |= zip(again, silenced, strict=True)
        texts = {track: text for track, text in texts.items() if track.window not in kept}
        windows = [window for window in windows if window not in kept]
        merge = partial(replaced, transcript, windows, texts, reader)
        whole: Transcript = await self.prepare(partial(in_one_step, merge))
        return whole

    def enrolments(
        self, turns: Sequence[SpeakerTurn], samples: NDArray[np.float32], first: int = 0
    ) -> Enrol:
        """Return what finds the speakers' enrolments in `samples` as of `decode`, each once."""
        whole = first / SAMPLE_RATE, (first + len(samples)) / SAMPLE_RATE

        @cache
        def enrol(speaker: str) -> Enrolment:
            transcriber = self.recogniser.transcriber
            track = find_enrolment(speaker, turns, whole, transcriber.models.window_seconds)
            return transcriber.enrolment(track.whole(samples, first), track.mask)

        return enrol

    async def _transcribe(
        self, starts: Sequence[Callable[[], Coroutine[Any, None, Transcription]]]
    ) -> list[Transcript]:
        found: list[Transcript] = []
        for place in range(0, len(starts), TRACKS_AT_ONCE):
            jobs: list[Job[Transcript]] = []
            try:
                for start in starts[place : place + TRACKS_AT_ONCE]:
                    jobs.append(self.recogniser.submit(await self.prepare(start)))
                found += [await asyncio.wrap_future(job.result) for job in jobs]
            finally:
                for job in jobs:
                    job.cancel()
        return found


def overlapped_windows(
    chunks: Sequence[Chunk],
    turns: Sequence[SpeakerTurn],
    duration: float,
    most: float = MOST_OVERLAP,
) -> list[Span]:
    """Return the windows of `chunks` in which speakers talk at once, for at most a share `most` of
    the speech. A window lasts to the next, or to `duration`.
    """
    spans: list[Span] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.window_start, chunk.end)):
        # A window that follows begins where the last chunk ends, except for rounding.
        if spans and spans[-1][1] - chunk.window_start > 1 / SAMPLE_RATE:  # decoded again within
            spans[-1] = spans[-1][0], max(spans[-1][1], chunk.end)
        else:
            spans.append((chunk.window_start, chunk.end))
    windows = [*pairwise([*(start for start, _ in spans), duration])]
    seconds = zip(windows, *seconds_spoken(windows, turns), strict=True)
    return [window for window, any_, several in seconds if LEAST_OVERLAP <= several <= most * any_]


def find_tracks(windows: Sequence[Span], turns: Sequence[SpeakerTurn]) -> list[Track]:
    """Return a track for each speaker of each window."""
    tracks = []
    for start, stop in windows:
        inside = tuple(turn for turn in turns if turn.start < stop and turn.end > start)
        speakers = dict.fromkeys(turn.speaker for turn in inside)
        tracks += [Track(speaker, start, stop, inside) for speaker in speakers]
    return tracks


def find_enrolment(
    speaker: str, turns: Sequence[SpeakerTurn], whole: Span, seconds: float
) -> Track:
    """Return the `seconds` of a recording, `whole`, in which a speaker speaks most alone, or most
    at all if never alone: the enrolment of SE-DiCoW (Polok et al. 2026).
    """
    begin, end = whole
    count = int(max(0.0, end - begin - seconds) * STARTS_PER_SECOND + ROUNDING) + 1
    starts = (begin + np.arange(count) / STARTS_PER_SECOND).tolist()
    spans = [(start, min(start + seconds, end)) for start in starts]
    own = [turn for turn in turns if turn.speaker == speaker]
    others = [turn for turn in turns if turn.speaker != speaker]
    alone = seconds_spoken(spans, turns)[0] - seconds_spoken(spans, others)[0]
    spoken = alone if np.max(alone) > ROUNDING else seconds_spoken(spans, own)[0]
    start, stop = spans[int(np.argmax(spoken > np.max(spoken) - ROUNDING))]
    inside = tuple(turn for turn in turns if turn.start < stop and turn.end > start)
    return Track(speaker, start, stop, inside)


def doubtful(found: Transcript) -> bool:
    """Return whether a conditioned text is empty, is unlikely or repeats itself."""
    return not found.chunks or any(
        chunk.avg_logprob < LEAST_LOGPROB or chunk.compression_ratio > MOST_COMPRESSION
        for chunk in found.chunks
    )


def without_loops(found: Transcript, reader: ChunkReader) -> Transcript:
    """Return a conditioned text without any REPEATED words in a row that it has had before."""
    places = [
        (n, place) for n, chunk in enumerate(found.chunks) for place in range(len(chunk.words))
    ]
    words = [_letters(found.chunks[n].words[place].text) for n, place in places]
    seen: dict[tuple[str, ...], int] = {}
    dropped: set[tuple[int, int]] = set()
    for at in range(len(words) - REPEATED + 1):
        first = seen.setdefault(tuple(words[at : at + REPEATED]), at)
        if at - first >= REPEATED:
            dropped.update(places[at : at + REPEATED])
    return replace(found, chunks=tuple(_without(dropped, found.chunks, reader)))


def replaced(
    transcript: Transcript,
    windows: Sequence[Span],
    texts: Mapping[Track, Transcript],
    reader: ChunkReader,
) -> Transcript:
    """Return the transcript with the `texts` of the tracks in place of its `windows`."""
    chunks = [
        chunk
        for chunk in transcript.chunks
        if not any(start <= chunk.window_start < stop for start, stop in windows)
    ]
    new = [
        replace(chunk.later(track.start), voice=track.speaker)
        for track, text in texts.items()
        for chunk in text.chunks
    ]
    chunks += _without_echoes(new, reader)
    stats = DecodeStats()
    for text in (transcript, *texts.values()):
        stats.add(text.stats)
    in_order = sorted(chunks, key=lambda chunk: (chunk.start, chunk.end))
    written = [each for chunk in new for each in chunk.words or (chunk,)]
    unwritten = [
        (each.start, each.end)
        for each in transcript.unwritten
        if not any(word.start < each.end and word.end > each.start for word in written)
    ]
    for track, text in texts.items():
        unwritten += ((span.start + track.start, span.end + track.start) for span in text.unwritten)
    starts, ends = merged(unwritten)
    return replace(
        transcript,
        chunks=tuple(in_order),
        stats=stats,
        unwritten=tuple(map(Unwritten, starts.tolist(), ends.tolist())),
    )


def _without_echoes(chunks: Sequence[Chunk], reader: ChunkReader) -> Iterator[Chunk]:
    """Return the chunks without words that another speaker's chunk has at the same moment, because
    both tracks contain its voice.

    The likelier word stays.
    """
    dropped: set[tuple[int, int]] = set()
    for (one, first), (two, second) in combinations(enumerate(chunks), 2):
        if first.voice == second.voice or first.end < second.start or second.end < first.start:
            continue
        for i, j in product(range(len(first.words)), range(len(second.words))):
            word, other = first.words[i], second.words[j]
            if _is_echo(word, other):
                less = (word.probability or 0.0) < (other.probability or 0.0)
                dropped.add((one, i) if less else (two, j))
    return _without(dropped, chunks, reader)


def _without(
    dropped: Collection[tuple[int, int]], chunks: Sequence[Chunk], reader: ChunkReader
) -> Iterator[Chunk]:
    """Yield the chunks without the `dropped` words, pairs of a chunk's number and a word's."""
    for number, chunk in enumerate(chunks):
        stops = sorted(place for at, place in dropped if at == number)
        for start, stop in pairwise([-1, *stops, len(chunk.words)]):
            yield from reader.part(chunk, start + 1, stop)


def _is_echo(word: Word, other: Word) -> bool:
    apart = abs(word.start + word.end - other.start - other.end) / 2
    return apart <= SAME_MOMENT and _letters(word.text) == _letters(other.text)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
