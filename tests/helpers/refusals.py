"""Refusals as a client reads them: by code and field, not by text."""

from pathlib import Path

import pytest
import torch

from whosaid.diarization import load_diarizer
from whosaid.errors import EndpointError, StartError
from whosaid.runtime.errors import loading


def refused(code: str, param: str | None = None) -> pytest.RaisesExc[EndpointError]:
    """Expect an error of this code about this field."""
    return pytest.raises(EndpointError, check=lambda e: (e.code, e.param) == (code, param))


def start_failure(name: str | Path) -> str:
    """The line that a diarization model of this name ends the start with; it tells no token."""
    with pytest.raises(StartError) as caught, loading("DIARIZATION_MODEL", str(name)):
        load_diarizer(str(name), None, "hf_secret", torch.device("cpu"))
    assert "hf_secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)
