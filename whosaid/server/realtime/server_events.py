"""The events sent to a client, typed like the SDK's classes.

Three are not OpenAI's. If `include` has words: `...words`, with final words and their times and a
guess of the next words, and `session.cadence`. If it has segments: `session.speakers`, after the
last segment.
"""

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any

from whosaid.answer.response import known_speakers_json
from whosaid.errors import EndpointError
from whosaid.live import events
from whosaid.server.error_response import openai_error
from whosaid.server.openai_api.bodies import languages
from whosaid.server.openai_api.logprobs import TokenBytes, token_logprobs
from whosaid.server.realtime.session_config import LOGPROBS, SEGMENTS, WORDS
from whosaid.transcript import Chunk, Word

Message = dict[str, Any]

# The entry of `include` that an event needs.
NEEDED = dict.fromkeys((events.Words, events.Cadence), WORDS)
NEEDED |= dict.fromkeys((events.SegmentEvent, events.SpeakersFound), SEGMENTS)


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"


def named(kind: str, **fields: Any) -> Message:  # noqa: ANN401
    return {"type": kind, "event_id": new_id("event"), **fields}


def error_event(error: EndpointError, event_id: str | None) -> Message:
    """Return an error about the client's event `event_id`, or about the session."""
    return named("error", error={**openai_error(error), "event_id": event_id})


def warning_event(error: EndpointError, event_id: str | None) -> Message:
    """Return a warning about a part of the client's event `event_id` that has no effect."""
    body = openai_error(error)
    del body["type"]
    return named("warning", warning={**body, "event_id": event_id})


class EventEncoder:
    """Renders the events that a client's session includes."""

    def __init__(self, include: Iterable[str], token_bytes: TokenBytes) -> None:
        self._include, self._token_bytes = frozenset(include), token_bytes

    def message(self, event: events.LiveEvent) -> Message | None:
        """Return the event's message; None if the client did not request it."""
        if (needed := NEEDED.get(type(event))) and needed not in self._include:
            return None
        message = named(event.kind)
        if event.kind.startswith(events.TRANSCRIPTION):
            message["content_index"] = 0
        return message | self._fields(event)

    def _fields(self, event: events.LiveEvent) -> Message:
        match event:
            case events.ItemAdded(item, previous) | events.ItemDone(item, previous):
                return {"previous_item_id": previous, "item": _item(item)}
            case events.Delta(item, delta):
                return {"item_id": item, "delta": delta, **self._logprobs([event])}
            case events.Words(item, words, unstable):
                return {"item_id": item, "words": [*map(_word, words)], "unstable": unstable}
            case events.Completed():
                return self._completed(event)
            case events.ItemFailed(item, error):
                return {"item_id": item, "error": openai_error(error)}
            case events.SpeakersFound(known, warnings):
                return {"known_speakers": known_speakers_json(known), "warnings": [*warnings]}
        fields = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
        if words := fields.pop("words", ()):  # of a segment
            fields |= {"words": [*map(_word, words)]} if WORDS in self._include else {}
        return {k: round(v, 2) if isinstance(v, float) else v for k, v in fields.items()}

    def _logprobs(self, parts: Iterable[Chunk | events.Delta]) -> Message:
        if LOGPROBS not in self._include:
            return {}
        return {"logprobs": token_logprobs(parts, self._token_bytes)}

    def _completed(self, event: events.Completed) -> Message:
        found = event.transcript
        fields: Message = {
            "item_id": event.item_id,
            "transcript": event.text,
            "languages": languages(found),
            "usage": {"type": "duration", "seconds": round(event.seconds, 2)},
            **self._logprobs(found.chunks),
        }
        if WORDS in self._include:
            fields["words"] = [_word(word) for chunk in found.chunks for word in chunk.words]
        if found.warnings:
            fields["warnings"] = list(found.warnings)
        return fields


def _item(item: str) -> Message:
    return {
        "id": item,
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_audio", "transcript": None}],
    }


def _word(word: Word) -> Message:
    return {
        "word": word.text,
        "start": round(word.start, 2),
        "end": round(word.end, 2),
        "probability": None if word.probability is None else round(word.probability, 4),
        "speaker": word.speaker,
        **({} if word.heard is None else {"heard": word.heard}),
    }
