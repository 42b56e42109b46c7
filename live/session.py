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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asr import Guess, Hypothesis, Prior, TranscriptionOptions
from errors import EndpointError, InvalidRequest
from live.audio_buffer import AudioBuffer
from live.ended_items import SHORTEST_ITEM, EndedItems
from live.events import Cadence, Cleared, LiveEvent, SpeechStartedEvent, SpeechStoppedEvent
from live.item import Item, WantedPass, moved
from live.settings import Delay, LiveSettings
from live.turn_detection import SpeechStarted, SpeechStopped
from timebase import SAMPLE_RATE
from transcript import Transcript

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


@dataclass(slots=True)
class Speech:
    """What the detector has told: whether somebody `speaks`, up to which sample somebody has
    spoken, and for how many seconds nobody has since.
    """

    speaks: bool = False
    until: int = 0
    silent_for: float = 0.0


class LiveSession:
    """The state of one session, for one thread.

    `options` are those that files are transcribed with, `window_seconds` what the model hears at
    once, and `ids` the names of items. `done` once nothing more will come of it.
    """

    def __init__(
        self,
        settings: LiveSettings,
        options: TranscriptionOptions,
        window_seconds: float,
        ids: Iterator[str],
    ) -> None:
        self._settings, self._options = settings, with_settings(options, settings)
        self._longest_window = int((window_seconds - SPARE_SECONDS) * SAMPLE_RATE)
        self._ids = _with_previous(ids)
        self._audio = AudioBuffer()
        self._speech = Speech()
        self._language: str | None = None  # that was last heard
        self._current: Item | None = None  # whose audio still comes
        self._ended = EndedItems(self._longest_window)
        self._partial: WantedPass | None = None
        self._cadence = 0.0  # that the client was told of
        self._finished = False
        self._events: list[LiveEvent] = []

    @property
    def done(self) -> bool:
        """Whether no more audio will come and every item is completed."""
        waiting = self._current or self._ended.unfinished or self._events
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
        return wanted is wanted.item.final if wanted.final else wanted.item is self._current

    def take_events(self) -> list[LiveEvent]:
        """What the client should be told since the last call, in order."""
        events, self._events = self._events, []
        return events

    # What the client does

    def change(self, settings: LiveSettings) -> None:
        """Hear what comes next with other settings."""
        committed_by_client = self._settings.turn_detection is None
        self._settings, self._options = settings, with_settings(self._options, settings)
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
        """More audio (n,) at 16 kHz, and what the detector found in it; at its end nobody has
        spoken for so many seconds.
        """
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
        """The current item ends here, and the detector begins anew. Raises EmptyBuffer."""
        item, now = self._current, self._audio.stop
        if item is None or now - item.begin < SHORTEST_ITEM:
            raise EmptyBuffer("the buffer has less than 100 ms of audio that is not committed")
        self._end_item(item, now)
        self._speech.speaks = False

    def clear(self) -> None:
        """Forget the audio that is not committed; the detector begins anew."""
        if self._current is not None:
            self._current.forget_final()
        self._current, self._speech.speaks = None, False
        self._ended.clear(self._audio.stop)
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
        """The result of a pass."""
        item = wanted.item
        if not isinstance(result, Transcript):
            if self._settle(wanted):
                self._heard(wanted, result)
        elif wanted is item.final:
            item.result = result
            self._complete_in_order()

    def failed(self, wanted: WantedPass, error: EndpointError | None) -> None:
        """A pass has no result. What is still spoken is heard again; an item that has ended fails
        with the error.
        """
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
        else:  # it began when the client was to commit
            self._tell_started(self._current, begin)

    def _end_turn(self, turn: SpeechStopped) -> None:
        self._speech.speaks, self._speech.until = False, turn.sample
        turns, item = self._settings.turn_detection, self._current
        if turns is not None and item is not None:
            end = turn.sample + _samples(turns.silence_duration_ms)
            self._end_spoken(item, min(max(end, item.begin), self._audio.stop))

    def _cut(self, item: Item) -> None:
        """It is as long as items may be. Who still speaks then goes on in the next one, with the
        word that is being said: the detector, which has told of this speech, tells nothing more
        before its end.
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
        """Speech that the detector has found becomes an item."""
        self._current = self._new_item(begin)
        self._tell_started(self._current, begin)

    def _tell_started(self, item: Item, begin: int) -> None:
        self._events.append(SpeechStartedEvent(item.id, _milliseconds(begin)))

    def _end_spoken(self, item: Item, end: int) -> None:
        self._events.append(SpeechStoppedEvent(item.id, _milliseconds(end)))
        self._end_item(item, end)

    def _new_item(self, begin: int) -> Item:
        previous_id, id = next(self._ids)
        return Item(id, previous_id, begin, self._language)

    def _end_item(self, item: Item, end: int) -> None:
        self._current = None
        self._ended.add(item, end)
        self._events += item.committed
        item.speak_until(self._speech.until)
        self._complete_in_order()

    def _forget(self) -> None:
        """Drop the audio that no item needs, nor one that begins now."""
        if self._current is None:
            turns = self._settings.turn_detection
            padding = KEPT_BEFORE_SPEECH + (_samples(turns.prefix_padding_ms) if turns else 0)
            self._ended.skip(self._audio.stop - padding)
        begin = self._current.begin if self._current else self._ended.until
        self._audio.drop_before(self._ended.forget(begin))

    # Partial passes

    def _may_end(self, item: Item) -> bool:
        """Whether the current item may have ended: whatever would be heard of it now is its end."""
        if self._settings.turn_detection is None or self._ended.unfinished:
            return False
        return self._speech.silent_for >= EARLY_SECONDS and self._speech.until > item.begin

    def _is_due(self, item: Item) -> bool:
        """Whether enough has been said since the last pass, and nothing shorter is completed."""
        waiting = (each for each in self._ended.unfinished if each.result is None)
        if any(each.length <= SHORT_ITEM for each in waiting):
            return False
        vad = self._settings.turn_detection is not None
        if vad and self._speech.silent_for >= PAUSE_SECONDS:
            return False
        cadence, _ = self._delay
        new = self._audio.stop - item.heard
        return new >= cadence * SAMPLE_RATE and self._speech.until > item.heard

    @property
    def _delay(self) -> tuple[float, float]:
        return DELAYS[self._settings.delay or DEFAULT_DELAY]

    def _partial_pass(self, item: Item) -> WantedPass:
        now = self._audio.stop
        self._events += item.fit_window(now, self._longest_window)
        self._tell_cadence((now - item.heard) / SAMPLE_RATE, first=item.heard == item.begin)
        samples, found = self._audio.samples(item.window, now), item.found
        options = replace(self._options, language=self._settings.language or item.language)
        self._partial = WantedPass(
            item, item.window, now, samples, options, found.prefix, found.draft
        )
        return self._partial

    def _settle(self, wanted: WantedPass) -> bool:
        """A partial pass has ended; whether its item still goes on."""
        self._partial = None if wanted is self._partial else self._partial
        wanted.item.heard = max(wanted.item.heard, wanted.stop)
        return wanted.item is self._current

    def _heard(self, wanted: WantedPass, heard: Hypothesis) -> None:
        item, seconds = wanted.item, len(wanted.samples) / SAMPLE_RATE
        if seconds >= TELLING_SECONDS and heard.language is not None:
            self._language = item.language = heard.language
        _, margin = self._delay
        self._events += item.hear(heard, seconds, margin)

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
        options = self._options
        if options.language is None and end - item.begin < TELLING_SECONDS * SAMPLE_RATE:
            options = replace(options, language=self._language)
        together = [*self._ended.heard_with(item, end), item]
        if len(together) > 1:
            options = replace(options, language=options.language or item.language)
        begin = together[0].begin
        guesses = tuple(
            Guess((each.window - begin) / SAMPLE_RATE, each.found.prefix + each.found.draft)
            for each in together
        )
        before = Prior(guesses, (item.begin - begin) / SAMPLE_RATE)
        samples = self._audio.samples(begin, end)
        return WantedPass(item, begin, end, samples, options, before=before)

    def _complete_in_order(self) -> None:
        """Complete the items whose texts are known, up to the first whose text is not."""
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
        tells = wanted.stop - item.begin >= TELLING_SECONDS * SAMPLE_RATE
        if found.language and found.speech and tells:
            self._language = found.language
        self._events += item.complete(moved(found, wanted.begin / SAMPLE_RATE))


def with_settings(options: TranscriptionOptions, settings: LiveSettings) -> TranscriptionOptions:
    """How all passes of a session are decoded, where files are with these options."""
    return replace(
        options,
        language=settings.language,
        prompt=settings.prompt or "",
        hotwords=settings.keywords,
        decode=replace(options.decode, live=True),
    )


def _with_previous(ids: Iterator[str]) -> Iterator[tuple[str | None, str]]:
    """Each name behind the one before."""
    previous = None
    for id in ids:
        yield previous, id
        previous = id


def _samples(milliseconds: int) -> int:
    return milliseconds * SAMPLE_RATE // 1000


def _milliseconds(sample: int) -> int:
    return sample * 1000 // SAMPLE_RATE
