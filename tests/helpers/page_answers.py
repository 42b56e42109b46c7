"""Answers of the server for the page, in which every time is known."""

from collections.abc import Sequence
from typing import Any

LASTS = 0.5  # seconds of a word


def answer_of(
    turns: Sequence[tuple[str, str]], doubtful: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return an answer in which each word lasts half a second, and turns have no pauses."""
    place = 0
    speakers: list[dict[str, Any]] = []
    for speaker, text in turns:
        words: list[dict[str, Any]] = []
        for word in text.split():
            times = [place * LASTS, (place + 1) * LASTS]
            sure = {"probability": 0.2 if word in doubtful else 0.9, "overlap": word == "you"}
            words.append({"word": f" {word}", "timestamp": times, "speaker": speaker, **sure})
            place += 1
        times = [words[0]["timestamp"][0], words[-1]["timestamp"][1]]
        speakers.append(
            {"speaker": speaker, "text": f" {text}", "timestamp": times, "words": words}
        )
    chunks = [{"text": turn["text"], "timestamp": turn["timestamp"]} for turn in speakers]
    return {
        "speakers": speakers,
        "chunks": chunks,
        "text": "".join(chunk["text"] for chunk in chunks),
        "language": "en",
        "duration": place * LASTS + 1,
        "warnings": [],
        "unwritten": [],
        "words": [word for turn in speakers for word in turn["words"]],
    }
