"""Checks the parameters that are objects: `known_speakers`, `hotwords` and `vad_parameters`.

In a form or query string they are JSON text. People and programs read the names of speakers in
files. So two names must differ in more than case, spaces or Unicode form, and no name may look like
the diarizer's labels. Names are checked before a clip is decoded.
"""

import re
import unicodedata
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from whosaid.payload.encodings import Base64Text, parse_json

MAX_CLIPS, MAX_NAME_CHARACTERS = 20, 64
MAX_MODEL_CHARACTERS = 100
MAX_PHRASE_CHARACTERS, MAX_SOUNDS = 100, 5
MAX_EMBEDDING_CHARACTERS = 2**14  # 3,072 dimensions
LABEL = re.compile(r"(speaker|channel)_\d+")
LONGEST_MS = 30_000  # Whisper's window
LONGEST_PAD_MS = 2_000  # longer pauses within a window are replaced by silence
LONGEST_KEY = 40  # characters of an unknown key that a refusal repeats
# Keys that faster-whisper has and this endpoint replaces.
INSTEAD = {
    "max_speech_duration_s": "is chunk_length_s here",
    "min_silence_at_max_speech": "long speech is cut where it is quietest",
    "use_max_poss_sil_at_max_speech": "long speech is cut where it is quietest",
}


def _parse_text(value: object) -> object:
    """Parse JSON text; return None if it is not JSON, and other types unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except (ValueError, RecursionError):
        return None


def check_name(name: str) -> str:
    """Return the name of a speaker, stripped; raise PydanticCustomError if it is not allowed."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise PydanticCustomError("name", f"should have 1 to {MAX_NAME_CHARACTERS} characters")
    if not name.isprintable():
        raise PydanticCustomError("name", "should have no control characters")
    if LABEL.fullmatch(_folded(name)):
        raise PydanticCustomError("name", "should not look like a label, SPEAKER_00")
    return name


def check_names(names: list[str]) -> list[str]:
    """Return the names; raise PydanticCustomError if readers could confuse two of them."""
    if len(set(map(_folded, names))) < len(names):
        raise PydanticCustomError(
            "names", "two names should differ in more than case, spaces or Unicode form"
        )
    return names


def _folded(name: str) -> str:
    return "_".join(unicodedata.normalize("NFKC", name).casefold().split())


def _check_reference(reference: object) -> object:
    if not isinstance(reference, str | Base64Text) or not len(reference):
        raise PydanticCustomError("reference", "should be the base64 of an audio file")
    return reference


Name = Annotated[str, AfterValidator(check_name)]
Reference = Annotated[
    str | Base64Text,
    PlainValidator(_check_reference),
    PlainSerializer(lambda reference: reference[: len(reference)]),
]

PhraseText = Annotated[str, Field(min_length=1, max_length=MAX_PHRASE_CHARACTERS)]


class Voice(BaseModel):
    """An embedding of a speaker, from an answer's `voices`.

    `embedding` is the base64 of little-endian float32 values that the network `model` made from
    `seconds` of speech. It identifies a person, so `repr`, which may reach a log, leaves it out.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)

    model: str = Field(min_length=1, max_length=MAX_MODEL_CHARACTERS)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    embedding: str = Field(max_length=MAX_EMBEDDING_CHARACTERS, repr=False)


class ReferenceClip(BaseModel):
    """A clip in which one person speaks, or a voice; several may have the same `name`.

    `reference` is an audio file in base64, or a `data:` URL of one, and empty if there is a
    `voice`. `repr` leaves it out, because a repr may reach a log.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)

    name: Name
    reference: Reference = Field(default="", repr=False)
    voice: Annotated[Voice | None, BeforeValidator(_parse_text)] = Field(
        default=None, validate_default=True
    )

    @field_validator("voice")
    @classmethod
    def _takes_the_place_of_reference(
        cls, voice: Voice | None, others: ValidationInfo
    ) -> Voice | None:
        if "reference" in others.data and bool(voice) == bool(len(others.data["reference"])):
            raise PydanticCustomError("voice", "takes the place of reference; give one of them")
        return voice

    @property
    def content(self) -> str:
        return self.voice.model_dump_json() if self.voice else self.reference[:]


def _read_clips(value: object) -> object:
    value = _parse_text(value)
    if isinstance(value, list) and len(value) > MAX_CLIPS:
        raise PydanticCustomError("clips", f"should have at most {MAX_CLIPS} clips")
    if not isinstance(value, list) or not all(isinstance(each, dict | BaseModel) for each in value):
        text = "should be a list of objects with name and reference or voice"
        raise PydanticCustomError("clips", text)
    return value


def _check_clips(clips: list[ReferenceClip]) -> list[ReferenceClip]:
    check_names([*dict.fromkeys(clip.name for clip in clips)])
    return clips


class HotWord(BaseModel):
    """A phrase to expect, and other spellings that sound like it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    text: PhraseText
    sounds_like: Annotated[tuple[PhraseText, ...], Field(strict=False, max_length=MAX_SOUNDS)] = ()


def _read_phrase(value: object) -> str | HotWord:
    given = {"text": value} if isinstance(value, str) else value
    if not isinstance(given, dict | HotWord):
        raise PydanticCustomError(
            "phrase", "should be text, or an object with text and sounds_like"
        )
    try:
        phrase = HotWord.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"][:1])) if isinstance(value, dict) else ""
        text = ascii(f"{field} {first['msg']}".strip())[1:-1].replace("Input should", "should")
        raise PydanticCustomError("phrase", "{text}", {"text": text}) from None
    return value if isinstance(value, str) else phrase


def _split_phrases(value: object) -> object:
    """Read text as a JSON list, else as phrases with commas or line breaks between them."""
    if not isinstance(value, str):
        return value
    parsed = _parse_text(value) if value.lstrip().startswith("[") else None
    parts = (part.strip() for part in re.split(r"[,\r\n]", value))
    return parsed if isinstance(parsed, list) else [part for part in parts if part]


def check_distinct(values: list[Any]) -> list[Any]:
    """Return texts or hot words; raise PydanticCustomError if two have the same text."""
    if len({getattr(each, "text", each) for each in values}) < len(values):
        raise PydanticCustomError("distinct", "should have no duplicates")
    return values


TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_PHRASE_CHARACTERS}
Phrase = Annotated[
    str | HotWord,
    PlainValidator(_read_phrase),
    PlainSerializer(lambda each: each if isinstance(each, str) else each.model_dump(mode="json")),
    WithJsonSchema({"anyOf": [TEXT_SCHEMA, HotWord.model_json_schema()]}),
]
Phrases = Annotated[list[Phrase], BeforeValidator(_split_phrases), AfterValidator(check_distinct)]
CLIPS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "maxItems": MAX_CLIPS,
    "default": [],
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
            "reference": {"type": "string", "minLength": 1, "description": "Audio in base64"},
            "voice": Voice.model_json_schema() | {"description": "In place of `reference`"},
        },
        "required": ["name"],
    },
}
ReferenceClips = Annotated[
    list[ReferenceClip],
    BeforeValidator(_read_clips),
    AfterValidator(_check_clips),
    WithJsonSchema(CLIPS_SCHEMA),
]


class VadParameters(BaseModel):
    """faster-whisper's `VadOptions`, as far as they apply here; null is the detector's default.

    An unknown key is refused, because a client would look for its effect in the transcript.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    threshold: float | None = Field(default=None, gt=0, lt=1)
    neg_threshold: float | None = Field(default=None, gt=0, lt=1)
    min_speech_duration_ms: int | None = Field(default=None, ge=0, le=LONGEST_MS)
    min_silence_duration_ms: int | None = Field(default=None, ge=0, le=LONGEST_MS)
    speech_pad_ms: int | None = Field(default=None, ge=0, le=LONGEST_PAD_MS)


def _read_vad(value: object) -> object:
    if value is None or isinstance(value, VadParameters):
        return value
    value, known = _parse_text(value), VadParameters.model_fields
    if not isinstance(value, dict):
        raise _vad_refusal(f"should be an object of {', '.join(known)}")
    for name in value:
        if name not in known:
            reason = INSTEAD.get(str(name), f"is none of {', '.join(known)}")
            raise _vad_refusal(f"{ascii(str(name)[:LONGEST_KEY])[1:-1]}: {reason}")
    try:
        return VadParameters.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _vad_refusal(f"{first['loc'][0]}: {first['msg']}") from None


def _vad_refusal(text: str) -> PydanticCustomError:
    return PydanticCustomError("vad_parameters", "{text}", {"text": text})


VAD_SCHEMA = {"anyOf": [VadParameters.model_json_schema(), {"type": "null"}], "default": None}
OptionalVadParameters = Annotated[
    VadParameters | None, BeforeValidator(_read_vad), WithJsonSchema(VAD_SCHEMA)
]
