"""A bucket of an S3 server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[str]:
    """The address of an S3 server on loopback."""
    pytest.importorskip("moto")
    from extras.archive.tests.buckets import served

    with served() as address:
        yield address


@pytest.fixture(scope="module")
def bucket(bucket_server) -> Iterator[tuple[Any, str]]:
    """An empty bucket of that server: a client of it, and its address."""
    from extras.archive.tests.buckets import empty_bucket

    with empty_bucket(bucket_server) as found:
        yield found
