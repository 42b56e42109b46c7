"""The events of an answer that is streamed: deltas, segments by speaker, and the whole.

Deltas joined are the last event's text, whatever the response format, unless windows in which
speakers overlap were decoded again. So a delta holds back the space at its end until text follows,
and what a format adds comes with that event.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from transformers import PreTrainedTokenizerBase

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
from whosaid.server.sse import Events, Messages


async def stream_messages(
    events: Events, asked: AudioRequest, tokenizer: PreTrainedTokenizerBase
) -> Messages:
    """Yield OpenAI's messages for a request's `events`, after its audio was decoded."""
    text, sent = "", ""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Progress):
                if asked.request.config.separate:
                    continue  # what other channels said before may come later
                text += "".join(chunk.text for chunk in event.chunks)
                delta = text.strip()[len(sent) :]
                sent += delta
                if delta:
                    message: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
                    if asked.logprobs:
                        message["logprobs"] = token_logprobs(event.chunks, tokenizer)
                    yield message
            elif isinstance(event, Finished):
                if not sent:  # the first event is a delta, says the SDK
                    yield {"type": "transcript.text.delta", "delta": text_of(event.answer)}
                if asked.format == "diarized_json":
                    for segment in await asyncio.to_thread(diarized_segments, event.answer):
                        yield segment
                yield await asyncio.to_thread(_done, event.answer, asked, tokenizer)


def _done(
    answer: Answer, asked: AudioRequest, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Return the last event; of a verbose answer or a file it has the rest too."""
    message = {
        "type": "transcript.text.done",
        "text": text_of(answer),
        "languages": languages(answer.transcript),
        "usage": token_usage(answer),
    }
    if asked.logprobs:
        message["logprobs"] = token_logprobs(answer.transcript.chunks, tokenizer)
    message |= extras(answer, asked)
    if asked.format == "verbose_json":
        message = verbose(answer, asked) | message
    if asked.format in FILES:
        message[asked.format] = file_of(answer, asked)
    if answer.warnings:
        message["warnings"] = list(answer.warnings)
    return message
