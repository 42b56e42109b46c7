"""One live session, without threads, clocks or sockets: samples and results in, events and wanted
passes out.

    speech        ____######################______________###########___
    items             [ 1                      ]         [ 2             ]
    partial passes    [---][-----][--------]             [---][------]
    final passes      [------------------------]         [---------------]

An item is a stretch of audio that becomes one text. While it is spoken, its audio so far is decoded
again and again, one pass at a time, and what is final of it is sent (`live.commit`). When it has
ended, all of its audio is transcribed as a file is: that text is the last word on the item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from asr import Guess, HeardBefore, Hypothesis, HypothesisWord, TranscriptionOptions
from errors import EndpointError, InvalidRequest
from live.audio_buffer import AudioBuffer
from live.commit import FinalWords
from live.events import (
    Cadence,
    Cleared,
    Committed,
    Completed,
    Delta,
    Failed,
    ItemAdded,
    ItemDone,
    LiveEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    Words,
)
from live.rest import words_after
from live.settings import Delay, LiveSettings
from live.turn_detection import SpeechStarted, SpeechStopped
from timebase import SAMPLE_RATE
from transcript import Chunk, Transcript, Word

# For each delay: seconds of new audio that are worth a pass, and how long before the end of the
# audio a word's attention ends that may be final.
DELAYS: dict[Delay, tuple[float, float]] = {
    "minimal": (0.4, 0.3),
    "low": (0.8, 0.4),
    "medium": (1.5, 0.6),
    "high": (3.0, 1.0),
    "xhigh": (5.0, 2.0),
}
DEFAULT_DELAY: Delay = "low"
# Seconds of the model's window that are left free, so that a text ends by itself.
SPARE_SECONDS = 3.0
# An item that nobody ends is as long as this at most.
LONGEST_ITEM = 600 * SAMPLE_RATE
SHORTEST_ITEM = SAMPLE_RATE // 10  # what the client commits, by OpenAI's rule
# Before speech is announced its beginning has passed: the detector waits to be sure.
KEPT_BEFORE_SPEECH = 2 * SAMPLE_RATE
# Speech of so many seconds tells its language.
TELLING_SECONDS = 3.0
# A pause of so many seconds may be the end of the item: its final pass begins before that is known,
# and holds all that a file's window has around its speech.
EARLY_SECONDS = 0.32
# In such a pause no other pass begins, which would be in its way.
PAUSE_SECONDS = 0.1
# While an item no longer than this is completed, what is spoken next waits: it has just begun.
SHORT_ITEM = 30 * SAMPLE_RATE
SLOWER = 2.0  # times the cadence asked for: then the client is told


class EmptyBuffer(InvalidRequest):
    """There is too little audio to commit."""

    code = "input_audio_buffer_commit_empty"


@dataclass(eq=False)
class Item:
    """A stretch of the session's audio from sample `begin` on, and what has been heard in it.

    What is decoded while it is spoken begins at `window`, and was decoded up to `heard`. `words`
    are final, in seconds of the session. `end` is None while the item goes on. `final` is the pass
    whose result is the last word on it.
    """

    id: str
    previous_id: str | None
    begin: int
    window: int = field(init=False)
    heard: int = field(init=False)
    end: int | None = None
    final: WantedPass | None = None
    found: FinalWords = field(default_factory=FinalWords)
    words: list[Word] = field(default_factory=list)
    language: str | None = None

    def __post_init__(self) -> None:
        self.window = self.heard = self.begin


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
    before: HeardBefore | None = None

    @property
    def final(self) -> bool:
        """Whether its result is the last word on the item."""
        return self.before is not None


class LiveSession:
    """The state of one session, for one thread.

    `options` are those that files are transcribed with, `window_seconds` what the model hears at
    once, and `new_id` makes names of items. `done` once nothing more will come of it.
    """

    def __init__(
        self,
        settings: LiveSettings,
        options: TranscriptionOptions,
        window_seconds: float,
        new_id: Callable[[], str],
    ) -> None:
        self._settings, self._options, self._new_id = settings, options, new_id
        self._longest_window = int((window_seconds - SPARE_SECONDS) * SAMPLE_RATE)
        self._audio = AudioBuffer()
        self._free_from = 0  # where the next item may begin
        self._current: Item | None = None  # whose audio still comes
        self._ended: list[Item] = []  # whose final pass is yet to begin
        self._finishing: list[Item] = []  # whose final pass is under way
        self._said: list[Item] = []  # that have ended, but are still heard with what follows
        self._partial: WantedPass | None = None
        self._early: WantedPass | None = None  # the final pass of the current item
        self._early_result: Transcript | None = None
        self._last_id: str | None = None
        self._language: str | None = None
        self._speaking = False
        self._spoken_until, self._silent_for = 0, 0.0
        self._cadence = 0.0  # that the client was told of
        self._finished = False
        self._events: list[LiveEvent] = []

    @property
    def done(self) -> bool:
        """Whether no more audio will come and every item is completed."""
        waiting = self._current or self._ended or self._finishing or self._events
        return self._finished and not waiting

    @property
    def seconds(self) -> float:
        """How much audio has come."""
        return self._audio.stop / SAMPLE_RATE

    @property
    def cadence(self) -> float:
        """Seconds of new audio that are worth a pass."""
        return self._delay[0]

    def is_useful(self, wanted: WantedPass) -> bool:
        """Whether the result of a pass that is under way will be of any use."""
        if wanted.final:
            return wanted in (wanted.item.final, self._early)
        return wanted.item is self._current

    def take_events(self) -> list[LiveEvent]:
        """What the client should be told since the last call, in order."""
        events, self._events = self._events, []
        return events

    # What the client does

    def change(self, settings: LiveSettings) -> None:
        """Hear what comes next with other settings."""
        self._settings = settings
        self._language = None

    def feed(
        self,
        samples: NDArray[np.float32],
        turns: Sequence[SpeechStarted | SpeechStopped],
        silent_for: float = 0.0,
    ) -> None:
        """More audio (n,) at 16 kHz, and what the detector found in it; at its end nobody has
        spoken for so many seconds.
        """
        self._audio.append(samples)
        for turn in turns:
            self._speaking = isinstance(turn, SpeechStarted)
            if isinstance(turn, SpeechStarted):
                self._begin_turn(turn)
            else:
                self._end_turn(turn)
        if self._speaking:
            self._silent_for = silent_for
            self._spoken_until = max(
                self._spoken_until, self._audio.stop - int(silent_for * SAMPLE_RATE)
            )
            if self._early is not None and self._spoken_until > self._early.stop:
                self._early = self._early_result = None
        if self._settings.turn_detection is None and self._audio.stop > self._free_from:
            self._current = self._current or self._new_item(self._free_from)
        item = self._current
        if item is not None and self._audio.stop - item.begin >= LONGEST_ITEM:
            self._end_item(item, self._audio.stop)
        self._forget()

    def commit(self) -> None:
        """The current item ends here. Raises EmptyBuffer."""
        item, now = self._current, self._audio.stop
        if item is None or now - item.begin < SHORTEST_ITEM:
            raise EmptyBuffer("the buffer has less than 100 ms of audio that is not committed")
        self._end_item(item, now)

    def clear(self) -> None:
        """Forget the audio that is not committed."""
        self._current, self._free_from, self._speaking = None, self._audio.stop, False
        self._early = self._early_result = None
        self._said.clear()  # what was said before is heard with what lies between
        self._events.append(Cleared())

    def finish(self) -> None:
        """No more audio will come: what there is becomes the last item."""
        self._finished = True
        if self._current is not None:
            self._end_item(self._current, self._audio.stop)

    # What decodes

    def next_pass(self) -> WantedPass | None:
        """What should be decoded now, if anything: final passes as items end, and one partial pass
        at a time. It is under way until `passed` or `failed` is called with it.
        """
        if self._ended:
            ended = self._ended.pop(0)
            self._finishing.append(ended)
            ended.final = self._final_pass(ended, ended.end)
            return ended.final
        item = self._current
        if item is None or self._partial is not None or self._early is not None:
            return None
        if self._may_end(item):
            self._early = self._final_pass(item, self._audio.stop)
            return self._early
        if not self._is_due(item):
            return None
        self._fit_window(item)
        now, found = self._audio.stop, item.found
        samples = self._audio.samples(item.window, now)
        options = replace(
            self._wanted_options(item), language=self._settings.language or item.language
        )
        self._tell_cadence((now - item.heard) / SAMPLE_RATE, first=item.heard == item.begin)
        self._partial = WantedPass(
            item, item.window, now, samples, options, found.prefix, found.draft
        )
        return self._partial

    def passed(self, wanted: WantedPass, result: Hypothesis | Transcript) -> None:
        """The result of a pass."""
        if isinstance(result, Transcript):
            if wanted is wanted.item.final:
                self._complete(wanted, result)
            elif wanted is self._early:
                self._early_result = result
        elif self._settle(wanted):
            self._heard(wanted, result)

    def failed(self, wanted: WantedPass, error: EndpointError | None) -> None:
        """A pass has no result. What is still spoken is heard again; an item that has ended fails
        with the error.
        """
        if wanted is self._early:
            self._early = None
        if error is None or wanted is not wanted.item.final:
            self._settle(wanted)
            return
        self._finishing.remove(wanted.item)
        wanted.item.final = None  # it holds samples
        self._events += [
            Failed(wanted.item.id, error),
            ItemDone(wanted.item.id, wanted.item.previous_id),
        ]
        self._forget()

    # Items

    def _begin_turn(self, turn: SpeechStarted) -> None:
        turns = self._settings.turn_detection
        if turns is None or self._current is not None:
            return
        begin = max(turn.sample - _samples(turns.prefix_padding_ms), self._free_from)
        self._current = self._new_item(begin)
        self._events.append(SpeechStartedEvent(self._current.id, _milliseconds(begin)))

    def _end_turn(self, turn: SpeechStopped) -> None:
        turns, item = self._settings.turn_detection, self._current
        self._spoken_until = turn.sample
        if turns is not None and item is not None:
            end = turn.sample + _samples(turns.silence_duration_ms)
            self._end_item(item, min(max(end, item.begin), self._audio.stop), stopped=True)

    def _new_item(self, begin: int) -> Item:
        item = Item(self._new_id(), self._last_id, begin, language=self._language)
        self._last_id = item.id
        return item

    def _end_item(self, item: Item, end: int, stopped: bool = False) -> None:
        item.end, self._current, self._free_from = end, None, end
        self._said.append(item)
        if stopped:
            self._events.append(SpeechStoppedEvent(item.id, _milliseconds(end)))
        self._events += [
            Committed(item.id, item.previous_id),
            ItemAdded(item.id, item.previous_id),
        ]
        early, result = self._early, self._early_result
        self._early = self._early_result = None
        if early is None or self._spoken_until > early.stop:
            self._ended.append(item)
            return
        self._finishing.append(item)
        item.final = early
        if result is not None:
            self._complete(early, result)

    def _forget(self) -> None:
        """Drop the audio that no item needs, nor one that begins now."""
        turns = self._settings.turn_detection
        padding = KEPT_BEFORE_SPEECH + (_samples(turns.prefix_padding_ms) if turns else 0)
        needed = [each.begin for each in (*self._ended, *self._finishing)]
        needed.append(self._current.begin if self._current else self._audio.stop - padding)
        reach = min(needed) + SHORTEST_ITEM - self._longest_window
        self._said = [each for each in self._said if each.begin >= reach]
        needed += [each.begin for each in self._said]
        self._audio.drop_before(min(needed))

    # Partial passes

    def _may_end(self, item: Item) -> bool:
        """Whether the current item may have ended: whatever would be heard of it now is its end."""
        vad = self._settings.turn_detection is not None
        return vad and self._silent_for >= EARLY_SECONDS and not self._finishing

    def _is_due(self, item: Item) -> bool:
        """Whether enough has been said since the last pass, and nothing shorter is completed."""
        if any(_length(each) <= SHORT_ITEM for each in self._finishing):
            return False
        if self._settings.turn_detection is not None and self._silent_for >= PAUSE_SECONDS:
            return False
        cadence, _ = self._delay
        new = self._audio.stop - item.heard
        return new >= cadence * SAMPLE_RATE and self._spoken_until > item.heard

    @property
    def _delay(self) -> tuple[float, float]:
        return DELAYS[self._settings.delay or DEFAULT_DELAY]

    def _wanted_options(self, item: Item) -> TranscriptionOptions:
        settings = self._settings
        decode = replace(self._options.decode, live=True)
        return replace(
            self._options,
            language=settings.language,
            prompt=settings.prompt or "",
            hotwords=settings.keywords,
            decode=decode,
        )

    def _fit_window(self, item: Item) -> None:
        """Where the window has grown too long, begin it in the widest pause between final words of
        its second half; where there is none, all that was heard is final.
        """
        longest = self._longest_window
        if self._audio.stop - item.window <= longest:
            return
        half, seconds = longest / 2 / SAMPLE_RATE, (self._audio.stop - item.window) / SAMPLE_RATE
        before = item.found.words
        if not any(word.end >= half for word in before):
            item.found = item.found.forced()
            self._tell(item, item.found.words[len(before) :])
        spoken = any(word.end >= half for word in item.found.words)
        cut = min(item.found.widest_gap(half), seconds) if spoken else seconds - half
        item.found = item.found.from_second(cut)
        item.window += int(cut * SAMPLE_RATE)

    def _settle(self, wanted: WantedPass) -> bool:
        """A partial pass has ended; whether its item still goes on."""
        self._partial = None if wanted is self._partial else self._partial
        wanted.item.heard = max(wanted.item.heard, wanted.stop)
        return wanted.item is self._current

    def _heard(self, wanted: WantedPass, heard: Hypothesis) -> None:
        item, seconds = wanted.item, len(wanted.samples) / SAMPLE_RATE
        if seconds >= TELLING_SECONDS and heard.language is not None:
            self._language = item.language = heard.language
        before, (_, margin) = len(item.found.words), self._delay
        item.found = item.found.updated(heard, seconds, margin)
        self._tell(item, item.found.words[before:])

    def _tell(self, item: Item, final: Sequence[HypothesisWord]) -> None:
        """Send the words that have become final, and the guess of what follows."""
        offset = item.window / SAMPLE_RATE
        words = tuple(
            Word(each.text, offset + each.start, offset + each.end, probability=each.probability)
            for each in final
        )
        tokens = tuple(token for each in final for token in each.tokens)
        log_probs = tuple(one for each in final for one in each.log_probs)
        self._send_delta(item, words, tokens, log_probs)
        unstable = "".join(each.text for each in item.found.unstable)
        self._events.append(Words(item.id, words, unstable))

    def _send_delta(
        self,
        item: Item,
        words: tuple[Word, ...],
        tokens: tuple[int, ...] = (),
        log_probs: tuple[float, ...] = (),
    ) -> None:
        text = "".join(word.text for word in words)
        text = text if item.words else text.lstrip()
        item.words += words
        if text:
            self._events.append(Delta(item.id, text, tokens, log_probs, words))

    def _tell_cadence(self, seconds: float, first: bool) -> None:
        """Say where passes are further apart than was asked for, and where they no longer are."""
        asked, _ = self._delay
        slow = 0.0 if first or seconds < SLOWER * asked else seconds
        if (slow > 0) != (self._cadence > 0) or slow > SLOWER * self._cadence > 0:
            self._cadence = slow
            self._events.append(Cadence(slow or asked))

    # Final passes

    def _final_pass(self, item: Item, end: int | None) -> WantedPass:
        """The item and the items before it that a window holds too, as it does of a file: a
        sentence goes on behind a pause.
        """
        assert end is not None
        options = self._wanted_options(item)
        if options.language is None and end - item.begin < TELLING_SECONDS * SAMPLE_RATE:
            options = replace(options, language=self._language)
        together = [*self._said_before(item, end), item]
        if len(together) > 1:
            options = replace(options, language=options.language or item.language)
        begin = together[0].begin
        guesses = tuple(
            Guess((each.window - begin) / SAMPLE_RATE, each.found.prefix + each.found.draft)
            for each in together
        )
        before = HeardBefore(guesses, (item.begin - begin) / SAMPLE_RATE)
        samples = self._audio.samples(begin, end)
        return WantedPass(item, begin, end, samples, options, before=before)

    def _said_before(self, item: Item, end: int) -> list[Item]:
        """The items before this one, in its language, that are heard with it."""
        found: list[Item] = []
        for each in reversed(self._said):
            if each is item or each.begin >= item.begin:
                continue
            if each.language != item.language or end - each.begin > self._longest_window:
                break
            found.insert(0, each)
        return found

    def _complete(self, wanted: WantedPass, found: Transcript) -> None:
        item = wanted.item
        self._finishing.remove(item)
        item.final = None  # it holds samples
        transcript = moved(found, wanted.begin / SAMPLE_RATE)
        if found.speech and wanted.stop - item.begin >= TELLING_SECONDS * SAMPLE_RATE:
            self._language = found.language
        every = [word for chunk in transcript.chunks for word in chunk.words]
        rest = words_after(item.words, every)
        self._send_delta(item, tuple(rest))
        text, seconds = transcript.text.strip(), _length(item) / SAMPLE_RATE
        self._events += [
            Words(item.id, tuple(rest)),
            Completed(item.id, transcript, text, seconds),
            ItemDone(item.id, item.previous_id),
        ]
        self._forget()


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
    return replace(transcript, chunks=tuple(map(move, transcript.chunks)), speech=speech)


def _length(item: Item) -> int:
    """The samples of an item that has ended."""
    assert item.end is not None
    return item.end - item.begin


def _samples(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE // 1000


def _milliseconds(sample: int) -> int:
    return sample * 1000 // SAMPLE_RATE
