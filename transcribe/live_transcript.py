"""What a live session has told so far, item by item, and the answer that a file would have got.

The events are those of OpenAI's realtime transcription, and the server's own with words
(docs/api.md). An item is a stretch of speech; its text grows by deltas, and `completed` is the last
word on it. Items may be completed out of order. Where a session is lost another goes on, whose
events are told with the seconds at which it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, groupby
from typing import Any

from answer.response import Answer, response
from config import InferenceConfig
from transcribe.speaker_names import in_objects, labels, warnings_of
from transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

BUFFER = "input_audio_buffer."
ITEM = "conversation.item.added"
TRANSCRIPTION = "conversation.item.input_audio_transcription."
SPEAKERS = "session.speakers"

Event = dict[str, Any]


@dataclass
class Item:
    """A stretch of speech, whose times are seconds of the session's audio.

    `text` is what is final, `unstable` the guess of what follows. `reason` says why a done item has
    no text.
    """

    started: float = 0.0
    stopped: float = 0.0
    text: str = ""
    unstable: str = ""
    words: list[Word] = field(default_factory=list)
    segments: dict[str, SpeakerSegment] = field(default_factory=dict)
    language: str | None = None
    done: bool = False
    reason: str = ""

    @property
    def start(self) -> float:
        """Where its first word begins, if that is known."""
        return self.words[0].start if self.words else self.started

    @property
    def end(self) -> float:
        """Where its last word ends, if that is known."""
        return self.words[-1].end if self.words else max(self.started, self.stopped)

    @property
    def has_speakers(self) -> bool:
        """Whether anybody is named."""
        return self._has_named_segments or any(word.speaker for word in self.words)

    @property
    def _has_named_segments(self) -> bool:
        return any(segment.speaker for segment in self.segments.values())

    def blocks(self) -> list[SpeakerSegment]:
        """What each speaker says in it, in order; all of it where nobody is named.

        The server's segments are for the whole text; until it is there, words have speakers.
        """
        if not self.text.strip():
            return []
        if self.done and self._has_named_segments:
            ordered = sorted(self.segments.values(), key=lambda each: each.start)
            return list(self._with_words(ordered))
        if any(word.speaker for word in self.words):
            return [
                SpeakerSegment(
                    name, "".join(w.text for w in said), said[0].start, said[-1].end, said
                )
                for name, said in self._turns()
            ]
        return [SpeakerSegment(None, self.text, self.start, self.end, tuple(self.words))]

    def break_off(self, start: float) -> bool:
        """No more is said of it, and what begins at `start` or later is heard again; whether
        anything is left.
        """
        if self.done and self.end <= start:
            return True
        if self.words:
            self.words = [word for word in self.words if word.start < start]
            self.text = "".join(word.text for word in self.words)
        elif self.started >= start:
            self.text = ""
        self.segments.clear()  # of a text that is cut
        self.stopped = min(self.stopped, start)
        self.unstable, self.done = "", True
        return bool(self.text.strip())

    def _turns(self) -> Iterator[tuple[str | None, tuple[Word, ...]]]:
        """Each speaker's words, one turn after the other."""
        for name, said in groupby(self.words, key=lambda word: word.speaker):
            yield name, tuple(said)

    def _with_words(self, segments: Sequence[SpeakerSegment]) -> Iterator[SpeakerSegment]:
        """The segments with the words that their texts are made of, as far as they are, each with
        the segment's speaker.
        """
        first = 0
        for segment in segments:
            stop, text = first, ""
            while stop < len(self.words) and len(text.strip()) < len(segment.text.strip()):
                text += self.words[stop].text
                stop += 1
            words = tuple(self.words[first:stop])
            if text.strip() != segment.text.strip():
                words, stop = (), first
            first = stop
            yield replace(
                segment, words=tuple(replace(word, speaker=segment.speaker) for word in words)
            )


class LiveTranscript:
    """All items, in the order in which they were spoken. `names` are those of speakers, by the
    server's label.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.items: dict[str, Item] = {}
        self.warnings: list[str] = []
        self._names = names or {}
        self._labels: dict[str, None] = {}  # in the order in which they came

    @property
    def written_until(self) -> float:
        """Up to where all is final, in seconds."""
        until = 0.0
        for item in self.items.values():
            if not item.done:
                return max(until, item.end if item.words else item.started)
            until = max(until, item.end, item.stopped)
        return until

    def break_off(self, start: float) -> None:
        """The session was lost. Guesses are gone; final words stay, but for those that another
        session hears again, which begins at `start`.
        """
        open_ones = dropwhile(lambda named: named[1].done, tuple(self.items.items()))
        for name, item in open_ones:
            if not item.break_off(start):
                del self.items[name]

    def take(self, event: Event, start: float = 0.0) -> None:
        """Add what an event tells of a session that begins at `start` seconds of the audio; what is
        of no use here is passed over.

        Raises KeyError, TypeError or ValueError for what is no event of the wire.
        """
        event = _later(event, start) if start else event
        self._labels |= dict.fromkeys(labels(event))
        event = in_objects(event, self._names)
        kind = str(event["type"])
        if kind == BUFFER + "speech_started":
            self._item(event).started = event["audio_start_ms"] / 1000
        elif kind == BUFFER + "speech_stopped":
            self._item(event).stopped = event["audio_end_ms"] / 1000
        elif kind == BUFFER + "committed":
            self._item(event)
        elif kind == ITEM:
            self.items.setdefault(str(event["item"]["id"]), Item())
        elif kind == SPEAKERS:
            self.warnings += map(str, event.get("warnings", ()))
        elif kind.startswith(TRANSCRIPTION):
            self._hear(kind.removeprefix(TRANSCRIPTION), self._item(event), event)

    def answer(self, duration: float, parameters: dict[str, Any]) -> dict[str, Any]:
        """The answer to a recording of `duration` seconds, asked for with these parameters."""
        said = [item for item in self.items.values() if item.text.strip()]
        chunks = tuple(
            Chunk(_spaced(item.text), item.start, item.end, words=tuple(item.words))
            for item in said
        )
        segments = turns = None
        if any(item.has_speakers for item in said):
            segments = [block for item in said for block in item.blocks()]
            turns = [SpeakerTurn(s.speaker, s.start, s.end) for s in segments if s.speaker]
        languages = [item.language for item in said if item.language]
        language = max(languages, key=languages.count, default=None)
        warnings = tuple(dict.fromkeys([*self.warnings, *warnings_of(self._names, self._labels)]))
        transcript = Transcript(chunks, language)
        found = Answer(duration, transcript, segments, turns, warnings)
        return response(found, InferenceConfig.read(parameters))

    def _item(self, event: Event) -> Item:
        return self.items.setdefault(str(event["item_id"]), Item())

    def _hear(self, kind: str, item: Item, event: Event) -> None:
        if kind == "delta":
            item.text += event["delta"]
        elif kind == "words":
            item.words += map(_word, event["words"])
            item.unstable = str(event["unstable"])
        elif kind == "segment":
            item.segments[str(event["id"])] = SpeakerSegment(
                event.get("speaker"), event["text"], float(event["start"]), float(event["end"])
            )
        elif kind == "completed":
            self._complete(item, event)
        elif kind == "failed":
            item.done, item.unstable = True, ""
            item.reason = str(event["error"]["message"])

    def _complete(self, item: Item, event: Event) -> None:
        item.done, item.text, item.unstable = True, event["transcript"], ""
        item.words = [*map(_word, event.get("words", ()))]
        item.segments.clear()  # those of words; those of the text follow
        languages = event.get("languages") or [{}]
        item.language = languages[0].get("code")
        self.warnings += map(str, event.get("warnings", ()))


def _later(event: Event, seconds: float) -> Event:
    """The event, or a word of one, with its times so much later."""
    moved = dict(event)
    for name in {"start", "end"} & event.keys():
        moved[name] = round(float(event[name]) + seconds, 2)
    for name in {"audio_start_ms", "audio_end_ms"} & event.keys():
        moved[name] = event[name] + 1000 * seconds
    if "words" in event:
        moved["words"] = [_later(word, seconds) for word in event["words"]]
    return moved


def _word(given: dict[str, Any]) -> Word:
    start, end = float(given["start"]), float(given["end"])
    return Word(str(given["word"]), start, end, given.get("speaker"), given.get("probability"))


def _spaced(text: str) -> str:
    """Texts of items are joined as words are."""
    return f" {text.strip()}"
