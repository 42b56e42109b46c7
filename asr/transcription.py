"""One recording on its way to a transcript, in small steps.

    transcription = transcriber.start(samples, options)
    while transcription.step():  # until only a step of the engine leads on
        ...

What is done between two steps of the engine is small (a language is heard in one window, or one
window is read), and the caller says when. So one thread can drive the recordings of many clients
beside each other, and a caller without others runs one from beginning to end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from torch import Tensor

from asr.decoding_plan import DecodingPlan
from asr.engine.engine import DecodeEngine
from asr.engine.prefill import DetectedLanguage, LanguagePosterior
from asr.engine.request import DecodeOptions, DecodeResult, Request
from asr.engine.session import Session
from asr.forced_decoding import ForcedDecoding
from asr.frontend.schedule import Schedule
from asr.frontend.vad import DEFAULT_OPTIONS, VadOptions
from asr.frontend.windows import Window
from asr.given_text import Heard
from asr.language_timeline import (
    HeardWindow,
    LanguageTimeline,
    find_language,
    find_languages,
    other_language_warning,
)
from timebase import SAMPLE_RATE, TOKENS_PER_SECOND
from transcript import Chunk, Transcript, Unspoken

logger = logging.getLogger("endpoint")

# Encoder outputs kept from language detection; large-v3's for one window is 4 MB in float16.
MAX_KEPT_ENCODINGS = 16

Steps = Generator[bool, None, LanguageTimeline]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """What a request asks of speech recognition.

    `language` is a code or a name, None to detect it: once, or with `multilingual` for each part of
    the recording. `prompt` and `hotwords` are prepended to every window as previous text (Whisper's
    `initial_prompt`), for style and spelling. A `text` is what is said: its words, which need word
    times, are those of the transcript (`asr.given_text`). `decode` says how texts are found and
    which times they have. Its `fallback` is None for the transcriber's. `vad` says what counts as
    speech; None: everything does.
    """

    task: str = "transcribe"
    language: str | None = None
    multilingual: bool = False
    chunk_length_s: int = 30
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    text: str = ""
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    vad: VadOptions | None = DEFAULT_OPTIONS


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


class Transcription:
    """A recording that is being transcribed; for one thread at a time.

    `speech` are its spans of speech in seconds; `plan` says how it is decoded once its languages
    are known. `before` is what was heard of it already. `result` is None until all is done.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        schedule: Schedule,
        speech: tuple[tuple[float, float], ...],
        options: TranscriptionOptions,
        plan: Callable[[LanguageTimeline], DecodingPlan],
        before: HeardBefore = NOTHING_HEARD,
    ) -> None:
        self.result: Transcript | None = None
        self.session: Session | None = None
        self._engine, self._schedule, self._speech = engine, schedule, [*speech]
        self._options, self._plan_for, self._before = options, plan, before
        self._drafted = False  # whether the guesses have drafted a window
        self._encodings: dict[Window, Tensor] = {}  # what language detection encoded: (1, frames,
        self._chunks: list[Chunk] = []  # d_model) each
        self._unsent: list[Chunk] = []
        self._unspoken: tuple[Unspoken, ...] = ()
        self._recognised: list[Heard] = []  # where a text was given
        self._heard: list[HeardWindow] = []
        self._steps = self._run()

    @property
    def done(self) -> bool:
        """Whether there is a transcript."""
        return self.result is not None

    @property
    def live(self) -> bool:
        """Whether it is of somebody who is speaking now, and goes before others."""
        return self._options.decode.live

    @property
    def seconds(self) -> tuple[float, float]:
        """How many seconds of speech are transcribed, and how many there are."""
        return self._schedule.seconds

    @property
    def windows_read(self) -> int:
        """How many windows are transcribed."""
        return self._schedule.done

    @property
    def windows_left(self) -> int:
        """How many windows are to be transcribed, as far as is known."""
        return self._schedule.total - self._schedule.done

    def step(self) -> bool:
        """Do one small thing: hear a window's language, or read one that was decoded.

        False where nothing is left to do before the engine's next step. Raises OutOfMemory where
        one window does not fit into the device's memory, and whatever models and readers raise;
        nothing follows then.
        """
        return next(self._steps, False)

    def run(self) -> Transcript:
        """Take all steps, and those of the engine that they wait for."""
        for did_something in self._steps:
            if not did_something:
                self._engine.step()
        assert self.result is not None
        return self.result

    def close(self) -> None:
        """Free the rows; nothing follows."""
        self._steps.close()

    def take_chunks(self) -> tuple[Chunk, ...]:
        """The chunks that have become final since the last call, in order of time.

        Those of a window are final when all windows before it are read, so that the chunks of all
        calls, joined, are those of the transcript.
        """
        until = self._schedule.final_until
        ready = [chunk for chunk in self._unsent if chunk.start < until]
        if ready:
            self._unsent = [chunk for chunk in self._unsent if chunk.start >= until]
        return _in_order(ready)

    def _run(self) -> Generator[bool, None, None]:
        timeline = yield from self._find_languages()
        if timeline.cuts:
            self._schedule = self._schedule.cut_at(timeline.cuts)
        plan = self._plan_for(timeline)
        with self._engine.session(plan.options) as self.session:
            yield from self._decode_windows(self.session, plan, timeline)
        if self._options.text:
            forced = ForcedDecoding(self._engine, self._schedule, plan, timeline)
            chunks, self._unspoken = yield from forced.steps(self._options.text, self._recognised)
            self._add_chunks(chunks, timeline)
        warnings = plan.warnings
        if plan.expects_one_language:
            warnings += other_language_warning(timeline.language, self._heard)
        self.result = Transcript(
            _in_order(self._chunks),
            timeline.language if self._speech else self._options.language,
            warnings + plan.of_prompt,
            timeline.probability if self._speech else None,
            self._speech_since(self._before.begin),
            self.session.stats,
            self._unspoken,
        )

    def _speech_since(self, begin: float) -> tuple[tuple[float, float], ...]:
        spans = [(max(start, begin), stop) for start, stop in self._speech if stop > begin]
        return tuple(sorted(spans))

    def _find_languages(self) -> Steps:
        """The languages of the recording, where none was given: that of the first window with
        speech, or with `multilingual` those of its parts.
        """
        if self._options.language is not None:
            return LanguageTimeline.single(self._options.language)
        if not (self._options.multilingual and self._speech):
            return (yield from _drive(find_language(self._schedule), self._detect_language))
        return (yield from _drive(find_languages(self._schedule), self._language_posterior))

    def _detect_language(self, window: Window) -> DetectedLanguage:
        found = self._engine.detect_language(self._schedule.samples(window))
        self._keep(window, found.encoded)
        return found

    def _language_posterior(self, window: Window) -> LanguagePosterior:
        found = self._engine.language_posterior(self._schedule.samples(window))
        self._keep(window, found.encoded)
        return found._replace(encoded=None)

    def _keep(self, window: Window, encoded: Tensor | None) -> None:
        if encoded is not None and len(self._encodings) < MAX_KEPT_ENCODINGS:
            self._encodings[window] = encoded

    def _decode_windows(
        self, session: Session, plan: DecodingPlan, timeline: LanguageTimeline
    ) -> Iterator[bool]:
        """Decode the schedule's windows as they become ready.

        A window's unfinished end may make the next window of its region begin earlier.
        """
        while True:
            self._add_ready(session, plan, timeline)
            if session.done:
                return
            finished = session.take()
            if not finished:
                yield False
            for request, result in finished:
                self._read(request, result, plan, timeline)
                self._add_ready(session, plan, timeline)
                yield True

    def _add_ready(self, session: Session, plan: DecodingPlan, timeline: LanguageTimeline) -> None:
        requests = []
        left = self.windows_left
        for window in self._schedule.pop_ready(session.free_rows):
            language = plan.languages[timeline.language_at(window.start)]
            encoded = self._encodings.pop(window, None)
            samples = self._schedule.samples(window)
            request = Request(
                window, samples, language.prompt, None, encoded, window.tentative, left
            )
            if not (window.tentative or self._drafted):
                timestamps = language.reader.models.timestamps
                draft = self._before.draft(window.start / SAMPLE_RATE, timestamps)
                request, self._drafted = replace(request, draft=draft), True
            requests.append(request)
        session.add(requests)

    def _read(
        self,
        request: Request,
        result: DecodeResult,
        plan: DecodingPlan,
        timeline: LanguageTimeline,
    ) -> None:
        """Read a decoded window, and plan what follows it."""
        window, schedule = request.key, self._schedule
        if not window.tentative:
            self._heard.append(HeardWindow.of(window, result, schedule.speech_seconds(window)))
        reader = plan.languages[timeline.language_at(window.start)].reader
        read = reader.read(window, result, request.samples)
        decoded_again = schedule.complete(window, read.seek, bool(read.unfinished), read.looped)
        chunks = reader.chunks(window, read.kept(decoded_again), request.samples, result)
        if self._before.begin:
            chunks = [each for chunk in chunks for each in reader.since(chunk, self._before.begin)]
        if window.tentative and chunks:
            self._speech.append((window.start / SAMPLE_RATE, window.stop / SAMPLE_RATE))
        if self._options.text:
            self._recognised.append(Heard(window, chunks, result.timestamps))
        else:
            self._add_chunks(chunks, timeline)
        done, total = schedule.done, schedule.total
        logger.info("window %d of %d", done, total, extra={"done": done, "total": total})

    def _add_chunks(self, chunks: list[Chunk], timeline: LanguageTimeline) -> None:
        if self._options.multilingual:
            chunks = [_with_language(chunk, timeline) for chunk in chunks]
        self._chunks += chunks
        self._unsent += chunks


def _drive(search: Generator[Window, T, LanguageTimeline], listen: Callable[[Window], T]) -> Steps:
    """What a search finds, one window a step."""
    try:
        window = next(search)
        while True:
            heard = listen(window)
            yield True
            window = search.send(heard)
    except StopIteration as found:
        timeline: LanguageTimeline = found.value
        return timeline


def _in_order(chunks: list[Chunk]) -> tuple[Chunk, ...]:
    return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))


def _with_language(chunk: Chunk, timeline: LanguageTimeline) -> Chunk:
    """The chunk, and its words, with the language that it was decoded in."""
    code = timeline.language_at(round(chunk.start * SAMPLE_RATE))
    words = tuple(replace(word, language=code) for word in chunk.words)
    return replace(chunk, words=words, language=code)
