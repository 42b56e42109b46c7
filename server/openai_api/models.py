"""Which model answers, and under which names.

One model is loaded, and it answers whatever model a request names: clients insist on sending some
name, and each has its own. OpenAI's names, and those under which other projects publish the loaded
model, say nothing; of any other name a warning says which model has answered.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from endpoint import Endpoint
from server.openai_api.errors import ModelNotFound
from server.openai_api.form import shown

OPENAI_NAMES = re.compile(
    r"(openai/)?(whisper-1|gpt-([\w.]+-)*(transcribe|realtime)(-[\w.]+)*)", re.ASCII
)
LONGEST_NAME = 200
# "faster-whisper-base" and "base" are "whisper-base".
PUBLISHED = re.compile(r"faster-|whisper-")


def model_id(endpoint: Endpoint) -> str:
    """The hub id of the loaded model, or the name of its folder: paths stay here."""
    name = endpoint.recogniser.transcriber.models.name
    return PurePath(name).name if PurePath(name).is_absolute() else name


def means_loaded(name: str, endpoint: Endpoint) -> bool:
    """Whether a request for the model `name` is one for the loaded model: by its own name, by one
    of another project's, or by OpenAI's name for whatever transcribes.
    """
    if len(name) > LONGEST_NAME:
        return False
    return bool(OPENAI_NAMES.fullmatch(name)) or _size(name) == _size(model_id(endpoint))


def model_warning(name: str, endpoint: Endpoint, field: str = "model") -> str | None:
    """The warning for a request whose `field` names another model than the loaded one, which
    answers it; None if it means the loaded one.
    """
    if means_loaded(name, endpoint):
        return None
    return f"{field}: {shown(name)} is not loaded; this server has {model_id(endpoint)} alone"


def require_model(name: str, endpoint: Endpoint) -> None:
    """Raises ModelNotFound for the name of another model than the loaded one."""
    if not means_loaded(name, endpoint):
        loaded = model_id(endpoint)
        raise ModelNotFound(
            f"model: {shown(name)} is not loaded; this server has {loaded} alone: send that name,"
            " whisper-1, or none"
        )


def _size(name: str) -> str:
    """What a model's names have in common: "large-v3" of "Systran/faster-whisper-large-v3"."""
    return PUBLISHED.sub("", name.rpartition("/")[2].lower())


def model_json(endpoint: Endpoint, created: int) -> dict[str, Any]:
    """The loaded model; `created` is in seconds since 1970."""
    name = model_id(endpoint)
    owner = name.partition("/")[0] if "/" in name else "local"
    return {"id": name, "object": "model", "created": created, "owned_by": owner}
