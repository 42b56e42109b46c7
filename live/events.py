"""What a live session tells its client, as plain values in order.

An item is a stretch of audio that becomes one text: speech until a pause, or what the client
commits. Items are named by `item_id`, and `previous_item_id` is that of the item before, None for
the first. Milliseconds and seconds count the session's audio from its first sample, never a clock.
`server.realtime.server_events` has the form in which each is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from errors import EndpointError
from transcript import KnownSpeaker, Transcript, Word


@dataclass(frozen=True, slots=True)
class SpeechStartedEvent:
    """Somebody begins to speak; the item's audio begins at `audio_start_ms`, padding included."""

    item_id: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStoppedEvent:
    """Nobody speaks any more; the item's audio ends at `audio_end_ms`."""

    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The item's audio is complete."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """The item is part of the conversation; its text is yet to come."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemDone:
    """The item will not change any more, save for its text."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The audio that was not committed is forgotten."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that follows what was told of the item before, and is never taken back.

    `tokens` are the ids of the text, and `log_probs` their natural logarithms. `words` are the same
    text with times.
    """

    item_id: str
    text: str
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """Words that are final since the last such event, and the guess of what follows: `unstable`
    takes the place of the last guess.
    """

    item_id: str
    words: tuple[Word, ...]
    unstable: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one speaker says in a stretch of the item; `speaker` is None where nobody is known.

    Those that come before the item is completed are of words that were sent without a speaker;
    those that follow are of its whole text, and take the place of all before.
    """

    item_id: str
    id: str
    text: str
    speaker: str | None
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Completed:
    """The last word on the item: its whole text, which may differ from its deltas.

    The times of the `transcript` are seconds of the session. The item has `seconds` of audio.
    """

    item_id: str
    transcript: Transcript
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The item has no text, because of an `error`; the session goes on."""

    item_id: str
    error: EndpointError


@dataclass(frozen=True, slots=True)
class SpeakersFound:
    """All segments were sent. Who was known by name, and what a client should know of speakers."""

    known_speakers: tuple[KnownSpeaker, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cadence:
    """About every so many `seconds` new words are looked for; more where the server is busy."""

    seconds: float


LiveEvent = (
    SpeechStartedEvent
    | SpeechStoppedEvent
    | Committed
    | ItemAdded
    | ItemDone
    | Cleared
    | Delta
    | Words
    | Segment
    | Completed
    | Failed
    | SpeakersFound
    | Cadence
)
