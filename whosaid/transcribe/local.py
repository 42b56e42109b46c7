"""Transcribes in this process; the models are loaded when the first audio file is found."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

from config import ModelSettings
from whosaid.audio.decode import check_container
from whosaid.errors import EndpointError, StartError
from whosaid.transcribe.client import Failed, OnProgress, Unusable, failure

if TYPE_CHECKING:
    from whosaid.answer.kept import RunRequest
    from whosaid.endpoint import Endpoint
    from whosaid.transcribe.partial import PartialAnswer
    from whosaid.transcribe.recordings import Recording

# A deployment's defaults protect it from its clients; a user's own machine needs no such limits.
UNLIMITED = {"max_audio_seconds": inf, "max_audio_bytes": sys.maxsize}


def load(choose: Callable[[], ModelSettings]) -> Endpoint:
    """Load `choose`'s models, for audio of any length unless limited. Raises Unusable."""
    try:
        settings = choose()
        unset = {name: UNLIMITED[name] for name in UNLIMITED.keys() - settings.model_fields_set}
        settings = settings.model_copy(update=unset)
        from handler import load_endpoint  # takes seconds

        return load_endpoint(settings)
    except (StartError, SystemExit) as error:
        raise Unusable(str(error).removeprefix(f"{StartError.code}: ")) from error


class LocalEndpoint:
    """`Client`'s counterpart in this process; `names` are its models' by field of ModelSettings."""

    first_stage, jobs = "decoding the audio", False

    def __init__(self, choose: Callable[[], ModelSettings], names: Mapping[str, Any]) -> None:
        self.models, self._choose = dict(names), choose
        self._endpoint: Endpoint | None = None

    def prepare(self, files: Sequence[bytes], on_load: Callable[[], object] = bool) -> None:
        """Check that files are audio; once, call `on_load` and load the models. Raises Failed."""
        try:
            for data in files:
                check_container(data)
        except EndpointError as error:
            raise Failed(str(error)) from error
        if self._endpoint is None:
            on_load()
        self._loaded()

    def partial_answer(
        self, recording: Recording, described: Mapping[str, Any], request: RunRequest
    ) -> PartialAnswer:
        """Return what an interrupted run has kept for the `request`, to go on with it."""
        from whosaid.transcribe.partial import PartialAnswer

        return PartialAnswer(recording, described, request)

    @contextmanager
    def transcribed(
        self,
        files: Sequence[bytes],
        parameters: Mapping[str, Any],
        on_progress: OnProgress,
        begun: PartialAnswer | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the endpoint's answer; go on with what is `begun`. Raises Failed, and Unusable if
        the models cannot be loaded or a parameter is refused.
        """
        body = {"inputs": [*files], "parameters": dict(parameters)}
        try:
            answer = asyncio.run(_answer(self._loaded(), body, on_progress, begun))
        except EndpointError as error:
            raise failure(str(error)) from error
        yield answer

    def _loaded(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = load(self._choose)
        return self._endpoint


async def _answer(
    endpoint: Endpoint, body: dict[str, Any], on_progress: OnProgress, begun: PartialAnswer | None
) -> dict[str, Any]:
    from whosaid.answer.response import response
    from whosaid.asr import Transcribed
    from whosaid.endpoint import Decoded, Diarized, Finished
    from whosaid.endpoint.loading import request_errors

    with request_errors(endpoint):
        request = endpoint.parse(body)
        if begun is not None:
            request = request._replace(journal=begun.journal)
        async with aclosing(endpoint.stream(request)) as events:
            async for event in events:
                if isinstance(event, Decoded):
                    on_progress(0.0, event.duration)
                elif isinstance(event, Transcribed):
                    on_progress(event.done, event.total)
                elif isinstance(event, Diarized):
                    on_progress(event.share, 1.0, True)
                elif isinstance(event, Finished):
                    return response(event.answer, request.config)
    raise Failed("there is no answer")
