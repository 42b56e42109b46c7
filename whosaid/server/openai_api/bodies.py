"""The bodies of answers, by response format, typed like the SDK's classes.

Numbers and times come from `answer.response`, like the native answer's, so that all formats and
routes agree. The SDK does not validate answers, so no value may be None. Answers have OpenAI's
labels of speakers.
"""

import math
from collections.abc import Sequence
from typing import Any

from diarization_utils import segment_per_chunk
from whosaid.answer.rendering import Rendering
from whosaid.answer.response import (
    Answer,
    clamp_times,
    known_speakers_json,
    response,
    unspoken_json,
    unwritten_json,
    voices_json,
)
from whosaid.payload.languages import language_name
from whosaid.server.openai_api.form import TRANSLATE, AudioRequest
from whosaid.server.openai_api.logprobs import token_logprobs
from whosaid.server.openai_api.speakers import everyone_labelled
from whosaid.timebase import TOKENS_PER_SECOND
from whosaid.transcript import Chunk, Transcript

# OpenAI always names a language, but without speech there is none.
NO_LANGUAGE = "unknown"
SEEKS_PER_SECOND = 100  # OpenAI counts in frames of 10 ms


def text_of(answer: Answer) -> str:
    """Return the transcript without the tokenizer's leading space."""
    return answer.transcript.text.strip()


def file_of(answer: Answer, asked: AudioRequest) -> str:
    """Return the answer as a subtitle file, with speakers if requested."""
    files: dict[str, str] = response(answer, asked.request.config)["output"]
    return files[asked.format]


def json_body(answer: Answer, asked: AudioRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"text": text_of(answer)}
    if asked.format == "verbose_json":
        body |= verbose(answer, asked)
    elif asked.format == "diarized_json":
        body |= {
            "task": asked.task,
            "duration": _seconds(answer),
            "segments": diarized_segments(answer),
            "usage": _usage(answer),
        }
    elif asked.task != TRANSLATE:
        body |= {"languages": languages(answer.transcript), "usage": _usage(answer)}
    return body | extras(answer, asked)


def verbose(answer: Answer, asked: AudioRequest) -> dict[str, Any]:
    """Return what a verbose body has besides text and `extras`, in the requested granularities."""
    chunks = clamp_times(answer.transcript.chunks, _seconds(answer))
    code = "en" if asked.task == TRANSLATE else answer.transcript.language
    body: dict[str, Any] = {
        "task": asked.task,
        "language": _language_name(code),
        "duration": _seconds(answer),
    }
    if "segment" in asked.granularities:
        body["segments"] = _segments(chunks, answer.segments is not None)
    if "word" in asked.granularities:
        body["words"] = _words(chunks)
    if asked.task != TRANSLATE:
        body["usage"] = _usage(answer)
    body["unwritten"] = unwritten_json(answer.transcript.unwritten, body["duration"])
    return body


def extras(answer: Answer, asked: AudioRequest) -> dict[str, Any]:
    """Return warnings, and log-probabilities, known speakers, voices and unspoken parts, if any."""
    found: dict[str, Any] = {}
    if asked.token_bytes is not None:
        found["logprobs"] = token_logprobs(answer.transcript.chunks, asked.token_bytes)
    if answer.known_speakers:
        found["known_speakers"] = known_speakers_json(answer.known_speakers)
    if asked.request.config.voices:
        found["voices"] = voices_json(answer)
    if asked.request.config.text is not None:
        chunks = clamp_times(answer.transcript.chunks, _seconds(answer))
        words = [word for chunk in chunks for word in chunk.words]
        found["unspoken"] = unspoken_json(answer.transcript.unspoken, words, _seconds(answer))
    if answer.warnings:
        found["warnings"] = list(answer.warnings)
    return found


def diarized_segments(answer: Answer) -> list[dict[str, Any]]:
    """Return a `transcript.text.segment` for each stretch of one speaker."""
    rendering = Rendering(_seconds(answer), answer.transcript.chunks, answer.segments or ())
    segments = clamp_times(rendering.blocks, _seconds(answer))
    labelled = zip(segments, everyone_labelled(segments), strict=True)
    return [
        {
            "type": "transcript.text.segment",
            "id": f"seg_{place:03d}",
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "speaker": speaker,
        }
        for place, (segment, speaker) in enumerate(labelled)
    ]


def languages(transcript: Transcript) -> list[dict[str, str]]:
    """Return the codes of the spoken languages, in order; empty without speech."""
    codes = [chunk.language for chunk in transcript.chunks]
    codes = list(filter(None, dict.fromkeys(codes))) or [transcript.language]
    return [{"code": code} for code in codes if code]


def token_usage(answer: Answer) -> dict[str, Any]:
    """Return a stream's usage in tokens: of the encoder, 50 a second, and of the text."""
    heard = math.ceil(answer.duration * TOKENS_PER_SECOND)
    written = sum(len(chunk.tokens) for chunk in answer.transcript.chunks)
    return {
        "type": "tokens",
        "input_tokens": heard,
        "output_tokens": written,
        "total_tokens": heard + written,
        "input_token_details": {"audio_tokens": heard, "text_tokens": 0},
    }


def _segments(chunks: Sequence[Chunk], speakers: bool) -> list[dict[str, Any]]:
    segments = []
    for place, chunk in enumerate(chunks):
        segment: dict[str, Any] = {
            "id": place,
            "seek": round(chunk.window_start * SEEKS_PER_SECOND),
            "start": chunk.start,
            "end": chunk.end,
            "text": chunk.text,
            "tokens": list(chunk.tokens),
            "temperature": chunk.temperature,
            "avg_logprob": float(chunk.avg_logprob),
            "compression_ratio": chunk.compression_ratio,
            "no_speech_prob": float(chunk.no_speech_prob),
        }
        if chunk.language:
            segment["language"] = _language_name(chunk.language)
        if speakers and (speaker := segment_per_chunk([chunk])[0].speaker):
            segment["speaker"] = speaker
        segments.append(segment)
    return segments


def _words(chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
    words = []
    said = [word for chunk in chunks for word in chunk.words]
    for word in sorted(said, key=lambda word: word.start):  # channels may overlap
        entry: dict[str, Any] = {"word": word.text.strip(), "start": word.start, "end": word.end}
        if word.speaker:
            entry["speaker"] = word.speaker
        if word.heard is not None:
            entry["heard"] = word.heard
        words.append(entry)
    return words


def _usage(answer: Answer) -> dict[str, Any]:
    return {"type": "duration", "seconds": _seconds(answer)}


def _seconds(answer: Answer) -> float:
    return round(float(answer.duration), 2)


def _language_name(code: str | None) -> str:
    return language_name(code).lower() if code else NO_LANGUAGE
