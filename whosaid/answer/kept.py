"""Decides whether an answer kept in a JSON file can be reused, and renders more formats from it.

`scripts/transcribe` and `python -m extras.archive` write two objects beside the endpoint's answer:

    "recording"  its name, size in bytes, time of change (nanoseconds since 1970), sha256, and path
                 or a digest of the path
    "made_with"  the names of the models, and the parameters of the request

A recording is done if an answer is of this recording, was made with the requested models and
parameters, and has the requested formats or the words to make them from.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from config import InferenceConfig, OutputFormat
from whosaid.answer.cues import LAYOUT as OF_CUES
from whosaid.answer.formats import FORMATS
from whosaid.answer.rendering import LAYOUT, read_rendering

# Parameters and models that change only the speed.
SPEED = ("batch_size", "assisted", "assistant_model")
# Detail of the times, by `return_timestamps`; an answer also serves requests for less detail.
DETAIL = {False: 0, True: 1, "segment": 1, "word": 2}
# Formats made of words, and of segments. RTTM needs turns, which a JSON answer does not have.
BY_WORD: frozenset[OutputFormat] = frozenset(("srt", "vtt"))
BY_SEGMENT: frozenset[OutputFormat] = frozenset(("txt", "md", "docx", "html", "tsv"))
LAYOUTS = {"srt": OF_CUES, "vtt": OF_CUES, "txt": ("txt_times",)}
# Formats that commands make from an answer instead of requesting them.
DOCUMENTS = BY_SEGMENT - {"txt", "tsv"}
NOT_SAID = "does not say how it was made"
NO_WORDS = "has no word times"
CHANGED = "is for an earlier version of the recording"

Answer = dict[str, Any]


def for_keeping(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parameters` with word times by default, which suffice for every subtitle layout."""
    return {"return_timestamps": "word", **parameters}


def path_digest(path: str) -> str:
    """Return a digest that identifies a path without revealing it."""
    return _digest(path)[:20]


def is_of(
    answer: Mapping[str, Any], size: int, modified: int, same_path: bool, digest: Callable[[], str]
) -> bool:
    """Return whether an answer is of the recording with this size and time of change: if both and
    the path are equal or, for equal sizes, by `digest`, which reads the whole recording.
    """
    kept = answer.get("recording")
    if not isinstance(kept, dict) or kept.get("size") != size:
        return False
    if same_path and modified and kept.get("modified") == modified:
        return True
    return bool(kept.get("sha256") == digest())


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The models and parameters that a run wants for every recording. `models` are names by the
    field of ModelSettings, a server's description of its models, or None without that.
    """

    models: Mapping[str, Any] | None
    parameters: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"models": self.models, "parameters": _without_clips(self.parameters)}

    def why_not(self, answer: Mapping[str, Any]) -> str:
        """Return why an answer, in any format, cannot be reused, as a sentence's end, or ""."""
        made = answer.get("made_with")
        if not isinstance(made, dict) or not {"models", "parameters"} <= made.keys():
            return NOT_SAID
        try:
            before, detail = _deciding(made["parameters"])
        except (TypeError, ValueError, AttributeError):
            return NOT_SAID
        now, wanted_detail = _deciding(_without_clips(self.parameters))
        if now["text"] is None:  # a corrected text stays
            before["text"] = None
        if changed := [name for name in now if now[name] != before[name]]:
            return f"was made with other parameters ({', '.join(changed)})"
        if changed := list(_changed_models(made["models"], self.models, now["diarize"])):
            return f"was made with other models ({', '.join(changed)})"
        return NO_WORDS if wanted_detail > detail else ""

    def laid_out(self, answer: Answer, formats: Collection[str]) -> Answer:
        """Return the answer; add all `formats` that can be made from it to its `output`.

        If the formats include one with a layout, existing ones get the requested layout.
        """
        made, output = answer["made_with"], dict(answer.get("output") or {})
        layout, before = layout_of(self.parameters), made["parameters"]
        old = layout_of(before)
        changed = {
            form
            for form, names in LAYOUTS.items()
            if any(getattr(layout, name) != getattr(old, name) for name in names)
        }
        if not changed.isdisjoint(formats):
            existing = changed.intersection(output)
            output = {name: text for name, text in output.items() if name not in changed}
            others = {name: each for name, each in before.items() if name not in LAYOUT}
            parameters = others | _layout_parameters(self.parameters)
            made, formats = {**made, "parameters": parameters}, {*formats, *existing}
        missing = {*formats} - output.keys()
        if not missing:
            return answer
        output |= rendered(answer, missing, layout)
        return {**answer, "made_with": made, "output": output}


def is_corrected(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer has a text of the client."""
    made = answer.get("made_with") or {}
    return (made.get("parameters") or {}).get("text") is not None


def with_documents(
    answer: Answer, formats: Collection[str], parameters: Mapping[str, Any]
) -> Answer:
    """Return the answer with those of `formats` that are DOCUMENTS, for a request's parameters."""
    texts = rendered(answer, DOCUMENTS.intersection(formats), layout_of(parameters))
    return {**answer, "output": {**(answer.get("output") or {}), **texts}} if texts else answer


def rendered(
    answer: Mapping[str, Any], formats: Collection[str], layout: InferenceConfig
) -> dict[str, str]:
    """Return those of `formats` that can be made from an answer's JSON, in order of FORMATS."""
    possible = BY_SEGMENT | BY_WORD if "words" in answer else BY_SEGMENT
    names = [name for name in FORMATS if name in formats and name in possible]
    if not names:
        return {}
    told = answer.get("recording")
    if layout.recording_name is None and isinstance(told, dict) and told.get("name"):
        layout = layout.model_copy(update={"recording_name": told["name"]})
    rendering = read_rendering(answer, layout)
    return {name: FORMATS[name](rendering) for name in names}


def _without_clips(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without `output`; digests replace reference clips and the text."""
    kept = {name: value for name, value in parameters.items() if name != "output"}
    if isinstance(text := kept.get("text"), str):
        kept["text"] = f"sha256 {_digest(text)}"
    if clips := kept.get("known_speakers"):
        kept["known_speakers"] = [
            {"name": clip.name, "reference": f"sha256 {_digest(clip.content)}"}
            for clip in InferenceConfig.read({"known_speakers": clips}).known_speakers
        ]
    return kept


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _deciding(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the parameters that affect an answer's content, with defaults, and its DETAIL."""
    given = dict(parameters)
    clips, text = given.pop("known_speakers", None) or [], given.pop("text", None)
    config = InferenceConfig.read(given)
    left_out = {"return_timestamps", "output", *LAYOUT, *SPEED}
    values = config.model_dump(mode="json", exclude=left_out)
    voices = config.tells_voices_apart or (config.diarize and bool(clips))
    values |= {"diarize": voices, "known_speakers": clips, "text": text}
    return values, DETAIL[config.return_timestamps]


def _changed_models(before: object, now: object, voices: bool) -> Iterator[str]:
    """Yield a text for each changed model; the diarization model counts only with `voices`."""
    if not isinstance(before, dict) or not isinstance(now, Mapping):
        if before != now:
            yield "not all servers name theirs"
        return
    for name in sorted({*before, *now}):
        unused = name in SPEED or (name.startswith("diarization") and not voices)
        if not unused and before.get(name) != now.get(name):
            yield f"{name} was {before.get(name) or 'none'}"


def _layout_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in parameters.items() if name in LAYOUT}


def layout_of(parameters: Mapping[str, Any]) -> InferenceConfig:
    return InferenceConfig.read(_layout_parameters(parameters))
