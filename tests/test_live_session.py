"""A live session sends each word once and in order, however long passes take."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sounds import silence
from whosaid.asr import Guess, Prior, TranscriptionOptions
from whosaid.asr.live_pass import Hypothesis, HypothesisWord
from whosaid.errors import ModelError
from whosaid.live.audio_buffer import AudioBuffer
from whosaid.live.commit import FinalWords
from whosaid.live.events import (
    Cadence,
    Cleared,
    Committed,
    Completed,
    Delta,
    ItemAdded,
    ItemDone,
    ItemFailed,
    LiveEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    Words,
)
from whosaid.live.item import WantedPass, words_after
from whosaid.live.session import EmptyBuffer, LiveSession
from whosaid.live.settings import LiveSettings, TurnSettings
from whosaid.live.turn_detection import SpeechStarted, SpeechStopped
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Chunk, Transcript, Word

BEGIN, FIRST_TOKEN = 5000, 100  # the timestamp token, and that of the first word
WINDOW_SECONDS = 30.0


@dataclass(frozen=True)
class Spoken:
    """A word of the truth, in seconds of the session."""

    text: str
    start: float
    end: float
    token: int


def spoken(durations: Iterable[float], begin: float = 0.5) -> list[Spoken]:
    """Words one after the other, each as long as given and with a short gap behind it."""
    words, at = [], begin
    for number, duration in enumerate(durations):
        text = f" w{chr(97 + number % 26)}{chr(97 + number // 26)}"
        words.append(Spoken(text, at, at + duration, FIRST_TOKEN + number))
        at += duration + 0.05
    return words


def hear(truth: list[Spoken], wanted: WantedPass, guess: int = 0) -> Hypothesis:
    """Return the hypothesis of an ideal model: all whole words are right, and a word cut by the
    end of the audio is garbled, differently each time."""
    stop = wanted.stop / SAMPLE_RATE
    begin = stop - len(wanted.samples) / SAMPLE_RATE
    tokens, words = [BEGIN], []
    for each in truth:
        if each.end < begin + 0.01 or each.start >= stop - 0.05:
            continue
        whole = each.end <= stop
        text, token = (each.text, each.token) if whole else (f" x{guess}", 4000 + guess)
        tokens.append(token)
        times = (max(each.start - begin, 0.0), min(each.end, stop) - begin)
        words.append(HypothesisWord(text, *times, 0.9, len(tokens), (token,), (-0.1,)))
    assert tuple(tokens[: len(wanted.prefix)]) == wanted.prefix
    return Hypothesis(tuple(tokens), tuple(words), 1.0, "en")


def transcribe(truth: list[Spoken], wanted: WantedPass) -> Transcript:
    """Return the text of an item's whole audio."""
    assert wanted.before is not None
    stop, begin = wanted.stop / SAMPLE_RATE, wanted.begin / SAMPLE_RATE
    first = begin + wanted.before.begin - 0.01
    inside = [each for each in truth if each.start >= first and each.end <= stop + 0.01]
    words = tuple(Word(each.text, each.start - begin, each.end - begin) for each in inside)
    text = "".join(each.text for each in inside)
    chunk = Chunk(text, 0.0, stop - begin, words=words)
    return Transcript((chunk,) if words else (), "en", speech=((0.0, stop - begin),))


def new_session(**changes: object) -> LiveSession:
    """A session whose items are named 0, 1, 2."""
    live = LiveSettings(**changes)  # type: ignore[arg-type]
    return LiveSession(live, TranscriptionOptions(), WINDOW_SECONDS, map(str, count()))


def next_pass(session: LiveSession, final: bool | None = None) -> WantedPass:
    """Return the next pass, which there must be."""
    wanted = session.next_pass()
    assert wanted is not None
    assert final in (None, wanted.final)
    return wanted


_guesses = count()


def answered(session: LiveSession, truth: list[Spoken], wanted: WantedPass) -> None:
    """Decode a pass; no partial pass has another's guess."""
    if wanted.final:
        session.passed(wanted, transcribe(truth, wanted))
    else:
        session.passed(wanted, hear(truth, wanted, next(_guesses) % 500))


def of(session: LiveSession, *kinds: type) -> list:
    return [each for each in session.take_events() if isinstance(each, kinds)]


def texts(events: list[LiveEvent]) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in events:
        if isinstance(event, Delta):
            found[event.item_id] = found.get(event.item_id, "") + event.text
    return found


def assert_sent(events: list[LiveEvent], truth: list[Spoken]) -> None:
    sent = [word for each in events if isinstance(each, Words) for word in each.words]
    assert [word.text for word in sent] == [each.text for each in truth]
    times = [(each.start, each.end) for each in truth]
    np.testing.assert_allclose([(word.start, word.end) for word in sent], times, atol=0.001)


@settings(max_examples=60)
@given(
    durations=st.lists(st.floats(0.1, 0.9), min_size=1, max_size=110),
    pieces=st.lists(st.floats(0.02, 1.7), min_size=1, max_size=20),
    latencies=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    vad=st.booleans(),
)
def test_every_word_is_sent_once_and_in_order(
    durations: list[float], pieces: list[float], latencies: list[int], vad: bool
) -> None:
    truth = spoken(durations)
    total = truth[-1].end + 0.7
    session = new_session() if vad else new_session(turn_detection=None)
    events: list[LiveEvent] = []
    under_way: list[tuple[int, WantedPass]] = []
    turns = [SpeechStarted(round(truth[0].start * SAMPLE_RATE))]
    at, piece = 0.0, 0
    while at < total:
        length = min(pieces[piece % len(pieces)], total - at)
        at, piece = at + length, piece + 1
        began = turns and at >= truth[0].start + 0.2
        session.feed(silence(length), [turns.pop()] if began else [])
        under_way = [(left - 1, wanted) for left, wanted in under_way]
        for _, wanted in [each for each in under_way if each[0] < 0]:
            answered(session, truth, wanted)
        under_way = [each for each in under_way if each[0] >= 0]
        while (wanted := session.next_pass()) is not None:
            under_way.append((latencies[piece % len(latencies)], wanted))
        events += session.take_events()
    session.finish()
    for _, wanted in under_way:
        answered(session, truth, wanted)
    while (wanted := session.next_pass()) is not None:
        answered(session, truth, wanted)
    events += session.take_events()
    assert session.done
    said = "".join(each.text for each in truth).strip()
    assert texts(events) == {"0": said}
    completed = [each for each in events if isinstance(each, Completed)]
    assert [each.text for each in completed] == [said]
    assert_sent(events, truth)


def test_turn_becomes_a_padded_item_with_ordered_events() -> None:
    session = new_session()
    truth = spoken([0.5, 0.5])
    session.feed(silence(1.0), [SpeechStarted(8000)])
    session.feed(silence(1.3), [SpeechStopped(25600)])
    wanted = next_pass(session, final=True)
    assert wanted.stop == 25600 + 8000  # the pause that ended it
    assert len(wanted.samples) == wanted.stop - (8000 - 4800)
    session.passed(wanted, transcribe(truth, wanted))
    events = session.take_events()
    kinds = [SpeechStartedEvent, SpeechStoppedEvent, Committed, ItemAdded, Delta, Words]
    assert [type(each) for each in events] == [*kinds, Completed, ItemDone]
    assert events[0] == SpeechStartedEvent("0", 200)
    assert events[1] == SpeechStoppedEvent("0", 2100)
    assert events[2] == Committed("0", None)
    session.feed(silence(2.0), [SpeechStarted(40000), SpeechStopped(48000)])
    assert Committed("1", "0") in session.take_events()


def pause(session: LiveSession, begin: int) -> WantedPass:
    """Speech lasts a second from a sample on, and a pause of a third of a second follows."""
    session.feed(silence(2.0), [SpeechStarted(begin)])
    partial = next_pass(session)
    session.passed(partial, hear([], partial))
    session.feed(silence(0.4), [], silent_for=0.35)
    early = next_pass(session, final=True)
    assert session.next_pass() is None
    return early


@pytest.mark.parametrize("heard_before", [True, False])
def test_pass_begun_in_the_last_pause_completes_an_item(heard_before: bool) -> None:
    session, truth = new_session(), spoken([0.5, 0.5])
    early = pause(session, 8000)
    if heard_before:
        session.passed(early, transcribe(truth, early))
    session.feed(silence(0.3), [SpeechStopped(2 * SAMPLE_RATE)], silent_for=0.65)
    assert session.is_useful(early) is not heard_before  # what has been heard is of no more use
    assert session.next_pass() is None
    if not heard_before:
        session.passed(early, transcribe(truth, early))
    (completed,) = of(session, Completed)
    assert completed.text == "waa wba"
    assert completed.seconds == pytest.approx(2.5 - 0.2)


@pytest.mark.parametrize("heard_before", [True, False])
def test_speech_after_a_pause_discards_its_pass(heard_before: bool) -> None:
    session, truth = new_session(), spoken([0.5, 0.5, 1.0, 0.6])
    early = pause(session, 8000)
    if heard_before:
        session.passed(early, transcribe(truth, early))
    session.feed(silence(0.3), [], silent_for=0.0)
    assert not session.is_useful(early)
    session.feed(silence(1.2), [SpeechStopped(round(3.4 * SAMPLE_RATE))], silent_for=0.5)
    final = next_pass(session, final=True)
    if not heard_before:
        session.passed(early, transcribe(truth, early))
    session.passed(final, transcribe(truth, final))
    (completed,) = of(session, Completed)
    assert completed.text == "waa wba wca wda"


def test_failed_early_pass_leaves_the_item_to_another() -> None:
    session = new_session()
    session.failed(pause(session, 8000), ModelError("broken"))
    session.feed(silence(0.3), [SpeechStopped(2 * SAMPLE_RATE)], silent_for=0.65)
    final = next_pass(session)
    session.passed(final, transcribe([], final))
    assert not any(isinstance(each, ItemFailed) for each in session.take_events())


def two_ended(session: LiveSession) -> tuple[WantedPass, WantedPass]:
    """The final passes of two turns, both under way."""
    session.feed(silence(2.0), [SpeechStarted(8000), SpeechStopped(25600)])
    first = next_pass(session, final=True)
    session.feed(silence(2.0), [SpeechStarted(40000), SpeechStopped(52000)])
    second = next_pass(session, final=True)
    session.take_events()
    return first, second


@pytest.mark.parametrize("fails", [None, "first", "second"])
def test_items_are_completed_in_spoken_order(fails: str | None) -> None:
    session = new_session()
    first, second = two_ended(session)
    for name, wanted in (("second", second), ("first", first)):
        assert session.take_events() == []
        if name == fails:
            session.failed(wanted, ModelError("broken"))
        else:
            session.passed(wanted, transcribe([], wanted))
    ended = of(session, Completed, ItemFailed, ItemDone)
    assert [each.item_id for each in ended] == ["0", "0", "1", "1"]
    failed = [isinstance(each, ItemFailed) for each in ended[::2]]
    assert failed == [fails == "first", fails == "second"]
    assert first.item.result is second.item.result is None


def test_waiting_item_holds_up_no_other_pass() -> None:
    session = new_session()
    session.feed(silence(40.0), [SpeechStarted(8000), SpeechStopped(39 * SAMPLE_RATE)])
    session.feed(silence(2.0), [SpeechStarted(40 * SAMPLE_RATE), SpeechStopped(41 * SAMPLE_RATE)])
    _, second = next_pass(session), next_pass(session)
    session.feed(silence(2.0), [SpeechStarted(42 * SAMPLE_RATE)])
    assert session.next_pass() is None
    session.passed(second, transcribe([], second))
    next_pass(session, final=False)


def test_next_speech_waits_for_a_short_items_completion() -> None:
    session, truth = new_session(), spoken([0.5, 0.5])
    session.feed(silence(2.0), [SpeechStarted(8000), SpeechStopped(25600)])
    final = next_pass(session)
    session.feed(silence(2.0), [SpeechStarted(40000)])
    assert session.next_pass() is None
    session.passed(final, transcribe(truth, final))
    assert session.next_pass() is not None


def answer_all(session: LiveSession, truth: list[Spoken]) -> list[WantedPass]:
    """Every pass that is wanted is decoded at once; the passes."""
    found = []
    while (wanted := session.next_pass()) is not None:
        assert len(wanted.samples) == wanted.stop - wanted.begin
        answered(session, truth, wanted)
        found.append(wanted)
    return found


def test_speech_beyond_the_longest_item_continues_in_another() -> None:
    """The detector tells of this speech once: when it begins, and when it ends. No word is cut."""
    session, truth = new_session(), spoken([1.75] * 355, begin=1.0)
    turns: list[SpeechStarted | SpeechStopped] = [SpeechStarted(SAMPLE_RATE)]
    events: list[LiveEvent] = []
    for _ in range(642):
        session.feed(silence(1.0), turns)
        answer_all(session, truth)
        events += session.take_events()
        turns = []
    session.feed(silence(1.0), [SpeechStopped(641 * SAMPLE_RATE)], 2.0)
    answer_all(session, truth)
    events += session.take_events()
    cut = next(each.audio_end_ms for each in events if isinstance(each, SpeechStoppedEvent))
    assert 595_000 < cut < 601_000
    assert any(one.end <= cut / 1000 <= two.start for one, two in pairwise(truth))
    order = [each for each in events if not isinstance(each, Delta | Words | Completed | ItemDone)]
    assert order == [
        SpeechStartedEvent("0", 700),
        SpeechStoppedEvent("0", cut),
        Committed("0", None),
        ItemAdded("0", None),
        SpeechStartedEvent("1", cut),
        SpeechStoppedEvent("1", 641_500),
        Committed("1", "0"),
        ItemAdded("1", "0"),
    ]
    completed = [each for each in events if isinstance(each, Completed)]
    assert " ".join(each.text for each in completed) == "".join(each.text for each in truth).strip()
    assert_sent(events, truth)


@pytest.mark.parametrize("speaks", [True, False])
def test_uncommitted_item_becomes_a_turn(speaks: bool) -> None:
    session = new_session(turn_detection=None)
    session.feed(silence(1.0), [SpeechStarted(8000)] if speaks else [])
    session.change(LiveSettings())
    session.feed(silence(1.0), [] if speaks else [SpeechStarted(SAMPLE_RATE)])
    session.feed(silence(1.0), [SpeechStopped(SAMPLE_RATE * 2)], 1.0)
    answer_all(session, [])
    turns = of(session, SpeechStartedEvent, SpeechStoppedEvent)
    assert turns == [SpeechStartedEvent("0", 0 if speaks else 700), SpeechStoppedEvent("0", 2500)]


def test_silence_at_the_longest_item_leaves_another_empty() -> None:
    session = new_session()
    session.feed(silence(2.0), [SpeechStarted(8000)])
    session.feed(silence(600.0), [], silent_for=0.4)
    (first,) = answer_all(session, [])  # and none begins in the pause, as nobody has spoken since
    assert (first.item.id, first.final) == ("0", True)
    session.feed(silence(0.1), [SpeechStopped(602 * SAMPLE_RATE - 6400 - 2000)], silent_for=0.5)
    answer_all(session, [])
    events = session.take_events()
    turns = [each for each in events if isinstance(each, SpeechStartedEvent | SpeechStoppedEvent)]
    first = [SpeechStartedEvent("0", 200), SpeechStoppedEvent("0", 602_000)]
    assert turns == [*first, SpeechStartedEvent("1", 602_000), SpeechStoppedEvent("1", 602_000)]
    assert [each.item_id for each in events if isinstance(each, Completed)] == ["0", "1"]


@pytest.mark.parametrize("pause", [60, 700])
def test_disabled_turn_detection_keeps_times_of_words(pause: int) -> None:
    """The item that the client commits then has what comes, not the minutes before."""
    session = new_session()
    session.feed(silence(2.0), [SpeechStarted(8000), SpeechStopped(20_000)])
    answer_all(session, [])
    for _ in range(pause // 5):
        session.feed(silence(5.0), [])
    session.take_events()
    session.change(LiveSettings(turn_detection=None))
    begin = session.seconds
    session.feed(silence(3.0), [SpeechStarted(round((begin + 0.5) * SAMPLE_RATE))])
    assert session.take_events() == []
    truth = spoken([0.5, 0.5, 0.5], begin=begin + 0.5)
    answer_all(session, truth)
    session.commit()
    answer_all(session, truth)
    (completed,) = of(session, Completed)
    assert 3.0 <= completed.seconds < 6.0
    (chunk,) = completed.transcript.chunks
    for word, each in zip(chunk.words, truth, strict=True):
        assert abs(word.start - each.start) < 0.001


def test_speech_begins_no_earlier_than_the_audio_that_is_kept() -> None:
    session = new_session()
    for _ in range(60):
        session.feed(silence(1.0), [])
    session.change(LiveSettings(turn_detection=TurnSettings(prefix_padding_ms=5000)))
    session.feed(silence(1.0), [SpeechStarted(60 * SAMPLE_RATE)])
    (partial,) = answer_all(session, [])
    assert 57 * SAMPLE_RATE < partial.begin <= 60 * SAMPLE_RATE - 4800
    (event,) = of(session, SpeechStartedEvent)
    assert event.audio_start_ms == partial.begin / 16


def test_samples_that_are_not_kept_are_refused() -> None:
    """Pieces of a second are kept or dropped, however small the client's are."""
    kept, second = AudioBuffer(), SAMPLE_RATE
    for _ in range(300):
        kept.append(np.ones(second // 100, np.float32))
    kept.drop_before(second + second // 2)
    assert len(kept.samples(second, 3 * second)) == 2 * second
    for start, stop in ((second - 1, 3 * second), (second, 3 * second + 1), (20, 19)):
        with pytest.raises(IndexError):
            kept.samples(start, stop)


def test_audio_between_turns_is_forgotten() -> None:
    session = new_session()
    for _ in range(100):
        session.feed(silence(1.0), [])
        assert session._audio.stop - session._audio.start <= 4 * SAMPLE_RATE
    assert session.next_pass() is None


def test_client_commits_and_silence_is_not_decoded_without_detection() -> None:
    session = new_session(turn_detection=None)
    with pytest.raises(EmptyBuffer, match="input_audio_buffer_commit_empty"):
        session.commit()
    session.feed(silence(0.05), [])
    with pytest.raises(EmptyBuffer):
        session.commit()
    session.feed(silence(3.0), [])
    assert session.next_pass() is None
    session.feed(silence(1.0), [SpeechStarted(40000)])
    partial = next_pass(session, final=False)
    session.commit()
    assert not session.is_useful(partial)  # its item has ended
    assert len(next_pass(session, final=True).samples) == round(4.05 * SAMPLE_RATE)
    assert not any(isinstance(each, SpeechStartedEvent) for each in session.take_events())


def test_silence_after_a_commit_is_not_decoded() -> None:
    """A speaker who goes on is announced anew."""
    session = new_session(turn_detection=None)
    session.feed(silence(2.0), [SpeechStarted(0)])
    answer_all(session, [])
    session.commit()
    answer_all(session, [])
    session.feed(silence(1.0), [], silent_for=0.99)
    assert session.next_pass() is None
    session.feed(silence(1.0), [SpeechStarted(3 * SAMPLE_RATE)])
    assert session.next_pass() is not None


def test_cleared_audio_is_never_completed() -> None:
    session = new_session(turn_detection=None)
    session.feed(silence(2.0), [SpeechStarted(0)])
    partial = session.next_pass()
    session.clear()
    assert session.take_events() == [Cleared()]
    assert partial is not None
    session.passed(partial, hear(spoken([0.3]), partial))
    session.finish()
    assert session.next_pass() is None
    assert session.take_events() == []
    assert session.done


def test_no_item_follows_a_cleared_one() -> None:
    """Clients order items by the one before, and never hear of one that is cleared."""
    session = new_session(turn_detection=None)
    for end in (session.commit, session.clear, session.commit):
        session.feed(silence(1.0), [])
        end()
    told = of(session, Committed)
    assert [(each.item_id, each.previous_item_id) for each in told] == [("0", None), ("2", "0")]


def test_only_a_failed_final_pass_fails_its_item() -> None:
    session = new_session(turn_detection=None)
    session.feed(silence(2.0), [SpeechStarted(0)])
    session.failed(next_pass(session), ModelError("broken"))
    session.feed(silence(1.0), [])
    next_pass(session, final=False)
    session.commit()
    session.feed(silence(1.0), [])
    session.failed(next_pass(session), ModelError("broken"))
    session.commit()
    second = next_pass(session)
    session.passed(second, transcribe([], second))
    events = session.take_events()
    assert [each.item_id for each in events if isinstance(each, ItemFailed)] == ["0"]
    assert [each.item_id for each in events if isinstance(each, Completed)] == ["1"]


def test_partial_passes_run_singly_and_report_their_cadence() -> None:
    session = new_session(turn_detection=None)
    session.feed(silence(1.0), [SpeechStarted(0)])
    first = next_pass(session)
    for _ in range(5):
        session.feed(silence(1.0), [])
        assert session.next_pass() is None
    truth = spoken([0.4] * 12)
    session.passed(first, hear(truth, first))
    second = next_pass(session)
    assert len(second.samples) == 6 * SAMPLE_RATE
    assert Cadence(5.0) in session.take_events()
    session.passed(second, hear(truth, second))
    session.feed(silence(1.0), [])
    assert session.next_pass() is not None
    assert Cadence(0.8) in session.take_events()


def test_last_hypothesis_is_the_final_passes_draft() -> None:
    session = new_session(turn_detection=None)
    truth = spoken([0.4] * 6)
    session.feed(silence(3.0), [SpeechStarted(0)])
    partial = next_pass(session)
    assert partial.draft == ()
    heard = hear(truth, partial)
    session.passed(partial, heard)
    session.commit()
    final = next_pass(session)
    assert final.prefix == ()
    assert final.before == Prior((Guess(0.0, heard.tokens),))


def two_items(languages: tuple[str, str], gap: float) -> tuple[WantedPass, WantedPass]:
    """The final passes of two turns of 4 s, so long after each other."""
    session, found, now = new_session(), list[WantedPass](), 0.0
    for language in languages:
        session.feed(silence(4.0), [SpeechStarted(round(now * SAMPLE_RATE))])
        partial = next_pass(session)
        session.passed(partial, replace(hear([], partial), language=language, tokens=(BEGIN, 7)))
        session.feed(silence(0.5), [SpeechStopped(round((now + 4.0) * SAMPLE_RATE))], 0.5)
        final = next_pass(session)
        session.passed(final, transcribe([], final))
        found.append(final)
        session.feed(silence(gap), [], gap)
        now += 4.5 + gap
    return found[0], found[1]


def test_final_pass_includes_earlier_audio_in_its_language() -> None:
    first, second = two_items(("en", "en"), gap=2.0)
    assert second.begin == first.begin == 0
    assert len(second.samples) == 11 * SAMPLE_RATE
    assert second.before is not None
    assert second.before.begin == pytest.approx(6.2)
    assert [each.start for each in second.before.guesses] == [0.0, second.before.begin]
    assert second.options.language == "en"
    for alone in (two_items(("en", "de"), gap=2.0)[1], two_items(("en", "en"), gap=20.0)[1]):
        assert alone.begin == alone.item.begin
        assert alone.before is not None
        assert alone.before.begin == 0.0
        assert len(alone.before.guesses) == 1


def test_after_a_change_of_settings_the_language_is_detected_anew() -> None:
    session, languages = new_session(turn_detection=None), []
    for seconds in (4.0, 1.0, 1.0):  # too little to detect a language in
        session.feed(silence(seconds), [])
        session.commit()
        final = next_pass(session)
        languages.append(final.options.language)
        session.passed(final, transcribe([], final))
        if len(languages) == 2:
            session.change(LiveSettings(turn_detection=None))
    assert languages == [None, "en", None]


def test_a_change_after_a_commit_is_for_the_next_item() -> None:
    session = new_session(turn_detection=None, language="en")
    for language in ("en", "de"):
        session.feed(silence(2.0), [])
        session.commit()
        session.change(LiveSettings(turn_detection=None, language="de"))
        final = next_pass(session)
        assert final.options.language == language
        session.passed(final, transcribe([], final))


def test_cleared_audio_and_finished_passes_are_released() -> None:
    session = new_session(turn_detection=None)
    begins = []
    for _ in range(2):
        begins.append(round(session.seconds * SAMPLE_RATE))
        session.feed(silence(2.0), [])
        session.commit()
        final = next_pass(session)
        assert final.begin == begins[-1]
        session.passed(final, transcribe([], final))
        assert final.item.final is None
        session.feed(silence(1.0), [])
        session.clear()


def word(text: str, start: float, end: float, stop: int) -> HypothesisWord:
    return HypothesisWord(text, start, end, 0.9, stop, (stop,), (-0.1,))


def heard(*words: HypothesisWord) -> Hypothesis:
    tokens = (BEGIN, *(each.tokens[0] for each in words))
    return Hypothesis(tokens, words, 1.0, "en")


def test_words_agreed_twice_are_final_except_the_last() -> None:
    first = heard(word(" We", 0.1, 0.3, 2), word(" are", 0.4, 0.6, 3))
    later = heard(word(" We,", 0.1, 0.3, 2), word(" are", 0.4, 0.6, 3))
    found = FinalWords().updated(first, 1.0, 0.2).updated(later, 1.0, 0.2)
    assert [each.text for each in found.words] == [" We,"]
    assert found.prefix == (BEGIN, 2)
    assert found.draft == (3,)
    paused = found.updated(later, 1.7, 0.2)
    assert [each.text for each in paused.words] == [" We,", " are"]


def test_a_number_is_final_once_something_else_follows() -> None:
    one = heard(word(" 20", 0.1, 0.3, 2), word(" 5", 0.4, 0.6, 3))
    found = FinalWords().updated(one, 1.0, 0.2).updated(one, 1.0, 0.2)
    assert found.words == ()
    more = heard(*one.words, word(" people", 0.7, 0.8, 4))
    found = found.updated(more, 1.5, 0.2)
    assert found.words == ()  # that word may be another one in the next text
    found = found.updated(more, 1.6, 0.2)
    assert [each.text for each in found.words] == [" 20", " 5"]


@pytest.mark.parametrize(
    "digits",
    [
        "zero seven nine four",
        "Zero, seven, nine",
        "null sieben neun",
        "zéro sept",
        "twenty-five six",
    ],
)
def test_spelt_digits_wait_for_their_number(digits: str) -> None:
    """Whisper writes "zero seven" while it is spoken, and "07946123456" once it is whole."""
    said, found = [word(" is", 0.1, 0.3, 2)], FinalWords()
    for each in digits.split():
        at = said[-1].end + 0.1
        said.append(word(f" {each}", at, at + 0.3, len(said) + 2))
        found = found.updated(heard(*said), at + 0.5, 0.1)
    found = found.updated(heard(*said), said[-1].end + 0.5, 0.1)
    assert [each.text for each in found.words] == [" is"]
    sent = [Word(each.text, each.start, each.end) for each in found.words]
    whole = [*sent, Word(" 07946123456", 0.4, 3.0)]
    assert words_after(sent, whole) == whole[1:]


def test_number_does_not_hold_up_later_words() -> None:
    texts = ["one", "two", "or", "more"]
    said = [word(f" {text}", i, i + 0.8, i + 2) for i, text in enumerate(texts)]
    found = FinalWords().updated(heard(*said), 4.0, 0.3).updated(heard(*said), 4.2, 0.3)
    assert [each.text for each in found.words] == [" one", " two", " or"]


def test_final_word_that_grows_sends_its_rest() -> None:
    one = heard(word(" under", 0.1, 0.3, 2), word(" the", 0.4, 0.6, 3))
    found = FinalWords().updated(one, 1.0, 0.2).updated(one, 1.0, 0.2)
    assert [each.text for each in found.words] == [" under"]
    grown = replace(word(" understand", 0.1, 0.5, 3), tokens=(2, 3))
    both = Hypothesis((BEGIN, 2, 3, 4), (grown, word(" me", 0.7, 0.8, 4)), 1.0, "en")
    found = found.updated(both, 1.5, 0.2).updated(both, 1.5, 0.2)
    assert "".join(each.text for each in found.words) == " understand"


def test_a_text_that_repeats_itself_is_of_no_use() -> None:
    one = heard(word(" We", 0.1, 0.3, 2), word(" are", 0.4, 0.6, 3))
    found = FinalWords().updated(one, 1.0, 0.2)
    looped = found.updated(replace(one, compression_ratio=3.0), 1.0, 0.2)
    assert looped == FinalWords(first=(BEGIN,))


def line(text: str, step: float = 0.5) -> list[Word]:
    return [Word(f" {each}", i * step, (i + 1) * step) for i, each in enumerate(text.split())]


@pytest.mark.parametrize(
    ("sent", "whole", "rest"),
    [
        ("", "so it goes", "so it goes"),
        ("so it", "So, it goes", "goes"),
        ("so it goes", "so it goes", ""),
        ("so id", "so it goes", "goes"),
        ("no no", "no no no no", "no no"),
        ("so it was", "so it goes on", "on"),
        ("so it", "", ""),
    ],
)
def test_the_rest_of_a_text_follows_what_was_sent(sent: str, whole: str, rest: str) -> None:
    found = words_after(line(sent), line(whole))
    assert "".join(each.text for each in found).split() == rest.split()
