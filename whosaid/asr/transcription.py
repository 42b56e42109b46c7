"""Transcribes one recording in small steps: languages, windows, and a client's text."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from whosaid.asr.decoding_plan import DecodingPlan, Planner, TranscriptionOptions
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK
from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.engine.request import Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.session import Session
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import SampleSpan, Window
from whosaid.asr.given_text import Recognised, force_text
from whosaid.asr.language_timeline import (
    LanguageTimeline,
    WindowLanguage,
    find_language,
    find_languages,
    other_language_warning,
)
from whosaid.asr.output.chunks import ChunkReader
from whosaid.asr.output.unwritten import find_unwritten, unwritten_speech
from whosaid.asr.recognition import Recognition
from whosaid.scheduling.steps import give_way
from whosaid.timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from whosaid.transcript import Chunk, Transcript, Unspoken, Unwritten

# Encoder outputs kept from language detection; large-v3's for one window is 4 MB in float16.
MAX_KEPT_ENCODINGS = 16
FRUITLESS = 2  # a retry that finds no more text counts as this many


class Guess(NamedTuple):
    """Tokens of an earlier pass, whose timestamps count from `start` seconds of the samples."""

    start: float
    tokens: tuple[int, ...]


class DecodedWindow(NamedTuple):
    """A window's reading, which `WindowDecoding` can use again in place of decoding the window.

    `seek`, `unfinished`, `looped` and `length` are of its ReadWindow, `timestamps` and the language
    of its DecodeResult. `chunks` are those that the window adds by itself.
    """

    window: Window
    seek: int | None
    unfinished: bool
    looped: bool
    length: int
    timestamps: bool
    language: str | None
    language_probability: float | None
    chunks: tuple[Chunk, ...] = ()


class Journal(Protocol):
    """The decoded windows of one channel, of this run and of an interrupted one before it."""

    def find(self, window: Window) -> DecodedWindow | None: ...

    def add(self, decoded: DecodedWindow) -> None: ...


@dataclass(frozen=True, slots=True)
class Prior:
    """Results for samples before these are transcribed: of live passes, or of an interrupted run.

    `guesses`, in order, draft the first window's text, which changes only speed
    (`asr.engine.request.Request`). Speech before `begin` seconds is decoded, as context for later
    speech, but left out of the transcript. Windows in the `journal` are not decoded; others are
    added to it.
    """

    guesses: tuple[Guess, ...] = ()
    begin: float = 0.0
    journal: Journal | None = None

    def draft(self, window_start: float, timestamps: range) -> tuple[int, ...]:
        """Join the guesses to one text, whose `timestamps` count from `window_start` seconds."""

        def moved(token: int, steps: int) -> int:
            at = max(timestamps[0], min(token + steps, timestamps[-1]))
            return token if token < timestamps[0] else at

        return tuple(
            moved(token, round((guess.start - window_start) * TOKENS_PER_SECOND))
            for guess in self.guesses
            for token in guess.tokens
        )


NO_PRIOR = Prior()


class Arrival(NamedTuple):
    """The schedule of a recording's samples so far, or of the `complete` recording; its speech."""

    schedule: Schedule
    speech: Sequence[SampleSpan]
    complete: bool


class Transcription(Recognition[Transcript]):
    """Transcribes one recording; `speech` are its spans of speech in seconds.

    If its schedule is not complete, any thread appends `arrivals`: more of the recording, or the
    error because of which there is no more.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        schedule: Schedule,
        speech: tuple[tuple[float, float], ...],
        planner: Planner,
        prior: Prior = NO_PRIOR,
    ) -> None:
        super().__init__(engine, planner)
        self._schedule, self._speech = schedule, [*speech]
        self._options, self._prior = planner.options, prior
        self._chunks: list[Chunk] = []
        self._unsent: list[Chunk] = []
        self.arrivals: deque[Arrival | Exception] = deque()

    @property
    def ready(self) -> bool:
        """Return whether there are results of the engine, or more of the recording."""
        return bool(self.arrivals) or (self.session is not None and self.session.ready)

    @property
    def seconds(self) -> tuple[float, float]:
        return self._schedule.seconds

    @property
    def windows_read(self) -> int:
        return self._schedule.done

    @property
    def windows_left(self) -> int:
        return self._schedule.total - self._schedule.done

    def take_chunks(self) -> tuple[Chunk, ...]:
        """Return the chunks that have become final since the last call, in order of time. They are
        final when all windows before theirs are read: joined, all calls return the transcript's
        chunks.
        """
        until = self._schedule.final_until
        ready = [chunk for chunk in self._unsent if chunk.start < until]
        self._unsent = [chunk for chunk in self._unsent if chunk.start >= until]
        return _in_order(ready)

    async def _recognise(self) -> Transcript:
        encodings: dict[Window, Tensor] = {}
        timeline = await detect_languages(
            self._engine, self._schedule, self._options, bool(self._speech), encodings, self._wait
        )
        if timeline.cuts:
            self._schedule = self._schedule.cut_at(timeline.cuts)
        plan, text = self._planner.plan(timeline), self._options.text
        with self._engine.session(plan.options) as self.session:
            windows = WindowDecoding(
                self.session, self._schedule, plan, self._prior, encodings, in_order=bool(text)
            )
            recognised = await self._decode(windows, self.session, timeline)
        unspoken: tuple[Unspoken, ...] = ()
        if text:
            chunks, unspoken = await force_text(
                self._engine, self._schedule, plan, text, recognised
            )
            self._add_chunks(chunks, timeline)
        return self._transcript(plan, windows.languages, self.session, unspoken)

    async def _decode(
        self, windows: WindowDecoding, session: Session, timeline: LanguageTimeline
    ) -> list[Recognised]:
        """Decode all windows. Return the recognised texts, if the client supplied a text."""
        recognised: list[Recognised] = []

        def take(found: Recognised) -> None:
            window = found.window
            if window.tentative and found.chunks:
                self._speech.append((window.start / SAMPLE_RATE, window.stop / SAMPLE_RATE))
            if self._options.text:
                recognised.append(found)
            else:
                self._add_chunks(found.chunks, timeline)

        while True:
            for found in windows.add_ready():
                take(found)
            if session.done and self._schedule.whole:
                return recognised
            await self._wait()
            for request, result in session.take():
                for found in (windows.read(request, result), *windows.add_ready()):
                    take(found)
                await give_way()

    async def _wait(self) -> None:
        """Wait for the engine or more of the recording, and add that. Raises its error."""
        if not self.ready:
            await give_way(self)
        while self.arrivals:
            arrived = self.arrivals.popleft()
            if isinstance(arrived, Exception):
                raise arrived
            self._schedule.grow(arrived.schedule, arrived.complete)
            if arrived.complete:
                self._speech += seconds_of(arrived.speech)

    def _add_chunks(self, chunks: Sequence[Chunk], timeline: LanguageTimeline) -> None:
        if self._options.multilingual:
            chunks = [_with_language(chunk, timeline) for chunk in chunks]
        self._chunks += chunks
        self._unsent += chunks

    def _transcript(
        self,
        plan: DecodingPlan,
        languages: Sequence[WindowLanguage],
        session: Session,
        unspoken: tuple[Unspoken, ...],
    ) -> Transcript:
        timeline, warnings, begin = plan.timeline, plan.warnings, self._prior.begin
        detected = bool(self._speech and self._chunks)  # noise without text has no language
        chunks = _in_order(self._chunks)
        spans = [(max(start, begin), stop) for start, stop in self._speech if stop > begin]
        speech = tuple(sorted(spans))
        unwritten: tuple[Unwritten, ...] = ()
        if self._schedule.detected:
            words = [word for chunk in chunks for word in chunk.words]
            unwritten = unwritten_speech(words, speech, self._schedule.speech_before)
        if plan.expects_one_language:
            warnings += other_language_warning(timeline.language, languages)
        return Transcript(
            chunks,
            timeline.language if detected else self._options.language,
            warnings + plan.prompt_warnings,
            timeline.probability if detected else None,
            speech,
            session.stats,
            unspoken,
            unwritten,
        )


async def detect_languages(
    engine: DecodeEngine,
    schedule: Schedule,
    options: TranscriptionOptions,
    any_speech: bool,
    encodings: MutableMapping[Window, Tensor],
    more: Callable[[], Awaitable[None]],
) -> LanguageTimeline:
    """Return the given language, that of the first speech, or with `multilingual` those of all
    parts. The first encoder outputs (1, frames, d_model) go to `encodings` for decoding; if there
    is a target, none do, because detection does not follow it. `more` waits for more windows.
    """
    if options.language is not None:
        return LanguageTimeline.single(options.language)

    async def detect(window: Window) -> LanguagePosterior:
        found = engine.detect_language(schedule.samples(window))
        kept = found.encoded if schedule.target(window) is None else None
        if kept is not None and len(encodings) < MAX_KEPT_ENCODINGS:
            encodings[window] = kept
        await give_way()
        return found._replace(encoded=None)

    if options.multilingual and any_speech:
        return await find_languages(schedule, detect)
    silent_above = (options.decode.fallback or DEFAULT_FALLBACK).no_speech_threshold
    return await find_language(schedule, silent_above, detect, more)


class WindowDecoding:
    """Decodes the windows of a schedule in a session, by `plan`.

    An encoder output is removed from `encodings` when it is used. `in_order` is for texts that are
    paired with a client's: then no window lies within the text of another. `languages` are the
    languages detected in the decoded windows.
    """

    def __init__(
        self,
        session: Session,
        schedule: Schedule,
        plan: DecodingPlan,
        prior: Prior,
        encodings: MutableMapping[Window, Tensor],
        in_order: bool = False,
    ) -> None:
        self.languages: list[WindowLanguage] = []
        self._session, self._schedule, self._plan = session, schedule, plan
        self._prior, self._encodings, self._in_order = prior, encodings, in_order
        self._drafted = False  # whether the guesses have drafted a window
        # The text that a window keeps if decoding it again finds no more.
        self._previous: dict[Window, list[Chunk]] = {}

    def add_ready(self) -> list[Recognised]:
        """Add the windows that are ready to free rows. Return the texts of windows in the journal,
        which need none. The first window of a recording that grows and has more windows than rows
        runs alone, so that the first text comes soon.
        """
        schedule, requests = self._schedule, list[Request]()
        recalled: list[Recognised] = []
        left, rows = schedule.total - schedule.done, self._session.free_rows
        if schedule.grows and not schedule.done and left > rows:
            rows = min(rows, int(self._session.done))
        while len(requests) < rows and (popped := schedule.pop_ready(1)):
            (window,) = popped
            decoded = self._prior.journal and self._prior.journal.find(window)
            if decoded:
                self._encodings.pop(window, None)
                recalled.append(self._add(decoded, self._plan.at(window.start).reader))
            else:
                requests.append(self._request(window, left))
        self._session.add(requests)
        return recalled

    def _request(self, window: Window, left: int) -> Request:
        language = self._plan.at(window.start)
        request = Request(
            window,
            self._schedule.samples(window),
            language.prompt,
            encoded=self._encodings.pop(window, None),
            once=window.tentative,
            windows_left=left,
            target=self._schedule.target(window),
        )
        if window.tentative or self._drafted:
            return request
        self._drafted = True
        timestamps = language.reader.models.timestamps
        draft = self._prior.draft(window.start / SAMPLE_RATE, timestamps)
        return replace(request, draft=draft)

    def read(self, request: Request, result: DecodeResult) -> Recognised:
        """Read a decoded window and plan the windows that follow from it."""
        window, samples = request.key, request.samples
        reader = self._plan.at(window.start).reader
        read = reader.read(window, result, samples)
        decoded = DecodedWindow(
            window,
            read.seek,
            bool(read.unfinished),
            read.looped,
            read.length,
            result.timestamps,
            result.language,
            result.language_probability,
        )

        def read_chunks(again: bool) -> list[Chunk]:
            """Align the words with the samples that are not decoded again."""
            length = read.seek - window.start if again and read.seek else None
            return reader.chunks(window, read.kept(again), samples[:length], result)

        return self._add(decoded, reader, read_chunks)

    def _add(
        self,
        decoded: DecodedWindow,
        reader: ChunkReader,
        read_chunks: Callable[[bool], list[Chunk]] | None = None,
    ) -> Recognised:
        """Plan the windows that follow from a decoded one, the next of its region earlier for an
        unfinished end, and return its text. `read_chunks` returns the chunks, without an end that
        is decoded again; None if `decoded` has them.
        """
        window, schedule = decoded.window, self._schedule
        if not (window.tentative or window.retries):
            sounds_like = decoded.language, decoded.language_probability
            seconds = schedule.speech_seconds(window)
            self.languages.append(WindowLanguage(window, *sounds_like, seconds))
        chunks = self._previous.pop(window, [])
        if fruitless := decoded.length <= sum(len(each.tokens) for each in chunks):
            start = schedule.complete(window)
        else:
            start = schedule.complete(window, decoded.seek, decoded.unfinished, decoded.looped)
            chunks = [*decoded.chunks]
            if read_chunks:
                chunks = read_chunks(decoded.unfinished and start < window.stop)
        if read_chunks and self._prior.journal:
            own = () if fruitless else tuple(chunks)
            self._prior.journal.add(decoded._replace(chunks=own))
        if schedule.detected and not window.tentative:
            stop, retries = min(start, window.stop), FRUITLESS if fruitless else 1
            chunks = self._decode_unwritten(window, chunks, stop, retries, reader)
        if self._prior.begin:
            chunks = [each for chunk in chunks for each in reader.since(chunk, self._prior.begin)]
        return Recognised(window, chunks, decoded.timestamps)

    def _decode_unwritten(
        self, window: Window, chunks: Sequence[Chunk], stop: int, retries: int, reader: ChunkReader
    ) -> list[Chunk]:
        """Plan windows over speech before the sample `stop` that has no words, or too few, in
        `chunks`. Return the chunks without these few words, which return if the new text has no
        more tokens.
        """
        words = [word for chunk in chunks for word in chunk.words]
        first, last = max(window.start / SAMPLE_RATE, self._prior.begin), stop / SAMPLE_RATE
        gaps = find_unwritten(words, first, last, self._schedule.speech_before)
        if self._in_order:
            gaps = [gap for gap in gaps if gap.stop == len(words)]
        kept, place, since = list[Chunk](), 0, 0.0
        for gap in gaps:
            begin, end = round(gap.start * SAMPLE_RATE), round(gap.end * SAMPLE_RATE)
            windows = self._schedule.decode_again(window, begin, end, retries)
            if windows:
                kept += _part(chunks, place, gap.first, reader, since, gap.start)
                place, since = gap.first, gap.end
            for number, each in enumerate(windows, 1):
                last = gap.end if number == len(windows) else each.stop / SAMPLE_RATE
                stop = place + sum(word.start < last for word in words[place : gap.stop])
                self._previous[each] = _part(chunks, place, stop, reader, until=last)
                place = stop
        return [*kept, *_part(chunks, place, len(words), reader, since)] if gaps else [*chunks]


def _part(
    chunks: Sequence[Chunk],
    first: int,
    stop: int,
    reader: ChunkReader,
    since: float = 0.0,
    until: float = math.inf,
) -> list[Chunk]:
    """Return the chunks with only the words from number `first` to `stop`, which Whisper may have
    stretched over a gap: their times lie between `since` and `until` seconds.
    """
    found: list[Chunk] = []
    for chunk in chunks:
        count = len(chunk.words)
        found += reader.part(chunk, min(max(first, 0), count), min(max(stop, 0), count))
        first, stop = first - count, stop - count
    return [
        replace(
            each,
            start=max(each.start, since),
            end=min(each.end, until),
            words=tuple(replace(word, end=min(word.end, until)) for word in each.words),
        )
        for each in found
    ]


def seconds_of(speech: Sequence[SampleSpan]) -> tuple[tuple[float, float], ...]:
    return tuple((span.start / SAMPLE_RATE, span.stop / SAMPLE_RATE) for span in speech)


def _in_order(chunks: list[Chunk]) -> tuple[Chunk, ...]:
    return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))


def _with_language(chunk: Chunk, timeline: LanguageTimeline) -> Chunk:
    code = timeline.language_at(round(chunk.start * SAMPLE_RATE))
    words = tuple(replace(word, language=code) for word in chunk.words)
    return replace(chunk, words=words, language=code)
