"""The events that a client reads, typed as the SDK's classes say.

Beside OpenAI's there are three. Where `include` names words: `...words` with the times of what is
final, and the guess of what follows, and `session.cadence`. Where it names segments, and after the
last of them, `session.speakers`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedTokenizerBase

from answer.response import known_speakers_json
from errors import EndpointError
from live.events import (
    Cadence,
    Cleared,
    Committed,
    Completed,
    Delta,
    Failed,
    ItemAdded,
    ItemDone,
    LiveEvent,
    Segment,
    SpeakersFound,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    Words,
)
from server.errors import status_of
from server.openai_api.bodies import languages
from server.openai_api.errors import error_body
from server.openai_api.logprobs import logprob_entries, token_logprobs
from server.realtime.session_config import LOGPROBS, SEGMENTS, WORDS
from transcript import Word

Message = dict[str, Any]

BUFFER = "input_audio_buffer"
TRANSCRIPTION = "conversation.item.input_audio_transcription"


def new_id(kind: str) -> str:
    """A name that no other has: `kind`_..."""
    return f"{kind}_{uuid.uuid4().hex[:24]}"


def named(kind: str, **fields: Any) -> Message:  # noqa: ANN401
    """An event of type `kind` with a name of its own."""
    return {"type": kind, "event_id": new_id("event"), **fields}


def error_event(error: EndpointError, event_id: str | None) -> Message:
    """What is wrong with the client's event `event_id`, or with the session."""
    body = error_body(error, status_of(error))["error"]
    return named("error", error={**body, "event_id": event_id})


def warning_event(error: EndpointError, event_id: str | None) -> Message:
    """What the client's event `event_id` has not done, though nothing is wrong with it."""
    body = error_body(error, status_of(error))["error"]
    del body["type"]
    return named("warning", warning={**body, "event_id": event_id})


class Told:
    """Which events a client is told of, and how: by what its session includes.

    `tokenizer` has the bytes of tokens.
    """

    def __init__(self, include: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> None:
        included = frozenset(include)
        self._logprobs, self._words = LOGPROBS in included, WORDS in included
        self._segments, self._tokenizer = SEGMENTS in included, tokenizer

    def message(self, event: LiveEvent) -> Message | None:
        """The event as it is sent; None where the client did not ask for it."""
        match event:
            case SpeechStartedEvent(item, start):
                return named(f"{BUFFER}.speech_started", item_id=item, audio_start_ms=start)
            case SpeechStoppedEvent(item, end):
                return named(f"{BUFFER}.speech_stopped", item_id=item, audio_end_ms=end)
            case Committed(item, previous):
                return named(f"{BUFFER}.committed", item_id=item, previous_item_id=previous)
            case Cleared():
                return named(f"{BUFFER}.cleared")
            case ItemAdded(item, previous):
                return _item("conversation.item.added", item, previous)
            case ItemDone(item, previous):
                return _item("conversation.item.done", item, previous)
            case Cadence(seconds):
                return named("session.cadence", seconds=round(seconds, 2)) if self._words else None
            case SpeakersFound(known, warnings):
                told = {"known_speakers": known_speakers_json(known), "warnings": [*warnings]}
                return named("session.speakers", **told) if self._segments else None
            case _:
                return self._of_text(event)

    def _of_text(self, event: Delta | Words | Segment | Completed | Failed) -> Message | None:
        match event:
            case Delta():
                return self._delta(event)
            case Words(item, words, unstable):
                fields = {"words": [*map(_word, words)], "unstable": unstable}
                return _of("words", item, **fields) if self._words else None
            case Segment():
                return _segment(event) if self._segments else None
            case Completed():
                return self._completed(event)
            case Failed(item, error):
                body = error_body(error, status_of(error))["error"]
                return _of("failed", item, error=body)

    def _delta(self, event: Delta) -> Message:
        message = _of("delta", event.item_id, delta=event.text)
        if self._logprobs:
            message["logprobs"] = logprob_entries(event.tokens, event.log_probs, self._tokenizer)
        return message

    def _completed(self, event: Completed) -> Message:
        found = event.transcript
        message = _of(
            "completed",
            event.item_id,
            transcript=event.text,
            languages=languages(found),
            usage={"type": "duration", "seconds": round(event.seconds, 2)},
        )
        if self._logprobs:
            message["logprobs"] = token_logprobs(found.chunks, self._tokenizer)
        if self._words:
            message["words"] = [_word(word) for chunk in found.chunks for word in chunk.words]
        if found.warnings:
            message["warnings"] = list(found.warnings)
        return message


def _of(kind: str, item: str, **fields: Any) -> Message:  # noqa: ANN401
    return named(f"{TRANSCRIPTION}.{kind}", item_id=item, content_index=0, **fields)


def _item(kind: str, item: str, previous: str | None) -> Message:
    content = [{"type": "input_audio", "transcript": None}]
    body = {
        "id": item,
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": content,
    }
    return named(kind, previous_item_id=previous, item=body)


def _segment(event: Segment) -> Message:
    return _of(
        "segment",
        event.item_id,
        id=event.id,
        text=event.text,
        speaker=event.speaker,
        start=round(event.start, 2),
        end=round(event.end, 2),
    )


def _word(word: Word) -> Message:
    return {
        "word": word.text,
        "start": round(word.start, 2),
        "end": round(word.end, 2),
        "probability": None if word.probability is None else round(word.probability, 4),
        "speaker": word.speaker,
    }
