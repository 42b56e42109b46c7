"""Output places: a folder, and a bucket of moto's S3 server on loopback."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def bucket() -> Iterator[Any]:
    """Amazon's client; the environment names its server, which has the bucket `s3://calls`."""
    moto = pytest.importorskip("moto.server")
    import boto3

    from extras.archive import storage

    logging.getLogger("werkzeug").disabled = True
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        storage._store.cache_clear()  # of another environment
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="calls")
        yield client
    server.stop()


@pytest.fixture(params=["folder", "bucket"])
def out(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "out")
    request.getfixturevalue("bucket")
    return f"s3://calls/{tmp_path.name}"
