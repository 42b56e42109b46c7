"""An item: a stretch of a session's audio that becomes one text, and the words recognised in it.

An item makes the events about its text. `live.session` decides when it begins, ends and is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

from whosaid.asr import Hypothesis, HypothesisWord, TranscriptionOptions
from whosaid.errors import EndpointError
from whosaid.live.commit import FinalWords, spoken
from whosaid.live.events import Completed, Delta, ItemDone, ItemFailed, LiveEvent, Words
from whosaid.live.passes import PassAudio
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript, Word

# Number of last sent words that are compared with the final text, and seconds before them from
# which words of the final text are compared.
COMPARED, SECONDS = 16, 10.0


@dataclass(frozen=True, eq=False)
class WantedPass(PassAudio):
    """A request to decode an item's audio."""

    item: Item = field(kw_only=True)
    prefix: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()


@dataclass(eq=False)
class Item:
    """Samples `begin` to `end` of the session; `end` and `options` are None until the item ends.

    Partial passes begin at sample `window` and have reached sample `decoded`. `found` is their
    result. `words` are the words that were sent, in seconds of the session. The `final` pass may
    begin in a pause before the item's end is certain. Its `result`, a transcript or an error, is
    kept until the item has ended and all earlier items are completed.
    """

    id: str
    previous_id: str | None
    begin: int
    language: str | None = None
    window: int = field(init=False)
    decoded: int = field(init=False)
    end: int | None = None
    options: TranscriptionOptions | None = None
    final: WantedPass | None = None
    result: Transcript | EndpointError | None = None
    found: FinalWords = field(default_factory=FinalWords)
    words: list[Word] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window = self.decoded = self.begin

    @property
    def length(self) -> int:
        assert self.end is not None
        return self.end - self.begin

    @property
    def between_words(self) -> int | None:
        """Sample between the last final word and the next word; None without a final word."""
        words = self.found.words
        if not words:
            return None
        return self.window + int(self.found.widest_gap(words[-1].end) * SAMPLE_RATE)

    def speak_until(self, sample: int) -> None:
        """Drop a final pass that stops before speech up to `sample`."""
        if self.final is not None and sample > self.final.stop:
            self.forget_final()

    def forget_final(self) -> None:
        self.final = self.result = None

    def fit_window(self, stop: int, longest: int) -> list[LiveEvent]:
        """Shorten the window up to `stop` if it has more than `longest` samples; return new events.
        It then begins in the widest pause after a final word of its second half, in which all
        unstable words become final first if none was.
        """
        if stop - self.window <= longest:
            return []
        half, seconds = longest / 2 / SAMPLE_RATE, (stop - self.window) / SAMPLE_RATE
        events: list[LiveEvent] = []
        before = self.found.words
        if not any(word.end >= half for word in before):
            self.found = self.found.forced()
            events = self._events(self.found.words[len(before) :])
        follows = any(word.end >= half for word in self.found.words)
        cut = min(self.found.widest_gap(half), seconds) if follows else seconds - half
        self.found = self.found.from_second(cut)
        self.window += int(cut * SAMPLE_RATE)
        return events

    def update(self, hypothesis: Hypothesis, seconds: float, margin: float) -> list[LiveEvent]:
        """Add the result for the first `seconds` of the window and return new events. The attention
        of a final word ends `margin` seconds before their end.
        """
        before = len(self.found.words)
        self.found = self.found.updated(hypothesis, seconds, margin)
        return self._events(self.found.words[before:])

    def complete(self, transcript: Transcript) -> list[LiveEvent]:
        """Return the events of the item's final text, with times in seconds of the session.

        Its first window begins with it, even if earlier items were context.
        """
        final, begin = self.final, self.begin / SAMPLE_RATE
        self.forget_final()
        own = (replace(c, window_start=max(c.window_start, begin)) for c in transcript.chunks)
        transcript, seconds = replace(transcript, chunks=tuple(own)), self.length / SAMPLE_RATE
        every = [word for chunk in transcript.chunks for word in chunk.words]
        rest = tuple(words_after(self.words, every))
        return [
            *self._delta(rest),
            Words(self.id, rest),
            Completed(self.id, transcript, transcript.text.strip(), seconds, final),
            ItemDone(self.id, self.previous_id),
        ]

    def fail(self, error: EndpointError) -> list[LiveEvent]:
        self.forget_final()
        return [ItemFailed(self.id, error), ItemDone(self.id, self.previous_id)]

    def _events(self, final: Sequence[HypothesisWord]) -> list[LiveEvent]:
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
        self, new: tuple[Word, ...], tokens: tuple[int, ...] = (), log_probs: tuple[float, ...] = ()
    ) -> list[LiveEvent]:
        """Add new final words, and return an event if they have any text."""
        text = "".join(word.text for word in new)
        text = text if self.words else text.lstrip()
        self.words += new
        return [Delta(self.id, text, tokens, log_probs, new)] if text else []


def moved(transcript: Transcript, seconds: float) -> Transcript:
    return replace(
        transcript,
        chunks=tuple(chunk.later(seconds) for chunk in transcript.chunks),
        speech=tuple((start + seconds, stop + seconds) for start, stop in transcript.speech),
        unwritten=tuple(
            replace(each, start=each.start + seconds, end=each.end + seconds)
            for each in transcript.unwritten
        ),
    )


def words_after(sent: Sequence[Word], whole: Sequence[Word]) -> list[Word]:
    """Return the words of the `whole` text that follow the `sent` words, which were decoded from
    other parts of the audio. The last sent words are aligned with the part of the whole text that
    needs the fewest word edits (Sellers 1980, "The theory and computation of evolutionary
    distances"), of several with the closest in time.
    """
    if not sent:
        return list(whole)
    last = sent[-COMPARED:]
    end, since = last[-1].end, last[0].start - SECONDS
    candidates = list(dropwhile(lambda word: word.end < since, whole))
    distances = _distances(
        [spoken(word.text) for word in last], [spoken(w.text) for w in candidates]
    )
    ends = [candidates[0].start if candidates else end, *(word.end for word in candidates)]
    best = min(range(len(ends)), key=lambda place: (distances[place], abs(ends[place] - end)))
    return candidates[best:]


def _distances(pattern: Sequence[str], text: Sequence[str]) -> list[int]:
    """Return the fewest edits of `pattern` to a suffix of each prefix of `text`, even ""."""
    row = [0] * (len(text) + 1)
    for count, wanted in enumerate(pattern, 1):
        above, row = row, [count]
        for place, found in enumerate(text):
            row.append(min(above[place] + (wanted != found), above[place + 1] + 1, row[place] + 1))
    return row
