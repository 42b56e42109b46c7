"""The answer a client reads, in plain Python types.

The one decision: times become what the contract promises here and nowhere else: finite, in order, within the audio,
seconds with two decimals, whatever the models said. Files are made of these times: tables (tsv, rttm) tell them as they
are, and subtitles, whose own rules decide how long they are shown, start from them and stay within the audio as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from config import InferenceConfig
from subtitles import Rendering, render
from transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

Block = TypeVar("Block", Chunk, SpeakerSegment)
Span = TypeVar("Span", Chunk, SpeakerSegment, SpeakerTurn, Word)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found out about one recording of `duration` seconds.

    `segments` and `turns` are None where nobody asked who spoke. The words of the segments, in order, are those of the
    chunks.
    """

    duration: float
    transcript: Transcript
    segments: Sequence[SpeakerSegment] | None = None
    turns: Sequence[SpeakerTurn] | None = None
    warnings: tuple[str, ...] = ()


def response(answer: Answer, config: InferenceConfig) -> dict[str, Any]:
    """The JSON object that answers a request with these parameters."""
    duration = round(float(answer.duration), 2)
    chunks = clamp_times(answer.transcript.chunks, duration)
    segments = clamp_times(answer.segments or (), duration)
    by_word = config.return_timestamps == "word"
    answered: dict[str, Any] = {
        "speakers": [_speaker(segment, by_word) for segment in segments],
        "chunks": [_chunk(chunk) for chunk in chunks] if config.return_timestamps else [],
        "text": answer.transcript.text,
        "language": answer.transcript.language,
        "language_probability": _rounded(answer.transcript.language_probability),
        "duration": duration,
        "warnings": list(answer.warnings),
    }
    if by_word:
        spans: Sequence[Chunk | SpeakerSegment] = chunks if answer.segments is None else segments
        has_speakers = answer.segments is not None
        answered["words"] = [_word(word, has_speakers) for span in spans for word in span.words]
    if config.output:
        rendering = Rendering(
            duration, chunks, segments, _settled_turns(answer.turns or (), duration)
        )
        answered["output"] = {form: render(form, rendering) for form in config.output}
    return answered


def clamp_times(spans: Sequence[Block], duration: float) -> list[Block]:
    """The spans and their words, with times as promised; NaN counts as no time passed."""
    words = [word for span in spans for word in span.words]
    timed = iter(
        [replace(word, start=start, end=end) for word, (start, end) in _in_order(words, duration)]
    )
    return [
        replace(span, start=start, end=end, words=tuple(islice(timed, len(span.words))))
        for span, (start, end) in _in_order(spans, duration)
    ]


def _settled_turns(turns: Sequence[SpeakerTurn], duration: float) -> list[SpeakerTurn]:
    """The turns, each on its own because they overlap, without those that two decimals leave no time."""
    spans = [span for turn in turns for span in _in_order([turn], duration)]
    return [replace(turn, start=start, end=end) for turn, (start, end) in spans if end > start]


def _in_order(spans: Sequence[Span], duration: float) -> Iterator[tuple[Span, tuple[float, float]]]:
    """Each span with a start and an end, none before what precedes it, none past the end of the audio."""
    now = 0.0
    for span in spans:
        start = min(max(now, float(span.start)), duration)
        now = min(max(start, float(span.end)), duration)
        yield span, (round(start, 2), round(now, 2))


def _speaker(segment: SpeakerSegment, by_word: bool) -> dict[str, Any]:
    entry = {
        "speaker": segment.speaker,
        "text": segment.text,
        "timestamp": [segment.start, segment.end],
    }
    return entry | ({"words": [_word(word, True) for word in segment.words]} if by_word else {})


def _chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "text": chunk.text,
        "timestamp": [chunk.start, chunk.end],
        "avg_logprob": _rounded(chunk.avg_logprob),
        "no_speech_prob": _rounded(chunk.no_speech_prob),
    }


def _word(word: Word, has_speakers: bool) -> dict[str, Any]:
    entry = {
        "word": word.text,
        "timestamp": [word.start, word.end],
        "probability": _rounded(word.probability),
    }
    return entry | ({"speaker": word.speaker, "overlap": word.overlap} if has_speakers else {})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)
