"""Wraps a start and each request: reads settings, reports errors in one line, logs, restarts."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from config import ModelReference, ModelSettings, misspelt_variables
from whosaid.asr import Checkpoint, WhisperModels, with_conditioning
from whosaid.endpoint import Endpoint
from whosaid.errors import EndpointError, StartError
from whosaid.runtime.errors import causes, end_process, endpoint_errors, is_device_lost, loading
from whosaid.runtime.servers import hide_bodies, keep_one_line, restart_without_graphs
from whosaid.runtime.versions import describe_versions

logger = logging.getLogger("endpoint")

T = TypeVar("T")


def read_settings() -> ModelSettings:
    """Return the environment's settings. Raises SystemExit if they are invalid."""
    hide_bodies()
    try:
        return ModelSettings.from_environment()
    except ValueError as error:
        _exit(StartError(str(error)))


@contextmanager
def exit_on_failure(settings: ModelSettings, serves: bool) -> Iterator[None]:
    """Log the start in this block; raise SystemExit with one line if it fails.

    If the device is lost, a process that `serves` restarts without CUDA graphs.
    """
    hide_bodies()
    logger.info(describe_versions())
    for line in misspelt_variables(ModelSettings):
        logger.warning(line)
    logger.info("loading %s", ", ".join(model.name for model in settings.models))
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        lost = any(is_device_lost(cause) for cause in causes(error))
        if lost and serves and settings.cuda_graphs:
            restart_without_graphs(str(reason))
        _exit(reason)


@contextmanager
def request_errors(endpoint: Endpoint) -> Iterator[None]:
    """Raise errors as ClientError or ServerError; end the process if the engine has stopped."""
    try:
        with endpoint_errors():
            yield
    except EndpointError:
        if endpoint.failure is not None:
            end_process("speech recognition has stopped")
        raise


def adapted(models: WhisperModels, settings: ModelSettings) -> WhisperModels:
    """Return the models conditioned by CONDITIONING_MODEL, or by the file beside them, if any."""
    named = settings.conditioning_model
    with loading("CONDITIONING_MODEL", (named or settings.asr_model).name):
        return with_conditioning(models, checkpoint(named, settings) if named else None)


def checkpoint(model: ModelReference, settings: ModelSettings) -> Checkpoint:
    return Checkpoint(model.name, model.revision, settings.token)


def timed(load: Callable[[], T], name: str, seconds: dict[str, float]) -> Callable[[], T]:
    """Return `load`, which also notes under `name` how long it took."""

    def run() -> T:
        began = time.perf_counter()
        loaded = load()
        seconds[name] = time.perf_counter() - began
        return loaded

    return run


def _reason(error: Exception) -> StartError:
    if isinstance(error, StartError):
        return error
    text = " ".join(str(error).split())
    if not isinstance(error, EndpointError):
        text = f"the models do not run: {type(error).__name__}: {text}"
    return StartError(text)


def _exit(error: StartError) -> NoReturn:
    keep_one_line(str(error))
    raise SystemExit(str(error)) from error
