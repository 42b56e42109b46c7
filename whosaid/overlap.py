"""Decodes speech in which speakers talk at once again, once for each speaker.

If voices overlap, Whisper writes only one of them. A conditioned encoder follows a speaker by a
mask of the diarizer's probabilities. A passage around the overlap is decoded for each speaker, and
the words in its parts, the overlap with a margin, replace the transcript's:

    turns       A  ##############
                B             ##########
    part                     [    ]
    passage               [          ]

With other models the passage is a whole window with little overlap, and in a speaker's track the
samples in which only other speakers speak are zero. Silencing is a baseline of Polok et al.,
"DiCoW" (arXiv 2501.00114).

Words decide: a passage keeps its text unless words of two tracks overlap.
"""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diarization_utils import during, seconds_spoken
from whosaid.diarization.activity import SpeakerActivity
from whosaid.scheduling.shortest_first import in_one_step
from whosaid.timebase import SAMPLE_RATE, TOKENS_PER_SECOND, merged, runs
from whosaid.transcript import Chunk, DecodeStats, SpeakerTurn, Transcript, Unwritten, Word, letters

if TYPE_CHECKING:
    from whosaid.asr import EngineJob, Recogniser, Transcription, TranscriptionOptions
    from whosaid.asr.frontend.target_speaker import Enrolment
    from whosaid.diarization.diarizer import Diarization

# Probability of several speakers from which on a frame overlaps; a part's margin, seconds and a
# share of the overlap, because the longer it is, the further off its text goes wrong; and seconds
# of a passage around a part. Chosen, like REPEATED, on mixtures of other voices than those of
# docs/benchmarks/overlap.md.
LIKELY, EDGE, SHARE, CONTEXT = 0.35, 0.5, 0.25, 1.5
# Seconds of overlap in a part or window, by the diarizer's probabilities.
LEAST_OVERLAP = 0.5
# Share of a window's speech from which on silencing others leaves too little of a speaker.
MUCH = 0.2
# The text of a doubtful window is less likely, or compresses better (openai/whisper's threshold).
LEAST_LOGPROB, MOST_COMPRESSION = -0.8, 2.4
REPEATED = 6  # words in a row that a looping text repeats
SAME_MOMENT = 0.3  # most seconds between the middles of one word in two tracks
SAME_WORD = 1.0  # most seconds between the middles of one word in the transcript and in a track
ROWS_AT_ONCE = 48  # of up to 30 s, 2 MB each
ROUNDING = 1e-6  # seconds
STARTS_PER_SECOND = 10  # of spans that may be a speaker's enrolment, as for SE-DiCoW

Span = tuple[float, float]  # start and end in seconds
Passages = Mapping[Span, Sequence[Span]]  # the parts of each passage
# Runs the coroutine that a function returns in another thread.
Prepare = Callable[[Callable[[], Coroutine[Any, None, Any]]], Awaitable[Any]]
Part = Callable[[Chunk, int, int], list[Chunk]]  # as of `Transcriber`
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
        """Return the track's part of `samples` (n,), from the recording's sample `first` on."""
        track = self.whole(samples, first).copy()
        own, others = self._active(len(track))
        track[others & ~own] = 0
        return track

    def whole(self, samples: NDArray[np.float32], first: int = 0) -> NDArray[np.float32]:
        """Return the window's samples of a recording, with all speakers."""
        start, stop = (round(each * SAMPLE_RATE) - first for each in (self.start, self.stop))
        return samples[start:stop]

    def mask(self, activity: SpeakerActivity) -> NDArray[np.float32]:
        """Return the mask (frames, 4) by which a conditioned encoder follows the speaker in the
        window (`asr.frontend.target_speaker`), as if speakers were independent.

        If a window has two speakers, the weaker is at least as likely as both at once.
        """
        inside = activity.within(self.start, self.stop)
        silent = np.zeros_like(inside.several)
        labels = {turn.speaker for turn in self.turns}
        own, *rest = (
            inside.speaking.get(label, silent)
            for label in sorted(labels, key=lambda label: label != self.speaker)
        )
        others = 1 - np.prod([1 - silent, *(1 - each for each in rest)], axis=0)
        if len(rest) == 1:
            stronger = np.maximum(np.maximum(own, others), np.maximum(inside.several, ROUNDING))
            weaker = np.maximum(np.minimum(own, others), inside.several / stronger)
            own, others = np.where(own < others, (weaker, others), (own, weaker))
        shares = [(1 - own) * (1 - others), own * (1 - others), (1 - own) * others, own * others]
        return np.stack(shares, axis=-1).astype(np.float32)

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
    """Decodes passages in which speakers talk at once with a `recogniser`; for the event loop."""

    recogniser: Recogniser
    prepare: Prepare

    async def decode(
        self,
        transcript: Transcript,
        found: Diarization,
        samples: NDArray[np.float32],
        options: TranscriptionOptions,
        first: int = 0,
        enrol: Enrol | None = None,
    ) -> Transcript:
        """Return the transcript of `samples` (n,), which begin with sample `first` of a recording.
        If there are such passages, the texts of each speaker replace theirs. By default the
        speakers enrol from `samples`.
        """
        transcriber, can = self.recogniser.transcriber, self.recogniser.transcriber.capabilities
        passages = self.passages(transcript.chunks, found, (first + len(samples)) / SAMPLE_RATE)
        tracks = find_tracks([*passages], found.turns)
        if not tracks:
            return transcript
        if not options.multilingual:
            options = replace(options, language=transcript.language)
        activity, part = activity_of(found), transcriber.part
        enrol = enrol or self.enrolments(found.turns, samples, first)

        async def start(track: Track) -> Transcription:
            if not can.conditioned:
                return await transcriber.start(track.cut(samples, first), options)
            enrolment = enrol(track.speaker) if can.enrols else None
            heard, mask = track.whole(samples, first), track.mask(activity)
            return await transcriber.start(heard, options, mask, enrolment=enrolment)

        decoded = await self._transcribe(start, tracks)
        stats = DecodeStats()
        for text in (transcript, *decoded):
            stats.add(text.stats)
        transcript = replace(transcript, stats=stats)
        texts = dict(zip(tracks, decoded, strict=True))
        work = partial(replaced, transcript, texts, passages, part)
        done: Transcript = await self.prepare(partial(in_one_step, work))
        return done

    def passages(self, chunks: Sequence[Chunk], found: Diarization, stop: float) -> Passages:
        """Return the passages to decode again in a recording with `chunks` until second `stop`."""
        can = self.recogniser.transcriber.capabilities
        if can.conditioned:
            return overlapped_passages(activity_of(found), stop, can.window_seconds)
        shares = overlapped_windows(chunks, found, stop)
        return {window: [window] for window, share in shares.items() if share < MUCH}

    def enrolments(
        self, turns: Sequence[SpeakerTurn], samples: NDArray[np.float32], first: int = 0
    ) -> Enrol:
        """Return what finds the speakers' enrolments in `samples` as of `decode`, each once."""
        whole = first / SAMPLE_RATE, (first + len(samples)) / SAMPLE_RATE

        @cache
        def enrol(speaker: str) -> Enrolment:
            transcriber = self.recogniser.transcriber
            seconds = transcriber.capabilities.window_seconds
            track = find_enrolment(speaker, turns, whole, seconds)
            mask = track.mask(SpeakerActivity.decided(track.turns))
            return transcriber.enrolment(track.whole(samples, first), mask)

        return enrol

    async def _transcribe(
        self,
        start: Callable[[Track], Coroutine[Any, None, Transcription]],
        tracks: Sequence[Track],
    ) -> list[Transcript]:
        found: list[Transcript] = []
        for place in range(0, len(tracks), ROWS_AT_ONCE):
            jobs: list[EngineJob[Transcript]] = []
            try:
                for track in tracks[place : place + ROWS_AT_ONCE]:
                    started = await self.prepare(partial(start, track))
                    jobs.append(self.recogniser.submit(started))
                found += [await asyncio.wrap_future(job.result) for job in jobs]
            finally:
                for job in jobs:
                    job.cancel()
        return found


def activity_of(found: Diarization) -> SpeakerActivity:
    return found.activity or SpeakerActivity.decided(found.turns)


def overlapped_passages(activity: SpeakerActivity, stop: float, longest: float) -> Passages:
    """Return the passages of a recording until second `stop`, of at most `longest` seconds."""
    likely = runs(activity.several > LIKELY) / TOKENS_PER_SECOND + activity.start
    whole = activity.start, stop
    overlaps = [
        each
        for each in _widened(likely.tolist(), whole, EDGE)
        if activity.within(*each).several.sum() >= LEAST_OVERLAP * TOKENS_PER_SECOND
    ]
    parts = _widened(overlaps, whole, share=SHARE)
    return {
        (first, last): [
            (max(start, first), min(end, last))
            for start, end in parts
            if start < last and end > first
        ]
        for passage in _widened(parts, whole, CONTEXT)
        for first, last in pairwise(_cuts(*passage, longest, activity))
    }


def _widened(
    spans: Sequence[Span], whole: Span, seconds: float = 0.0, share: float = 0.0
) -> list[Span]:
    """Return the spans with `seconds` and a `share` of their length before and after them, within
    the `whole`, joined.
    """
    wider = []
    for start, end in spans:
        margin = seconds + share * (end - start)
        wider.append((max(whole[0], start - margin), min(whole[1], end + margin)))
    starts, ends = merged(wider)
    return [*zip(starts.tolist(), ends.tolist(), strict=True)]


def _cuts(start: float, stop: float, longest: float, activity: SpeakerActivity) -> Iterator[float]:
    """Yield `start`, `stop`, and between them, where it is quiet, as many cuts as are needed."""
    yield start
    while stop - start > longest:
        later = activity.within(start + longest / 2, start + longest)
        quietest = int(np.argmin(np.sum([*later.speaking.values()], axis=0)))
        start = later.start + quietest / TOKENS_PER_SECOND
        yield start
    yield stop


def overlapped_windows(
    chunks: Sequence[Chunk], found: Diarization, duration: float
) -> dict[Span, float]:
    """Return the windows of `chunks` in which speakers talk at once, with the share of the speech.
    A window lasts to the next, or to `duration`.
    """
    activity = activity_of(found)
    spans: list[Span] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.window_start, chunk.end)):
        # A window that follows begins where the last chunk ends, except for rounding.
        if spans and spans[-1][1] - chunk.window_start > 1 / SAMPLE_RATE:  # decoded again within
            spans[-1] = spans[-1][0], max(spans[-1][1], chunk.end)
        else:
            spans.append((chunk.window_start, chunk.end))
    windows = {}
    for window in pairwise([*(start for start, _ in spans), duration]):
        inside = activity.within(*window)
        several = float(inside.several.sum())
        if several >= LEAST_OVERLAP * TOKENS_PER_SECOND:
            silent = np.prod([1 - each for each in inside.speaking.values()], axis=0)
            windows[window] = several / float(np.sum(1 - silent))
    return windows


def find_tracks(windows: Sequence[Span], turns: Sequence[SpeakerTurn]) -> list[Track]:
    """Return a track for each speaker of each window with two speakers or more."""
    tracks = []
    for start, stop in windows:
        inside = tuple(turn for turn in turns if turn.start < stop and turn.end > start)
        speakers = dict.fromkeys(turn.speaker for turn in inside)
        if len(speakers) > 1:
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


def doubtful(chunk: Chunk) -> bool:
    """Return whether the text of a chunk's window is unlikely or repeats itself."""
    return chunk.avg_logprob < LEAST_LOGPROB or chunk.compression_ratio > MOST_COMPRESSION


def without_loops(found: Transcript, part: Part) -> Iterator[Chunk]:
    """Return a text's chunks without any REPEATED words in a row that it has had before."""
    places = [
        (n, place) for n, chunk in enumerate(found.chunks) for place in range(len(chunk.words))
    ]
    words = [letters(found.chunks[n].words[place].text) for n, place in places]
    seen: dict[tuple[str, ...], int] = {}
    dropped: set[tuple[int, int]] = set()
    for at in range(len(words) - REPEATED + 1):
        first = seen.setdefault(tuple(words[at : at + REPEATED]), at)
        if at - first >= REPEATED:
            dropped.update(places[at : at + REPEATED])
    return _without(dropped, found.chunks, part)


def replaced(
    transcript: Transcript, texts: Mapping[Track, Transcript], passages: Passages, part: Part
) -> Transcript:
    """Return the transcript with the `texts` of tracks in the parts of their passages, where words
    of two voices prove that they overlap. Texts of doubtful windows are left out. A word of the
    transcript that a track has, too, lies where the track has it.
    """
    placed = sorted(
        ((word.start + word.end) / 2, number, place)
        for number, chunk in enumerate(transcript.chunks)
        for place, word in enumerate(chunk.words)
    )
    spoken: dict[Span, list[Track]] = defaultdict(list)
    for track in texts:
        spoken[track.window].append(track)
    new, unwritten = list[Chunk](), list[Unwritten]()
    dropped: set[tuple[int, int]] = set()
    for window, tracks in spoken.items():
        parts = passages[window]
        own = [
            replace(chunk.later(track.start), voice=track.speaker)
            for track in tracks
            for chunk in without_loops(texts[track], part)
            if chunk.words and not doubtful(chunk)
        ]
        own = [*_without_echoes(own, part)]
        inside = [*_within(parts, own, part)]
        if not _overlap(inside):
            continue
        # Whisper's timestamps last on while the others speak.
        new += [replace(each, start=each.words[0].start, end=each.words[-1].end) for each in inside]
        for track in tracks:
            for each in texts[track].unwritten:
                later = Unwritten(each.start + track.start, each.end + track.start)
                unwritten += [later] if _lies_in(later, parts) else []
        words = [word for chunk in own for word in chunk.words]
        first, last = (bisect(placed, (each,)) for each in window)
        for _, number, place in placed[first:last]:
            word = transcript.chunks[number].words[place]
            if _lies_in(_nearest(word, words), parts):
                dropped.add((number, place))
    if not new:
        return transcript
    kept = _cut(_without(dropped, transcript.chunks, part), [each.start for each in new], part)
    return replace(
        transcript,
        chunks=tuple(sorted((*kept, *new), key=lambda chunk: (chunk.start, chunk.end))),
        unwritten=_unwritten(transcript, new, unwritten),
    )


def _within(parts: Sequence[Span], chunks: Sequence[Chunk], part: Part) -> Iterator[Chunk]:
    """Return the chunks without the words whose middle lies in none of the `parts`."""
    outside = {
        (number, place)
        for number, chunk in enumerate(chunks)
        for place, word in enumerate(chunk.words)
        if not _lies_in(word, parts)
    }
    return _without(outside, chunks, part)


def _lies_in(span: Word | Unwritten, parts: Sequence[Span]) -> bool:
    middle = (span.start + span.end) / 2
    return any(start <= middle < stop for start, stop in parts)


def _overlap(chunks: Sequence[Chunk]) -> bool:
    """Return whether words of two voices overlap."""
    words = [(chunk.voice, word) for chunk in chunks for word in chunk.words]
    return any(
        any(
            during(
                [word for voice, word in words if voice == speaker],
                [word for voice, word in words if voice != speaker],
            )
        )
        for speaker in {voice for voice, _ in words}
    )


def _unwritten(
    transcript: Transcript, new: Sequence[Chunk], more: Sequence[Unwritten]
) -> tuple[Unwritten, ...]:
    """Return the unwritten speech of the transcript without `new` words, and `more`."""
    words = [word for chunk in new for word in chunk.words]
    unwritten = [
        (each.start, each.end)
        for each in transcript.unwritten
        if not any(word.start < each.end and word.end > each.start for word in words)
    ]
    unwritten += ((each.start, each.end) for each in more)
    return tuple(
        Unwritten(float(start), float(end)) for start, end in zip(*merged(unwritten), strict=True)
    )


def _without_echoes(chunks: Sequence[Chunk], part: Part) -> Iterator[Chunk]:
    """Return the chunks without words that another speaker's chunk has, likelier, at the same
    moment, because both tracks contain its voice. Each word has one echo in another chunk.
    """
    dropped: set[tuple[int, int]] = set()
    paired: set[tuple[int, int, str | None]] = set()
    for (one, first), (two, second) in combinations(enumerate(chunks), 2):
        if first.voice == second.voice or first.end < second.start or second.end < first.start:
            continue
        pairs = product(enumerate(first.words), enumerate(second.words))
        for (i, word), (j, other) in sorted(pairs, key=lambda pair: _apart(pair[0][1], pair[1][1])):
            both = {(one, i, second.voice), (two, j, first.voice)}
            if _is_echo(word, other) and paired.isdisjoint(both):
                paired |= both
                less = (word.probability or 0.0) < (other.probability or 0.0)
                dropped.add((one, i) if less else (two, j))
    return _without(dropped, chunks, part)


def _without(
    dropped: Collection[tuple[int, int]], chunks: Sequence[Chunk], part: Part
) -> Iterator[Chunk]:
    """Yield the chunks without the `dropped` words, pairs of a chunk's number and a word's."""
    stops: dict[int, list[int]] = defaultdict(list)
    for number, place in sorted(dropped):
        stops[number].append(place)
    for number, chunk in enumerate(chunks):
        if number not in stops:
            yield chunk
            continue
        for start, stop in pairwise([-1, *stops[number], len(chunk.words)]):
            yield from part(chunk, start + 1, stop)


def _cut(chunks: Iterator[Chunk], times: Sequence[float], part: Part) -> Iterator[Chunk]:
    """Yield the chunks, cut at `times`, so that all words can be in order of time."""
    for chunk in chunks:
        starts = [word.start for word in chunk.words]
        places = {bisect(starts, each) for each in times if chunk.start < each < chunk.end}
        for start, stop in pairwise([0, *sorted(places - {0, len(starts)}), len(starts)]):
            yield from part(chunk, start, stop)


def _nearest(word: Word, others: Sequence[Word]) -> Word:
    """Return the nearest of `others` with the same text within SAME_WORD, or the word itself."""
    same = [each for each in others if _is_echo(word, each, SAME_WORD)]
    return min(same, key=lambda each: _apart(word, each), default=word)


def _is_echo(word: Word, other: Word, seconds: float = SAME_MOMENT) -> bool:
    near = _apart(word, other) <= seconds
    return near and (letters(word.text) or word.text) == (letters(other.text) or other.text)


def _apart(word: Word, other: Word) -> float:
    return abs(word.start + word.end - other.start - other.end) / 2
