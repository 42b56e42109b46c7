"""Parses the client's events: JSON messages, or binary messages of audio.

All event types of OpenAI's clients are known by name, including those without use in a
transcription session. Time and memory of a parse do not grow with the audio (`payload.encodings`).
"""

from binascii import Error as Base64Error
from typing import Any

from pydantic import Field, model_validator

from config import MAX_HOTWORDS
from whosaid.errors import EndpointError
from whosaid.payload.encodings import Base64Text, base64_digits, decode_digits
from whosaid.server.errors import Kind, Refusal
from whosaid.server.openai_api.form import shown
from whosaid.server.realtime.session_config import Given, SessionGiven, Text
from whosaid.server.request_body import read_json

# OpenAI's limit for an event's id, in characters.
LONGEST_ID = 512
# Values of all objects and lists of an event together; a keyword may have eight.
MOST_VALUES = 1_000 + 8 * MAX_HOTWORDS
SPEAKS = "a transcription session has no responses"
OLD_UPDATE = "transcription_session.update"  # of OpenAI's beta
KEEPS = "items cannot be made or changed here: audio becomes items"
REFUSED = {
    "conversation.item.create": KEEPS,
    "conversation.item.delete": KEEPS,
    "conversation.item.retrieve": KEEPS,
    "conversation.item.truncate": KEEPS,
    "output_audio_buffer.clear": SPEAKS,
    "response.cancel": SPEAKS,
    "response.create": SPEAKS,
    "session.close": "the last commit has `final`: true",
}


class EventGiven(Given):
    """Fields of every event."""

    type: str
    event_id: str | None = Field(default=None, max_length=LONGEST_ID)


class Update(EventGiven):
    """`session.update`, or the beta's `transcription_session.update`, perhaps without `session`."""

    session: SessionGiven

    @model_validator(mode="before")
    @classmethod
    def _with_session(cls, event: dict[str, Any]) -> dict[str, Any]:
        if "session" in event:
            return event
        own = EventGiven.model_fields
        session = {name: value for name, value in event.items() if name not in own}
        return {**{name: event[name] for name in own if name in event}, "session": session}


class Append(EventGiven):
    """`input_audio_buffer.append`: more audio, in base64."""

    audio: Text


class Commit(EventGiven):
    """`input_audio_buffer.commit`: the item ends here; with `final`, the audio does."""

    final: bool = False


class Clear(EventGiven):
    """`input_audio_buffer.clear`: drop the uncommitted audio."""


SERVED: dict[str, type[EventGiven]] = {
    "session.update": Update,
    OLD_UPDATE: Update,
    "input_audio_buffer.append": Append,
    "input_audio_buffer.commit": Commit,
    "input_audio_buffer.clear": Clear,
}

ClientEvent = Update | Commit | Clear | bytes  # bytes: audio


def read_object(message: str) -> dict[str, Any]:
    """Return the JSON object of a message. Raises Refusal."""
    try:
        value = read_json(message, "message")
    except EndpointError as error:
        raise Refusal(Kind.invalid_json, error.reason) from None
    if not _is_small(value):
        raise Refusal(Kind.invalid_json, f"an event has at most {MOST_VALUES} values")
    return value


def event_id(event: dict[str, Any]) -> str | None:
    """Return the client's id of an event; None if it has none that can be repeated."""
    given = event.get("event_id")
    if not isinstance(given, str) or len(given) > LONGEST_ID:
        return None
    return None if any("\ud800" <= letter <= "\udfff" for letter in given) else given


def read_event(event: dict[str, Any], most_bytes: int) -> ClientEvent:
    """Parse an event; an append has at most `most_bytes` bytes of audio. Raises Refusal."""
    kind = event.get("type")
    if kind is None:
        raise Refusal(Kind.missing_required_parameter, "is required", "type")
    if not isinstance(kind, str):
        raise Refusal(Kind.invalid_type, "should be a string", "type")
    if kind in REFUSED:
        raise Refusal(Kind.unsupported_event, f"{kind} is not served: {REFUSED[kind]}", "type")
    if kind not in SERVED:
        raise Refusal(Kind.unknown_event, f"{shown(kind)} is none of {', '.join(SERVED)}", "type")
    read = SERVED[kind].read(event)
    if isinstance(read, Append):
        return _decoded(read.audio, most_bytes)
    assert isinstance(read, Update | Commit | Clear)
    return read


def check_size(size: int, most_bytes: int) -> None:
    """Raise Refusal if an append of `size` bytes of audio is too large."""
    if size > most_bytes:
        text = f"at most {most_bytes} bytes may be appended at once"
        raise Refusal(Kind.append_too_large, text, "audio")


def _decoded(text: Base64Text | str, most_bytes: int) -> bytes:
    check_size(len(text) // 4 * 3 - 2, most_bytes)
    try:
        digits = base64_digits(text)
        data = decode_digits(digits) if len(digits) % 4 == 0 else None
    except (Base64Error, UnicodeEncodeError):
        data = None
    if data is None:
        raise Refusal(Kind.invalid_base64, "should be in base64", "audio")
    check_size(len(data), most_bytes)
    return data


def _is_small(value: dict[str, Any]) -> bool:
    """Return True if an event has at most MOST_VALUES values, at any depth."""
    left: list[Any] = [value]
    count = 0
    while left:
        one = left.pop()
        inside = one.values() if isinstance(one, dict) else one
        count += len(inside)
        if count > MOST_VALUES:
            return False
        left += [each for each in inside if isinstance(each, dict | list)]
    return True
