"""Transcribes in this process, with models that are loaded for the first file that is audio."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from audio.decode import check_container
from config import ModelSettings
from errors import EndpointError, StartError
from runtime import modules_that_stay
from runtime.event_loop import EventLoopThread
from transcribe.client import Failed, OnProgress, Unusable, failure

if TYPE_CHECKING:
    from endpoint import Endpoint


class ProgressLog(logging.Handler):
    """Tells the endpoint's log records that count something."""

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__(logging.INFO)
        self._on_progress = on_progress

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the record's `done` and `total`, if it has them."""
        if (total := getattr(record, "total", None)) is not None:
            self._on_progress(getattr(record, "done", 0), total)


class LocalEndpoint:
    """An endpoint of this process, as `Client` is one elsewhere. `choose` finds its models, which
    have these `names` by the field of ModelSettings.
    """

    def __init__(self, choose: Callable[[], ModelSettings], names: Mapping[str, Any]) -> None:
        self._choose, self._names = choose, dict(names)
        self._endpoint: Endpoint | None = None
        self._event_loop = EventLoopThread("endpoint")

    def models(self) -> dict[str, Any]:
        """The models' names; once they are loaded, of those that were to be had."""
        return self._names

    def prepare(self, data: bytes) -> None:
        """Load the models the first time, but for nothing that is no audio: that raises Failed."""
        try:
            check_container(data)
        except EndpointError as error:
            raise Failed(str(error)) from error
        self._loaded()

    def transcribe(
        self, data: bytes, parameters: Mapping[str, Any], on_progress: OnProgress
    ) -> dict[str, Any]:
        """The endpoint's answer to an audio file.

        Raises Failed if there is none, and Unusable if the models cannot be loaded or a parameter
        is refused.
        """
        try:
            with _progress_told(on_progress):
                request = {"inputs": data, "parameters": dict(parameters)}
                return self._event_loop.run(self._loaded().respond(request))
        except EndpointError as error:
            raise failure(str(error)) from error

    def _loaded(self) -> Endpoint:
        """The endpoint, which is imported here because that takes seconds."""
        if self._endpoint is None:
            try:
                settings = self._choose()
                if settings.diarization_model is None:
                    self._names["diarization_model"] = None
                with modules_that_stay():
                    from loading import load_endpoint

                self._endpoint = load_endpoint(settings)
            except (StartError, SystemExit) as error:
                raise Unusable(str(error).removeprefix(f"{StartError.code}: ")) from error
        return self._endpoint


@contextmanager
def _progress_told(on_progress: OnProgress) -> Iterator[None]:
    logger, log = logging.getLogger("endpoint"), ProgressLog(on_progress)
    before = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(log)
        logger.setLevel(before)
