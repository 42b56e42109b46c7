"""Runs a few of many similar parameters at each push, and the others nightly."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(count: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but the first `count` cases as `reliability`; a tuple has several parameters."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.reliability if place >= count else (),
        )
        for place, case in enumerate(cases)
    ]
