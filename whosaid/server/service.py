"""The endpoint as the routes use it: requests are counted, and bodies freed early."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from whosaid.answer.response import Answer
from whosaid.asr import Share, Transcribed
from whosaid.endpoint import Decoded, Endpoint, Event, Finished, answer_of
from whosaid.endpoint.request import TranscriptionRequest
from whosaid.errors import ClientError
from whosaid.server.admission import Permit
from whosaid.server.keys import Account
from whosaid.server.metrics import Metrics
from whosaid.server.tracing import Phases


@dataclass(frozen=True)
class Service:
    """The endpoint for the routes, with counted requests."""

    endpoint: Endpoint
    metrics: Metrics

    async def answer(self, request: TranscriptionRequest, permit: Permit | None) -> Answer:
        """Return the answer. Raises EndpointError; cancelling the task frees the request's rows."""
        return await answer_of(self.stream(request, permit))

    async def stream(
        self,
        request: TranscriptionRequest,
        permit: Permit | None = None,
        account: Account | None = None,
    ) -> AsyncGenerator[Event]:
        """Yield the endpoint's events. The `permit` releases the body's bytes once its audio is
        decoded, except for a body with clips, because the clips may be slices of it.

        Charges `account`, by default the permit's, for the audio. A stream that ends early costs
        the audio of its text so far, and a failure of the server nothing.
        """
        began, heard = time.monotonic(), 0.0
        if permit is not None:
            account = permit.account
        if account is not None:
            request = request.shared_by(Share(account.name, account.limits.weight))
        events = self.endpoint.stream(request)
        try:
            async with aclosing(events), Phases() as phases:
                async for event in events:
                    if isinstance(event, Decoded):
                        phases.enter("recognise")
                        self.metrics.until_decoded.observe(time.monotonic() - began)
                        if permit is not None and not request.config.known_speakers:
                            permit.give_bytes_back()
                    elif isinstance(event, Transcribed):
                        heard = max([heard, *(chunk.end for chunk in event.chunks)])
                        if event.done >= event.total:
                            phases.enter("attribute")
                    elif isinstance(event, Finished):
                        heard = event.answer.duration
                        self.metrics.audio_seconds.inc(heard)
                    yield event
        except Exception as error:  # also one that the routes translate
            if not isinstance(error, ClientError):
                heard = 0.0
            raise
        finally:
            self.metrics.charge(account, heard)
