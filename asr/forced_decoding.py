"""A client's own text decoded in place of what was recognised: the step after recognition.

The words of each window are given to the decoder as if it had chosen them (`Request.prefix`); what
is read of that are their times and probabilities. Words that turn out unlikely, which nobody heard
either, are taken back, and their window is decoded again without them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from asr.decoding_plan import DecodingPlan, InLanguage
from asr.engine.engine import DecodeEngine
from asr.engine.request import Request
from asr.frontend.schedule import Schedule
from asr.given_text import GivenText, GivenWindow, Heard, place_text, split_text
from transcript import Chunk, Unspoken

T = TypeVar("T")


class ForcedDecoding:
    """Decodes windows of a schedule again, with the words of a text; for one thread at a time."""

    def __init__(self, engine: DecodeEngine, schedule: Schedule, plan: DecodingPlan) -> None:
        self._engine, self._schedule, self._plan = engine, schedule, plan

    def steps(
        self, text: str, recognised: Sequence[Heard]
    ) -> Generator[bool, None, tuple[list[Chunk], tuple[Unspoken, ...]]]:
        """The text's chunks in place of those that were `recognised`, and what nobody speaks; in
        steps as those of a `Transcription`.
        """
        heard = sorted(recognised, key=lambda each: each.window.start)
        words = yield from _busy(
            split_text(text, self._engine.models, self._plan.timeline.language)
        )
        placed, windows = yield from _busy(place_text(words, heard))
        chunks: list[Chunk] = []
        spoken: set[int] = set()
        for timestamps in (True, False):
            alike = [each for each in windows if each.timestamps == timestamps]
            more, words_of_more = yield from self._decode(placed, alike, timestamps)
            chunks += more
            spoken |= words_of_more
        return chunks, placed.unspoken(spoken)

    def _decode(
        self, text: GivenText, windows: Sequence[GivenWindow], timestamps: bool
    ) -> Generator[bool, None, tuple[list[Chunk], set[int]]]:
        """The chunks of windows with `timestamps` or without, in no order, and the words that are
        spoken in them.
        """
        plan = self._plan
        greedy = replace(plan.options, fallback=None, num_beams=1, temperature=0.0, assisted=False)
        options = replace(greedy, timestamps=timestamps)
        most = self._engine.models.special_tokens.max_length
        chunks: list[Chunk] = []
        spoken: set[int] = set()
        with self._engine.session(options) as session:
            for given in windows:
                language = plan.at(given.window.start)
                room = most - len(language.prompt) - 2 * len(given.segments) - 1
                given = text.fitting(given, room)
                session.add(self._requests(text, given, language, len(windows)))
            while not session.done:
                for request, result in session.take():
                    given, language = request.key
                    unlikely = text.unlikely(given, language.reader.log_probs(result))
                    if unlikely:
                        given = given.without(unlikely)
                        session.add(self._requests(text, given, language, len(windows)))
                        continue
                    # Words are counted as the text was split.
                    reader = replace(language.reader, language=plan.timeline.language)
                    segments = text.segments(given)
                    chunks += reader.chunks(given.window, segments, request.samples, result)
                    spoken.update(given.words)
                    yield True
                yield False
        return chunks, spoken

    def _requests(
        self, text: GivenText, given: GivenWindow, language: InLanguage, windows: int
    ) -> list[Request]:
        """One of so many `windows` with the words that are given for it; none without words."""
        if not given.segments:
            return []
        special_tokens = self._engine.models.special_tokens
        prefix = text.prefix(given, special_tokens)
        samples = self._schedule.samples(given.window)
        return [
            Request(
                (given, language),
                samples,
                special_tokens.with_timestamps(language.prompt, given.timestamps),
                len(prefix),
                windows_left=windows,
                prefix=prefix,
            )
        ]


def _busy(steps: Generator[None, None, T]) -> Generator[bool, None, T]:
    """What `steps` return, each of which does something."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found
        yield True
