"""What the fields of a form ask for, checked before any audio is decoded.

Every field is taken from the form by whoever serves it, and what is left when all have been asked
is refused by name. The endpoint's own parameters are fields too (the SDK's `extra_body`), except
those that another field of the API already decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config import BOOLEANS, InferenceConfig
from endpoint import Endpoint
from errors import InvalidParameter, Unsupported
from server.openai_api.errors import InvalidField
from server.openai_api.form import CLIPS, Form, shown
from server.openai_api.models import require_model
from transcription_request import TranscriptionRequest

TRANSCRIBE, TRANSLATE = "transcribe", "translate"
FILES = ("srt", "vtt")
FORMATS = {
    TRANSCRIBE: ("json", "text", "srt", "verbose_json", "vtt", "diarized_json"),
    TRANSLATE: ("json", "text", "srt", "verbose_json", "vtt"),
}
WITHOUT_SPEAKERS = ("json", "text")
GRANULARITIES = ("word", "segment")
HINTS = ("num_speakers", "min_speakers", "max_speakers", "known_speakers")
SUBTITLES = (
    "max_line_width",
    "max_line_count",
    "max_words_per_line",
    "highlight_words",
    "subtitle_speakers",
)
INSTEAD = {
    "return_timestamps": "timestamp_granularities",
    "output": "response_format",
    "known_speakers": "known_speaker_names",
}
NAMES, REFERENCES = "known_speaker_names", CLIPS
FIELD_NAMES = {"known_speakers": NAMES}
VAD_OPTIONS = ("prefix_padding_ms", "silence_duration_ms", "threshold")
# How the endpoint's own refusals name a clip's name or sound.
CLIP = re.compile(r"known_speakers(?:(?P<place>\[\d+\])\.(?P<part>\w+))?: ", re.ASCII)
LONGEST_STRATEGY = 1000  # characters


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """A request of the audio API: what the endpoint is asked, and what becomes of its answer.

    `format` is the response format, with `granularities` if it is verbose. `logprobs` asks for the
    log-probability of every token, and `speakers` says that there will be some.
    """

    request: TranscriptionRequest
    format: str
    granularities: frozenset[str] = frozenset()
    stream: bool = False
    logprobs: bool = False
    speakers: bool = False

    @property
    def task(self) -> str:
        """What is done: transcribe or translate."""
        return self.request.config.task


class Fields:
    """The fields of a form that nobody has asked for yet."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._left = dict(fields)

    def texts(self, name: str) -> list[str]:
        """Every value of a list, without empty ones."""
        return [value for value in self._left.pop(name, ()) if value.strip()]

    def entries(self, name: str) -> tuple[str, ...]:
        """Every value of a list whose places count, empty ones too; none if all are empty."""
        values = tuple(self._left.pop(name, ()))
        return values if any(value.strip() for value in values) else ()

    def text(self, name: str) -> str | None:
        """The value of a field; None where it is missing or empty."""
        values = self.texts(name)
        if len(values) > 1:
            raise InvalidField(f"{name}: is given more than once")
        return values[0] if values else None

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of the `choices`."""
        value = self.text(name) or default
        if value not in choices:
            raise InvalidField(f"{name}: should be one of {', '.join(choices)}")
        return value

    def choices(self, name: str, choices: Collection[str]) -> frozenset[str]:
        """Any of the `choices`, none of them twice."""
        values = self.texts(name)
        if len(values) > len(choices) or len(set(choices).intersection(values)) < len(values):
            raise InvalidField(f"{name}: should be of {', '.join(choices)}, each once")
        return frozenset(values)

    def flag(self, name: str) -> bool | None:
        """True or false; None where it is missing."""
        value = self.text(name)
        if value is not None and value.lower() not in BOOLEANS:
            raise InvalidField(f"{name}: should be true or false")
        return None if value is None else BOOLEANS[value.lower()]

    def require_none(self, name: str, reason: str) -> None:
        """Raises Unsupported where a field is given."""
        if self.texts(name):
            raise Unsupported(f"{name}: {reason}")

    def parameters(self) -> dict[str, Any]:
        """The endpoint's own parameters. Raises Unsupported for what is left beside them."""
        given = {name: value for name in InferenceConfig.model_fields if (value := self.text(name))}
        for name, values in self._left.items():
            if any(value.strip() for value in values):
                raise Unsupported(f"{shown(name)}: this server has no such field")
        return given


def read_fields(form: Form, task: str, endpoint: Endpoint) -> AudioRequest:
    """What a form asks for on the route of `task`.

    Raises InvalidParameter, Unsupported or ModelNotFound.
    """
    fields = Fields(form.fields)
    if model := fields.text("model"):
        require_model(model, endpoint)
    wanted = fields.choice("response_format", FORMATS[task], "json")
    granularities = _granularities(fields, wanted)
    logprobs = _logprobs(fields, wanted)
    stream = fields.flag("stream") or False
    _check_chunking(fields)
    for name, other in INSTEAD.items():
        fields.require_none(name, f"{other} says that here")
    language = _language(fields)
    keywords, hotwords = fields.texts("keywords"), fields.texts("hotwords")
    if keywords and hotwords:
        raise InvalidField("keywords: are the same as hotwords; give one of them")
    known = _known_speakers(fields)
    channel_names = fields.texts("channel_names")
    diarize, given = fields.flag("diarize"), fields.parameters()
    separate = given.get("channels") == "separate"
    speakers = _speakers([*given, *known], diarize, wanted, endpoint, separate)
    if given.pop("task", task) != task:
        raise InvalidField(f"task: on this route it is {task}")
    parameters = {
        **given,
        **known,
        "task": task,
        "language": language,
        # Separate channels are their speakers, without any diarization.
        "diarize": diarize if separate else speakers,
        "channel_names": channel_names,
        "hotwords": keywords or hotwords,
        "output": [wanted] if wanted in FILES else [],
        "return_timestamps": "word" if "word" in granularities else True,
    }
    if wanted == "verbose_json":
        parameters["group_by_speaker"] = False  # a speaker for each segment
    request = _parse(form.file, parameters, bool(keywords), endpoint)
    return AudioRequest(request, wanted, granularities, stream, logprobs, speakers)


def _granularities(fields: Fields, wanted: str) -> frozenset[str]:
    given = fields.choices("timestamp_granularities", GRANULARITIES)
    if wanted == "verbose_json":
        return given or frozenset({"segment"})
    if given:
        raise Unsupported("timestamp_granularities: response_format should be verbose_json")
    return given


def _logprobs(fields: Fields, wanted: str) -> bool:
    given = fields.choices("include", ("logprobs",))
    if given and wanted != "json":
        raise Unsupported("include: for logprobs response_format should be json")
    return bool(given)


def _check_chunking(fields: Fields) -> None:
    """Audio is always cut where nobody speaks, so that both strategies name what is done.

    Their options mean something else for a file. Clients that are no SDK may write the object as
    JSON.
    """
    strategy, kind = fields.text("chunking_strategy"), fields.text("chunking_strategy[type]")
    names = [name for name in VAD_OPTIONS if fields.texts(f"chunking_strategy[{name}]")]
    if strategy and strategy.lstrip().startswith("{"):
        if len(strategy) > LONGEST_STRATEGY:
            raise InvalidField("chunking_strategy: is too long")
        try:
            told = json.loads(strategy)
        except ValueError as error:
            raise InvalidField("chunking_strategy: is not JSON") from error
        strategy, kind = None, str(told.pop("type", None))
        names += [shown(name) for name, value in told.items() if value is not None]
    if names:
        raise Unsupported(f"chunking_strategy[{names[0]}]: vad_parameters say that here")
    if strategy not in (None, "auto") or kind not in (None, "server_vad"):
        raise InvalidField("chunking_strategy: should be auto or of type server_vad")


def _language(fields: Fields) -> str | None:
    """The language, whether it is given as one or as a list of one."""
    languages = list(dict.fromkeys(fields.texts("languages")))
    if len(languages) > 1:
        raise Unsupported("languages: one, or none to detect it among all")
    language = fields.text("language")
    if language and languages and [language] != languages:
        raise InvalidField("languages: contradicts language")
    return language or (languages[0] if languages else None)


def _known_speakers(fields: Fields) -> dict[str, Any]:
    """The endpoint's parameter of that name, of two lists of equal length."""
    names, references = fields.entries(NAMES), fields.entries(REFERENCES)
    if len(names) != len(references):
        raise InvalidField(f"{REFERENCES}: should be as many as {NAMES}")
    pairs = zip(names, references, strict=True)
    clips = [{"name": name, "reference": reference} for name, reference in pairs]
    return {"known_speakers": clips} if clips else {}


def _speakers(
    given: Collection[str],
    diarize: bool | None,
    wanted: str,
    endpoint: Endpoint,
    separate: bool,
) -> bool:
    """Whether speakers are looked for: where the format has them, or where a field asks for it;
    `separate` channels are some.

    Raises Unsupported, by the field's name, where they cannot be had or have no place.
    """
    asked = [FIELD_NAMES.get(name, name) for name in HINTS if name in given]
    asked += ["diarize"] if diarize else []
    for name in SUBTITLES:
        if name in given and wanted not in FILES:
            raise Unsupported(f"{name}: response_format should be srt or vtt")
    if "group_by_speaker" in given and wanted != "diarized_json":
        raise Unsupported("group_by_speaker: response_format should be diarized_json")
    if asked and wanted in WITHOUT_SPEAKERS:
        raise Unsupported(f"{asked[0]}: response_format {wanted} has no place for speakers")
    if wanted == "diarized_json":
        if diarize is False:
            raise InvalidField("diarize: response_format diarized_json has speakers")
        asked += [] if separate else ["response_format"]
    if diarize is False or not asked:
        return separate
    if endpoint.diarizer is None:
        raise Unsupported(f"{asked[-1]}: no diarization model is loaded to find speakers")
    return True


def _parse(
    file: bytes, parameters: dict[str, Any], keywords: bool, endpoint: Endpoint
) -> TranscriptionRequest:
    """The endpoint's request; errors name the field that the client sent."""
    try:
        return endpoint.parse({"inputs": file, "parameters": parameters}, as_text=True)
    except InvalidParameter as error:
        text = str(error).removeprefix(f"{error.code}: ")
        if keywords and text.startswith("hotwords"):
            raise InvalidField(text.replace("hotwords", "keywords", 1)) from error
        if clip := CLIP.match(text):
            field = REFERENCES if clip["part"] == "reference" else NAMES
            raise InvalidField(f"{field}{clip['place'] or ''}: {text[clip.end() :]}") from error
        raise
