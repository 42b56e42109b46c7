"""Events of a request, in order: Decoded, any number of Transcribed, of Diarized, and Finished."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from whosaid.answer.response import Answer
from whosaid.asr import Transcribed


@dataclass(frozen=True, slots=True)
class Decoded:
    """The audio has `duration` seconds, `estimated` if a long recording is still being decoded."""

    duration: float
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Diarized:
    """All text is known, and this share of the search for speakers is done, 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request."""

    answer: Answer


Event = Decoded | Transcribed | Diarized | Finished


async def answer_of(events: AsyncGenerator[Event]) -> Answer:
    """Return the answer from a request's last event; close `events` in every case."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished):
                return event.answer
    raise AssertionError("a request ends with its answer")
