"""The events of a live session, in the order in which a client receives them.

An item is a stretch of audio that becomes one text: speech until a pause, or audio that the client
commits. `previous_item_id` is the `item_id` of the item before, None for the first item.
Milliseconds and seconds count the session's audio from its first sample, never a clock.

`kind` is the type of the JSON event, OpenAI's where OpenAI has one, and fields have the names of
the JSON's. `server.realtime.server_events` renders the events.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from whosaid.errors import EndpointError
from whosaid.live.passes import PassAudio
from whosaid.transcript import SpeakerMatch, Transcript, Word

BUFFER = "input_audio_buffer"
ITEM = "conversation.item"
TRANSCRIPTION = f"{ITEM}.input_audio_transcription"


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """An event; its fields are those of the JSON."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class SpeechStartedEvent(LiveEvent):
    """Speech starts. The item's audio begins at `audio_start_ms`, padding included."""

    kind: ClassVar[str] = f"{BUFFER}.speech_started"
    item_id: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStoppedEvent(LiveEvent):
    """Speech has stopped. The item's audio ends at `audio_end_ms`."""

    kind: ClassVar[str] = f"{BUFFER}.speech_stopped"
    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class ItemEvent(LiveEvent):
    """An event of an item's place in the conversation."""

    item_id: str
    previous_item_id: str | None


class Committed(ItemEvent):
    """The item's audio is complete."""

    kind = f"{BUFFER}.committed"


class ItemAdded(ItemEvent):
    """The item is part of the conversation; its text follows."""

    kind = f"{ITEM}.added"


class ItemDone(ItemEvent):
    """The item will not change any more, except for its text."""

    kind = f"{ITEM}.done"


@dataclass(frozen=True, slots=True)
class Cleared(LiveEvent):
    """The uncommitted audio is dropped."""

    kind: ClassVar[str] = f"{BUFFER}.cleared"


@dataclass(frozen=True, slots=True)
class Delta(LiveEvent):
    """Text that follows the item's earlier deltas and is never taken back, as ids of `tokens`, with
    the natural logarithms of their probabilities, and as `words` with times.
    """

    kind: ClassVar[str] = f"{TRANSCRIPTION}.delta"
    item_id: str
    text: str
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Words(LiveEvent):
    """Words that have become final. `unstable` guesses the next ones, replacing the last guess."""

    kind: ClassVar[str] = f"{TRANSCRIPTION}.words"
    item_id: str
    words: tuple[Word, ...]
    unstable: str = ""


@dataclass(frozen=True, slots=True)
class SegmentEvent(LiveEvent):
    """One speaker's text in a stretch of the item; `speaker` is None if unknown.

    Segments before the item is completed cover words that were sent without a speaker. Segments
    after that cover the item's whole text, and replace all earlier ones. If speakers talk at once,
    these have the text of each speaker (`whosaid.overlap`), may overlap, and have `words`.
    """

    kind: ClassVar[str] = f"{TRANSCRIPTION}.segment"
    item_id: str
    id: str
    text: str
    speaker: str | None
    start: float
    end: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed(LiveEvent):
    """The item's final text, which may differ from its deltas.

    The times of `transcript` are seconds of the session. `seconds` is the item's duration. `final`
    is the pass that decoded it, for passages in which speakers talk at once.
    """

    kind: ClassVar[str] = f"{TRANSCRIPTION}.completed"
    item_id: str
    transcript: Transcript
    text: str
    seconds: float
    final: PassAudio | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ItemFailed(LiveEvent):
    """The item has no text because of `error`. The session goes on."""

    kind: ClassVar[str] = f"{TRANSCRIPTION}.failed"
    item_id: str
    error: EndpointError


@dataclass(frozen=True, slots=True)
class SpeakersFound(LiveEvent):
    """All segments were sent. Has the results for known speakers and warnings about speakers."""

    kind: ClassVar[str] = "session.speakers"
    known_speakers: tuple[SpeakerMatch, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cadence(LiveEvent):
    """New words come about every `seconds`. They come less often if the server is busy."""

    kind: ClassVar[str] = "session.cadence"
    seconds: float
