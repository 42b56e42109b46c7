"""Settings from the environment (`ModelSettings`), and parameters of a request (`InferenceConfig`).

To add a parameter, add a field to `InferenceConfig` and use the field. To read other variables,
subclass `EnvironmentSettings`, as the server does. Every value is checked before a model runs. A
wrong value raises a ValueError of one line that names the variable or parameter and never repeats
the value.
"""

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from whosaid.model_reference import REPOSITORY as REPOSITORY
from whosaid.model_reference import ModelReference as ModelReference
from whosaid.payload.encodings import Base64Text
from whosaid.payload.languages import Language
from whosaid.payload.named_text import GivenTurn, read_turns, spoken_text
from whosaid.payload.parameters import (
    Name,
    OptionalVadParameters,
    Phrases,
    ReferenceClips,
    check_distinct,
    check_names,
)

DEMO_MODELS = REPOSITORY / "demo" / "models"
SPEAKERS_MODEL = "models/diarization"  # a folder of the repository: pyannote's for real speech
MODEL_VARIABLES = ("ASR_MODEL", "ASSISTANT_MODEL", "DIARIZATION_MODEL")
# Diarization models distinguish a handful of speakers; a larger number is a mistake.
MAX_SPEAKERS = 100
LATEST_START = 86_400.0  # seconds
# Larger than any model's context; the transcriber cuts what exceeds its model's, and warns.
MAX_PROMPT_CHARACTERS, MAX_HOTWORDS = 4000, 2000
# Checked before a value is parsed: characters of a text, and entries of a list.
MAX_TEXT_CHARACTERS, MAX_ENTRIES = 2**15, MAX_HOTWORDS
# Of `text`, twice the words of two hours, and of `hotwords`, whose phrases all fit with commas.
MAX_SCRIPT_CHARACTERS = 2**18
# A variable counts as misspelt if its name has at least SHORTEST_NAME letters and is this similar
# to one of ours: one letter is wrong, missing or too many, or two letters are swapped. Shorter
# names, such as PAGER, belong to other programs.
SHORTEST_NAME, SIMILARITY = 6, 0.9
# Python converts at most 4300 digits between int and text.
LARGE = 10**4000
INTEGER = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")
NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
BOOLEANS = {"true": True, "false": False}
# A query string has only text; these are the booleans that pydantic reads.
TEXT_BOOLEANS = BOOLEANS | {
    **dict.fromkeys(("1", "on", "t", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "n", "no"), False),
}
# Names in openai/whisper and faster-whisper for parameters of this endpoint.
OTHER_NAMES = {
    "beam_size": "num_beams",
    "initial_prompt": "prompt",
    "log_prob_threshold": "logprob_threshold",
    "word_timestamps": "return_timestamps",
}
# For the whole process. Set here, because every entry point imports this module before pyannote.
# pyannote imports onnxruntime if it is installed, and onnxruntime writes an identity into the home
# folder and calls its maker. huggingface_hub obeys unless a server imported it before this module.
NO_TELEMETRY = {
    "PYANNOTE_METRICS_ENABLED": "false",
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
os.environ.update(NO_TELEMETRY)


def account_defaults() -> dict[str, str]:
    """Return USER and HOME, "/", for a user without an entry in /etc/passwd, as on OpenShift."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"USER": str(os.getuid()), "HOME": "/"}
    return {}


os.environ.update(account_defaults() | os.environ)


def _parse_reference(value: object) -> object:
    return ModelReference.parse(value) if isinstance(value, str) else value


# NoDecode: the variable holds plain text, not JSON.
Model = Annotated[ModelReference, NoDecode, BeforeValidator(_parse_reference)]


class EnvironmentSettings(BaseSettings):
    """Settings from environment variables, named like the fields in capitals; an empty one counts
    as unset. No `.env` file is read: a server may start in a folder that is not the deployer's.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        env_ignore_empty=True,
        extra="ignore",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def from_environment(cls, **given: Any) -> Self:  # noqa: ANN401
        """Read the fields that are not `given` from the environment. Raises ValueError."""
        try:
            return cls(**given)
        except ValidationError as error:
            variable, reason = _first_fault(error)
            raise ValueError(f"{variable.upper()}: {reason}" if variable else reason) from error


class ModelSettings(EnvironmentSettings):
    """The models to load, the device and precision, and the limits of an audio file."""

    asr_model: Model
    """Whisper: a Hub id, `id@revision` or a folder."""
    assistant_model: Model | None = None
    """Distil-Whisper, a smaller Whisper, or Medusa heads."""
    diarization_model: Model | None = None
    """`models/diarization`, or another pipeline."""
    conditioning_model: Model | None = None
    """Weights with which Whisper's encoder follows one of several speakers who talk at once."""
    hf_token: SecretStr | None = None
    """For gated models."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """With `auto` the start fails if an NVIDIA device is present but unusable."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    """`float16` needs CUDA, `int8` a CPU."""
    cuda_graphs: bool = True
    """`false`: run operations one by one on a GPU: slower, easier to debug."""
    idle_unload_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Unload the models after so many idle seconds; the next request loads them again."""
    max_audio_seconds: float = Field(default=7200, gt=0, allow_inf_nan=False)
    """Longer recordings are refused."""
    max_audio_bytes: int = Field(default=512 * 2**20, gt=0)
    """Larger files are refused."""

    @classmethod
    def for_demo(cls) -> Self:
        """Use the demo models, unless the environment names any model: the two never mix."""
        if named_models():
            return cls.from_environment()
        return cls.for_models(
            *(str(DEMO_MODELS / folder) for folder in ("asr", "assistant", "diarization"))
        )

    @classmethod
    def for_models(
        cls,
        asr_model: str,
        assistant_model: str | None = None,
        diarization_model: str | None = None,
    ) -> Self:
        """Use only these models; read the other settings from the environment."""
        return cls.from_environment(
            asr_model=asr_model,
            assistant_model=assistant_model,
            diarization_model=diarization_model,
        )

    @property
    def models(self) -> tuple[ModelReference, ...]:
        """Return the models to load, in the order of MODEL_VARIABLES."""
        named = (self.asr_model, self.assistant_model, self.diarization_model)
        return tuple(model for model in named if model is not None)

    @property
    def token(self) -> str | None:
        """Return the Hub token in the clear, for the libraries that download; None if not set."""
        return self.hf_token.get_secret_value().strip() or None if self.hf_token else None


def named_models() -> dict[str, str]:
    """Return the environment's models by their field of ModelSettings."""
    given = {name.lower(): value for name, value in os.environ.items() if value.strip()}
    fields = [name.lower() for name in MODEL_VARIABLES]
    return {field: given[field] for field in fields if field in given}


def misspelt_variables(
    *settings: type[EnvironmentSettings], given: Iterable[str] | None = None
) -> list[str]:
    """Return a warning for each variable whose name is similar to a field of `settings`.

    `given` are the names to check, by default the environment's.
    """
    ours = {field.upper() for each in settings for field in each.model_fields}
    lines = []
    for name in sorted(set(os.environ if given is None else given) - ours):
        if len(name) < SHORTEST_NAME or name.upper() in ours:
            continue
        swapped = [each for each in sorted(ours) if sorted(each) == sorted(name.upper())]
        for nearest in (swapped or get_close_matches(name.upper(), ours, 1, SIMILARITY))[:1]:
            lines.append(f"{name} is not a variable of this endpoint; did you mean {nearest}?")
    return lines


def _split_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _split_numbers(value: object) -> object:
    parts = _split_list(value)
    if not isinstance(parts, list):
        return parts
    texts = (isinstance(part, str) and NUMBER.fullmatch(part) for part in parts)
    return [float(part) if text else part for part, text in zip(parts, texts, strict=True)]


OutputFormat = Literal["srt", "vtt", "txt", "md", "docx", "html", "tsv", "rttm"]
OutputFormats = Annotated[
    list[OutputFormat], BeforeValidator(_split_list), AfterValidator(check_distinct)
]


def _require_one_number(value: object) -> object:
    """Refuse a list of temperatures, openai/whisper's schedule of retries."""
    if isinstance(value, list):
        raise PydanticCustomError(
            "temperature", "should be one number; rejected windows are decoded again by beam search"
        )
    return value


Temperature = Annotated[float | None, Field(ge=0, le=1), BeforeValidator(_require_one_number)]
ChannelStarts = Annotated[
    list[Annotated[float, Field(ge=0, le=LATEST_START, allow_inf_nan=False)]],
    BeforeValidator(_split_numbers),
]
ChannelNames = Annotated[list[Name], BeforeValidator(_split_list), AfterValidator(check_names)]


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


class WrongParameter(ValueError):
    """A request's parameter `param` is wrong for a `reason`."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}" if param else reason)
        self.param, self.reason = param or None, reason


class InferenceConfig(BaseModel):
    """One request's `parameters`; unknown names are ignored.

    Types are strict (True is not 1, 24.0 is not 24), but text is accepted for numbers and
    booleans: "24", "1.5", "true", "False".
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    task: Literal["transcribe", "translate"] = "transcribe"
    """Write the speech in its language, or `translate` it into English."""
    batch_size: int | None = Field(default=None, ge=1, le=128)
    """Decode at most this many windows of up to 30 s together (default: 24 on a CPU, or the rows of
    the GPU; 24 with drafts)."""
    assisted: bool | None = None
    """Draft tokens with the assistant or Medusa heads (default: if measured to be faster)."""
    num_beams: int = Field(default=1, ge=1, le=8)
    """Search with this many beams; above 1 decoding is slower and has no drafts."""
    length_penalty: float | None = Field(default=None, ge=0, le=1)
    """Alpha of the beams' length penalty (default: beams are compared by mean log-probability)."""
    chunk_length_s: int = Field(default=30, ge=1, le=30)
    """Cut windows of at most this many seconds; use 15 for Distil-Whisper as main model. Below 5,
    words may be doubled at the cuts."""
    sampling_rate: int = Field(default=16_000, ge=8_000, le=48_000)
    """Resample audio to this rate first, then to 16 kHz."""
    language: Language = None
    """Decode in this language: a code, tag or name (default: detected in the first speech)."""
    multilingual: bool = False
    """Detect the language of each part of the recording."""
    num_speakers: int | None = Field(default=None, ge=1, le=MAX_SPEAKERS)
    """Tell diarization the number of speakers; contradictory numbers are refused."""
    min_speakers: int | None = Field(default=None, ge=1, le=MAX_SPEAKERS)
    """Tell diarization the least number of speakers."""
    max_speakers: int | None = Field(default=None, ge=1, le=MAX_SPEAKERS)
    """Tell diarization the largest number of speakers."""
    return_timestamps: bool | Literal["segment", "word"] = True
    """Time `chunks`; `"word"` adds `words`, false leaves `chunks` empty."""
    # With separate channels `true` and no value differ, so generated clients must not send `true`.
    diarize: bool = Field(default=True, json_schema_extra=_without_default)
    """Find speakers (default: yes; on separate channels only if requested)."""
    group_by_speaker: bool = True
    """Merge a speaker's consecutive chunks in `speakers`; false keeps one entry per chunk."""
    overlap: Literal["auto", "off"] = "auto"
    """`auto`: decode overlapping speech again, once for each speaker."""
    prompt: str | None = Field(default=None, max_length=MAX_PROMPT_CHARACTERS)
    """Give this text to every window as if it had been said before."""
    hotwords: Phrases = Field(default=[], max_length=MAX_HOTWORDS)
    """Expect these names and terms: text, or `{"text", "sounds_like"}` with up to 5 spellings; in
    text separated by commas or lines, or JSON."""
    text: str | None = Field(default=None, max_length=MAX_SCRIPT_CHARACTERS)
    """Align a transcript that you already have; names of speakers before a colon are kept."""
    output: OutputFormats = Field(default=[], max_length=len(get_args(OutputFormat)))
    """Add the answer in these file formats; `docx` in base64."""
    recording_name: str | None = Field(default=None, min_length=1, max_length=255)
    """Name the recording's file, for titles, `rttm`, and the audio that `html` plays."""
    txt_times: bool = False
    """Begin each line of `txt` with its time, `[00:12:31]`."""
    max_line_width: int | None = Field(default=None, ge=1, le=1000)
    """Break lines of `srt` and `vtt` after this many columns."""
    max_line_count: int | None = Field(default=None, ge=1, le=1000)
    """Limit cues of `srt` and `vtt` to this many lines."""
    max_words_per_line: int | None = Field(default=None, ge=1, le=1000)
    """Limit lines of `srt` and `vtt` to this many words."""
    highlight_words: bool = False
    """Underline each word while it is spoken, in `srt` and `vtt`."""
    subtitle_speakers: bool = True
    """Name speakers in `srt` and `vtt`."""
    known_speakers: ReferenceClips = []
    """`{"name", "reference"}` or `{"name", "voice"}`: up to 20 clips, as base64 or `data:` URLs, or
    voices; JSON in forms and queries."""
    known_speaker_threshold: float | None = Field(default=None, ge=0, le=1)
    """Match a known speaker only above this similarity (default: the embedding model's)."""
    voices: bool = False
    """Add an embedding of each speaker's voice, which identifies the person."""
    temperature: Temperature = None
    """Sample text at this temperature; 0 (default) takes the likeliest tokens."""
    compression_ratio_threshold: float | None = Field(default=None, ge=0, le=1000)
    """Retry a window whose text compresses by more than this ratio (default 2.4)."""
    logprob_threshold: float | None = Field(default=None, ge=-1000, le=0)
    """Retry a window whose mean log-probability is lower (default -0.35; silence uses -1)."""
    no_speech_threshold: float | None = Field(default=None, ge=0, le=1)
    """Drop unlikely text if the probability of no speech is higher (default 0.6)."""
    vad_filter: bool | None = None
    """Decode only detected speech (default)."""
    vad_parameters: OptionalVadParameters = None
    """Change the settings of speech detection."""
    channels: Literal["mix", "separate"] = "mix"
    """Mix all channels, or transcribe each separately as one speaker."""
    channel_names: ChannelNames = []
    """Name the speakers of separate channels, in order (default: `CHANNEL_00`, ...)."""
    channel_starts: ChannelStarts = []
    """Begin separate channels at these seconds, in order (default: together)."""

    @classmethod
    def read(cls, parameters: Mapping[str, Any], *, as_text: bool = False) -> Self:
        """Check `parameters` of a JSON body or, with `as_text`, of a query string, in which "1" and
        "yes" are booleans too, values that a server has converted become text again, and None
        counts as not given. Raises WrongParameter for the first wrong parameter.
        """
        given = {name: parameters[name] for name in cls.model_fields if name in parameters}
        booleans = TEXT_BOOLEANS if as_text else BOOLEANS
        renamed = _other_names(parameters, booleans)
        for name, (other, value) in renamed.items():
            if given.get(name, value) not in (value, None):
                raise WrongParameter(other, f"is another name of {name}; give one of them")
            given[name] = value
        _check_sizes(given)
        if as_text:
            given = {name: _text(each) for name, each in given.items() if each is not None}
            _check_sizes(given)
        try:
            return cls.model_validate(
                {name: cls._typed(name, value, booleans) for name, value in given.items()}
            )
        except ValidationError as error:
            name, reason = _first_fault(error)
            other, _ = renamed.get(name, (name, None))
            raise WrongParameter(other, reason) from error

    @classmethod
    def _typed(cls, name: str, value: object, booleans: Mapping[str, bool]) -> object:
        """Convert text to a boolean or number if the parameter `name` takes one."""
        if isinstance(value, Base64Text) and name != "known_speakers":
            value = value[:]  # a long text
        if not isinstance(value, str):
            return value
        annotation = cls.model_fields[name].annotation
        types = (annotation, *get_args(annotation))
        if bool in types:
            return booleans.get(value.lower(), value)
        if int in types and INTEGER.fullmatch(value):
            return int(value)
        if float in types and NUMBER.fullmatch(value):
            return float(value)
        return value

    @classmethod
    def unknown(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        known = cls.model_fields.keys() | OTHER_NAMES.keys()
        return tuple(name for name in parameters if name not in known)

    @property
    def reference_bytes(self) -> int:
        """Return the largest size of the `known_speakers` clips, decoded from base64, in bytes."""
        return sum(3 * len(clip.reference) // 4 for clip in self.known_speakers)

    @property
    def given_turns(self) -> tuple[GivenTurn, ...]:
        """Return the turns of `text`; none if it names no speakers."""
        return read_turns(self.text or "")

    @property
    def separate(self) -> bool:
        return self.channels == "separate"

    @property
    def tells_voices_apart(self) -> bool:
        """Return whether the request wants diarization. A separate channel counts as one speaker,
        and a `text` may name them; then `diarize` or a parameter that needs it must be given.
        """
        if not self.diarize or not self.separate:
            return self.diarize and not self.given_turns
        hints = (self.num_speakers, self.min_speakers, self.max_speakers)
        needs = (*hints, self.known_speakers, self.voices)
        return "diarize" in self.model_fields_set or any(needs)

    @model_validator(mode="after")
    def _parameters_agree(self) -> Self:
        if self.text is not None and not any(map(str.isalnum, spoken_text(self.text))):
            raise _contradiction("text", "should have words")
        if self.text is not None and self.task == "translate":
            raise _contradiction("text", "can be aligned, but not translated")
        if self.text is not None and self.separate:
            raise _contradiction("text", "can be aligned with mixed channels alone")
        lowest, highest = self.min_speakers or 1, self.max_speakers or MAX_SPEAKERS
        if lowest > highest:
            raise _contradiction("min_speakers", "is larger than max_speakers")
        if self.num_speakers is not None and not lowest <= self.num_speakers <= highest:
            raise _contradiction("num_speakers", "contradicts min_speakers or max_speakers")
        if self.vad_filter is False and self.vad_parameters is not None:
            raise _contradiction("vad_parameters", "contradict vad_filter, which is false")
        return self


def _other_names(
    parameters: Mapping[str, Any], booleans: Mapping[str, bool]
) -> dict[str, tuple[str, Any]]:
    """Return the parameters under another program's name, as {our name: (other name, value)}."""
    found = {}
    for other, name in OTHER_NAMES.items():
        value = parameters.get(other)
        if other == "word_timestamps" and value is not None:
            value = booleans.get(str(value).lower())
            if value is None:
                raise WrongParameter(other, "should be true or false")
            value = "word" if value else None
        if value is not None:
            found[name] = other, value
    return found


def _check_sizes(parameters: Mapping[str, object]) -> None:
    """Raise WrongParameter for values too large to parse; `parse_json` bounds `known_speakers`."""
    for name, value in parameters.items():
        if isinstance(value, list) and len(value) > MAX_ENTRIES:
            raise WrongParameter(name, f"should have at most {MAX_ENTRIES} entries")
        if name == "known_speakers" or not isinstance(value, str | Base64Text):
            continue
        long = name in ("text", "hotwords")
        most = MAX_SCRIPT_CHARACTERS if long else MAX_TEXT_CHARACTERS
        if len(value) > most:
            raise WrongParameter(name, f"should have at most {most} characters")


def _text(value: object) -> object:
    """Return a number, a boolean or a list of texts as text, and any other value unchanged."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    number = isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGE)
    return str(value) if number else value


def _contradiction(param: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError("contradiction", "{reason}", {"param": param, "reason": reason})


def _first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the field of pydantic's first error, "" if there is none, and the reason: the errors
    of all types of the parameter, joined by "or". An object in a list is named by its index,
    another value in the reason.
    """
    details = error.errors(include_url=False, include_input=False)
    location = details[0]["loc"]
    nested = len(location) > 2 and isinstance(location[1], int)
    location = location if nested else location[:1]
    messages = [
        detail["msg"].removeprefix("Value error, ")
        for detail in details
        if detail["loc"][: len(location)] == location
    ]
    text = " or ".join(dict.fromkeys(messages))
    text = text.replace("Input should", "should").replace("Field required", "is required")
    if not location:
        return str(details[0].get("ctx", {}).get("param", "")), text
    if not nested:
        places = [each for each in details[0]["loc"][1:] if isinstance(each, int)]
        return str(location[0]), f"entry {places[0]}: {text}" if places else text
    name, index, *parts = map(str, location)
    return ".".join((f"{name}[{index}]", *parts)), text
