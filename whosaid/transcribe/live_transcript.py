"""Collects a live session's items, and makes an answer like a file's.

The events are OpenAI's Realtime events and the server's own with words (docs/api.md). An item's
text grows by deltas until `completed` replaces it. Items may be completed out of order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, takewhile
from typing import Any

from config import InferenceConfig
from whosaid.answer.response import Answer, response
from whosaid.answer.speaker_names import Names, in_objects, labels, names_by_label, warnings_of
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

BUFFER = "input_audio_buffer."
ITEM = "conversation.item.added"
TRANSCRIPTION = "conversation.item.input_audio_transcription."
SPEAKERS = "session.speakers"

Event = dict[str, Any]


@dataclass
class TranscriptItem:
    """A stretch of speech, in seconds of all audio: final `text`, then `unstable`, a guess."""

    started: float = 0.0
    stopped: float = 0.0
    text: str = ""
    unstable: str = ""
    words: list[Word] = field(default_factory=list)
    segments: dict[str, SpeakerSegment] = field(default_factory=dict)
    language: str | None = None
    done: bool = False

    @property
    def start(self) -> float:
        return self.words[0].start if self.words else self.started

    @property
    def end(self) -> float:
        ends = [word.end for word in self.words]
        return max(ends or [self.started, self.stopped])

    @property
    def has_speakers(self) -> bool:
        speakers = [segment.speaker for segment in self.segments.values()]
        return any([*speakers, *(word.speaker for word in self.words)])

    def blocks(self) -> list[SpeakerSegment]:
        """Return the text of each speaker in order, one block if no speaker is known."""
        if not self.text.strip():
            return []
        if any(segment.speaker for segment in self.segments.values()):
            return list(self._with_words())
        if any(word.speaker for word in self.words):
            turns = groupby(self.words, key=lambda word: word.speaker)
            return [_block(name, tuple(words)) for name, words in turns]
        return [SpeakerSegment(None, self.text, self.start, self.end, tuple(self.words))]

    def add_segment(self, name: str, segment: SpeakerSegment) -> None:
        """Add a segment. The words of segments that have a voice replace the item's. Until the item
        is completed, segments do not cover the whole text, and only name words without a speaker.
        """
        if not self.done:
            self.words = [
                replace(word, speaker=word.speaker or segment.speaker)
                if segment.start <= word.start and word.end <= segment.end
                else word
                for word in self.words
            ]
            return
        self.segments[name] = segment
        if segment.voice is not None:
            every = sorted(self.segments.values(), key=lambda each: each.start)
            self.text = "".join(each.text for each in every)
            self.words = [word for each in every for word in each.words]

    def _with_words(self) -> Iterator[SpeakerSegment]:
        """Yield the segments, in order, each with its words."""
        left = list(self.words)
        for segment in sorted(self.segments.values(), key=lambda each: each.start):
            if segment.voice is not None:
                yield segment
                continue
            words = list(takewhile(lambda word, end=segment.end: word.end <= end, left))  # type: ignore[misc]
            del left[: len(words)]
            named = tuple(replace(word, speaker=segment.speaker) for word in words)
            yield replace(segment, words=named)


def _block(speaker: str | None, words: tuple[Word, ...]) -> SpeakerSegment:
    text = "".join(word.text for word in words)
    return SpeakerSegment(speaker, text, words[0].start, words[-1].end, words)


class LiveTranscript:
    """All items, in the order in which they were spoken, with `names` for the session's labels.
    `session_start` is the second of the audio at which the session began.
    """

    def __init__(self, names: Names = ()) -> None:
        self.items: dict[str, TranscriptItem] = {}
        self.warnings: list[str] = []
        self.session_start = 0.0
        self._given = names
        self._labels: dict[str, None] = {}  # in order of arrival

    @property
    def _names(self) -> dict[str, str]:
        return names_by_label(self._given, self._labels)

    def break_off(self, seconds: float) -> float:
        """End the session after so many seconds of the audio. Final text stays, guesses are
        dropped. Return the second up to which the text is final.
        """
        until = self.session_start
        for name, item in list(self.items.items()):
            if item.done:
                until = max(until, item.end, item.stopped)
                continue
            until = max([until, *(word.end for word in item.words)])
            item.done, item.unstable, item.stopped = True, "", seconds
            if not item.text.strip():
                del self.items[name]
        self.session_start = seconds
        return until

    def take(self, event: Event) -> None:
        """Add a session's event. Raises KeyError, TypeError or ValueError if it is malformed."""
        self._labels |= dict.fromkeys(labels(event))
        event = in_objects(event, self._names)
        kind = str(event["type"])
        if kind == BUFFER + "speech_started":
            self._item(event).started = self.session_start + event["audio_start_ms"] / 1000
        elif kind == BUFFER + "speech_stopped":
            self._item(event).stopped = self.session_start + event["audio_end_ms"] / 1000
        elif kind == BUFFER + "committed":
            self._item(event)
        elif kind == ITEM:
            self.items.setdefault(str(event["item"]["id"]), TranscriptItem(self.session_start))
        elif kind == SPEAKERS:
            self.warnings += map(str, event.get("warnings", ()))
        elif kind.startswith(TRANSCRIPTION):
            self._add(kind.removeprefix(TRANSCRIPTION), self._item(event), event)

    def answer(self, duration: float, parameters: dict[str, Any]) -> dict[str, Any]:
        items = [item for item in self.items.values() if item.text.strip()]
        chunks = tuple(
            Chunk(f" {item.text.strip()}", item.start, item.end, words=tuple(item.words))
            for item in items
        )
        segments = turns = None
        if any(item.has_speakers for item in items):
            blocks = [item.blocks() for item in items]
            segments = list(chain.from_iterable(blocks))
            if any(each.voice is not None for each in segments):  # segments may overlap
                segments = [replace(each, voice=each.speaker or "") for each in segments]
                words = [chain.from_iterable(each.words for each in own) for own in blocks]
                both = zip(chunks, words, strict=True)
                chunks = tuple(replace(chunk, words=tuple(own)) for chunk, own in both)
            turns = [SpeakerTurn(s.speaker, s.start, s.end) for s in segments if s.speaker]
        languages = [item.language for item in items if item.language]
        language = max(languages, key=languages.count, default=None)
        warnings = tuple(dict.fromkeys([*self.warnings, *warnings_of(self._names, self._labels)]))
        found = Answer(duration, Transcript(chunks, language), segments, turns, warnings)
        return response(found, InferenceConfig.read(parameters))

    def _item(self, event: Event) -> TranscriptItem:
        return self.items.setdefault(str(event["item_id"]), TranscriptItem(self.session_start))

    def _add(self, kind: str, item: TranscriptItem, event: Event) -> None:
        if kind == "delta":
            item.text += event["delta"]
        elif kind == "words":
            item.words += map(self._word, event["words"])
            item.unstable = str(event["unstable"])
        elif kind == "segment":
            start, end = self._later(event["start"]), self._later(event["end"])
            speaker, words = event.get("speaker"), tuple(map(self._word, event.get("words", ())))
            voice = (speaker or "") if words else None
            segment = SpeakerSegment(speaker, event["text"], start, end, words, voice=voice)
            item.add_segment(str(event["id"]), segment)
        elif kind == "completed":
            item.done, item.text, item.unstable = True, event["transcript"], ""
            item.words = [*map(self._word, event.get("words", ()))]
            languages = event.get("languages") or [{}]
            item.language = languages[0].get("code")
            self.warnings += map(str, event.get("warnings", ()))
        elif kind == "failed":
            item.done, item.unstable = True, ""

    def _word(self, given: Event) -> Word:
        start, end = self._later(given["start"]), self._later(given["end"])
        speaker, probability = given.get("speaker"), given.get("probability")
        word = str(given["word"])
        return Word(word, start, end, speaker, probability, heard=given.get("heard"))

    def _later(self, seconds: float) -> float:
        """Convert a time of the session to a time of the whole audio."""
        return round(self.session_start + float(seconds), 2)


def error_message(event: Event) -> str:
    error = event.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or "the server reports an error")
