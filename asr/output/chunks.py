"""What is kept of a decoded window: its segments as chunks on the clock of the audio, with their
words.

The one decision: OpenAI's rules about what was heard and what was made up are here and nowhere
else: a window that probably holds no speech and was decoded unsurely is dropped, a segment that
takes no time was not heard, and words after the last closed segment are heard again with the next
window as long as there is one. One rule is added: Whisper often closes a sentence where the window
cuts it, so the last segment before such a cut is heard again whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asr.checkpoint.loading import WhisperModels
from asr.engine.fallback import OPENAI
from asr.engine.scheduler import DecodeResult
from asr.frontend.schedule import Schedule, Window
from asr.output.alignment import timed_words
from asr.output.segments import Segment, Segments, read_segments
from timebase import SAMPLE_RATE
from transcript import Chunk, Word

AT_THE_CUT = 0.4  # seconds before the end of a window that was cut inside speech
HEARD_TWICE = 1 / 8  # of a window, at most


@dataclass(frozen=True)
class ChunkReader:
    """Reads the windows of one request, whose text is in the `language` of this code."""

    models: WhisperModels
    schedule: Schedule
    language: str | None
    timestamps: bool
    words: bool

    def read(self, window: Window, answer: DecodeResult) -> list[Chunk]:
        """One window's chunks, after telling the schedule how far it was understood."""
        if (
            answer.no_speech > OPENAI.no_speech
            and answer.mean_log_probability < OPENAI.least_log_probability
        ):
            self.schedule.finish(window)
            return []
        if not self.timestamps:
            self.schedule.finish(window)
            return self._chunks(window, [Segment(answer.tokens, 0.0, window.seconds)], answer)
        heard = read_segments(answer.tokens, self.models.special_tokens.timestamp_begin, window.seconds)
        return self._chunks(window, self._kept(window, heard), answer)

    def _kept(self, window: Window, heard: Segments) -> list[Segment]:
        """The segments that stand, after telling the schedule up to where the window was
        understood.
        """
        closed, left = list(heard.closed), [heard.unfinished] if heard.unfinished else []
        if self._ends_in_the_cut(window, heard):
            left = [closed.pop()]
        understood = window.start + round(closed[-1].end * SAMPLE_RATE) if closed else None
        again = self.schedule.finish(window, understood, unfinished=bool(left))
        return closed if again else [*closed, *left]

    def _ends_in_the_cut(self, window: Window, heard: Segments) -> bool:
        """Whether the last of several segments was closed only because the window ends there,
        inside speech.

        Long ones are believed all the same: to hear them again would be to hear most things twice.
        """
        if heard.unfinished or len(heard.closed) < 2 or window.stop == window.stretch_stop:
            return False
        last = heard.closed[-1]
        return (
            window.seconds - last.end < AT_THE_CUT
            and last.end - last.start <= window.seconds * HEARD_TWICE
        )

    def _chunks(
        self, window: Window, segments: Sequence[Segment], answer: DecodeResult
    ) -> list[Chunk]:
        texts = [self._text(segment) for segment in segments]
        return [
            self._chunk(window, segment, text, words, answer)
            for segment, text, words in zip(
                segments, texts, self._words(window, segments, answer), strict=True
            )
            if text.strip() and segment.end > segment.start
        ]

    def _chunk(
        self,
        window: Window,
        segment: Segment,
        text: str,
        words: Sequence[Word],
        answer: DecodeResult,
    ) -> Chunk:
        offset = window.start / SAMPLE_RATE
        return Chunk(
            text,
            offset + segment.start,
            offset + segment.end,
            avg_logprob=answer.mean_log_probability,
            no_speech_prob=answer.no_speech,
            words=tuple(
                replace(word, start=offset + word.start, end=offset + word.end) for word in words
            ),
        )

    def _words(
        self, window: Window, segments: Sequence[Segment], answer: DecodeResult
    ) -> Sequence[tuple[Word, ...]]:
        if not self.words:
            return [()] * len(segments)
        return timed_words(answer, segments, self.schedule.hear(window), self.models, self.language)

    def _text(self, segment: Segment) -> str:
        end_of_text = self.models.special_tokens.end_of_text
        return str(
            self.models.tokenizer.decode([token for token in segment.tokens if token < end_of_text])
        )
