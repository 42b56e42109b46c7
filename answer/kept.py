"""Answers in JSON files: of which recording one is, how it was made, and what follows from it.

`scripts/transcribe` and `python -m archive` write two objects beside the endpoint's answer:

    "recording"  its name, size in bytes, time of change (nanoseconds since 1970), sha256, and path
                 or a digest of the path
    "made_with"  the names of the models, and the parameters of the request

A recording is done if such an answer is of this recording, if it was made with the models and the
parameters that are asked for, and if the formats that are asked for exist or follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

from answer.cues import Layout
from answer.subtitles import FORMATS, Rendering, render
from config import InferenceConfig
from transcript import Chunk, SpeakerSegment, Word

# The parameter of each field of Layout: these follow from an answer, as `output` does.
LAYOUT = {each.name: each.name for each in fields(Layout)} | {"speakers": "subtitle_speakers"}
# These change how fast an answer is found.
SPEED = ("batch_size", "assisted", "assistant_model")
# How much `return_timestamps` gives; an answer that gives more gives less, too.
DETAIL = {False: 0, True: 1, "segment": 1, "word": 2}
# These need the times of words; RTTM is made of turns, which an answer has in no other form.
BY_WORD, BY_SEGMENT = frozenset(("srt", "vtt")), frozenset(("txt", "tsv"))
NOT_SAID = "does not say how it was made"
NO_WORDS = "has no word times"
CHANGED = "is of the recording before it changed"

Answer = dict[str, Any]


def for_keeping(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request whose answer is kept: with word times, unless they say otherwise,
    so that subtitles in any layout follow from the answer.
    """
    return {"return_timestamps": "word", **parameters}


def path_digest(path: str) -> str:
    """What tells one path from another without showing where somebody keeps recordings."""
    return _digest(path)[:20]


def is_of(
    answer: Mapping[str, Any], size: int, modified: int, same_path: bool, digest: Callable[[], str]
) -> bool:
    """Whether an answer is of the recording of this size and time of change.

    A recording at the `same_path` is taken for unchanged if both are equal. Otherwise `digest`,
    which reads all of the recording, decides; not if the sizes differ.
    """
    kept = answer.get("recording")
    if not isinstance(kept, dict) or "sha256" not in kept or kept.get("size") != size:
        return False
    if same_path and modified and kept.get("modified") == modified:
        return True
    return bool(kept["sha256"] == digest())


@dataclass(frozen=True, slots=True)
class Request:
    """What a run asks for every recording.

    `models` has names by the field of ModelSettings, or what a server tells of its models; None if
    it does not tell.
    """

    models: Mapping[str, Any] | None
    parameters: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """An answer's `made_with`."""
        return {"models": self.models, "parameters": _without_clips(self.parameters)}

    def why_not(self, answer: Mapping[str, Any]) -> str:
        """Why an answer does not give what is asked for, formats aside: what follows "the answer".
        Empty if it does.
        """
        made = answer.get("made_with")
        if not isinstance(made, dict) or not {"models", "parameters"} <= made.keys():
            return NOT_SAID
        try:
            before, detail = _deciding(made["parameters"])
        except (TypeError, ValueError, AttributeError):
            return NOT_SAID
        now, wanted_detail = _deciding(_without_clips(self.parameters))
        if changed := [name for name in now if now[name] != before[name]]:
            return f"was made with other parameters ({', '.join(changed)})"
        if changed := list(_changed_models(made["models"], self.models, now["diarize"])):
            return f"was made with other models ({', '.join(changed)})"
        return NO_WORDS if wanted_detail > detail else ""

    def laid_out(self, answer: Answer, formats: Collection[str]) -> Answer:
        """The answer with these formats in its `output`, as far as they follow from it.

        If subtitles are among the formats, those that are there get the layout that is asked for.
        """
        made, output = answer["made_with"], dict(answer.get("output") or {})
        layout, before = _layout(self.parameters), made["parameters"]
        if not BY_WORD.isdisjoint(formats) and _layout(before) != layout:
            there = BY_WORD.intersection(output)
            output = {name: text for name, text in output.items() if name not in BY_WORD}
            others = {name: each for name, each in before.items() if name not in LAYOUT.values()}
            asked = {
                name: each for name, each in self.parameters.items() if name in LAYOUT.values()
            }
            made, formats = {**made, "parameters": others | asked}, {*formats, *there}
        missing = {*formats} - output.keys()
        if not missing:
            return answer
        if found := [name for name in FORMATS if name in missing and _follows(answer, name)]:
            rendering = _rendering(answer, layout)
            output |= {name: render(name, rendering) for name in found}
        return {**answer, "made_with": made, "output": output}


def _follows(answer: Answer, name: str) -> bool:
    """Whether a format can be made of an answer's words, or of its segments."""
    return "words" in answer if name in BY_WORD else name in BY_SEGMENT


def _without_clips(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with a digest in place of each voice and of a text, which may be long."""
    kept = {name: value for name, value in parameters.items() if name != "output"}
    if isinstance(text := kept.get("text"), str):
        kept["text"] = f"sha256 {_digest(text)}"
    if clips := kept.get("known_speakers"):
        kept["known_speakers"] = [
            {"name": clip.name, "reference": f"sha256 {_digest(clip.reference[:])}"}
            for clip in InferenceConfig.read({"known_speakers": clips}).known_speakers
        ]
    return kept


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _deciding(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The value of every parameter that changes what an answer says, defaults included; and how
    much it tells of times. Raises ValueError.
    """
    given = dict(parameters)
    clips, text = given.pop("known_speakers", None) or [], given.pop("text", None)
    config = InferenceConfig.read(given)
    left_out = {"return_timestamps", "output", *LAYOUT.values(), *SPEED}
    values = config.model_dump(mode="json", exclude=left_out)
    voices = config.tells_voices_apart or (config.diarize and bool(clips))
    values |= {"diarize": voices, "known_speakers": clips, "text": text}
    return values, DETAIL[config.return_timestamps]


def _changed_models(before: object, now: object, voices: bool) -> Iterator[str]:
    """What differs in the models that an answer is made with, of which the pipeline counts if
    `voices` are told apart.
    """
    if not isinstance(before, dict) or not isinstance(now, Mapping):
        if before != now:
            yield "not all servers name theirs"
        return
    for name in sorted({*before, *now}):
        unused = name in SPEED or (name.startswith("diarization") and not voices)
        if not unused and before.get(name) != now.get(name):
            yield f"{name} was {before.get(name) or 'none'}"


def _layout(parameters: Mapping[str, Any]) -> Layout:
    given = {name: parameters[name] for name in LAYOUT.values() if name in parameters}
    config = InferenceConfig.read(given)
    return Layout(**{field: getattr(config, name) for field, name in LAYOUT.items()})


def _rendering(answer: Answer, layout: Layout) -> Rendering:
    """What the answer's formats are made from, but for RTTM."""
    words = iter([_word(each) for each in answer.get("words", ())])
    segments, chunks = [], []
    for each in answer["speakers"]:
        (start, end), own = each["timestamp"], tuple(map(_word, each.get("words", ())))
        segment = SpeakerSegment(each["speaker"], each["text"], start, end, own)
        segments.append(replace(segment, channel=each.get("channel")))
    for each in answer["chunks"]:
        (start, end), text = each["timestamp"], each["text"]
        own = () if segments else tuple(_words_of(text, words))
        chunks.append(Chunk(text, start, end, words=own, channel=each.get("channel")))
    return Rendering(answer["duration"], chunks, segments, layout=layout)


def _words_of(text: str, words: Iterator[Word]) -> Iterator[Word]:
    """The words that a chunk's text is made of."""
    left = len(text)
    while left > 0 and (word := next(words, None)) is not None:
        left -= len(word.text)
        yield word


def _word(each: Mapping[str, Any]) -> Word:
    start, end = each["timestamp"]
    return Word(each["word"], start, end, each.get("speaker"), overlap=each.get("overlap", False))
