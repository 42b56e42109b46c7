"""What a session does, as `session.update` says it part by part.

An update has only what changes: what it does not name stays, and null turns off, or back to the
default where there is nothing to turn off. An update that is refused changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from config import MAX_HOTWORDS, MAX_PROMPT_CHARACTERS
from endpoint import Endpoint
from errors import ClientError, Unsupported
from live.settings import AudioFormat, Delay, LiveSettings, TurnSettings
from payload.base64_text import Base64Text
from payload.reference_clips import MAX_CLIPS, ReferenceClip
from server.openai_api.errors import FieldError
from server.openai_api.form import shown
from server.openai_api.models import OPENAI_NAMES, model_id
from server.realtime.errors import (
    InvalidType,
    InvalidValue,
    MissingParameter,
    UnknownParameter,
    UnsupportedValue,
)

LOGPROBS = "item.input_audio_transcription.logprobs"
WORDS = "item.input_audio_transcription.words"
SEGMENTS = "item.input_audio_transcription.segments"
INCLUDES = (LOGPROBS, WORDS, SEGMENTS)
# OpenAI's names of models that listen, beside those of its audio API.
LIVE_NAMES = re.compile(r"gpt-([\w.]+-)*realtime(-[\w.]+)*", re.ASCII)
LONGEST_PADDING_MS, SHORTEST_SILENCE_MS, LONGEST_SILENCE_MS = 5_000, 50, 30_000
LONGEST_NAME, LONGEST_KEYWORD = 200, 100
DEFAULT_RATE = 24_000
TRANSCRIPTION = "audio.input.transcription"
# Where a session has the endpoint's parameters.
FIELDS = {
    "language": f"{TRANSCRIPTION}.language",
    "prompt": f"{TRANSCRIPTION}.prompt",
    "hotwords": f"{TRANSCRIPTION}.keywords",
    "known_speakers": f"{TRANSCRIPTION}.known_speaker_references",
    "speakers": "include",
}
NAMED = re.compile(r"[A-Z_]+: (?P<field>\w+)(?P<part>[\w.\[\]]*): (?P<text>.*)", re.ASCII)


def _text(value: object) -> object:
    """JSON's text, long or short."""
    if not isinstance(value, Base64Text | str):
        raise PydanticCustomError("string_type", "should be a string")
    return value


Text = Annotated[Base64Text | str, PlainValidator(_text)]


class Given(BaseModel):
    """A part of an update; fields that are not set stay as they are."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class FormatGiven(Given):
    """`audio.input.format`."""

    type: str = Field(max_length=LONGEST_NAME)
    rate: int | None = None


class TranscriptionGiven(Given):
    """`audio.input.transcription`."""

    model: str | None = Field(default=None, max_length=LONGEST_NAME)
    language: str | None = Field(default=None, max_length=LONGEST_NAME)
    languages: (
        Annotated[list[Annotated[str, Field(max_length=LONGEST_NAME)]], Field(max_length=100)]
        | None
    ) = None
    prompt: str | None = Field(default=None, max_length=MAX_PROMPT_CHARACTERS)
    keywords: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=LONGEST_KEYWORD)]],
            Field(max_length=MAX_HOTWORDS),
        ]
        | None
    ) = None
    delay: Delay | None = None
    known_speaker_names: (
        Annotated[list[Annotated[str, Field(max_length=LONGEST_NAME)]], Field(max_length=MAX_CLIPS)]
        | None
    ) = None
    known_speaker_references: Annotated[list[Text], Field(max_length=MAX_CLIPS)] | None = None
    known_speaker_threshold: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)


class TurnsGiven(Given):
    """`audio.input.turn_detection`. Whether a response is created or interrupted means nothing
    here, as in OpenAI's transcription sessions: there is none.
    """

    type: str | None = Field(default=None, max_length=LONGEST_NAME)
    threshold: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    prefix_padding_ms: int | None = Field(default=None, ge=0, le=LONGEST_PADDING_MS)
    silence_duration_ms: int | None = Field(
        default=None, ge=SHORTEST_SILENCE_MS, le=LONGEST_SILENCE_MS
    )
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None
    eagerness: str | None = Field(default=None, max_length=LONGEST_NAME)


class InputGiven(Given):
    """`audio.input`."""

    format: FormatGiven | None = None
    transcription: TranscriptionGiven | None = None
    turn_detection: TurnsGiven | None = None
    noise_reduction: dict[str, Any] | None = None


class AudioGiven(Given):
    """`audio`."""

    input: InputGiven | None = None


class SessionGiven(Given):
    """The `session` of an update, or of a request for a secret."""

    type: str | None = Field(default=None, max_length=LONGEST_NAME)
    audio: AudioGiven | None = None
    include: list[Literal[INCLUDES]] | None = Field(default=None, max_length=len(INCLUDES))  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The effective settings; `model` is the name that the client gave."""

    settings: LiveSettings = field(default_factory=LiveSettings)
    format: AudioFormat = AudioFormat.PCM_24000
    model: str | None = None
    include: frozenset[str] = frozenset()

    def shown(self, identity: str, expires_at: int, loaded: str) -> dict[str, Any]:
        """OpenAI's session object: RealtimeTranscriptionSessionCreateResponse in the SDK.

        `expires_at` is in seconds since 1970, and `loaded` the model that answers to all names.
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
                    "format": {"type": kind, "rate": rate}
                    if kind == "audio/pcm"
                    else {"type": kind},
                    "noise_reduction": None,
                    "transcription": {
                        "model": self.model or loaded,
                        "language": given.language,
                        "prompt": given.prompt or "",
                        "keywords": list(given.keywords),
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
    """The settings after an update.

    Raises ClientError; a FieldError's `param` begins below `session`.
    """
    if given.type not in (None, "transcription"):
        raise UnsupportedValue("this server has transcription sessions alone", "type")
    if "include" in given.model_fields_set:
        config = replace(config, include=frozenset(given.include or ()))
    speakers = SEGMENTS in config.include and endpoint.diarizer is not None
    if given.audio and given.audio.input:
        config = _merged_input(config, given.audio.input, endpoint)
    if config.settings.known_speakers and not speakers:
        text = f"include should have {SEGMENTS}, and a diarization model be loaded"
        raise UnsupportedValue(text, FIELDS["known_speakers"])
    return replace(config, settings=replace(config.settings, speakers=speakers))


def _merged_input(config: SessionConfig, part: InputGiven, endpoint: Endpoint) -> SessionConfig:
    if part.noise_reduction is not None:
        raise UnsupportedValue("is not offered; null is", "audio.input.noise_reduction")
    names = part.model_fields_set
    if "format" in names:
        config = replace(config, format=_format(part.format))
    settings = config.settings
    if "turn_detection" in names:
        turns = _turns(settings.turn_detection, part.turn_detection)
        settings = replace(settings, turn_detection=turns)
    if "transcription" in names:
        if part.transcription is None:
            raise UnsupportedValue("cannot be turned off here", TRANSCRIPTION)
        if "model" in part.transcription.model_fields_set:
            require_live_model(part.transcription.model, endpoint, f"{TRANSCRIPTION}.model")
            config = replace(config, model=part.transcription.model)
        settings = _transcription(settings, part.transcription)
        clips = _clips(part.transcription)
        known = _check(settings, clips or [], endpoint)
        settings = settings if clips is None else replace(settings, known_speakers=known)
    return replace(config, settings=settings)


def require_live_model(name: str | None, endpoint: Endpoint, param: str) -> None:
    """Raises UnsupportedValue where a client means another model than the loaded one."""
    loaded = model_id(endpoint)
    if name is None or name == loaded:
        return
    if not OPENAI_NAMES.fullmatch(name) and not LIVE_NAMES.fullmatch(name):
        raise UnsupportedValue(f"{shown(name)} is not loaded; {loaded} is", param)


def at_fault(error: ValidationError) -> FieldError:
    """The first fault that pydantic found, with its path in the checked object."""
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    steps = [f"[{each}]" if isinstance(each, int) else f".{shown(each)}" for each in detail["loc"]]
    path = "".join(steps).removeprefix(".")
    kind, text = detail["type"], detail["msg"].replace("Input should", "should")
    if kind == "extra_forbidden":
        return UnknownParameter("there is no such field", path)
    if kind == "missing":
        return MissingParameter("is required", path)
    return (InvalidType if kind.endswith("_type") else InvalidValue)(text, path)


@contextmanager
def below(path: str) -> Iterator[None]:
    """Errors that are raised inside name fields of `path`, by the name that a session has them."""
    try:
        yield
    except ClientError as error:
        ours = in_session(error)
        if not isinstance(ours, FieldError):
            raise
        text = str(ours).removeprefix(f"{ours.code}: ").removeprefix(f"{ours.param}: ")
        raise type(ours)(text, f"{path}.{ours.param}") from error


def _format(given: FormatGiven | None) -> AudioFormat:
    if given is None:
        return AudioFormat.PCM_24000
    rates = {each.rate: each for each in AudioFormat if each.value[0] == given.type}
    if not rates:
        kinds = ", ".join(dict.fromkeys(each.value[0] for each in AudioFormat))
        raise InvalidValue(f"should be one of {kinds}", "audio.input.format.type")
    rate = given.rate or (DEFAULT_RATE if DEFAULT_RATE in rates else next(iter(rates)))
    if rate not in rates:
        wanted = " or ".join(map(str, rates))
        raise InvalidValue(f"should be {wanted}", "audio.input.format.rate")
    return rates[rate]


def _turns(now: TurnSettings | None, given: TurnsGiven | None) -> TurnSettings | None:
    if given is None:
        return None
    path = "audio.input.turn_detection"
    if given.type not in (None, "server_vad"):
        raise UnsupportedValue("should be server_vad, or turn_detection null", f"{path}.type")
    for name in ("idle_timeout_ms", "eagerness"):
        if getattr(given, name) is not None:
            raise UnsupportedValue("is not offered", f"{path}.{name}")
    default = TurnSettings()
    names = ("threshold", "prefix_padding_ms", "silence_duration_ms")
    changes: dict[str, Any] = {
        name: getattr(default if getattr(given, name) is None else given, name)
        for name in names
        if name in given.model_fields_set
    }
    return replace(now or default, **changes)


def _transcription(settings: LiveSettings, given: TranscriptionGiven) -> LiveSettings:
    names = given.model_fields_set
    changes: dict[str, Any] = {}
    if "language" in names:
        changes["language"] = given.language or None
    if "languages" in names:
        several = list(dict.fromkeys(given.languages or ()))
        if len(several) > 1:
            text = "one, or none to detect it among all"
            raise UnsupportedValue(text, f"{TRANSCRIPTION}.languages")
        one = several[0] if several else None
        if changes.get("language", one) != one:
            raise InvalidValue("contradicts language", f"{TRANSCRIPTION}.languages")
        changes["language"] = one
    if "prompt" in names:
        changes["prompt"] = given.prompt or None
    if "keywords" in names:
        changes["keywords"] = tuple(given.keywords or ())
    for name in ("delay", "known_speaker_threshold"):
        if name in names:
            changes[name] = getattr(given, name)
    return replace(settings, **changes)


def _clips(given: TranscriptionGiven) -> list[dict[str, Any]] | None:
    """The clips of known speakers as the endpoint's parameter; None where the update names none."""
    if not given.model_fields_set & {"known_speaker_names", "known_speaker_references"}:
        return None
    names, references = given.known_speaker_names or [], given.known_speaker_references or []
    if len(names) != len(references):
        text = "should be as many as known_speaker_names"
        raise InvalidValue(text, FIELDS["known_speakers"])
    pairs = zip(names, references, strict=True)
    return [{"name": name, "reference": reference} for name, reference in pairs]


def _check(
    settings: LiveSettings, clips: list[dict[str, Any]], endpoint: Endpoint
) -> tuple[ReferenceClip, ...]:
    """The `clips`, checked. Raises ClientError where a file could not be transcribed with these
    settings.
    """
    parameters = {
        "language": settings.language,
        "prompt": settings.prompt,
        "hotwords": list(settings.keywords),
        "diarize": False,
        "known_speakers": clips,
    }
    request = endpoint.parse({"inputs": "", "parameters": parameters})
    return tuple(request.config.known_speakers)


def in_session(error: ClientError) -> ClientError:
    """A refusal of the endpoint's parameters, by the field of `session` that has said so."""
    found = NAMED.fullmatch(str(error))
    if isinstance(error, FieldError) or not found or found["field"] not in FIELDS:
        return error
    kind = UnsupportedValue if isinstance(error, Unsupported) else InvalidValue
    place, _, part = found["part"].partition(".")
    field = f"{TRANSCRIPTION}.known_speaker_names" if part == "name" else FIELDS[found["field"]]
    return kind(found["text"], field + place)
