"""An item: a stretch of a session's audio that becomes one text, and what has been heard in it.

It makes the events that tell of its text; when it begins, ends and is decoded says `live.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from asr import Hypothesis, HypothesisWord, Prior, TranscriptionOptions
from errors import EndpointError
from live.commit import FinalWords
from live.events import Committed, Completed, Delta, Failed, ItemAdded, ItemDone, LiveEvent, Words
from live.rest import words_after
from timebase import SAMPLE_RATE
from transcript import Chunk, Transcript, Word


@dataclass(frozen=True, eq=False)
class WantedPass:
    """Samples (n,) to decode, from sample `begin` to `stop` of the session: where it is `final`, as
    a file is, of a whole item and what was said just `before`; else of what has been spoken of it.
    """

    item: Item
    begin: int
    stop: int
    samples: NDArray[np.float32]
    options: TranscriptionOptions
    prefix: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    before: Prior | None = None

    @property
    def final(self) -> bool:
        """Whether its result is the last word on the item."""
        return self.before is not None


@dataclass(eq=False)
class Item:
    """Samples of the session from `begin` to `end`, which is None while somebody speaks.

    What is decoded while it is spoken begins at `window`, and was decoded up to `heard`; `found` is
    what came of it, and `words` are those that were sent, in seconds of the session. `final` is the
    pass whose result is the last word on the item; it may begin in a pause, before anybody knows
    that the item ends there, and `result` is what it gave: the transcript, or its error. It waits
    there until the item has ended, and those before it are completed.
    """

    id: str
    previous_id: str | None
    begin: int
    language: str | None = None
    window: int = field(init=False)
    heard: int = field(init=False)
    end: int | None = None
    final: WantedPass | None = None
    result: Transcript | EndpointError | None = None
    found: FinalWords = field(default_factory=FinalWords)
    words: list[Word] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window = self.heard = self.begin

    @property
    def length(self) -> int:
        """Its samples, once it has ended."""
        assert self.end is not None
        return self.end - self.begin

    @property
    def committed(self) -> list[LiveEvent]:
        """What the client is told at its end."""
        return [Committed(self.id, self.previous_id), ItemAdded(self.id, self.previous_id)]

    @property
    def between_words(self) -> int | None:
        """The sample between its last final word and the next one; None where no word of its window
        is final.
        """
        words = self.found.words
        if not words:
            return None
        return self.window + int(self.found.widest_gap(words[-1].end) * SAMPLE_RATE)

    def speak_until(self, sample: int) -> None:
        """Somebody has spoken up to there: a final pass that stops before is of no use."""
        if self.final is not None and sample > self.final.stop:
            self.forget_final()

    def forget_final(self) -> None:
        """There is no final pass, or it is not under way any more; it holds samples."""
        self.final = self.result = None

    def fit_window(self, stop: int, longest: int) -> list[LiveEvent]:
        """Where the window up to `stop` has more than the `longest` samples, begin it in the widest
        pause between final words of its second half; where there is none, all that was heard is
        final.
        """
        if stop - self.window <= longest:
            return []
        half, seconds = longest / 2 / SAMPLE_RATE, (stop - self.window) / SAMPLE_RATE
        told: list[LiveEvent] = []
        before = self.found.words
        if not any(word.end >= half for word in before):
            self.found = self.found.forced()
            told = self._tell(self.found.words[len(before) :])
        spoken = any(word.end >= half for word in self.found.words)
        cut = min(self.found.widest_gap(half), seconds) if spoken else seconds - half
        self.found = self.found.from_second(cut)
        self.window += int(cut * SAMPLE_RATE)
        return told

    def hear(self, heard: Hypothesis, seconds: float, margin: float) -> list[LiveEvent]:
        """What the first `seconds` of the window gave: the words that are final now, whose
        attention ends `margin` seconds before, and the guess of what follows.
        """
        before = len(self.found.words)
        self.found = self.found.updated(heard, seconds, margin)
        return self._tell(self.found.words[before:])

    def complete(self, transcript: Transcript) -> list[LiveEvent]:
        """Its whole text, in seconds of the session."""
        self.forget_final()
        every = [word for chunk in transcript.chunks for word in chunk.words]
        rest = tuple(words_after(self.words, every))
        return [
            *self._delta(rest),
            Words(self.id, rest),
            Completed(self.id, transcript, transcript.text.strip(), self.length / SAMPLE_RATE),
            ItemDone(self.id, self.previous_id),
        ]

    def fail(self, error: EndpointError) -> list[LiveEvent]:
        """It has no text."""
        self.forget_final()
        return [Failed(self.id, error), ItemDone(self.id, self.previous_id)]

    def _tell(self, final: Sequence[HypothesisWord]) -> list[LiveEvent]:
        offset = self.window / SAMPLE_RATE
        words = tuple(
            Word(each.text, offset + each.start, offset + each.end, probability=each.probability)
            for each in final
        )
        tokens = tuple(token for each in final for token in each.tokens)
        log_probs = tuple(one for each in final for one in each.log_probs)
        unstable = "".join(each.text for each in self.found.unstable)
        return [*self._delta(words, tokens, log_probs), Words(self.id, words, unstable)]

    def _delta(
        self,
        words: tuple[Word, ...],
        tokens: tuple[int, ...] = (),
        log_probs: tuple[float, ...] = (),
    ) -> list[LiveEvent]:
        """The text of words that are final now, if there is any."""
        text = "".join(word.text for word in words)
        text = text if self.words else text.lstrip()
        self.words += words
        return [Delta(self.id, text, tokens, log_probs, words)] if text else []


def moved(transcript: Transcript, seconds: float) -> Transcript:
    """A transcript whose audio begins at `seconds` of the session."""

    def move(chunk: Chunk) -> Chunk:
        words = [replace(w, start=w.start + seconds, end=w.end + seconds) for w in chunk.words]
        return replace(
            chunk,
            start=chunk.start + seconds,
            end=chunk.end + seconds,
            window_start=chunk.window_start + seconds,
            words=tuple(words),
        )

    speech = tuple((start + seconds, stop + seconds) for start, stop in transcript.speech)
    unwritten = tuple(
        replace(each, start=each.start + seconds, end=each.end + seconds)
        for each in transcript.unwritten
    )
    chunks = tuple(map(move, transcript.chunks))
    return replace(transcript, chunks=chunks, speech=speech, unwritten=unwritten)
