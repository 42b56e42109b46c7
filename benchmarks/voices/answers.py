"""The endpoint's answer for a recording, and its words with speakers by WhisperX's rule."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from handler import EndpointHandler
from tests.support.audio_files import request_body
from whosaid.transcript import SpeakerTurn, Word

OURS, WHISPERX = RULES = ("this project", "WhisperX")


@dataclass(frozen=True)
class Answer:
    """Words with the endpoint's speakers, and the turns it found."""

    words: tuple[Word, ...]
    turns: tuple[SpeakerTurn, ...]


def ask(endpoint: EndpointHandler, audio: bytes, **parameters: object) -> Answer:
    """Send a sound file's bytes to the endpoint as a client does; ask for words with speakers."""
    wanted = {"return_timestamps": "word", "output": ["rttm"], **parameters}
    answer = endpoint(request_body(audio, **wanted))
    return Answer(tuple(map(_word, answer["words"])), tuple(read_rttm(answer["output"]["rttm"])))


def whisperx_rule(words: Sequence[Word], turns: Sequence[SpeakerTurn]) -> tuple[Word, ...]:
    """Give each word to the speaker whose turns, which may overlap, overlap it longest.

    Written from the description of WhisperX's `assign_word_speakers`. A tie goes to the speaker
    whose name sorts first. A word that no turn overlaps has no speaker.
    """
    return tuple(replace(word, speaker=_longest_overlap(word, turns)) for word in words)


def _longest_overlap(word: Word, turns: Sequence[SpeakerTurn]) -> str | None:
    seconds: dict[str, float] = defaultdict(float)
    for turn in turns:
        shared = min(word.end, turn.end) - max(word.start, turn.start)
        if shared > 0:
            seconds[turn.speaker] += shared
    return max(sorted(seconds), key=lambda speaker: seconds[speaker], default=None)


def _word(entry: dict[str, Any]) -> Word:
    start, end = entry["timestamp"]
    return Word(entry["word"], start, end, entry.get("speaker"), entry["probability"])


def read_rttm(rttm: str) -> Iterator[SpeakerTurn]:
    """Yield the turns of an RTTM file, in its order."""
    for line in rttm.splitlines():
        _, _, _, start, seconds, _, _, speaker, *_ = line.split()
        yield SpeakerTurn(speaker, float(start), float(start) + float(seconds))
