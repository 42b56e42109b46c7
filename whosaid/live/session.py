"""The state of a live session, without threads, clocks or sockets: samples and decoding results in,
events and passes to decode out.

    speech        ____######################______________###########___
    items             [ 1                      ]         [ 2             ]
    partial passes    [---][-----][--------]             [---][------]
    final passes      [------------------------]         [---------------]

An item is a stretch of audio that becomes one text. While it is spoken, partial passes decode its
audio so far again and again, one at a time, and words are sent as they become final
(`live.commit`). When it has ended, a final pass transcribes all of its audio like a file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whosaid.asr import Guess, HotWords, Hypothesis, Prior, TranscriptionOptions
from whosaid.errors import EndpointError, InvalidRequest
from whosaid.live.audio_buffer import AudioBuffer
from whosaid.live.events import (
    Cadence,
    Cleared,
    Committed,
    ItemAdded,
    LiveEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
)
from whosaid.live.item import Item, WantedPass, moved
from whosaid.live.settings import Delay, LiveSettings
from whosaid.live.turn_detection import SpeechStarted, SpeechStopped
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

# For each delay: seconds of new audio between partial passes, and seconds between the end of a
# final word's attention and the end of the audio.
DELAYS: dict[Delay, tuple[float, float]] = {
    "minimal": (0.4, 0.3),
    "low": (0.8, 0.4),
    "medium": (1.5, 0.6),
    "high": (3.0, 1.0),
    "xhigh": (5.0, 2.0),
}
DEFAULT_DELAY: Delay = "low"
# Seconds of the model's window that stay empty, so that a text ends by itself.
SPARE_SECONDS = 3.0
# Least samples that a client may commit, by OpenAI's rule.
SHORTEST_ITEM = SAMPLE_RATE // 10
# Samples after which an item without a pause or commit ends.
LONGEST_ITEM = 600 * SAMPLE_RATE
# Samples kept before the current sample, because the detector reports speech late.
KEPT_BEFORE_SPEECH = 2 * SAMPLE_RATE
# Least seconds of speech whose detected language is trusted.
LANGUAGE_SECONDS = 3.0
# Seconds of pause after which the item may have ended and its final pass begins early. Windows of
# files have as much around their speech.
EARLY_SECONDS = 0.32
# Seconds of pause after which no partial pass begins, because it would delay the final pass.
PAUSE_SECONDS = 0.1
# Samples. While an item up to this length is completed, partial passes of the next item wait.
SHORT_ITEM = 30 * SAMPLE_RATE
SLOWER = 2.0  # least multiple of the requested cadence that causes a Cadence event


class EmptyBuffer(InvalidRequest):
    """Less than 100 ms uncommitted; a `warning` with turn detection."""

    code = "input_audio_buffer_commit_empty"


@dataclass(slots=True)
class Speech:
    """The detector's state: whether somebody `speaks`, the last sample `until` which somebody
    spoke, and the seconds of silence since.
    """

    speaks: bool = False
    until: int = 0
    silent_for: float = 0.0


class EndedItems:
    """Ended items that have no final text (`unfinished`, in order) or that serve as context. The
    last one has the id `last_id`.

    The final pass of a later item reads an item again as context, if a window of `longest` samples
    holds both. Audio before sample `until` is committed or dropped: no later item begins before it.
    """

    def __init__(self, longest: int) -> None:
        self.unfinished: list[Item] = []
        self.last_id: str | None = None
        self.until = 0
        self.longest = longest
        self._context: list[Item] = []

    def add(self, item: Item, end: int) -> None:
        item.end = self.until = end
        self.last_id = item.id
        self.unfinished.append(item)
        self._context.append(item)

    def clear(self, until: int) -> None:
        """Drop the audio before sample `until`, and with it the context of later items."""
        self.until = until
        self._context.clear()

    def context(self, item: Item, end: int) -> list[Item]:
        """Return the items before `item`, in its language, that fit into its window up to `end`."""
        found: list[Item] = []
        for each in reversed(self._context):
            if each is item or each.begin >= item.begin:
                continue
            if each.language != item.language or end - each.begin > self.longest:
                break
            found.insert(0, each)
        return found

    def forget(self, begin: int) -> int:
        """Drop the context that no unfinished item and no item from `begin` on needs. Return the
        first sample that is still needed.
        """
        first = min([begin, *(each.begin for each in self.unfinished)])
        reach = first + SHORTEST_ITEM - self.longest
        self._context = [each for each in self._context if each.begin >= reach]
        return min([first, *(each.begin for each in self._context)])


class LiveSession:
    """The state of one session, for one thread. `options` are those for files, `window_seconds` is
    the model's window, `ids` are for items.
    """

    def __init__(
        self,
        settings: LiveSettings,
        options: TranscriptionOptions,
        window_seconds: float,
        ids: Iterator[str],
    ) -> None:
        self._settings, self._options = settings, options
        self._options = self.options_for(settings)
        self._ids = ids
        self._audio = AudioBuffer()
        self._speech = Speech()
        self._language: str | None = None  # last detected
        self._current: Item | None = None  # the item that has not ended
        self._ended = EndedItems(int((window_seconds - SPARE_SECONDS) * SAMPLE_RATE))
        self._partial: WantedPass | None = None
        self._cadence = 0.0  # of the last Cadence event; 0 for the requested cadence
        self._finished = False
        self._events: list[LiveEvent] = []

    @property
    def done(self) -> bool:
        """Return whether the audio has ended, all items are completed and all events taken."""
        waiting = self._current or self._ended.unfinished or self._events
        return self._finished and not waiting

    @property
    def seconds(self) -> float:
        return self._audio.stop / SAMPLE_RATE

    @property
    def cadence(self) -> float:
        """Requested seconds of new audio between partial passes."""
        return self._delay[0]

    def is_useful(self, wanted: WantedPass) -> bool:
        """Return whether the result of a running pass is still needed."""
        return wanted is wanted.item.final if wanted.final else wanted.item is self._current

    def take_events(self) -> list[LiveEvent]:
        events, self._events = self._events, []
        return events

    def options_for(self, settings: LiveSettings) -> TranscriptionOptions:
        return replace(
            self._options,
            language=settings.language,
            prompt=settings.prompt or "",
            hotwords=HotWords(settings.keywords),
            decode=replace(self._options.decode, live=True),
        )

    # Calls of the client

    def change(self, settings: LiveSettings) -> None:
        committed_by_client = self._settings.turn_detection is None
        self._settings, self._options = settings, self.options_for(settings)
        self._language = None
        item = self._current
        if committed_by_client and settings.turn_detection and item and self._speech.speaks:
            self._tell_started(item, item.begin)

    def feed(
        self,
        samples: NDArray[np.float32],
        turns: Sequence[SpeechStarted | SpeechStopped],
        silent_for: float = 0.0,
    ) -> None:
        """Add audio (n,) at 16 kHz, its turns, and the seconds of silence at its end."""
        self._audio.append(samples)
        speech, now = self._speech, self._audio.stop
        for turn in turns:
            if isinstance(turn, SpeechStarted):
                self._begin_turn(turn)
            else:
                self._end_turn(turn)
        if speech.speaks:
            speech.silent_for = silent_for
            speech.until = max(speech.until, now - int(silent_for * SAMPLE_RATE))
            if self._current is not None:
                self._current.speak_until(speech.until)
        if self._settings.turn_detection is None and now > self._ended.until:
            self._current = self._current or self._new_item(self._ended.until)
        item = self._current
        if item is not None and now - item.begin >= LONGEST_ITEM:
            self._cut(item)
        self._forget()

    def commit(self) -> None:
        """End the current item; the caller resets the detector. Raises EmptyBuffer."""
        item, now = self._current, self._audio.stop
        if item is None or now - item.begin < SHORTEST_ITEM:
            raise EmptyBuffer("the buffer has less than 100 ms of audio that is not committed")
        self._end_item(item, now)
        self._speech.speaks = False

    def clear(self) -> None:
        """Drop the uncommitted audio; the caller resets the detector."""
        if self._current is not None:
            self._current.forget_final()
        self._current, self._speech.speaks = None, False
        self._ended.clear(self._audio.stop)
        self._events.append(Cleared())

    def finish(self) -> None:
        self._finished = True
        if self._current is not None:
            self._end_item(self._current, self._audio.stop)

    # Passes

    def next_pass(self) -> WantedPass | None:
        """Return a pass to decode now, or None: a final pass for each item that ends, and one
        partial pass at a time. A pass runs until `passed` or `failed` is called with it.
        """
        for ended in self._ended.unfinished:
            if ended.final is None:
                ended.final = self._final_pass(ended, ended.end)
                return ended.final
        item = self._current
        if item is None or self._partial is not None or item.final is not None:
            return None
        if self._may_end(item):
            item.final = self._final_pass(item, self._audio.stop)
            return item.final
        return self._partial_pass(item) if self._is_due(item) else None

    def passed(self, wanted: WantedPass, result: Hypothesis | Transcript) -> None:
        item = wanted.item
        if not isinstance(result, Transcript):
            if self._settle(wanted):
                self._update(wanted, result)
        elif wanted is item.final:
            item.result = result
            self._complete_in_order()

    def failed(self, wanted: WantedPass, error: EndpointError | None) -> None:
        """Take a pass's failure, None if cancelled; an ended item fails with its final pass."""
        item = wanted.item
        if wanted is item.final and item.end is None:
            item.forget_final()
        if error is None or wanted is not item.final:
            self._settle(wanted)
            return
        item.result = error
        self._complete_in_order()

    # Items

    def _begin_turn(self, turn: SpeechStarted) -> None:
        self._speech.speaks = True
        turns = self._settings.turn_detection
        if turns is None:
            return
        begin = max(turn.sample - _samples(turns.prefix_padding_ms), self._ended.until)
        if self._current is None:
            self._begin_spoken(begin)
        else:  # the item began before turn detection was turned on
            self._tell_started(self._current, begin)

    def _end_turn(self, turn: SpeechStopped) -> None:
        self._speech.speaks, self._speech.until = False, turn.sample
        turns, item = self._settings.turn_detection, self._current
        if turns is not None and item is not None:
            end = turn.sample + _samples(turns.silence_duration_ms)
            self._end_spoken(item, min(max(end, item.begin), self._audio.stop))

    def _cut(self, item: Item) -> None:
        """End an item of the greatest length. During speech the next item begins with the current
        word, because the detector reports nothing before the speech stops.
        """
        end = self._audio.stop
        if self._speech.speaks:
            end = min(end, item.between_words or end)
        if self._settings.turn_detection is None or not self._speech.speaks:
            self._end_item(item, end)
            return
        self._end_spoken(item, end)
        self._begin_spoken(end)

    def _begin_spoken(self, begin: int) -> None:
        self._current = self._new_item(begin)
        self._tell_started(self._current, begin)

    def _tell_started(self, item: Item, begin: int) -> None:
        self._events.append(SpeechStartedEvent(item.id, _milliseconds(begin)))

    def _end_spoken(self, item: Item, end: int) -> None:
        self._events.append(SpeechStoppedEvent(item.id, _milliseconds(end)))
        self._end_item(item, end)

    def _new_item(self, begin: int) -> Item:
        return Item(next(self._ids), self._ended.last_id, begin, self._language)

    def _end_item(self, item: Item, end: int) -> None:
        self._current, item.options = None, self._options
        self._ended.add(item, end)
        self._events += [Committed(item.id, item.previous_id), ItemAdded(item.id, item.previous_id)]
        item.speak_until(self._speech.until)
        self._complete_in_order()

    def _forget(self) -> None:
        """Drop the audio that neither an item needs nor an item that begins now."""
        if self._current is None:
            turns = self._settings.turn_detection
            padding = KEPT_BEFORE_SPEECH + (_samples(turns.prefix_padding_ms) if turns else 0)
            self._ended.until = max(self._ended.until, self._audio.stop - padding)
        begin = self._current.begin if self._current else self._ended.until
        self._audio.drop_before(self._ended.forget(begin))

    # Partial passes

    def _may_end(self, item: Item) -> bool:
        """Return whether a pause may be the end of the current item."""
        if self._settings.turn_detection is None or self._ended.unfinished:
            return False
        return self._speech.silent_for >= EARLY_SECONDS and self._speech.until > item.begin

    def _is_due(self, item: Item) -> bool:
        """Return whether there is enough new speech for a pass, and no short item to complete."""
        waiting = (each for each in self._ended.unfinished if each.result is None)
        if any(each.length <= SHORT_ITEM for each in waiting):
            return False
        vad = self._settings.turn_detection is not None
        if vad and self._speech.silent_for >= PAUSE_SECONDS:
            return False
        new = self._audio.stop - item.decoded
        return new >= self.cadence * SAMPLE_RATE and self._speech.until > item.decoded

    @property
    def _delay(self) -> tuple[float, float]:
        return DELAYS[self._settings.delay or DEFAULT_DELAY]

    def _partial_pass(self, item: Item) -> WantedPass:
        now = self._audio.stop
        self._events += item.fit_window(now, self._ended.longest)
        self._tell_cadence((now - item.decoded) / SAMPLE_RATE, first=item.decoded == item.begin)
        samples, found = self._audio.samples(item.window, now), item.found
        options = replace(self._options, language=self._settings.language or item.language)
        self._partial = WantedPass(
            item.window, now, samples, options, item=item, prefix=found.prefix, draft=found.draft
        )
        return self._partial

    def _settle(self, wanted: WantedPass) -> bool:
        """End a partial pass. Return whether its item is the current one."""
        self._partial = None if wanted is self._partial else self._partial
        wanted.item.decoded = max(wanted.item.decoded, wanted.stop)
        return wanted.item is self._current

    def _update(self, wanted: WantedPass, hypothesis: Hypothesis) -> None:
        item, seconds = wanted.item, len(wanted.samples) / SAMPLE_RATE
        if seconds >= LANGUAGE_SECONDS and hypothesis.language is not None:
            self._language = item.language = hypothesis.language
        _, margin = self._delay
        self._events += item.update(hypothesis, seconds, margin)

    def _tell_cadence(self, seconds: float, first: bool) -> None:
        """Send a Cadence event when partial passes become much rarer than requested, or recover."""
        slow = 0.0 if first or seconds < SLOWER * self.cadence else seconds
        if (slow > 0) != (self._cadence > 0) or slow > SLOWER * self._cadence > 0:
            self._cadence = slow
            self._events.append(Cadence(slow or self.cadence))

    # Final passes

    def _final_pass(self, item: Item, end: int | None) -> WantedPass:
        """Return the final pass of an item. Its window also holds as many earlier items as fit,
        like a file's, because a sentence may go on after a pause.
        """
        assert end is not None
        options = item.options or self._options  # later changes are for later items
        if options.language is None and end - item.begin < LANGUAGE_SECONDS * SAMPLE_RATE:
            options = replace(options, language=self._language)
        together = [*self._ended.context(item, end), item]
        if len(together) > 1:
            options = replace(options, language=options.language or item.language)
        begin = together[0].begin
        guesses = tuple(
            Guess((each.window - begin) / SAMPLE_RATE, each.found.prefix + each.found.draft)
            for each in together
        )
        before = Prior(guesses, (item.begin - begin) / SAMPLE_RATE)
        samples = self._audio.samples(begin, end)
        return WantedPass(begin, end, samples, options, before, item=item)

    def _complete_in_order(self) -> None:
        """Complete the ended items up to the first one without a result."""
        while self._ended.unfinished and (result := self._ended.unfinished[0].result) is not None:
            item = self._ended.unfinished.pop(0)
            if isinstance(result, EndpointError):
                self._events += item.fail(result)
            else:
                assert item.final is not None
                self._complete(item.final, result)
            self._forget()

    def _complete(self, wanted: WantedPass, found: Transcript) -> None:
        item = wanted.item
        long_enough = wanted.stop - item.begin >= LANGUAGE_SECONDS * SAMPLE_RATE
        if found.language and found.speech and long_enough:
            self._language = found.language
        self._events += item.complete(moved(found, wanted.begin / SAMPLE_RATE))


def _samples(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE // 1000


def _milliseconds(sample: int) -> int:
    return sample * 1000 // SAMPLE_RATE
