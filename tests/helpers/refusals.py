"""Refusals as a client reads them: by code and field, not by text."""

import pytest

from whosaid.errors import EndpointError


def refused(code: str, param: str | None = None) -> pytest.RaisesExc[EndpointError]:
    """Expect an error of this code about this field."""
    return pytest.raises(EndpointError, check=lambda e: (e.code, e.param) == (code, param))
