"""Makes a transcript that a person has corrected agree with itself again.

A client that edits an answer changes its `speakers`, or its `chunks` if there are no speakers. All
other text, words and times follow from these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from config import InferenceConfig
from whosaid.answer.rendering import chunks_of, read_rendering
from whosaid.answer.response import clamp_times

Entry = dict[str, Any]


def consistent(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer with `text`, `chunks` and `words` of its turns, clamped as in an answer. A
    turn with words has their texts, and they its speaker. Turns without text are dropped.
    """
    turns = _turns(answer)
    duration = answer["duration"]
    rendering = read_rendering({"duration": duration, "speakers": turns}, InferenceConfig())
    for turn, segment in zip(turns, clamp_times(rendering.segments, duration), strict=True):
        turn["timestamp"] = [segment.start, segment.end]
        for word, timed in zip(turn.get("words", ()), segment.words, strict=True):
            word["timestamp"] = [timed.start, timed.end]
    turns.sort(key=lambda turn: turn["timestamp"][0])
    with_speakers, chunks = bool(answer.get("speakers")), chunks_of(answer)
    texts, written = [each["text"] for each in chunks], [each["text"] for each in turns]
    if any(" " in text or text.isascii() for text in written):
        written = [text if text[:1].isspace() else f" {text}" for text in written]
    if not with_speakers or _spoken(chunks, texts) != _spoken(turns, written):
        chunks = [
            {key: turn[key] for key in turn if key not in ("words", "speaker")} for turn in turns
        ]
        texts = written
    made = {**answer, "speakers": turns if with_speakers else [], "chunks": chunks}
    words = [word for turn in turns for word in turn.get("words", ())]
    if words or "words" in answer:
        made["words"] = sorted(words, key=lambda word: word["timestamp"][0])
    return {**made, "text": "".join(texts)}


def _spoken(entries: Sequence[Entry], texts: Sequence[str]) -> list[str]:
    """Return the words of all texts, one channel after another: turns of channels interleave."""
    pairs = sorted(zip(entries, texts, strict=True), key=lambda pair: pair[0].get("channel") or 0)
    return "".join(text for _, text in pairs).split()


def _turns(answer: Mapping[str, Any]) -> list[Entry]:
    """Return the turns that have text, by start; without speakers, the chunks as turns."""
    turns = []
    with_speakers = bool(answer.get("speakers"))
    for given in answer["speakers"] if with_speakers else _chunks(answer):
        turn = {**given, "speaker": given.get("speaker") if with_speakers else None}
        words = [dict(word) for word in given.get("words") or () if word["word"].strip()]
        if words:
            own = {"speaker": turn["speaker"]} if with_speakers else {}
            turn["words"] = [word | own for word in words]
            turn["text"] = "".join(word["word"] for word in words)
            turn["timestamp"] = [words[0]["timestamp"][0], words[-1]["timestamp"][1]]
        else:
            turn.pop("words", None)
        if turn.setdefault("text", "").strip():
            turns.append(turn)
    return sorted(turns, key=lambda turn: turn["timestamp"][0])


def _chunks(answer: Mapping[str, Any]) -> list[Entry]:
    """Return the chunks, each with its words; those of a corrected one are lost."""
    words = [word for word in answer.get("words") or () if word["word"].strip()]
    chunks, place = [], 0
    for chunk in chunks_of(answer):
        text = "".join(chunk["text"].split())
        if (end := _end(text, words, place)) == place:
            # Words of a corrected chunk may stand before; others may end before their chunk begins.
            while place < len(words) and words[place]["timestamp"][1] <= chunk["timestamp"][0]:
                place += 1
            end = _end(text, words, place)
        chunks.append({**chunk, "words": words[place:end]})
        place = end
    return chunks


def _end(text: str, words: Sequence[Entry], place: int) -> int:
    """Return the end of the words at `place` that make the whole `text`; `place` if they do not."""
    end = place
    while text and end < len(words):
        word = "".join(words[end]["word"].split())
        if not text.startswith(word):
            return place
        text, end = text.removeprefix(word), end + 1
    return place if text else end
