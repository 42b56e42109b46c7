"""An S3 server of the tests, moto's, as a process on loopback with one bucket called `calls`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from archive import storage

SERVE = (
    "import logging, sys\n"
    "from moto.server import ThreadedMotoServer\n"
    "logging.getLogger('werkzeug').disabled = True\n"
    "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)\n"
    "server.start()\n"
    "print(server.get_host_and_port()[1], flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def served() -> Iterator[tuple[Any, str]]:
    """A client of Amazon's, and the bucket's address. The environment names the server."""
    import boto3

    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = next(line for line in process.stdout if line.strip().isdigit()).strip()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "testing")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            client = boto3.client(
                "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1"
            )
            client.create_bucket(Bucket="calls")
            storage._store.cache_clear()  # of another server
            yield client, "s3://calls"
    finally:
        process.communicate(timeout=60)
