"""What the endpoint answers about a scene, and what other rules make of the same words and turns.

The one decision: the endpoint is asked as a client asks it, with a file in base64, and everything
is read from its answer: words and chunks from the JSON, turns from the rttm. So every rule has what
the endpoint itself had.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.accuracy.attribution_rules import (
    insanely_fast_rule,
    insanely_fast_rule_on_words,
    whisperx_rule,
)
from diarization_utils import attribute
from transcript import Chunk, SpeakerTurn, Word

if TYPE_CHECKING:
    from handler import EndpointHandler

OURS = "ours"
INSANELY_FAST, INSANELY_FAST_ON_WORDS = (
    "insanely-fast-whisper's, on chunks",
    "insanely-fast-whisper's, on words",
)
WHISPERX, WHISPERX_NEAREST = "WhisperX's", "WhisperX's, nearest"
RULES = (INSANELY_FAST, INSANELY_FAST_ON_WORDS, WHISPERX, WHISPERX_NEAREST)
SYSTEMS = (OURS, *RULES)


@dataclass(frozen=True)
class Heard:
    """An answer: chunks with their words, speakers as the endpoint gave them, and the turns it
    found.
    """

    chunks: tuple[Chunk, ...]
    turns: tuple[SpeakerTurn, ...]

    @property
    def words(self) -> tuple[Word, ...]:
        """All words in order."""
        return tuple(chain.from_iterable(chunk.words for chunk in self.chunks))

    @property
    def seams(self) -> tuple[float, ...]:
        """Where one window ended and the next began, seconds: chunks of one window share its
        statistics.
        """
        return tuple(
            (before.end + after.start) / 2
            for before, after in zip(self.chunks, self.chunks[1:], strict=False)
            if (before.avg_logprob, before.no_speech_prob)
            != (after.avg_logprob, after.no_speech_prob)
        )


def ask(endpoint: EndpointHandler, file: Path, **parameters: object) -> Heard:
    """Send a sound file to the endpoint; words are timed, speakers told apart."""
    wanted = {"return_timestamps": "word", "output": ["rttm"], **parameters}
    answer = endpoint(
        {"inputs": base64.b64encode(file.read_bytes()).decode(), "parameters": wanted}
    )
    return Heard(tuple(_chunks(answer)), tuple(_turns(answer["output"]["rttm"])))


def attributions(
    heard: Heard, turns: Sequence[SpeakerTurn] | None = None
) -> dict[str, tuple[Word, ...]]:
    """Each rule's speakers for the words heard: on the turns the endpoint found, or on the `turns`
    given.
    """
    used = heard.turns if turns is None else turns
    chunked = [word for segment in insanely_fast_rule(heard.chunks, used) for word in segment.words]
    vanished = [_to_nobody(word) for word in heard.words[len(chunked) :]]
    ours = heard.chunks if turns is None else attribute(heard.chunks, turns, exclusive(turns))
    return {
        OURS: Heard(tuple(ours), ()).words,
        INSANELY_FAST: (*chunked, *vanished),
        INSANELY_FAST_ON_WORDS: insanely_fast_rule_on_words(heard.words, used),
        WHISPERX: whisperx_rule(heard.words, used),
        WHISPERX_NEAREST: whisperx_rule(heard.words, used, fill_nearest=True),
    }


def exclusive(turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
    """The turns with one speaker at a time: who speaks keeps the floor, and who talks over it has
    what is left.
    """
    kept: list[SpeakerTurn] = []
    floor = 0.0
    for turn in sorted(turns, key=lambda turn: (turn.start, turn.end)):
        if turn.end > floor:
            kept.append(SpeakerTurn(turn.speaker, max(turn.start, floor), turn.end))
            floor = turn.end
    return kept


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
    return Word(
        entry["word"],
        start,
        end,
        entry.get("speaker"),
        entry["probability"],
        bool(entry.get("overlap", False)),
    )


def _turns(rttm: str) -> Iterator[SpeakerTurn]:
    for line in rttm.splitlines():
        _, _, _, start, seconds, _, _, speaker, *_ = line.split()
        yield SpeakerTurn(speaker, float(start), float(start) + float(seconds))


def _to_nobody(word: Word) -> Word:
    return Word(word.text, word.start, word.end, None, word.probability)
