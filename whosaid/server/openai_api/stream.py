"""The events of a streamed answer: deltas, segments by speaker, and the whole answer.

In every response format the joined deltas equal the last event's text, unless windows with
overlapping speakers were decoded again. So a delta holds back a trailing space until text follows,
and the last event has everything else that a format adds.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from whosaid.answer.response import Answer
from whosaid.asr import Progress
from whosaid.endpoint import Finished
from whosaid.server.openai_api.bodies import (
    diarized_segments,
    extras,
    file_of,
    languages,
    text_of,
    token_usage,
    verbose,
)
from whosaid.server.openai_api.form import FILES, AudioRequest
from whosaid.server.openai_api.logprobs import token_logprobs
from whosaid.server.openai_api.speakers import with_labels
from whosaid.server.sse import Events, Messages


async def stream_messages(events: Events, asked: AudioRequest) -> Messages:
    """Yield OpenAI's messages for a request's `events`, after its audio was decoded."""
    text, sent = "", ""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Progress):
                if asked.request.config.separate:
                    continue  # earlier text of other channels may arrive later
                text += "".join(chunk.text for chunk in event.chunks)
                delta = text.strip()[len(sent) :]
                sent += delta
                if delta:
                    message: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
                    if asked.tokenizer is not None:
                        message["logprobs"] = token_logprobs(event.chunks, asked.tokenizer)
                    yield message
            elif isinstance(event, Finished):
                answer = await asyncio.to_thread(with_labels, event.answer)
                if not sent:  # by the SDK the first event is a delta
                    yield {"type": "transcript.text.delta", "delta": text_of(answer)}
                if asked.format == "diarized_json":
                    for segment in await asyncio.to_thread(diarized_segments, answer):
                        yield segment
                yield await asyncio.to_thread(_done, answer, asked)


def _done(answer: Answer, asked: AudioRequest) -> dict[str, Any]:
    """Return the last event, with the keys of a verbose answer or the subtitle file."""
    message = {
        "type": "transcript.text.done",
        "text": text_of(answer),
        "languages": languages(answer.transcript),
        "usage": token_usage(answer),
    }
    message |= extras(answer, asked)
    if asked.format == "verbose_json":
        message = verbose(answer, asked) | message
    if asked.format in FILES:
        message[asked.format] = file_of(answer, asked)
    return message
