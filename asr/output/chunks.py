"""What is kept of a decoded window: its segments as chunks in the time of the audio, with words.

The rules are OpenAI's (openai/whisper, `transcribe.py`). A window that probably holds no speech and
was decoded with low probability is dropped; so is, beyond OpenAI's rules, one for which the model
would rather have written what captions write of laughter or music, and one in which no speech was
found unless the model is sure of its text. A segment without duration is dropped. Text after the
last closed segment is decoded again with the next window where there is one. One rule is added:
Whisper often closes a sentence at the very point where the window is cut, so a short last segment
before such a cut is decoded again whole.

Reading changes nothing. `read` says up to where the window was decoded and what is unfinished
there, the schedule decides whether that part is decoded again, and `chunks` turns the segments that
stay into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from asr.checkpoint.loading import WhisperModels
from asr.engine.fallback import DEFAULT_FALLBACK, Fallback, compression_ratio
from asr.engine.request import DecodeResult
from asr.frontend.windows import Window
from asr.output.alignment import heard_until, timed_words
from asr.output.segments import Segment, Segments, read_segments
from asr.output.sentences import split_sentences
from asr.output.words import split_words
from timebase import SAMPLE_RATE
from transcript import Chunk, Word

CUT_DISTANCE = 0.4  # seconds; a segment that ends this close to a cut was closed by it
LONGEST_REPEAT = 1 / 8  # of a window; longer segments are not decoded again
# Laughter, noise and music have 0.37 to 0.84, the noisiest speech of the recordings 0.10.
ANNOTATION_THRESHOLD, ANNOTATION_LOGPROB = 0.25, -0.6
# Speech that the first attempt left out: most correct texts have at least -0.76, translated ones
# -1.02 at a no-speech probability of 0.02. Texts that Whisper makes up for noise and other voices,
# such as "Thank you very much.", have at most -0.79 at 0.25 and -0.83 at 0.15.
RETRY_LOGPROB, RETRY_NO_SPEECH, RETRY_SPEECH_LOGPROB = -0.78, 0.1, -1.1
# Where no speech was found: music alone has at most -0.69 and at least 0.33, sentences understood
# over it down to -0.44 and up to 0.37. There must be so many text tokens, also for each second: a
# short phrase over a long sound is what Whisper makes up.
SURE_LOGPROB, SURE_NO_SPEECH, SURE_TOKENS, SURE_RATE = -0.45, 0.4, 8, 0.5


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """The segments of a decoded window: closed ones, and at most one that is unfinished.

    `seek` is the sample of the audio at which the last closed segment ends; None where the window
    was decoded to its end. `looped` says that the text was cut there because it repeated itself.
    """

    closed: tuple[Segment, ...] = ()
    unfinished: tuple[Segment, ...] = ()
    seek: int | None = None
    looped: bool = False

    @property
    def length(self) -> int:
        """The number of tokens of all segments."""
        return sum(len(each.tokens) for each in (*self.closed, *self.unfinished))

    def kept(self, decoded_again: bool) -> tuple[Segment, ...]:
        """The segments that stay, where the unfinished one will be decoded again or will not."""
        return self.closed if decoded_again else self.closed + self.unfinished


@dataclass(frozen=True)
class ChunkReader:
    """Reads the decoded windows of one request, whose text is in the `language` of this code.

    `fallback` says which windows are silent.
    """

    models: WhisperModels
    language: str | None
    timestamps: bool
    fallback: Fallback = DEFAULT_FALLBACK

    def read(
        self, window: Window, result: DecodeResult, samples: NDArray[np.float32]
    ) -> ReadWindow:
        """The segments of a decoded window, in seconds from its beginning; none where the window
        probably holds no speech.

        `samples` (n,) at 16 kHz are those it was decoded from.
        """
        made_up = window.retries > 0 and _is_made_up(result)
        made_up |= window.tentative and not self._is_sure(window, result)
        if made_up or holds_no_speech(result, self.fallback):
            return ReadWindow()
        found = Segments((Segment(result.tokens, 0.0, window.seconds),))
        begin = self.models.special_tokens.timestamp_begin
        timed = self.timestamps and result.timestamps
        if timed:
            found = read_segments(result.tokens, begin, window.seconds)
        closed, unfinished = found.closed, found.unfinished
        if _stopped(result) and not (timed and (unfinished or result.tokens[-1] >= begin)):
            return self._read_stopped(window, result, samples)
        if result.cut or (self.timestamps and not result.timestamps):
            every = closed if unfinished is None else (*closed, unfinished)
            closed = tuple(split_sentences(result, every, samples, self.models, self.language))
            end = closed[-1].end if closed else 0.0
            cut_at = window.start + round(end * SAMPLE_RATE)
            if not result.cut:
                return ReadWindow(closed, seek=cut_at if closed else None)
            # What was heard again and again goes on behind the last time that was written.
            rest = () if result.repetitive else (Segment((), end, window.seconds),)
            return ReadWindow(closed, rest, cut_at, looped=result.repetitive)
        if not self.timestamps:
            return ReadWindow(closed)
        if _closed_by_cut(window, found):
            closed, unfinished = closed[:-1], closed[-1]
        seek = window.start + round(closed[-1].end * SAMPLE_RATE) if closed else None
        return ReadWindow(closed, () if unfinished is None else (unfinished,), seek)

    def _read_stopped(
        self, window: Window, result: DecodeResult, samples: NDArray[np.float32]
    ) -> ReadWindow:
        """Of a text that met its limit, where no timestamp says how far it came: what follows is
        decoded next, and a short last sentence with it.
        """
        whole = Segment(result.tokens, 0.0, min(heard_until(result), window.seconds))
        closed = split_sentences(result, (whole,), samples, self.models, self.language)
        rest = Segment((), closed[-1].end, window.seconds)
        if len(closed) > 1 and _is_short(closed[-1], window):
            rest = closed.pop()
        seek = window.start + round(closed[-1].end * SAMPLE_RATE)
        return ReadWindow(tuple(closed), (rest,), seek)

    def chunks(
        self,
        window: Window,
        segments: Sequence[Segment],
        samples: NDArray[np.float32],
        result: DecodeResult,
    ) -> list[Chunk]:
        """The chunks of the `segments` that stay of a window; those without text or duration are
        left out.

        `samples` (n,) at 16 kHz are those the window was decoded from.
        """
        words = timed_words(result, segments, samples, self.models, self.language)
        end_of_text = self.models.special_tokens.end_of_text
        ratio = compression_ratio(
            self.models.text_of([t for t in result.tokens if t < end_of_text])
        )
        likely = iter(self.log_probs(result))
        found: list[Chunk] = []
        for segment, words_of_segment in zip(segments, words, strict=True):
            tokens = tuple(token for token in segment.tokens if token < end_of_text)
            log_probs = tuple(islice(likely, len(tokens)))
            text = self.models.text_of(tokens)
            if text.strip() and segment.end > segment.start:
                chunk = _chunk(window, segment, text, words_of_segment, result)
                found.append(
                    replace(chunk, tokens=tokens, log_probs=log_probs, compression_ratio=ratio)
                )
        return found

    def since(self, chunk: Chunk, begin: float) -> list[Chunk]:
        """The chunk, or what is left of it where the words before `begin` seconds are left out:
        those whose middle is before.
        """
        if not chunk.words:
            return [chunk] if chunk.start + chunk.end >= 2 * begin else []
        before = sum(word.start + word.end < 2 * begin for word in chunk.words)
        return self.part(chunk, before, len(chunk.words))

    def part(self, chunk: Chunk, first: int, stop: int) -> list[Chunk]:
        """The chunk's words number `first` to `stop` as a chunk; none where there are none."""
        if (first, stop) == (0, len(chunk.words)):
            return [chunk]
        words = chunk.words[first:stop]
        if not words:
            return []
        of_words = split_words(chunk.tokens, self.models.text_of, self.language)[first:stop]
        tokens = slice(of_words[0].first, of_words[-1].stop)
        return [
            replace(
                chunk,
                text="".join(word.text for word in words),
                start=words[0].start if first else chunk.start,
                end=words[-1].end if stop < len(chunk.words) else chunk.end,
                words=words,
                tokens=chunk.tokens[tokens],
                log_probs=chunk.log_probs[tokens],
            )
        ]

    def log_probs(self, result: DecodeResult) -> list[float]:
        """How likely each text token is, natural logarithms."""
        end_of_text = self.models.special_tokens.end_of_text
        pairs = zip(result.tokens, result.log_probs, strict=False)  # the end of text may have one
        return [log_prob for token, log_prob in pairs if token < end_of_text]

    def _is_sure(self, window: Window, result: DecodeResult) -> bool:
        """Whether Whisper hears speech where the detector does not."""
        end_of_text = self.models.special_tokens.end_of_text
        count = sum(token < end_of_text for token in result.tokens)
        return (
            count >= max(SURE_TOKENS, SURE_RATE * window.seconds)
            and result.text_logprob >= SURE_LOGPROB
            and result.no_speech_prob <= SURE_NO_SPEECH
            and not result.repetitive
            and not self.fallback.rejects_start(result.start_logprob, result.no_speech_prob)
        )


def holds_no_speech(result: DecodeResult, fallback: Fallback = DEFAULT_FALLBACK) -> bool:
    """Whether Whisper is unsure of its text, and thinks the window silent or full of other sounds
    than speech.
    """
    other_sound = result.annotation_prob > ANNOTATION_THRESHOLD
    unlikely = result.avg_logprob < ANNOTATION_LOGPROB
    return fallback.is_silent(result) or (other_sound and unlikely)


def _is_made_up(result: DecodeResult) -> bool:
    """Whether a text for speech that was left out the first time is too unlikely."""
    is_speech = result.no_speech_prob <= RETRY_NO_SPEECH
    return result.text_logprob < (RETRY_SPEECH_LOGPROB if is_speech else RETRY_LOGPROB)


def _stopped(result: DecodeResult) -> bool:
    """Whether a limit ended the text, and attention tells where."""
    ended = result.ended or result.cut
    return bool(result.tokens) and not ended and result.attention is not None


def _closed_by_cut(window: Window, found: Segments) -> bool:
    """Whether the last of several segments was closed only because the window is cut there, inside
    speech.

    A long last segment is kept: decoding it again would decode most of the window twice.
    """
    if found.unfinished or len(found.closed) < 2 or window.stop == window.region_stop:
        return False
    last = found.closed[-1]
    return _is_short(last, window) and window.seconds - last.end < CUT_DISTANCE


def _is_short(segment: Segment, window: Window) -> bool:
    """Whether to decode it again costs little."""
    return segment.end - segment.start <= window.seconds * LONGEST_REPEAT


def _chunk(
    window: Window, segment: Segment, text: str, words: Sequence[Word], result: DecodeResult
) -> Chunk:
    """A segment as a chunk, its times moved from the window's clock to that of the audio."""
    offset = window.start / SAMPLE_RATE
    moved = [replace(word, start=offset + word.start, end=offset + word.end) for word in words]
    return Chunk(
        text,
        offset + segment.start,
        offset + segment.end,
        avg_logprob=result.avg_logprob,
        no_speech_prob=result.no_speech_prob,
        words=tuple(moved),
        temperature=result.temperature,
        window_start=offset,
    )
