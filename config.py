"""What may be set, and by whom: `ModelSettings` by the deployer's environment, `InferenceConfig` by
one request.

The one decision: everything from outside is checked here, in full and before any model runs, and
whatever is wrong comes back as a ValueError of one line that names the variable or parameter and
never repeats its value. This module alone reads the environment, and prepares it for the libraries
that read it themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
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

REPOSITORY = Path(__file__).resolve().parent
DEMO_MODELS = REPOSITORY / "demo" / "models"
MODEL_VARIABLES = ("ASR_MODEL", "ASSISTANT_MODEL", "DIARIZATION_MODEL")
# Diarization models tell a handful of voices apart; a number beyond this is a mistake.
MOST_SPEAKERS = 100
# More than a model can be told; what exceeds its own limit is cut with a warning.
LONGEST_PROMPT, MOST_HOT_WORDS = 4000, 200
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
REVISION = re.compile(r"\w[\w./-]*")


def prepare_environment() -> None:
    """Turn pyannote's telemetry off, which reports durations and speaker counts; call it before
    importing pyannote.
    """
    os.environ["PYANNOTE_METRICS_ENABLED"] = "false"


@dataclass(frozen=True, slots=True)
class ModelReference:
    """Where a model comes from: a hub id with an optional revision, or the absolute path of a local
    folder.
    """

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str, repository: Path = REPOSITORY) -> Self:
        """Read `owner/name`, `owner/name@revision` or a folder; a relative folder starts at
        `repository`.

        A folder that exists comes first, as in transformers. Raises ValueError where the text is
        none of these.
        """
        text = text.strip()
        folder = repository / Path(text).expanduser()
        if text and folder.is_dir():
            return cls(str(folder.resolve()))
        name, at, revision = text.partition("@")
        if not HUB_ID.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
            raise ValueError(
                "neither a hub id (owner/name or owner/name@revision) nor an existing folder"
            )
        return cls(name, revision or None)


def _reference(value: object) -> object:
    return ModelReference.parse(value) if isinstance(value, str) else value


# NoDecode: the variable holds plain text, not JSON.
Model = Annotated[ModelReference, NoDecode, BeforeValidator(_reference)]


class ModelSettings(BaseSettings):
    """The models to load and the limits to hold, from environment variables of the same names.

    An empty variable counts as unset. No `.env` file is read: the folder a server starts in is not
    the deployer's.
    """

    model_config = SettingsConfigDict(
        frozen=True, env_ignore_empty=True, extra="ignore", hide_input_in_errors=True
    )

    asr_model: Model
    assistant_model: Model | None = None
    diarization_model: Model | None = None
    hf_token: SecretStr | None = None
    max_audio_seconds: float = Field(default=7200, gt=0, allow_inf_nan=False)
    max_audio_bytes: int = Field(default=512 * 2**20, gt=0)

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment. Raises ValueError naming the variable and what is wrong with it."""
        return cls._checked()

    @classmethod
    def for_demo(cls) -> Self:
        """Take the models that ship with the repository, unless the environment names any model:
        never mixed.
        """
        named = {name.upper() for name, value in os.environ.items() if value}
        if named.intersection(MODEL_VARIABLES):
            return cls.from_environment()
        folders = {
            "asr_model": "asr",
            "assistant_model": "assistant",
            "diarization_model": "diarization",
        }
        return cls._checked(
            **{field: str(DEMO_MODELS / folder) for field, folder in folders.items()}
        )

    @classmethod
    def _checked(cls, **models: Any) -> Self:  # noqa: ANN401
        try:
            return cls(**models)
        except ValidationError as error:
            raise ValueError(_first_fault(error, str.upper)) from error

    @property
    def token(self) -> str | None:
        """The hub token in the clear, for the libraries that download."""
        return self.hf_token.get_secret_value().strip() or None if self.hf_token else None


SpeakerCount = Annotated[int, Field(ge=1, le=MOST_SPEAKERS)]


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _listed(value: object) -> object:
    """`"srt, vtt"` means the list of both."""
    return (
        [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str)
        else value
    )


Form = Literal["srt", "vtt", "tsv", "rttm", "txt"]
HotWord = Annotated[str, Field(min_length=1, max_length=100)]


class InferenceConfig(BaseModel):
    """One request's `parameters`. Types are strict (True is not 1, "24" is not 24); unknown names
    are ignored.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)

    task: Literal["transcribe", "translate"] = "transcribe"
    batch_size: int = Field(default=24, ge=1, le=128)
    assisted: bool = False
    chunk_length_s: int = Field(default=30, ge=1, le=30)
    sampling_rate: int = Field(default=16_000, ge=8_000, le=48_000)
    language: str | None = Field(default=None, min_length=2, max_length=32)
    num_speakers: SpeakerCount | None = None
    min_speakers: SpeakerCount | None = None
    max_speakers: SpeakerCount | None = None
    return_timestamps: bool | Literal["segment", "word"] = True
    diarize: bool = True
    group_by_speaker: bool = True
    prompt: str | None = Field(default=None, max_length=LONGEST_PROMPT)
    hotwords: Annotated[list[HotWord], BeforeValidator(_listed)] = Field(
        default=[], max_length=MOST_HOT_WORDS
    )
    output: Annotated[list[Form], BeforeValidator(_listed)] = []

    @classmethod
    def read(cls, parameters: Mapping[str, Any], *, as_text: bool = False) -> Self:
        """Check `parameters`; `as_text` reads every value from its text, as a query string delivers
        it.

        None has no text and counts as not given then: a server may decode the base64 of a JSON body
        by itself. Raises ValueError naming the first parameter at fault and what is wrong with it.
        """
        try:
            if as_text:
                given = {
                    name: _as_text(value) for name, value in parameters.items() if value is not None
                }
                return cls.model_validate_strings(given)
            return cls.model_validate(dict(parameters))
        except ValidationError as error:
            raise ValueError(_first_fault(error)) from error

    @classmethod
    def unknown(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """The names that mean nothing here, in the order given."""
        return tuple(name for name in parameters if name not in cls.model_fields)

    @model_validator(mode="after")
    def _speaker_counts_agree(self) -> Self:
        least, most = self.min_speakers or 1, self.max_speakers or MOST_SPEAKERS
        if least > most:
            raise PydanticCustomError("speakers", "min_speakers: is larger than max_speakers")
        if self.num_speakers is not None and not least <= self.num_speakers <= most:
            raise PydanticCustomError(
                "speakers", "num_speakers: contradicts min_speakers or max_speakers"
            )
        return self


def _first_fault(error: ValidationError, rename: Callable[[str], str] = str) -> str:
    """Say in one line what pydantic found first: where a value may be of several types, what it
    should be of each.
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    place = faults[0]["loc"][:1]
    said = " or ".join(
        fault["msg"].removeprefix("Value error, ") for fault in faults if fault["loc"][:1] == place
    )
    said = said.replace("Input should", "should").replace("Field required", "is required")
    return f"{rename(str(place[0]))}: {said}" if place else said
