"""Transcribes in this process; the models are loaded when the first audio file is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from config import ModelSettings
from whosaid.audio.decode import check_container
from whosaid.errors import EndpointError, StartError
from whosaid.transcribe.client import Failed, OnProgress, Unusable, failure

if TYPE_CHECKING:
    from whosaid.endpoint import Endpoint


def load(choose: Callable[[], ModelSettings]) -> Endpoint:
    """Load the models that `choose` finds. Raises Unusable if they cannot be loaded."""
    try:
        settings = choose()
        from handler import load_endpoint  # takes seconds

        return load_endpoint(settings)
    except (StartError, SystemExit) as error:
        raise Unusable(str(error).removeprefix(f"{StartError.code}: ")) from error


class LocalEndpoint:
    """The counterpart of `Client` in this process. `choose` returns its models; `names` are their
    names by field of ModelSettings.
    """

    def __init__(self, choose: Callable[[], ModelSettings], names: Mapping[str, Any]) -> None:
        self.models, self._choose = dict(names), choose
        self._endpoint: Endpoint | None = None

    def prepare(self, data: bytes) -> None:
        """Check that the data is audio, and load the models the first time. Raises Failed."""
        try:
            check_container(data)
        except EndpointError as error:
            raise Failed(str(error)) from error
        self._loaded()

    @contextmanager
    def transcribed(
        self, data: bytes, parameters: Mapping[str, Any], on_progress: OnProgress
    ) -> Iterator[dict[str, Any]]:
        """Yield the endpoint's answer to an audio file.

        Raises Failed if there is none, and Unusable if the models cannot be loaded or a parameter
        is refused.
        """
        body = {"inputs": data, "parameters": dict(parameters)}
        try:
            answer = asyncio.run(_answer(self._loaded(), body, on_progress))
        except EndpointError as error:
            raise failure(str(error)) from error
        yield answer

    def _loaded(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = load(self._choose)
        return self._endpoint


async def _answer(
    endpoint: Endpoint, body: dict[str, Any], on_progress: OnProgress
) -> dict[str, Any]:
    from whosaid.answer.response import response
    from whosaid.asr import Progress
    from whosaid.endpoint import Decoded, Finished
    from whosaid.loading import request_errors

    with request_errors(endpoint):
        request = endpoint.parse(body)
        async with aclosing(endpoint.stream(request)) as events:
            async for event in events:
                if isinstance(event, Decoded):
                    on_progress(0.0, event.duration)
                elif isinstance(event, Progress):
                    on_progress(event.done, event.total)
                elif isinstance(event, Finished):
                    return response(event.answer, request.config)
    raise Failed("there is no answer")
