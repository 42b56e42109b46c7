"""The content of an answer's files, made from an `Answer` or read from its JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

from config import InferenceConfig
from whosaid.answer.cues import LAYOUT as OF_CUES
from whosaid.answer.cues import Cue, make_cues, segment_starts
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Word, by_channel, by_voice

# The parameters that change files, but not the answer.
LAYOUT = (*OF_CUES, "recording_name", "txt_times")
FURTHEST, LATE = 300, 1.0  # words between two of a chunk; seconds of a word behind its chunk


@dataclass(frozen=True, slots=True)
class Rendering:
    """The content of all formats, within `duration` seconds; `layout` are request parameters."""

    duration: float
    chunks: Sequence[Chunk]
    segments: Sequence[SpeakerSegment] = ()
    turns: Sequence[SpeakerTurn] = ()
    layout: InferenceConfig = field(default_factory=InferenceConfig)

    @property
    def blocks(self) -> list[SpeakerSegment]:
        """Return the speakers' segments; without any, the chunks as segments without a speaker."""
        if self.segments:
            return list(self.segments)
        return [
            SpeakerSegment(
                None, chunk.text, chunk.start, chunk.end, chunk.words, channel=chunk.channel
            )
            for chunk in self.chunks
        ]

    @property
    def words(self) -> list[Word]:
        """Return all words; a block without word times is one Word."""
        words: list[Word] = []
        for block in self.blocks:
            words += block.words or (Word(block.text, block.start, block.end, block.speaker),)
        return words

    @property
    def voices(self) -> list[Self]:
        """Return one rendering for each channel and voice, without turns."""
        segments = by_voice(self.segments)
        chunks: dict[tuple[int | None, str | None], list[Chunk]]
        chunks = {each: [] for each in [*segments] or [*by_voice(self.chunks)]}
        for chunk in self.chunks:
            spoken: dict[str | None, list[Word]] = defaultdict(list)
            for word in chunk.words:
                spoken[word.speaker or ""].append(word)
            for voice, words in spoken.items():
                text = "".join(word.text for word in words)
                own = replace(chunk, text=text, words=tuple(words))
                chunks.get((chunk.channel, voice), []).append(own)
            chunks.get((chunk.channel, None), []).append(chunk)
        return [
            replace(self, chunks=own, segments=segments.get(voice, ()), turns=())
            for voice, own in chunks.items()
        ]

    def cues(self, named: bool) -> list[Cue]:
        """Return the cues of all words, sorted by start; cues of one voice never overlap.

        With `named`, texts begin with the speaker's name if the layout shows names.
        """
        named = named and self.layout.subtitle_speakers
        cues: list[Cue] = []
        for each in self.voices:
            starts = segment_starts(chunk.text for chunk in each.chunks)
            cues += make_cues(each.words, named, each.duration, each.layout, starts)
        return sorted(cues, key=lambda cue: cue.start)


def read_rendering(answer: Mapping[str, Any], layout: InferenceConfig) -> Rendering:
    """Return the content of the files of an answer's JSON. Speakers whose segments overlap are
    voices. Turns are those of its RTTM file, or else the segments.
    """
    segments, chunks = [], []
    for each in answer["speakers"]:
        (start, end), own = each["timestamp"], tuple(map(_word, each.get("words") or ()))
        segment = SpeakerSegment(each["speaker"], each["text"], start, end, own)
        segments.append(replace(segment, channel=each.get("channel")))
    overlap = any(
        second.start < first.end
        for of_channel in by_channel(segments).values()
        for first, second in pairwise(of_channel)
    )
    words = [] if segments else [_word(each) for each in answer.get("words") or ()]
    if overlap:
        segments = [replace(each, voice=each.speaker or "") for each in segments]
        words = [word for each in segments for word in each.words]
    for each in chunks_of(answer):
        (start, end), text = each["timestamp"], each["text"]
        of_chunk = tuple(_words_of(text, words, end))
        chunks.append(Chunk(text, start, end, words=of_chunk, channel=each.get("channel")))
    return Rendering(answer["duration"], chunks, segments, _turns(answer, segments), layout)


def chunks_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answer's chunks, or its text as one if it has no times."""
    chunks = [{"text": "", **each} for each in answer.get("chunks") or ()]
    if not (chunks or answer.get("speakers")) and (text := answer.get("text") or "").strip():
        chunks = [{"text": text, "timestamp": (0.0, answer["duration"])}]
    return chunks


def _words_of(text: str, words: list[Word], end: float) -> list[Word]:
    """Take the words of a whole `text` until second `end` out of `words`, past other voices'."""
    places = []
    for place, word in enumerate(words):
        if word.text and word.start < end + LATE and text.startswith(word.text):
            text = text.removeprefix(word.text)
            places.append(place)
        if not text or place - (places or [0])[-1] > FURTHEST:
            break
    if text.strip():
        return []
    return [words.pop(place) for place in places[::-1]][::-1]


def _word(each: Mapping[str, Any]) -> Word:
    start, end = each["timestamp"]
    return Word(each["word"], start, end, each.get("speaker"), overlap=each.get("overlap", False))


def _turns(answer: Mapping[str, Any], segments: Sequence[SpeakerSegment]) -> list[SpeakerTurn]:
    """Return the turns of the answer's RTTM, whose names have underscores for spaces."""
    written = (answer.get("output") or {}).get("rttm")
    if written is None:
        return [SpeakerTurn(s.speaker, s.start, s.end, s.channel) for s in segments if s.speaker]
    names = {as_field(each.speaker): each.speaker for each in segments if each.speaker}
    separate = any(each.channel is not None for each in segments)
    turns = []
    for line in written.splitlines():
        _, _, channel, start, seconds, _, _, name, *_ = line.split(" ")
        own = int(channel) - 1 if separate else None
        begin = float(start)
        turns.append(SpeakerTurn(names.get(name, name), begin, begin + float(seconds), own))
    return turns


def as_field(text: str) -> str:
    """Return the text as a field of RTTM, which ends at a space."""
    return "_".join(text.split())
