"""The settings of a session, which `session.update` changes in parts.

An update has only the fields that change. Null turns a field off, or sets its default if it cannot
be off. A refused update changes nothing. Fields of OpenAI's conversations that a transcription
session lacks are ignored with a warning. The flat form of OpenAI's beta is accepted.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from config import MAX_HOTWORDS, MAX_PROMPT_CHARACTERS
from whosaid.endpoint import Endpoint
from whosaid.endpoint.request import ignored_names
from whosaid.errors import ClientError, Unsupported
from whosaid.live.settings import AudioFormat, Delay, LiveSettings, TurnSettings
from whosaid.payload.encodings import Base64Text
from whosaid.payload.languages import script_warning
from whosaid.payload.parameters import MAX_CLIPS, Phrase
from whosaid.server.errors import Kind, Refusal
from whosaid.server.openai_api import form

LOGPROBS = "item.input_audio_transcription.logprobs"
WORDS = "item.input_audio_transcription.words"
SEGMENTS = "item.input_audio_transcription.segments"
INCLUDES = (LOGPROBS, WORDS, SEGMENTS)
# The flat fields of OpenAI's beta with their current paths, and its names of formats.
FLAT = {
    "input_audio_format": "format",
    "input_audio_noise_reduction": "noise_reduction",
    "input_audio_transcription": "transcription",
    "turn_detection": "turn_detection",
}
OLD_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
LONGEST_PADDING_MS, SHORTEST_SILENCE_MS, LONGEST_SILENCE_MS = 5_000, 50, 30_000
LONGEST_NAME = 200
TRANSCRIPTION, TURNS = "audio.input.transcription", "audio.input.turn_detection"
# Paths in a session of the endpoint's parameters; of others it is TRANSCRIPTION and their name.
FIELDS = {
    "hotwords": f"{TRANSCRIPTION}.keywords",
    "known_speakers": f"{TRANSCRIPTION}.{form.REFERENCES}",
    "speakers": "include",
}
PARAMETER = re.compile(r"(?P<name>\w+)(?P<place>\[\d+\])?(?:\.(?P<part>\w+))?(?:\.\w+)*", re.ASCII)


def _text(value: object) -> object:
    if not isinstance(value, Base64Text | str):
        raise PydanticCustomError("string_type", "should be a string")
    return value


Text = Annotated[Base64Text | str, PlainValidator(_text)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]


def _or_empty(part: Any) -> Any:  # noqa: ANN401
    return {} if part is None else part


class Given(BaseModel):
    """A part of a client's message; only known fields are allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    @classmethod
    def read(cls, given: object) -> Self:
        """Return the validated fields. Raises Refusal for the first error, with its path."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        steps = [f"[{x}]" if isinstance(x, int) else f".{form.shown(x)}" for x in first["loc"]]
        path = "".join(steps).removeprefix(".")
        kind, text = first["type"], first["msg"].replace("Input should", "should")
        if kind == "extra_forbidden":
            raise Refusal(Kind.unknown_parameter, "there is no such field", path)
        if kind == "missing":
            raise Refusal(Kind.missing_required_parameter, "is required", path)
        wrong = Kind.invalid_type if kind.endswith("_type") else Kind.invalid_value
        raise Refusal(wrong, text, path)


class SessionPart(BaseModel):
    """A part of a session; fields that are not set stay as they are, unknown ones are ignored."""

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True)

    def ignored(self, path: str = "") -> list[str]:
        """Return the paths of all unknown fields that are not null."""
        extra = self.model_extra or {}
        names = [f"{path}{name}" for name, value in extra.items() if value is not None]
        for name in type(self).model_fields:
            part = getattr(self, name)
            names += part.ignored(f"{path}{name}.") if isinstance(part, SessionPart) else ()
        return names


class FormatGiven(SessionPart):
    """`audio.input.format`."""

    type: Name
    rate: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_old_name(cls, given: object) -> object:
        given = {"type": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("type"), str):
            return given
        return {**given, "type": OLD_FORMATS.get(given["type"], given["type"])}


class TranscriptionGiven(SessionPart):
    """`audio.input.transcription`."""

    model: Name | None = None
    language: Name | None = None
    languages: Annotated[list[Name], Field(max_length=100)] | None = None
    prompt: str | None = Field(default=None, max_length=MAX_PROMPT_CHARACTERS)
    keywords: Annotated[list[Phrase], Field(max_length=MAX_HOTWORDS)] | None = None
    delay: Delay | None = None
    known_speaker_names: Annotated[list[Name], Field(max_length=MAX_CLIPS)] | None = None
    known_speaker_references: Annotated[list[Text], Field(max_length=MAX_CLIPS)] | None = None
    known_speaker_threshold: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)


class TurnsGiven(SessionPart):
    """`audio.input.turn_detection`. `create_response` and `interrupt_response` have no effect,
    because a transcription session has no responses.
    """

    type: Name | None = None
    threshold: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    prefix_padding_ms: int | None = Field(default=None, ge=0, le=LONGEST_PADDING_MS)
    silence_duration_ms: int | None = Field(
        default=None, ge=SHORTEST_SILENCE_MS, le=LONGEST_SILENCE_MS
    )
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None


class InputGiven(SessionPart):
    """`audio.input`."""

    format: FormatGiven | None = None
    transcription: TranscriptionGiven | None = None
    turn_detection: TurnsGiven | None = None


class AudioGiven(SessionPart):
    """`audio`."""

    input: InputGiven | None = None


class SessionGiven(SessionPart):
    """The `session` of an update, or of a request for a secret."""

    type: Name | None = None
    audio: AudioGiven | None = None
    include: list[Literal[INCLUDES]] | None = Field(default=None, max_length=len(INCLUDES))  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, session: object) -> object:
        """Move the beta's flat fields, and a conversation's `model` if there is no other."""
        if not isinstance(session, dict):
            return session
        flat = {FLAT[name]: value for name, value in session.items() if name in FLAT}
        rest = {name: value for name, value in session.items() if name not in (*FLAT, "model")}
        audio = _or_empty(rest.get("audio"))
        given = _or_empty(audio.get("input")) if isinstance(audio, dict) else None
        if not isinstance(given, dict) or len(rest) == len(session):
            return rest
        given = flat | given
        heard = _or_empty(given.get("transcription"))
        if "model" in session and isinstance(heard, dict):
            given["transcription"] = {"model": session["model"]} | heard
        return {**rest, "audio": {**audio, "input": given}}


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The effective settings; `model` is the client's name for it."""

    settings: LiveSettings = field(default_factory=LiveSettings)
    format: AudioFormat = AudioFormat.PCM_24000
    model: str | None = None
    include: frozenset[str] = frozenset()

    def shown(self, identity: str, expires_at: int, loaded: str) -> dict[str, Any]:
        """OpenAI's session object: RealtimeTranscriptionSessionCreateResponse in the SDK.

        `expires_at` is in seconds since 1970, `loaded` the name of the loaded model.
        """
        given, turns = self.settings, self.settings.turn_detection
        kind, rate = self.format.value
        return {
            "id": identity,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "expires_at": expires_at,
            "include": [name for name in INCLUDES if name in self.include] or None,
            "audio": {
                "input": {
                    "format": {"type": kind} | ({"rate": rate} if kind == "audio/pcm" else {}),
                    "noise_reduction": None,
                    "transcription": {
                        "model": self.model or loaded,
                        "language": given.language,
                        "prompt": given.prompt or "",
                        "keywords": [
                            each if isinstance(each, str) else each.model_dump(mode="json")
                            for each in given.keywords
                        ],
                        "delay": given.delay,
                        "known_speaker_names": [each.name for each in given.known_speakers],
                        "known_speaker_threshold": given.known_speaker_threshold,
                    },
                    "turn_detection": turns
                    and {
                        "type": "server_vad",
                        "threshold": turns.threshold,
                        "prefix_padding_ms": turns.prefix_padding_ms,
                        "silence_duration_ms": turns.silence_duration_ms,
                    },
                }
            },
        }


def merged(config: SessionConfig, given: SessionGiven, endpoint: Endpoint) -> SessionConfig:
    """Return the settings after an update. Raises ClientError; `param` begins below `session`."""
    if given.type not in (None, "transcription", "realtime"):
        raise Refusal(Kind.unsupported_value, "this server has only transcription sessions", "type")
    if "include" in given.model_fields_set:
        config = replace(config, include=frozenset(given.include or ()))
    part = (given.audio and given.audio.input) or InputGiven()
    if "format" in part.model_fields_set:
        config = replace(config, format=_format(part.format))
    settings = config.settings
    if "turn_detection" in part.model_fields_set:
        turns = _turns(settings.turn_detection, part.turn_detection)
        settings = replace(settings, turn_detection=turns)
    if part.transcription is not None:
        if "model" in part.transcription.model_fields_set:
            config = replace(config, model=part.transcription.model)
        settings = _transcription(settings, part.transcription, endpoint)
    speakers = SEGMENTS in config.include and endpoint.diarizer is not None
    if settings.known_speakers and not speakers:
        text = f"include should have {SEGMENTS}, and a diarization model be loaded"
        raise Refusal(Kind.unsupported_value, text, FIELDS["known_speakers"])
    return replace(config, settings=replace(settings, speakers=speakers))


def ignored_wishes(given: SessionGiven, endpoint: Endpoint) -> tuple[str, ...]:
    """Return a warning for everything in an update that is ignored or replaced."""
    part = (given.audio and given.audio.input) or InputGiven()
    heard, turns = part.transcription or TranscriptionGiven(), part.turn_detection or TurnsGiven()
    off = "transcription" in part.model_fields_set and part.transcription is None
    told = {
        "type: is transcription here: there are no responses": given.type == "realtime",
        f"{TURNS}.type: is server_vad here: a turn ends with a silence": _is_other_vad(turns.type),
        f"{TURNS}.idle_timeout_ms: is ignored": turns.idle_timeout_ms is not None,
        f"{TRANSCRIPTION}: null is ignored, because it cannot be turned off here": off,
    }
    names = given.ignored()
    others = (
        ignored_names("session fields", names) if names else None,
        heard.model and form.model_warning(heard.model, endpoint, f"{TRANSCRIPTION}.model"),
        *map(script_warning, (heard.language, *(heard.languages or ()))),
    )
    warnings = [text for text, holds in told.items() if holds]
    return tuple(dict.fromkeys([*warnings, *(text for text in others if text)]))


@contextmanager
def below(path: str) -> Iterator[None]:
    """Make errors in the block name the session's fields, below `path`."""
    try:
        yield
    except Refusal as error:
        if error.param is None:
            raise
        raise Refusal(error.kind, error.reason, f"{path}.{error.param}") from error
    except ClientError as error:
        found = PARAMETER.fullmatch(error.param or "")
        if not found:
            raise
        kind = Kind.unsupported_value if isinstance(error, Unsupported) else Kind.invalid_value
        name = form.NAMES if found["part"] == "name" else found["name"]
        field = FIELDS.get(name, f"{TRANSCRIPTION}.{name}")
        raise Refusal(kind, error.reason, f"{path}.{field}{found['place'] or ''}") from error


def _format(given: FormatGiven | None) -> AudioFormat:
    if given is None:
        return AudioFormat.PCM_24000
    rates = [each.rate for each in AudioFormat if each.value[0] == given.type]
    if not rates:
        kinds = ", ".join(dict.fromkeys(each.value[0] for each in AudioFormat))
        raise Refusal(Kind.invalid_value, f"should be one of {kinds}", "audio.input.format.type")
    rate = given.rate or rates[0]
    if rate not in rates:
        wanted = " or ".join(map(str, rates))
        raise Refusal(Kind.invalid_value, f"should be {wanted}", "audio.input.format.rate")
    return AudioFormat((given.type, rate))


def _turns(now: TurnSettings | None, given: TurnsGiven | None) -> TurnSettings | None:
    if given is None or given.type == "none":
        return None
    if given.type not in (None, "server_vad") and not _is_other_vad(given.type):
        raise Refusal(
            Kind.unsupported_value, "should be server_vad, or turn_detection null", f"{TURNS}.type"
        )
    default = TurnSettings()
    bounds = {"threshold", "prefix_padding_ms", "silence_duration_ms"}
    changes = given.model_dump(include=bounds, exclude_unset=True)
    for name, value in changes.items():
        changes[name] = getattr(default, name) if value is None else value
    return replace(now or default, **changes)


def _is_other_vad(kind: str | None) -> bool:
    """Return True if `kind` is another turn detector, for example OpenAI's `semantic_vad`."""
    return kind is not None and "vad" in kind and kind != "server_vad"


def _transcription(
    settings: LiveSettings, given: TranscriptionGiven, endpoint: Endpoint
) -> LiveSettings:
    """Return the settings after an update. Raises ClientError if they are invalid for a file."""
    names = given.model_fields_set
    language, prompt, keywords = settings.language, settings.prompt, settings.keywords
    if names & {"language", "languages"}:
        language = form.one_language(given.language, given.languages or ())
    parameters = {
        "language": language,
        "prompt": given.prompt if "prompt" in names else prompt,
        "hotwords": list((given.keywords or ()) if "keywords" in names else keywords),
        "diarize": False,
        "known_speakers": form.paired_clips(
            given.known_speaker_names or (), given.known_speaker_references or ()
        ),
    }
    checked = endpoint.parse({"inputs": "", "parameters": parameters}).config
    kept = {"delay", "known_speaker_threshold"}
    changes = given.model_dump(include=kept, exclude_unset=True)
    if names & {form.NAMES, form.REFERENCES}:
        changes["known_speakers"] = tuple(checked.known_speakers)
    return replace(
        settings,
        language=checked.language,
        prompt=checked.prompt or None,
        keywords=tuple(checked.hotwords),
        **changes,
    )
