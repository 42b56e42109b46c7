"""Output places: a folder, and a bucket of moto's S3 server, a process on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

SERVE = (
    "import logging, sys\n"
    "from moto.server import ThreadedMotoServer\n"
    "logging.getLogger('werkzeug').disabled = True\n"
    "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)\n"
    "server.start()\n"
    "print(server.get_host_and_port()[1], flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture(scope="session")
def bucket() -> Iterator[Any]:
    """Amazon's client; the environment names its server, which has the bucket `s3://calls`."""
    pytest.importorskip("moto")
    import boto3

    from extras.archive import storage

    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=-3) as process:
        port = next(line for line in process.stdout if line.strip().isdigit()).strip()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "testing")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            storage._store.cache_clear()  # of another environment
            client = boto3.client("s3", region_name="us-east-1")
            client.create_bucket(Bucket="calls")
            yield client
        process.communicate(timeout=60)


@pytest.fixture(params=["folder", "bucket"])
def out(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "out")
    request.getfixturevalue("bucket")
    return f"s3://calls/{tmp_path.name}"
