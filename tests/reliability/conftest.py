"""Servers that the tests of this folder share, with tiny models and tight limits, and what the
endpoint itself answers to the same bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pydantic_core import to_json
from test_robustness import ANSWERS, LIMITS, SECRET
from traffic import HF_SERVE, KEY, OURS, Subject, in_json, subject

from config import ModelSettings
from handler import EndpointHandler

# Random models are never sure: every window would be decoded again.
ONCE = {"logprob_threshold": -1_000, "compression_ratio_threshold": 1_000}


@pytest.fixture(scope="session")
def models(whisper_folder, assistant_folder) -> dict[str, str]:
    """The environment that names the models; in float32 no batch changes a number."""
    return {
        "ASR_MODEL": str(whisper_folder),
        "ASSISTANT_MODEL": str(assistant_folder),
        "DTYPE": "float32",
    }


@pytest.fixture(scope="session")
def ours(models, tmp_path_factory) -> Iterator[Subject]:
    """Our server; after all tests its log and what it did to the outside are looked at."""
    with subject(OURS, tmp_path_factory.mktemp("ours"), MAX_QUEUE="20", **models) as running:
        yield running
        assert running.reached_out == "", "reached out"
        for secret in (SECRET, KEY):
            assert secret not in running.log
        assert "Traceback" not in running.log


@pytest.fixture(scope="session")
def hf(models, tmp_path_factory) -> Iterator[Subject]:
    """hf-serve."""
    with subject(HF_SERVE, tmp_path_factory.mktemp("hf"), **models) as running:
        yield running
        assert SECRET not in running.log


@pytest.fixture
def subject_of(request) -> Callable[[str], Subject]:
    """Either server by its name, started when it is first asked for."""
    return lambda kind: request.getfixturevalue({OURS: "ours", HF_SERVE: "hf"}[kind])


@pytest.fixture(scope="session")
def settings(whisper_folder, assistant_folder) -> ModelSettings:
    """The servers' environment."""
    return ModelSettings(
        asr_model=str(whisper_folder),
        assistant_model=str(assistant_folder),
        dtype="float32",
        max_audio_seconds=LIMITS.max_seconds,
        max_audio_bytes=LIMITS.max_bytes,
    )


@pytest.fixture(scope="session")
def handler(settings) -> EndpointHandler:
    return EndpointHandler(settings=settings)


@pytest.fixture(scope="session")
def answered(handler) -> Callable[[dict], tuple[dict, bytes]]:
    """Makes the request of a body, with the answer of the handler alone, to the byte."""
    return lambda body: (in_json(body), to_json(handler(body)))


@pytest.fixture(scope="session")
def plain(answered) -> tuple[dict, bytes]:
    """A good request with its answer."""
    return answered({**ANSWERS["plain"], "parameters": ONCE})


@pytest.fixture(scope="session")
def expected(answered) -> list[tuple[dict, bytes]]:
    """Half of the good requests with their answers. Of every second one no window is decoded again,
    as all others are.
    """
    bodies = [body for body in ANSWERS.values() if isinstance(body["inputs"], str)][::2]
    for number in range(1, len(bodies), 2):
        parameters = {**bodies[number].get("parameters", {}), **ONCE}
        bodies[number] = {**bodies[number], "parameters": parameters}
    return [answered(body) for body in bodies]
