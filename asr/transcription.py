"""One recording on its way to a transcript, in small steps."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace

from asr.decoding_plan import DecodingPlan, Planner
from asr.engine.engine import DecodeEngine, Session
from asr.forced_decoding import ForcedDecoding
from asr.frontend.schedule import Schedule
from asr.given_text import Heard
from asr.language_detection import LanguageDetection
from asr.language_timeline import LanguageTimeline, other_language_warning
from asr.output.unwritten import unwritten_speech
from asr.recognition import Recognition
from asr.window_decoding import NOTHING_HEARD, HeardBefore, WindowDecoding
from timebase import SAMPLE_RATE
from transcript import Chunk, Transcript, Unspoken, Unwritten

logger = logging.getLogger("endpoint")


class Transcription(Recognition[Transcript]):
    """A recording that is being transcribed.

    `speech` are its spans of speech in seconds, and `before` is what was heard of it already.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        schedule: Schedule,
        speech: tuple[tuple[float, float], ...],
        planner: Planner,
        before: HeardBefore = NOTHING_HEARD,
    ) -> None:
        super().__init__(engine, planner)
        self._schedule, self._speech = schedule, [*speech]
        self._options, self._before = planner.options, before
        self._chunks: list[Chunk] = []
        self._unsent: list[Chunk] = []

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
        detection = LanguageDetection(self._engine, self._schedule)
        timeline = yield from detection.steps(self._options, bool(self._speech))
        if timeline.cuts:
            self._schedule = self._schedule.cut_at(timeline.cuts)
        plan = self._planner.plan(timeline)
        with self._engine.session(plan.options) as self.session:
            windows = WindowDecoding(
                self.session,
                self._schedule,
                plan,
                self._before,
                detection.encodings,
                in_order=bool(self._options.text),
            )
            recognised = yield from self._decode(self.session, windows, timeline)
        unspoken: tuple[Unspoken, ...] = ()
        if self._options.text:
            forced = ForcedDecoding(self._engine, self._schedule, plan)
            chunks, unspoken = yield from forced.steps(self._options.text, recognised)
            self._add_chunks(chunks, timeline)
        self.result = self._transcript(plan, windows, self.session, unspoken)

    def _transcript(
        self,
        plan: DecodingPlan,
        windows: WindowDecoding,
        session: Session,
        unspoken: tuple[Unspoken, ...],
    ) -> Transcript:
        timeline, warnings = plan.timeline, plan.warnings
        detected = bool(self._speech and self._chunks)  # noise that becomes no text has no language
        chunks, speech = _in_order(self._chunks), self._speech_since(self._before.begin)
        unwritten: tuple[Unwritten, ...] = ()
        if self._schedule.detected:
            words = [word for chunk in chunks for word in chunk.words]
            unwritten = unwritten_speech(words, speech, self._schedule.speech_before)
        if unwritten:
            seconds = sum(each.end - each.start for each in unwritten)
            warnings += (f"unwritten: {seconds:.1f} s of detected speech have no words",)
        if plan.expects_one_language:
            warnings += other_language_warning(timeline.language, windows.of_language)
        return Transcript(
            chunks,
            timeline.language if detected else self._options.language,
            warnings + plan.of_prompt,
            timeline.probability if detected else None,
            speech,
            session.stats,
            unspoken,
            unwritten,
        )

    def _speech_since(self, begin: float) -> tuple[tuple[float, float], ...]:
        spans = [(max(start, begin), stop) for start, stop in self._speech if stop > begin]
        return tuple(sorted(spans))

    def _decode(
        self, session: Session, windows: WindowDecoding, timeline: LanguageTimeline
    ) -> Generator[bool, None, list[Heard]]:
        """Decode the schedule's windows as they become ready; what they say where a text is given,
        which takes the place of theirs.
        """
        recognised: list[Heard] = []
        while True:
            windows.add_ready()
            if session.done:
                return recognised
            finished = session.take()
            if not finished:
                yield False
            for request, result in finished:
                heard = windows.read(request, result)
                self._note(heard)
                if self._options.text:
                    recognised.append(heard)
                else:
                    self._add_chunks(heard.chunks, timeline)
                windows.add_ready()
                yield True

    def _note(self, heard: Heard) -> None:
        """A window is read."""
        window, (done, total) = heard.window, (self._schedule.done, self._schedule.total)
        if window.tentative and heard.chunks:
            self._speech.append((window.start / SAMPLE_RATE, window.stop / SAMPLE_RATE))
        logger.info("window %d of %d", done, total, extra={"done": done, "total": total})

    def _add_chunks(self, chunks: Sequence[Chunk], timeline: LanguageTimeline) -> None:
        if self._options.multilingual:
            chunks = [_with_language(chunk, timeline) for chunk in chunks]
        self._chunks += chunks
        self._unsent += chunks


def _in_order(chunks: list[Chunk]) -> tuple[Chunk, ...]:
    return tuple(sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)))


def _with_language(chunk: Chunk, timeline: LanguageTimeline) -> Chunk:
    """The chunk, and its words, with the language that it was decoded in."""
    code = timeline.language_at(round(chunk.start * SAMPLE_RATE))
    words = tuple(replace(word, language=code) for word in chunk.words)
    return replace(chunk, words=words, language=code)
