"""When probabilities of the speech detector are speech, as a request says it: faster-whisper's
`vad_parameters`, as far as they have a meaning here.

Silently ignored ones would be looked for in the transcript, so every other name is refused.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from payload.bounded_json import parse_json

LONGEST_MS = 30_000  # Whisper's window
LONGEST_PAD_MS = 2_000  # longer pauses within a window are replaced by silence
LONGEST_NAME = 40
# Others that faster-whisper has.
INSTEAD = {
    "max_speech_duration_s": "is chunk_length_s here",
    "min_silence_at_max_speech": "long speech is cut where it is quietest",
    "use_max_poss_sil_at_max_speech": "long speech is cut where it is quietest",
}


class VadParameters(BaseModel):
    """faster-whisper's `VadOptions`; null is the detector's own."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    threshold: float | None = Field(default=None, gt=0, lt=1)
    neg_threshold: float | None = Field(default=None, gt=0, lt=1)
    min_speech_duration_ms: int | None = Field(default=None, ge=0, le=LONGEST_MS)
    min_silence_duration_ms: int | None = Field(default=None, ge=0, le=LONGEST_MS)
    speech_pad_ms: int | None = Field(default=None, ge=0, le=LONGEST_PAD_MS)


def _read(value: object) -> object:
    """The parameters, which may come as JSON in a form or a query string."""
    if value is None or isinstance(value, VadParameters):
        return value
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except (ValueError, RecursionError):
            value = None
    known = VadParameters.model_fields
    if not isinstance(value, dict):
        raise _refusal(f"should be an object of {', '.join(known)}")
    for name in value:
        if name not in known:
            reason = INSTEAD.get(str(name), f"is none of {', '.join(known)}")
            raise _refusal(f"{ascii(str(name)[:LONGEST_NAME])[1:-1]}: {reason}")
    try:
        return VadParameters.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _refusal(f"{first['loc'][0]}: {first['msg']}") from None


def _refusal(text: str) -> PydanticCustomError:
    return PydanticCustomError("vad_parameters", "{text}", {"text": text})


SCHEMA = {"anyOf": [VadParameters.model_json_schema(), {"type": "null"}], "default": None}
OptionalVadParameters = Annotated[
    VadParameters | None, BeforeValidator(_read), WithJsonSchema(SCHEMA)
]
