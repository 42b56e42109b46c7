"""The JSON object that a client receives, in plain Python types.

Times are made here what the contract promises, whatever the models returned: finite, in order,
within the audio, in seconds with two decimals. The files under `output` are made from these times:
TSV and RTTM print them, SRT and VTT derive cue times from them, which also stay within the audio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from answer.cues import Layout
from answer.subtitles import Rendering, render
from config import InferenceConfig
from transcript import (
    Channel,
    Chunk,
    KnownSpeaker,
    SpeakerSegment,
    SpeakerTurn,
    Transcript,
    Unspoken,
    Unwritten,
    Word,
    by_channel,
)

SHORTEST = 2  # hundredths of a second: a step of Whisper's timestamps

# Items with words, and items with times.
Block = TypeVar("Block", Chunk, SpeakerSegment)
Timed = TypeVar("Timed", Chunk, SpeakerSegment, SpeakerTurn, Word)


@dataclass(frozen=True, slots=True)
class Answer:
    """The results for one recording of `duration` seconds.

    `segments` and `turns` are None where nobody looked for speakers. The words of all segments, in
    order, are the words of all chunks. Of `channels` that were heard apart this holds for each.
    """

    duration: float
    transcript: Transcript
    segments: Sequence[SpeakerSegment] | None = None
    turns: Sequence[SpeakerTurn] | None = None
    warnings: tuple[str, ...] = ()
    known_speakers: tuple[KnownSpeaker, ...] = ()
    channels: tuple[Channel, ...] = ()


def response(answer: Answer, config: InferenceConfig) -> dict[str, Any]:
    """The JSON object that answers a request with the parameters `config`."""
    duration = round(float(answer.duration), 2)
    chunks = clamp_times(answer.transcript.chunks, duration)
    segments = sorted(clamp_times(answer.segments or (), duration), key=_start)
    by_word = config.return_timestamps == "word"
    spoken = config.multilingual
    body: dict[str, Any] = {
        "speakers": [_segment_json(each, by_word, spoken) for each in segments],
        "chunks": chunks_json(chunks, config) if config.return_timestamps else [],
        "text": answer.transcript.text,
        "language": answer.transcript.language,
        "language_probability": _rounded(answer.transcript.language_probability),
        "duration": duration,
        "warnings": list(answer.warnings),
        "unwritten": unwritten_json(answer.transcript.unwritten, duration),
    }
    if by_word:
        has_speakers = answer.segments is not None
        blocks: Sequence[Chunk | SpeakerSegment] = segments if has_speakers else chunks
        words = [(word, block.channel) for block in blocks for word in block.words]
        words.sort(key=lambda placed: placed[0].start)  # of channels that speak at once
        body["words"] = [
            _word_json(word, has_speakers, spoken) | _channel_json(channel)
            for word, channel in words
        ]
    if config.text is not None:
        said = [word for chunk in chunks for word in chunk.words]
        body["unspoken"] = unspoken_json(answer.transcript.unspoken, said, duration)
    if config.output:
        turns = _clamp_turns(answer.turns or (), duration)
        rendering = Rendering(duration, chunks, segments, turns, _layout(config))
        body["output"] = {name: render(name, rendering) for name in config.output}
    if answer.channels:
        body["channels"] = [
            {
                "name": each.name,
                "language": each.language,
                "language_probability": _rounded(each.language_probability),
            }
            for each in answer.channels
        ]
    if answer.known_speakers:
        body["known_speakers"] = known_speakers_json(answer.known_speakers)
    return body


def _layout(config: InferenceConfig) -> Layout:
    return Layout(
        config.max_line_width,
        config.max_line_count,
        config.max_words_per_line,
        config.highlight_words,
        config.subtitle_speakers,
    )


def unspoken_json(
    unspoken: Sequence[Unspoken], words: Sequence[Word], duration: float
) -> list[dict[str, Any]]:
    """The parts of a given text that nobody speaks: where they stand among the `words`, and when
    they would have been spoken.
    """
    times = [(0.0, 0.0), *((word.start, word.end) for word in words), (duration, duration)]
    return [
        {
            "text": "".join(each.words),
            "words_before": each.before,
            "timestamp": [times[each.before][1], times[each.before + 1][0]],
        }
        for each in unspoken
    ]


def unwritten_json(unwritten: Sequence[Unwritten], duration: float) -> list[dict[str, Any]]:
    """The spans of detected speech that have no words."""
    return [
        {"start": round(each.start, 2), "end": min(round(each.end, 2), duration)}
        | _channel_json(each.channel)
        for each in unwritten
    ]


def known_speakers_json(known: Sequence[KnownSpeaker]) -> list[dict[str, Any]]:
    """The entries of `known_speakers`."""
    return [
        {
            "name": each.name,
            "label": each.label,
            "similarity": _rounded(each.similarity),
            "matched": each.matched,
        }
        for each in known
    ]


def chunks_json(chunks: Sequence[Chunk], config: InferenceConfig) -> list[dict[str, Any]]:
    """The entries of `chunks`, whose times are clamped."""
    return [_chunk_json(chunk, config.multilingual) for chunk in chunks]


def clamp_times(blocks: Sequence[Block], duration: float) -> list[Block]:
    """Clamp and round the times of blocks and of their words, each in order over all blocks of its
    channel.

    A time before the one that precedes it, or NaN, becomes that one. Each lasts 20 ms at least, or
    an equal share of a recording that is too short for that. Clamped again they stay as they are.
    """
    duration = round(float(duration), 2)
    clamped = {
        channel: iter(_clamp_channel(own, duration)) for channel, own in by_channel(blocks).items()
    }
    return [next(clamped[block.channel]) for block in blocks]


def _clamp_channel(blocks: Sequence[Block], duration: float) -> list[Block]:
    words = [word for block in blocks for word in block.words]
    clamped_words = iter(
        [replace(word, start=start, end=end) for word, start, end in _lasting(words, duration)]
    )
    blocks = [
        _with_words(block, tuple(islice(clamped_words, len(block.words)))) for block in blocks
    ]
    timed = _lasting(blocks, duration)
    return [replace(block, start=start, end=end) for block, start, end in timed]


def _start(block: Chunk | SpeakerSegment) -> float:
    return block.start


def _with_words(block: Block, words: tuple[Word, ...]) -> Block:
    """The block with other words, whose times are its own if those of its words were."""
    if not words:
        return replace(block, words=words)
    start = words[0].start if block.start == block.words[0].start else block.start
    end = words[-1].end if block.end == block.words[-1].end else block.end
    return replace(block, start=start, end=end, words=words)


def _clamp_turns(turns: Sequence[SpeakerTurn], duration: float) -> list[SpeakerTurn]:
    """Clamp and round each turn by itself, as turns may overlap; drop those left without length."""
    clamped = []
    for turn in turns:
        for _, start, end in _clamp([turn], duration):
            if end > start:
                clamped.append(replace(turn, start=start, end=end))
    return clamped


def _clamp(items: Sequence[Timed], duration: float) -> Iterator[tuple[Timed, float, float]]:
    """Each item with a start and an end, none before the previous item's end or after the audio."""
    now = 0.0
    for item in items:
        # max returns its first argument where the second is NaN.
        start = min(max(now, float(item.start)), duration)
        now = min(max(start, float(item.end)), duration)
        yield item, round(start, 2), round(now, 2)


def _lasting(items: Sequence[Timed], duration: float) -> list[tuple[Timed, float, float]]:
    """The same in hundredths of a second, each at least SHORTEST long.

    What is too short pushes what follows back, and at the end of the audio what precedes forward.
    """
    audio_end = round(100 * duration)
    shortest = min(SHORTEST, audio_end // max(1, len(items)))
    times: list[tuple[int, int]] = []
    now = 0
    for _, start, end in _clamp(items, duration):
        begin = max(now, round(100 * start))
        now = max(begin + shortest, round(100 * end))
        times.append((begin, now))
    latest = audio_end
    for place, (begin, stop) in reversed(list(enumerate(times))):
        stop = min(stop, latest)
        latest = min(begin, stop - shortest)
        times[place] = latest, stop
    pairs = zip(items, times, strict=True)
    return [(item, begin / 100, stop / 100) for item, (begin, stop) in pairs]


def _segment_json(segment: SpeakerSegment, by_word: bool, spoken: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "speaker": segment.speaker,
        "text": segment.text,
        "timestamp": [segment.start, segment.end],
        **_language_json(segment, spoken),
        **_channel_json(segment.channel),
    }
    if by_word:
        channel = _channel_json(segment.channel)
        entry["words"] = [_word_json(word, True, spoken) | channel for word in segment.words]
    return entry


def _language_json(item: SpeakerSegment | Chunk | Word, spoken: bool) -> dict[str, Any]:
    """The language, where it was asked for each part of the recording."""
    return {"language": item.language} if spoken else {}


def _channel_json(channel: int | None) -> dict[str, Any]:
    """The channel, where channels were heard apart."""
    return {} if channel is None else {"channel": channel}


def _chunk_json(chunk: Chunk, spoken: bool) -> dict[str, Any]:
    return {
        "text": chunk.text,
        "timestamp": [chunk.start, chunk.end],
        "avg_logprob": _rounded(chunk.avg_logprob),
        "no_speech_prob": _rounded(chunk.no_speech_prob),
        **_language_json(chunk, spoken),
        **_channel_json(chunk.channel),
    }


def _word_json(word: Word, has_speakers: bool, spoken: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "word": word.text,
        "timestamp": [word.start, word.end],
        "probability": _rounded(word.probability),
        **_language_json(word, spoken),
    }
    if has_speakers:
        entry["speaker"], entry["overlap"] = word.speaker, word.overlap
    return entry


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)
