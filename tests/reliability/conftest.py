"""Servers that the tests of this folder share, with tiny models and tight limits, and the
endpoint's own answers to the same bodies."""

from collections.abc import Callable, Iterator

import pytest
from pydantic_core import to_json
from traffic import HF_SERVE, KEY, OURS, Subject, in_json, subject

from config import ModelSettings
from handler import EndpointHandler
from tests.test_robustness import ANSWERS, LIMITS, SECRET

# Random models are never sure: every window would be decoded again.
ONCE = {"logprob_threshold": -1_000, "compression_ratio_threshold": 1_000}


@pytest.fixture(scope="session")
def models(whisper_folder, assistant_folder) -> dict[str, str]:
    """The environment that names the models; in float32 no batch changes a number."""
    models = {"ASR_MODEL": str(whisper_folder), "ASSISTANT_MODEL": str(assistant_folder)}
    return models | {"DTYPE": "float32"}


@pytest.fixture(scope="session")
def ours(models, tmp_path_factory) -> Iterator[Subject]:
    """Run our server; after all tests check its log and its connections to other hosts."""
    with subject(OURS, tmp_path_factory.mktemp("ours"), MAX_QUEUE="20", **models) as running:
        yield running
        assert running.reached_out == "", "reached out"
        for secret in (SECRET, KEY):
            assert secret not in running.log
        assert "Traceback" not in running.log


@pytest.fixture(scope="session")
def hf(models, tmp_path_factory) -> Iterator[Subject]:
    with subject(HF_SERVE, tmp_path_factory.mktemp("hf"), **models) as running:
        yield running
        assert SECRET not in running.log


@pytest.fixture
def subject_of(request) -> Callable[[str], Subject]:
    return lambda kind: request.getfixturevalue({OURS: "ours", HF_SERVE: "hf"}[kind])


@pytest.fixture(scope="session")
def settings(whisper_folder, assistant_folder) -> ModelSettings:
    models = {"asr_model": str(whisper_folder), "assistant_model": str(assistant_folder)}
    limits = {"max_audio_seconds": LIMITS.max_seconds, "max_audio_bytes": LIMITS.max_bytes}
    return ModelSettings(**models, **limits, dtype="float32")


@pytest.fixture(scope="session")
def handler(settings) -> EndpointHandler:
    return EndpointHandler(settings=settings)


@pytest.fixture(scope="session")
def answered(handler) -> Callable[[dict], tuple[dict, bytes]]:
    """Pair the request of a body with the handler's own answer, to the byte."""
    return lambda body: (in_json(body), to_json(handler(body)))


@pytest.fixture(scope="session")
def plain(answered) -> tuple[dict, bytes]:
    return answered({**ANSWERS["plain"], "parameters": ONCE})


@pytest.fixture(scope="session")
def expected(answered) -> list[tuple[dict, bytes]]:
    """Return half of the good requests with answers; every other has no window decoded again."""
    bodies = [body for body in ANSWERS.values() if isinstance(body["inputs"], str)][::2]
    for number in range(1, len(bodies), 2):
        parameters = {**bodies[number].get("parameters", {}), **ONCE}
        bodies[number] = {**bodies[number], "parameters": parameters}
    return [answered(body) for body in bodies]
