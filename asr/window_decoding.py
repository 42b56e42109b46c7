"""The windows of one recording: asked of the engine as they become ready, and read."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from asr.decoding_plan import DecodingPlan
from asr.engine.engine import Session
from asr.engine.request import DecodeResult, Request
from asr.frontend.schedule import Schedule
from asr.frontend.windows import Window
from asr.given_text import Heard
from asr.language_timeline import HeardWindow
from asr.output.chunks import ChunkReader, ReadWindow
from asr.output.unwritten import find_unwritten
from timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from transcript import Chunk

FRUITLESS = 2  # so many retries counts one that has found no text


class Guess(NamedTuple):
    """Tokens that were heard from `start` seconds of the samples on, from which their timestamps
    count.
    """

    start: float
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeardBefore:
    """What is known of samples before they are transcribed.

    `guesses`, in order, draft the first window's text, which changes speed alone
    (`asr.engine.request.Request`). What is said before `begin` seconds is heard, because what
    follows is understood better so, but left out of the transcript.
    """

    guesses: tuple[Guess, ...] = ()
    begin: float = 0.0

    def draft(self, window_start: float, timestamps: range) -> tuple[int, ...]:
        """The guesses as one text whose `timestamps` count from `window_start` seconds."""

        def moved(token: int, steps: int) -> int:
            at = max(timestamps[0], min(token + steps, timestamps[-1]))
            return token if token < timestamps[0] else at

        return tuple(
            moved(token, round((guess.start - window_start) * TOKENS_PER_SECOND))
            for guess in self.guesses
            for token in guess.tokens
        )


NOTHING_HEARD = HeardBefore()


class WindowDecoding:
    """Decodes a schedule's windows in a session, as `plan` says.

    `encodings` are encoder outputs that are known already; each is taken from them when it is used.
    `in_order` is for texts that are paired with a client's: no window lies within another's text.
    `of_language` keeps in which language each window sounds.
    """

    def __init__(
        self,
        session: Session,
        schedule: Schedule,
        plan: DecodingPlan,
        before: HeardBefore,
        encodings: MutableMapping[Window, Tensor],
        in_order: bool = False,
    ) -> None:
        self.of_language: list[HeardWindow] = []
        self._session, self._schedule, self._plan = session, schedule, plan
        self._before, self._encodings, self._in_order = before, encodings, in_order
        self._drafted = False  # whether the guesses have drafted a window
        # The text that a window has if decoding it again does not find more.
        self._instead: dict[Window, list[Chunk]] = {}

    def add_ready(self) -> None:
        """Ask for as many windows as there are rows for."""
        schedule, requests = self._schedule, []
        left = schedule.total - schedule.done
        for window in schedule.pop_ready(self._session.free_rows):
            language = self._plan.at(window.start)
            request = Request(
                window,
                schedule.samples(window),
                language.prompt,
                None,
                self._encodings.pop(window, None),
                window.tentative,
                left,
            )
            if not (window.tentative or self._drafted):
                timestamps = language.reader.models.timestamps
                draft = self._before.draft(window.start / SAMPLE_RATE, timestamps)
                request, self._drafted = replace(request, draft=draft), True
            requests.append(request)
        self._session.add(requests)

    def read(self, request: Request, result: DecodeResult) -> Heard:
        """What a decoded window says; what follows it is planned.

        Its unfinished end may make the next window of its region begin earlier.
        """
        window, schedule = request.key, self._schedule
        if not (window.tentative or window.retries):
            seconds = schedule.speech_seconds(window)
            self.of_language.append(HeardWindow.of(window, result, seconds))
        reader = self._plan.at(window.start).reader
        read, chunks = reader.read(window, result, request.samples), self._instead.pop(window, [])
        fruitless = read.length <= sum(len(each.tokens) for each in chunks)
        if fruitless:
            read = ReadWindow()
        start = schedule.complete(window, read.seek, bool(read.unfinished), read.looped)
        if not fruitless:
            kept = read.kept(bool(read.unfinished) and start < window.stop)
            chunks = reader.chunks(window, kept, request.samples, result)
        if schedule.detected and not window.tentative:
            stop, retries = min(start, window.stop), FRUITLESS if fruitless else 1
            chunks = self._decode_unwritten(window, chunks, stop, retries, reader)
        if self._before.begin:
            chunks = [each for chunk in chunks for each in reader.since(chunk, self._before.begin)]
        return Heard(window, chunks, result.timestamps)

    def _decode_unwritten(
        self,
        window: Window,
        chunks: Sequence[Chunk],
        stop: int,
        retries: int,
        reader: ChunkReader,
    ) -> list[Chunk]:
        """Plan windows over the speech before the sample `stop` for which the `chunks` of a window
        have no words, or too few; returns the chunks without these, which stay where the new text
        has no more tokens.
        """
        words = [word for chunk in chunks for word in chunk.words]
        first, last = max(window.start / SAMPLE_RATE, self._before.begin), stop / SAMPLE_RATE
        gaps = find_unwritten(words, first, last, self._schedule.speech_before)
        if self._in_order:
            gaps = [gap for gap in gaps if gap.stop == len(words)]
        kept, place = list[Chunk](), 0
        for gap in gaps:
            begin, end = round(gap.start * SAMPLE_RATE), round(gap.end * SAMPLE_RATE)
            windows = self._schedule.decode_again(window, begin, end, retries)
            if windows:
                kept += _words_of(chunks, place, gap.first, reader)
                place = gap.first
            for number, each in enumerate(windows, 1):
                last = gap.end if number == len(windows) else each.stop / SAMPLE_RATE
                stop = place + sum(word.start < last for word in words[place : gap.stop])
                self._instead[each] = _words_of(chunks, place, stop, reader)
                place = stop
        return [*kept, *_words_of(chunks, place, len(words), reader)] if gaps else [*chunks]


def _words_of(chunks: Sequence[Chunk], first: int, stop: int, reader: ChunkReader) -> list[Chunk]:
    """What the words number `first` to `stop` of all chunks are of each."""
    found: list[Chunk] = []
    for chunk in chunks:
        count = len(chunk.words)
        found += reader.part(chunk, min(max(first, 0), count), min(max(stop, 0), count))
        first, stop = first - count, stop - count
    return found
