"""Which faults of a store are tried again, and how often."""

from __future__ import annotations

import errno

import pytest

from extras.archive import retries
from extras.archive.retries import PAUSES, patiently


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", seconds.append)
    return seconds


def failing(faults: list[OSError]):
    """Raises each of them, then returns its arguments."""

    def operation(*arguments: object) -> tuple[object, ...]:
        if faults:
            raise faults.pop(0)
        return arguments

    return operation


@pytest.mark.parametrize("times", range(len(PAUSES) + 1))
def test_what_passes_is_tried_again(slept, times):
    faults = [OSError("AWS Error SLOW_DOWN"), OSError(errno.EIO, ""), TimeoutError()][:times]
    assert patiently(failing(faults), 1, 2) == (1, 2)
    assert slept == list(PAUSES[:times])


def test_the_last_fault_is_raised(slept):
    faults = [OSError(str(number)) for number in range(len(PAUSES) + 2)]
    with pytest.raises(OSError, match=f"^{len(PAUSES)}$"):
        patiently(failing(faults))
    assert slept == list(PAUSES)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT])
def test_what_lasts_is_raised_at_once(slept, number):
    with pytest.raises(OSError) as raised:  # noqa: PT011
        patiently(failing([OSError(number, "")]))
    assert (raised.value.errno, slept) == (number, [])
