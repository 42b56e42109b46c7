"""Reads decoded windows: selects the segments to keep, and makes chunks with words of them.

The rules are OpenAI's (openai/whisper, `transcribe.py`). A window that probably holds no speech and
was decoded with low probability is dropped, as is a segment without duration. Text after the last
closed segment is decoded again with the next window, if there is one.

Four rules are added. A window is dropped if a caption of laughter or music is likelier than its
text. A window without detected speech is dropped unless the model is sure of its text. A retry is
dropped if its text is unlikely. Whisper often closes a sentence exactly where the window is cut, so
a short last segment before such a cut is decoded again whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK, Fallback, compression_ratio
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.frontend.windows import Window
from whosaid.asr.output.alignment import aligned_words, spoken_until
from whosaid.asr.output.segments import Segment, read_segments, split_sentences
from whosaid.asr.output.words import pieces
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Chunk

CUT_DISTANCE = 0.4  # seconds; a segment that ends this close to a cut was closed by it
LONGEST_REPEAT = 1 / 8  # of a window; longer segments are not decoded again
# Annotation probability: laughter, noise and music have 0.37 to 0.84, the noisiest speech measured
# has 0.10.
ANNOTATION_THRESHOLD, ANNOTATION_LOGPROB = 0.25, -0.6
# Retries of speech that a text left out, by the text's log-probability and the no-speech
# probability: most correct texts have at least -0.76, translated ones -1.02 at 0.02. Texts that
# Whisper makes up for noise and other voices, such as "Thank you very much.", have at most -0.79 at
# 0.25 and -0.83 at 0.15.
RETRY_LOGPROB, RETRY_NO_SPEECH, RETRY_SPEECH_LOGPROB = -0.78, 0.1, -1.1
# Windows without detected speech, by the two measures above: music alone has at most -0.69 and at
# least 0.33, sentences understood over music have -0.44 or more and 0.37 or less. A text needs
# SURE_TOKENS tokens, and SURE_RATE a second: Whisper makes up short phrases for long sounds.
SURE_LOGPROB, SURE_NO_SPEECH, SURE_TOKENS, SURE_RATE = -0.45, 0.4, 8, 0.5


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """The segments of a decoded window: closed ones, and at most one that is unfinished.

    `seek` is the sample of the audio at which the last closed segment ends; None if the window was
    decoded to its end. `looped`: the text was cut at `seek` because it repeated itself.
    """

    closed: tuple[Segment, ...] = ()
    unfinished: tuple[Segment, ...] = ()
    seek: int | None = None
    looped: bool = False

    @property
    def length(self) -> int:
        """Return the number of tokens in all segments."""
        return sum(len(each.tokens) for each in (*self.closed, *self.unfinished))

    def kept(self, decoded_again: bool) -> tuple[Segment, ...]:
        """Return the segments that stay, without the unfinished one if it is decoded again."""
        return self.closed if decoded_again else self.closed + self.unfinished


@dataclass(frozen=True)
class ChunkReader:
    """Reads a request's windows with text in `language`; `fallback` decides which are silent."""

    models: WhisperModels
    language: str | None
    timestamps: bool
    fallback: Fallback = DEFAULT_FALLBACK

    def read(
        self, window: Window, result: DecodeResult, samples: NDArray[np.float32]
    ) -> ReadWindow:
        """Return the segments of a decoded window, in seconds from its beginning.

        There are none if the window probably holds no speech. `samples` (n,) at 16 kHz are the
        window's.
        """
        made_up = window.retries > 0 and _is_made_up(result)
        made_up |= window.tentative and not self._is_sure(window, result)
        if made_up or holds_no_speech(result, self.fallback):
            return ReadWindow()
        closed: tuple[Segment, ...] = (Segment(result.tokens, 0.0, window.seconds),)
        unfinished: tuple[Segment, ...] = ()
        begin = self.models.special_tokens.timestamp_begin
        timed = self.timestamps and result.timestamps
        if timed:
            closed, unfinished = read_segments(result.tokens, begin, window.seconds)
        stopped = result.tokens and not (result.ended or result.cut)  # by a limit
        if stopped and not (timed and (unfinished or result.tokens[-1] >= begin)):
            return self._read_stopped(window, result, samples)
        if result.cut or (self.timestamps and not result.timestamps):
            closed = tuple(self._sentences(result, closed + unfinished, samples))
            end = closed[-1].end if closed else 0.0
            cut_at = window.start + round(end * SAMPLE_RATE)
            if not result.cut:
                return ReadWindow(closed, seek=cut_at if closed else None)
            # If a speaker repeats something, decoding resumes after its last time in the text.
            rest = () if result.repetitive else (Segment((), end, window.seconds),)
            return ReadWindow(closed, rest, cut_at, looped=result.repetitive)
        if not self.timestamps:
            return ReadWindow(closed)
        if not unfinished and _closed_by_cut(window, closed):
            closed, unfinished = closed[:-1], closed[-1:]
        seek = window.start + round(closed[-1].end * SAMPLE_RATE) if closed else None
        return ReadWindow(closed, unfinished, seek)

    def _read_stopped(
        self, window: Window, result: DecodeResult, samples: NDArray[np.float32]
    ) -> ReadWindow:
        """Return the sentences of a text that reached its limit; the rest is decoded next."""
        whole = Segment(result.tokens, 0.0, min(spoken_until(result), window.seconds))
        closed = self._sentences(result, (whole,), samples)
        rest = Segment((), closed[-1].end, window.seconds)
        if len(closed) > 1 and _is_short(closed[-1], window):
            rest = closed.pop()
        seek = window.start + round(closed[-1].end * SAMPLE_RATE)
        return ReadWindow(tuple(closed), (rest,), seek)

    def _sentences(
        self, result: DecodeResult, segments: Sequence[Segment], samples: NDArray[np.float32]
    ) -> list[Segment]:
        words = aligned_words(result, segments, samples, self.models, self.language)
        return split_sentences(segments, words, self.models.special_tokens)

    def chunks(
        self,
        window: Window,
        segments: Sequence[Segment],
        samples: NDArray[np.float32],
        result: DecodeResult,
    ) -> list[Chunk]:
        """Return the kept `segments` of a window as chunks, without empty ones."""
        words = aligned_words(result, segments, samples, self.models, self.language)
        text_tokens = self.models.special_tokens.text_tokens
        ratio = compression_ratio(self.models.text_of(text_tokens(result.tokens)))
        likely = iter(self.log_probs(result))
        found: list[Chunk] = []
        for segment, aligned in zip(segments, words, strict=True):
            tokens = tuple(text_tokens(segment.tokens))
            log_probs = tuple(islice(likely, len(tokens)))
            text = self.models.text_of(tokens)
            if text.strip() and segment.end > segment.start:
                chunk = Chunk(
                    text,
                    segment.start,
                    segment.end,
                    result.avg_logprob,
                    result.no_speech_prob,
                    tuple(each.word for each in aligned),
                    tokens=tokens,
                    log_probs=log_probs,
                    temperature=result.temperature,
                    compression_ratio=ratio,
                )
                found.append(chunk.later(window.start / SAMPLE_RATE))
        return found

    def since(self, chunk: Chunk, begin: float) -> list[Chunk]:
        """Return the chunk's words from `begin` seconds on, by their middles; [] if none."""
        before = sum(word.start + word.end < 2 * begin for word in chunk.words)
        return self.part(chunk, before, len(chunk.words))

    def part(self, chunk: Chunk, first: int, stop: int) -> list[Chunk]:
        """Return words `first` to `stop` of the chunk as a chunk; an empty list without words."""
        if (first, stop) == (0, len(chunk.words)):
            return [chunk]
        words = chunk.words[first:stop]
        if not words:
            return []
        # Not the reader's words: a chunk of another language was split by other rules.
        begin = sum(len(word.text) for word in chunk.words[:first])
        end = begin + sum(len(word.text) for word in words)
        found = pieces(chunk.tokens, self.models.text_of)
        stops = accumulate(len(piece.text) for piece in found)
        inside = [piece for piece, stop in zip(found, stops, strict=True) if begin < stop <= end]
        tokens = slice(inside[0].first, inside[-1].stop)
        return [
            replace(
                chunk,
                text="".join(word.text for word in words),
                start=words[0].start if first else min(chunk.start, words[0].start),
                end=words[-1].end if stop < len(chunk.words) else chunk.end,
                words=words,
                tokens=chunk.tokens[tokens],
                log_probs=chunk.log_probs[tokens],
            )
        ]

    def log_probs(self, result: DecodeResult) -> list[float]:
        """Return the natural log-probability of each text token."""
        end_of_text = self.models.special_tokens.end_of_text
        pairs = zip(result.tokens, result.log_probs, strict=False)  # end-of-text may add one
        return [log_prob for token, log_prob in pairs if token < end_of_text]

    def _is_sure(self, window: Window, result: DecodeResult) -> bool:
        """Return whether Whisper is sure of a text for which the detector found no speech."""
        count = len(self.models.special_tokens.text_tokens(result.tokens))
        return (
            count >= max(SURE_TOKENS, SURE_RATE * window.seconds)
            and result.text_logprob >= SURE_LOGPROB
            and result.no_speech_prob <= SURE_NO_SPEECH
            and not result.repetitive
            and not self.fallback.rejects_start(result.start_logprob, result.no_speech_prob)
        )


def holds_no_speech(result: DecodeResult, fallback: Fallback = DEFAULT_FALLBACK) -> bool:
    """Return whether a window seems to hold silence or other sounds, and its text is unlikely."""
    other_sound = result.annotation_prob > ANNOTATION_THRESHOLD
    unlikely = result.avg_logprob < ANNOTATION_LOGPROB
    return fallback.is_silent(result) or (other_sound and unlikely)


def _is_made_up(result: DecodeResult) -> bool:
    """Return whether the text of a retry is too unlikely."""
    is_speech = result.no_speech_prob <= RETRY_NO_SPEECH
    return result.text_logprob < (RETRY_SPEECH_LOGPROB if is_speech else RETRY_LOGPROB)


def _closed_by_cut(window: Window, closed: Sequence[Segment]) -> bool:
    """Return whether the window's cut in speech closed a short last one of several segments."""
    if len(closed) < 2 or window.stop == window.region_stop:
        return False
    return _is_short(closed[-1], window) and window.seconds - closed[-1].end < CUT_DISTANCE


def _is_short(segment: Segment, window: Window) -> bool:
    """Return whether the segment is cheap to decode again."""
    return segment.end - segment.start <= window.seconds * LONGEST_REPEAT
