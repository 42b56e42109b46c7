"""The events of a streamed answer: deltas, segments by speaker, and the whole answer.

In every response format the joined deltas equal the last event's text, unless windows with
overlapping speakers were decoded again. So a delta holds back a trailing space until text follows,
and the last event has everything else that a format adds.
"""

import asyncio
from contextlib import aclosing
from typing import Any

from whosaid.answer.response import Answer
from whosaid.asr import Transcribed
from whosaid.endpoint import Finished
from whosaid.endpoint.request import CUES
from whosaid.server.openai_api import bodies
from whosaid.server.openai_api.form import AudioRequest
from whosaid.server.openai_api.logprobs import token_logprobs
from whosaid.server.openai_api.speakers import with_labels
from whosaid.server.sse import Events, Messages


async def stream_messages(events: Events, asked: AudioRequest) -> Messages:
    """Yield OpenAI's messages for a request's `events`, after its audio was decoded."""
    text, sent = "", ""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Transcribed):
                if asked.request.config.separate:
                    continue  # earlier text of other channels may arrive later
                text += "".join(chunk.text for chunk in event.chunks)
                delta = text.strip()[len(sent) :]
                sent += delta
                if delta:
                    message: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
                    if asked.token_bytes is not None:
                        message["logprobs"] = token_logprobs(event.chunks, asked.token_bytes)
                    yield message
            elif isinstance(event, Finished):
                answer = await asyncio.to_thread(with_labels, event.answer)
                if not sent:  # by the SDK the first event is a delta
                    yield {"type": "transcript.text.delta", "delta": bodies.text_of(answer)}
                if asked.format == "diarized_json":
                    for segment in await asyncio.to_thread(bodies.diarized_segments, answer):
                        yield segment
                yield await asyncio.to_thread(_done, answer, asked)


def _done(answer: Answer, asked: AudioRequest) -> dict[str, Any]:
    """Return the last event, with the keys of a verbose answer or the subtitle file."""
    message = {
        "type": "transcript.text.done",
        "text": bodies.text_of(answer),
        "languages": bodies.languages(answer.transcript),
        "usage": bodies.token_usage(answer),
    }
    message |= bodies.extras(answer, asked)
    if asked.format == "verbose_json":
        message = bodies.verbose(answer, asked) | message
    if asked.format in CUES:
        message[asked.format] = bodies.file_of(answer, asked)
    return message
