"""An S3 server of the tests, moto's, as a process on loopback, and its bucket called `calls`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from extras.archive import storage

BUCKET = "calls"

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
def served() -> Iterator[str]:
    """The address of a server without any bucket."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = next(line for line in process.stdout if line.strip().isdigit()).strip()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.communicate(timeout=60)


@contextmanager
def empty_bucket(server: str) -> Iterator[tuple[Any, str]]:
    """A client of Amazon's, and the bucket's address. The environment names the server."""
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ENDPOINT_URL", server)
        client = boto3.client("s3", endpoint_url=server, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        storage._store.cache_clear()  # of another environment
        yield client, f"s3://{BUCKET}"
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for each in page.get("Contents", []):
                client.delete_object(Bucket=BUCKET, Key=each["Key"])
        client.delete_bucket(Bucket=BUCKET)
