"""Which model answers, and under which names.

One model is loaded, so a name only says whether the client means it. OpenAI's names are accepted
because its clients insist on sending one; any other is refused, since a client that asks for a
certain model should not be answered by another.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from endpoint import Endpoint
from server.openai_api.errors import ModelNotFound
from server.openai_api.form import shown

OPENAI_NAMES = re.compile(r"whisper-1|gpt-([\w.]+-)*transcribe(-[\w.]+)*", re.ASCII)


def model_id(endpoint: Endpoint) -> str:
    """The hub id of the loaded model, or the name of its folder: paths stay here."""
    name = endpoint.recogniser.models.name
    return PurePath(name).name if PurePath(name).is_absolute() else name


def require_model(name: str, endpoint: Endpoint) -> None:
    """Raises ModelNotFound where a client means another model than the loaded one."""
    loaded = model_id(endpoint)
    if name != loaded and not OPENAI_NAMES.fullmatch(name):
        raise ModelNotFound(
            f"model: {shown(name)} is not here: this server has loaded '{loaded}'; send that name,"
            " 'whisper-1', or none"
        )


def model_json(endpoint: Endpoint, created: int) -> dict[str, Any]:
    """The loaded model; `created` is in seconds since 1970."""
    name = model_id(endpoint)
    owner = name.partition("/")[0] if "/" in name else "local"
    return {"id": name, "object": "model", "created": created, "owned_by": owner}
