"""Calls that are recorded while they pass."""

from typing import Any

import pytest


def calls_of(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """Record the arguments of each call from now on; those of a class's method begin with self."""
    calls, function = list[tuple[Any, ...]](), getattr(owner, name)

    def passed(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **named)

    patch.setattr(owner, name, passed)
    return calls
