"""What the endpoint answers about a scene, and what other rules make of the same words and turns.

The endpoint is called as a client calls it, with a file in base64, and everything is read from its
answer: words and chunks from the JSON, turns from the RTTM. So every rule has what the endpoint's
own rule had.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.accuracy.attribution_rules import (
    insanely_fast_rule,
    insanely_fast_rule_on_words,
    whisperx_rule,
)
from diarization_utils import attribute
from whosaid.transcript import Chunk, SpeakerTurn, Word

if TYPE_CHECKING:
    from handler import EndpointHandler

OURS = "ours"
INSANELY_FAST = "insanely-fast-whisper's, on chunks"
INSANELY_FAST_ON_WORDS = "insanely-fast-whisper's, on words"
WHISPERX, WHISPERX_NEAREST = "WhisperX's", "WhisperX's, nearest"
OTHERS = (INSANELY_FAST, INSANELY_FAST_ON_WORDS, WHISPERX, WHISPERX_NEAREST)
RULES = (OURS, *OTHERS)


@dataclass(frozen=True)
class Answer:
    """Chunks with their words and the speakers the endpoint gave them, and the turns it found."""

    chunks: tuple[Chunk, ...]
    turns: tuple[SpeakerTurn, ...]

    @property
    def words(self) -> tuple[Word, ...]:
        """All words in order."""
        return tuple(chain.from_iterable(chunk.words for chunk in self.chunks))

    @property
    def window_boundaries(self) -> tuple[float, ...]:
        """Seconds at which one window ended and the next began, midway between two chunks.

        Chunks of one window have the same statistics.
        """
        boundaries = []
        for before, after in pairwise(self.chunks):
            statistics = [(each.avg_logprob, each.no_speech_prob) for each in (before, after)]
            if statistics[0] != statistics[1]:
                boundaries.append((before.end + after.start) / 2)
        return tuple(boundaries)


def ask(endpoint: EndpointHandler, file: Path, **parameters: object) -> Answer:
    """Send a sound file to the endpoint and ask for timed words with speakers."""
    wanted = {"return_timestamps": "word", "output": ["rttm"], **parameters}
    inputs = base64.b64encode(file.read_bytes()).decode()
    answer = endpoint({"inputs": inputs, "parameters": wanted})
    return Answer(tuple(_chunks(answer)), tuple(read_rttm(answer["output"]["rttm"])))


def attribute_by_rules(
    answer: Answer, turns: Sequence[SpeakerTurn] | None = None
) -> dict[str, tuple[Word, ...]]:
    """The recognised words with each rule's speakers, on the turns found or on `turns`."""
    used = answer.turns if turns is None else turns
    segments = insanely_fast_rule(answer.chunks, used)
    given = [word for segment in segments for word in segment.words]
    lost = [replace(word, speaker=None) for word in answer.words[len(given) :]]
    ours = answer.chunks
    if turns is not None:
        ours = tuple(attribute(answer.chunks, turns, make_exclusive(turns)))
    return {
        OURS: Answer(ours, ()).words,
        INSANELY_FAST: (*given, *lost),
        INSANELY_FAST_ON_WORDS: insanely_fast_rule_on_words(answer.words, used),
        WHISPERX: whisperx_rule(answer.words, used),
        WHISPERX_NEAREST: whisperx_rule(answer.words, used, fill_nearest=True),
    }


def make_exclusive(turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
    """The turns with one speaker at a time: of two that overlap, the first keeps the overlap."""
    exclusive: list[SpeakerTurn] = []
    taken = 0.0
    for turn in sorted(turns, key=lambda turn: (turn.start, turn.end)):
        if turn.end > taken:
            exclusive.append(SpeakerTurn(turn.speaker, max(turn.start, taken), turn.end))
            taken = turn.end
    return exclusive


def _chunks(answer: dict[str, Any]) -> Iterator[Chunk]:
    """Chunks with the words that, joined, are their text."""
    words = [_word(entry) for entry in answer["words"]]
    for entry in answer["chunks"]:
        taken: list[Word] = []
        while words and len("".join(word.text for word in taken)) < len(entry["text"]):
            taken.append(words.pop(0))
        start, end = entry["timestamp"]
        yield Chunk(
            entry["text"], start, end, entry["avg_logprob"], entry["no_speech_prob"], tuple(taken)
        )


def _word(entry: dict[str, Any]) -> Word:
    start, end = entry["timestamp"]
    overlap = bool(entry.get("overlap", False))
    return Word(entry["word"], start, end, entry.get("speaker"), entry["probability"], overlap)


def read_rttm(rttm: str) -> Iterator[SpeakerTurn]:
    """The turns of an RTTM file, in its order."""
    for line in rttm.splitlines():
        _, _, _, start, seconds, _, _, speaker, *_ = line.split()
        yield SpeakerTurn(speaker, float(start), float(start) + float(seconds))
