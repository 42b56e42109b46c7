"""Converts an answer to the JSON object that a client receives, in plain Python types.

Its times are finite, in order, within the audio and rounded to hundredths of a second, whatever
times the models returned. The files under `output` are made from these times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from config import InferenceConfig
from whosaid.answer.formats import FORMATS
from whosaid.answer.rendering import Rendering
from whosaid.payload.parameters import Voice
from whosaid.transcript import (
    Block,
    Channel,
    Chunk,
    SpeakerMatch,
    SpeakerSegment,
    SpeakerTurn,
    Transcript,
    Unspoken,
    Unwritten,
    Word,
    by_voice,
)

SHORTEST = 2  # hundredths of a second: one step of Whisper's timestamps

Timed = TypeVar("Timed", Chunk, SpeakerSegment, SpeakerTurn, Word)


@dataclass(frozen=True, slots=True)
class Answer:
    """The results for one recording of `duration` seconds.

    `segments` and `turns` are None without diarization, except with separate `channels`. The words
    of all segments, in order, are the words of all chunks; with separate `channels` this holds for
    each channel.
    """

    duration: float
    transcript: Transcript
    segments: Sequence[SpeakerSegment] | None = None
    turns: Sequence[SpeakerTurn] | None = None
    warnings: tuple[str, ...] = ()
    known_speakers: tuple[SpeakerMatch, ...] = ()
    channels: tuple[Channel, ...] = ()
    voices: Mapping[str, Voice] = field(default_factory=dict, repr=False)


def response(answer: Answer, config: InferenceConfig) -> dict[str, Any]:
    """Return the JSON object that answers a request with the parameters `config`."""
    duration = round(float(answer.duration), 2)
    chunks = clamp_times(answer.transcript.chunks, duration)
    segments = sorted(clamp_times(answer.segments or (), duration), key=lambda each: each.start)
    body: dict[str, Any] = {
        "speakers": [_segment_json(each, config) for each in segments],
        "chunks": chunks_json(chunks, config) if config.return_timestamps else [],
        "text": answer.transcript.text,
        "language": answer.transcript.language,
        "language_probability": _rounded(answer.transcript.language_probability),
        "duration": duration,
        "warnings": list(answer.warnings),
        "unwritten": unwritten_json(answer.transcript.unwritten, duration),
    }
    if config.return_timestamps == "word":
        has_speakers = answer.segments is not None
        blocks: Sequence[Chunk | SpeakerSegment] = segments if has_speakers else chunks
        words = [(word, block.channel) for block in blocks for word in block.words]
        words.sort(key=lambda pair: pair[0].start)  # channels may speak at once
        body["words"] = [_word_json(*pair, has_speakers, config) for pair in words]
    if config.text is not None:
        spoken = [word for chunk in chunks for word in chunk.words]
        body["unspoken"] = unspoken_json(answer.transcript.unspoken, spoken, duration)
    if config.output:
        turns = _clamp_turns(answer.turns or (), duration)
        rendering = Rendering(duration, chunks, segments, turns, config)
        body["output"] = {name: FORMATS[name](rendering) for name in config.output}
    if answer.channels:
        body["channels"] = [
            asdict(each) | {"language_probability": _rounded(each.language_probability)}
            for each in answer.channels
        ]
    if answer.known_speakers:
        body["known_speakers"] = known_speakers_json(answer.known_speakers)
    if config.voices:
        body["voices"] = voices_json(answer)
    return body


def unspoken_json(
    unspoken: Sequence[Unspoken], words: Sequence[Word], duration: float
) -> list[dict[str, Any]]:
    """Return the entries of `unspoken`, each timed between its neighbours in the spoken `words`."""
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
    return [
        {"start": round(each.start, 2), "end": min(round(each.end, 2), duration)}
        | _channel_json(each.channel)
        for each in unwritten
    ]


def known_speakers_json(known: Sequence[SpeakerMatch]) -> list[dict[str, Any]]:
    return [asdict(each) | {"similarity": _rounded(each.similarity)} for each in known]


def voices_json(answer: Answer) -> dict[str, Any]:
    return {label: voice.model_dump() for label, voice in sorted(answer.voices.items())}


def chunks_json(chunks: Sequence[Chunk], config: InferenceConfig) -> list[dict[str, Any]]:
    """Return the entries of `chunks`, which must have clamped times."""
    return [
        {
            "text": chunk.text,
            "timestamp": [chunk.start, chunk.end],
            "avg_logprob": _rounded(chunk.avg_logprob),
            "no_speech_prob": _rounded(chunk.no_speech_prob),
            **_language_json(chunk, config),
            **_channel_json(chunk.channel),
        }
        for chunk in chunks
    ]


def _segment_json(segment: SpeakerSegment, config: InferenceConfig) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "speaker": segment.speaker,
        "text": segment.text,
        "timestamp": [segment.start, segment.end],
        **_language_json(segment, config),
        **_channel_json(segment.channel),
    }
    if config.return_timestamps == "word":
        entry["words"] = [_word_json(word, segment.channel, True, config) for word in segment.words]
    return entry


def _word_json(
    word: Word, channel: int | None, has_speakers: bool, config: InferenceConfig
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "word": word.text,
        "timestamp": [word.start, word.end],
        "probability": _rounded(word.probability),
        **_language_json(word, config),
    }
    if word.heard is not None:
        entry["heard"] = word.heard
    if has_speakers:
        entry["speaker"], entry["overlap"] = word.speaker, word.overlap
    return entry | _channel_json(channel)


def _language_json(item: SpeakerSegment | Chunk | Word, config: InferenceConfig) -> dict[str, Any]:
    return {"language": item.language} if config.multilingual else {}


def _channel_json(channel: int | None) -> dict[str, Any]:
    return {} if channel is None else {"channel": channel}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def words_by_start(segments: Sequence[SpeakerSegment], duration: float) -> list[Word]:
    """Return all words of the segments with clamped times, in the order of the response."""
    segments = sorted(clamp_times(segments, duration), key=lambda each: each.start)
    return sorted((word for each in segments for word in each.words), key=lambda word: word.start)


def clamp_times(blocks: Sequence[Block], duration: float) -> list[Block]:
    """Clamp and round the times of blocks and words, so that they are in order for each voice.

    A time that is NaN or before its predecessor becomes its predecessor. Each block and word lasts
    20 ms or more, or an equal share of a recording that is too short for that. Idempotent.
    """
    duration = round(float(duration), 2)
    clamped = {voice: iter(_clamp_voice(own, duration)) for voice, own in by_voice(blocks).items()}
    return [next(clamped[block.channel, block.voice]) for block in blocks]


def _clamp_voice(blocks: Sequence[Block], duration: float) -> list[Block]:
    words = iter(_lasting([word for block in blocks for word in block.words], duration))
    blocks = [_with_words(block, tuple(islice(words, len(block.words)))) for block in blocks]
    return _lasting(blocks, duration)


def _with_words(block: Block, words: tuple[Word, ...]) -> Block:
    """Replace the block's words; if the block began or ended with its words, it still does."""
    if not words:
        return replace(block, words=words)
    start = words[0].start if block.start == block.words[0].start else block.start
    end = words[-1].end if block.end == block.words[-1].end else block.end
    return replace(block, start=start, end=end, words=words)


def _clamp_turns(turns: Sequence[SpeakerTurn], duration: float) -> list[SpeakerTurn]:
    """Clamp and round each turn by itself, because turns may overlap; drop empty ones."""
    clamped = [each for turn in turns for each in _clamp([turn], duration)]
    return [replace(turn, start=start, end=end) for turn, start, end in clamped if end > start]


def _clamp(items: Sequence[Timed], duration: float) -> Iterator[tuple[Timed, float, float]]:
    """Yield each item with its start and end, both between the previous end and the audio's end."""
    now = 0.0
    for item in items:
        # max returns its first argument if the second is NaN.
        start = min(max(now, float(item.start)), duration)
        now = min(max(start, float(item.end)), duration)
        yield item, round(start, 2), round(now, 2)


def _lasting(items: Sequence[Timed], duration: float) -> list[Timed]:
    """Clamp items to SHORTEST or longer. An item that is too short delays the next items, and at
    the end of the audio advances the previous ones.
    """
    audio_end = round(100 * duration)
    shortest = min(SHORTEST, audio_end // max(1, len(items)))
    times: list[tuple[int, int]] = []  # in hundredths of a second
    now = 0
    for _, start, end in _clamp(items, duration):
        begin = max(now, round(100 * start))
        now = max(begin + shortest, round(100 * end))
        times.append((begin, now))
    latest = audio_end
    for index, (begin, stop) in reversed(list(enumerate(times))):
        stop = min(stop, latest)
        latest = min(begin, stop - shortest)
        times[index] = latest, stop
    pairs = zip(items, times, strict=True)
    return [replace(item, start=begin / 100, end=stop / 100) for item, (begin, stop) in pairs]
