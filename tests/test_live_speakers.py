"""Speakers in a live session: completed texts get a file's segments, whenever turns become
known, and words get speakers as soon as their time is diarized."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarization_utils import attribute, speaker_segments
from whosaid.asr import Prior, TranscriptionOptions
from whosaid.diarization.diarizer import Diarization, Span
from whosaid.diarization.known_speakers import Naming
from whosaid.errors import ModelError
from whosaid.live.events import (
    Completed,
    Delta,
    ItemFailed,
    LiveEvent,
    SegmentEvent,
    SpeakersFound,
    Words,
)
from whosaid.live.item import Item
from whosaid.live.passes import PassAudio
from whosaid.live.speakers import LiveSpeakers, SpeakerTracker
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Chunk, SpeakerMatch, SpeakerTurn, Transcript, Word

STEP = 0.25  # seconds of a word or a turn


def spoken(count: int, begin: float = 0.0) -> list[Word]:
    starts = [begin + number * STEP for number in range(count + 1)]
    return [Word(f" w{n}", *span) for n, span in enumerate(pairwise(starts))]


def completed(item: str, words: Sequence[Word]) -> Completed:
    text = "".join(word.text for word in words)
    span = words[0].start, words[-1].end
    chunk = Chunk(text, *span, words=tuple(words))
    return Completed(item, Transcript((chunk,), "en", speech=(span,)), text.strip(), 1.0)


def turns(speakers: Sequence[str | None]) -> tuple[SpeakerTurn, ...]:
    """Return the speaker of each step, None without speech."""
    steps = enumerate(speakers)
    return tuple(SpeakerTurn(s, n * STEP, (n + 1) * STEP) for n, s in steps if s is not None)


def between(found: Sequence[SpeakerTurn], start: float, end: float) -> Diarization:
    """The parts of turns there, which overlap nowhere."""
    inside = [each for each in found if each.start < end and each.end > start]
    cut = tuple(replace(it, start=max(it.start, start), end=min(it.end, end)) for it in inside)
    return Diarization(cut, cut)


def segments(events: Sequence[LiveEvent]) -> list[tuple[str, str, str | None, float, float]]:
    told = [each for each in events if isinstance(each, SegmentEvent)]
    return [(each.item_id, each.text, each.speaker, each.start, each.end) for each in told]


def expected(items: Sequence[Completed], found: Diarization, labels: dict[str, str] | None = None):
    """Return the segments of a file with all of these texts, by default with a file's labels."""
    chunks = [chunk for each in items for chunk in each.transcript.chunks]
    known = found.touching([span for each in items for span in each.transcript.speech])
    told = []
    for each, chunk in zip(items, attribute(chunks, known.turns, known.exclusive), strict=True):
        blocks = speaker_segments([chunk])
        told += [(each.item_id, one.text, one.speaker, one.start, one.end) for one in blocks]
    if labels is None:
        order = dict.fromkeys(speaker for _, _, speaker, *_ in told if speaker)
        labels = {speaker: f"SPEAKER_{place:02d}" for place, speaker in enumerate(order)}
    return [(item, text, labels.get(who), *times) for item, text, who, *times in told]


def first_told(calls: Sequence[Sequence[LiveEvent]]) -> list[str]:
    """Return each speaker once, in the order in which calls, and words within them, name them."""
    names: list[str | None] = []
    for events in calls:
        spoken = [word for each in events if isinstance(each, Words) for word in each.words]
        spoken += [each for each in events if isinstance(each, SegmentEvent)]
        names += (each.speaker for each in sorted(spoken, key=lambda each: each.start))
    return [*dict.fromkeys(filter(None, names))]


speakers = st.lists(st.sampled_from(["A", "A", "B", None]), min_size=1, max_size=40)


@given(speakers, st.lists(st.integers(1, 8), min_size=1, max_size=6), st.randoms())
def test_turns_known_at_the_end_give_a_files_segments(who, sizes, random):
    items, begin = [], 0.0
    for number, size in enumerate(sizes):
        items.append(completed(str(number), spoken(size, begin)))
        begin += (size + 2) * STEP
    said, order = SpeakerTracker(), [*items]
    random.shuffle(order)  # they are completed as they come
    assert said.with_speakers(order) == order
    assert said.speech == [span for each in items for span in each.transcript.speech]
    found = Diarization(turns(who), turns(who))
    said.add_turns(found, inf)
    told = said.with_speakers([])
    assert segments(told) == expected(items, found)
    assert len({each.id for each in told if isinstance(each, SegmentEvent)}) == len(told)
    assert said.with_speakers([]) == []


@given(
    speakers,
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.lists(st.floats(0.05, 1.5), min_size=1, max_size=12),
    st.integers(0, 12),
)
def test_turns_known_gradually_give_a_files_segments(who, sizes, steps, last):
    """Words come before or after their turns; the text is completed after `last` of the steps."""
    words = spoken(sum(sizes))
    item, said, calls = completed("0", words), SpeakerTracker(), []
    sent, clock, begin = [], 0.0, 0
    for place in range(max(len(sizes), len(steps))):
        if place < len(sizes):
            new = tuple(words[begin : begin + sizes[place]])
            begin += sizes[place]
            calls.append(said.with_speakers([Words("0", new, "tail")]))
            sent.append((clock, new))
        if place < len(steps):
            known = between(turns(who), clock, clock + steps[place])
            clock += steps[place]
            said.add_turns(known, clock)
            calls.append(said.with_speakers([]))
        if place == last:
            break
    events = [event for events in calls for event in events]
    words_told = [word for each in events if isinstance(each, Words) for word in each.words]
    for (at, new), event in zip(sent, (e for e in events if isinstance(e, Words)), strict=True):
        assert [replace(word, speaker=None, overlap=False) for word in event.words] == [*new]
        assert all(word.speaker is None for word in event.words if word.end > at)
    named = "".join(text for _, text, *_ in segments(events))
    late = [word.text for at, new in sent for word in new if word.end > at and word.end <= clock]
    assert named == "".join(late)
    assert len(words_told) == sum(len(new) for _, new in sent)
    after = said.with_speakers([item])
    said.add_turns(between(turns(who), clock, 1000.0), inf)
    after += said.with_speakers([])
    assert after[0] == item
    whole = Diarization(joined(turns(who)), joined(turns(who)))
    if item.transcript.speech[0][1] > clock:  # nothing was known too early
        assert segments(after) == expected([item], whole, said.labels)
    told = first_told([*calls, after])
    assert told == [f"SPEAKER_{place:02d}" for place in range(len(told))]


def joined(found: Sequence[SpeakerTurn]) -> tuple[SpeakerTurn, ...]:
    whole: list[SpeakerTurn] = []
    for turn in found:
        if whole and (whole[-1].speaker, whole[-1].end) == (turn.speaker, turn.start):
            whole[-1] = replace(whole[-1], end=turn.end)
        else:
            whole.append(turn)
    return tuple(whole)


def test_items_that_wait_are_not_looked_at_again(monkeypatch):
    """Each append asks for news, and a session's last hour may wait."""
    said = SpeakerTracker()
    said.with_speakers([completed("0", spoken(3))])
    with monkeypatch.context() as patch:
        patch.setattr("whosaid.live.speakers._end", None)
        assert said.with_speakers([]) == []
    said.add_turns(Diarization(turns("AAA"), turns("AAA")), inf)
    assert len(segments(said.with_speakers([]))) == 1


def test_failed_and_empty_items_have_no_segments():
    said = SpeakerTracker()
    nothing = Completed("1", Transcript((), "en"), "", 1.0)
    failed = ItemFailed("0", ModelError("broken"))
    words = Words("0", tuple(spoken(3)))
    assert said.with_speakers([words, failed, nothing]) == [words, failed, nothing]
    said.add_turns(Diarization(turns("AAA"), turns("AAA")), inf)
    assert said.with_speakers([]) == []
    assert said.speech == []


ANNA = SpeakerMatch("Anna", "SPEAKER_01", 0.9, matched=True)


class Finder:
    """Says that A speaks, and after `change` seconds B; keeps the samples that it gets."""

    warnings = ("ignored",)

    def __init__(self, missing: int | None = None, change: float = inf) -> None:
        self.missing, self.change = missing, change
        self.heard: list[np.ndarray] = []
        self.asked: list[Sequence[Span]] = []
        self.error: Exception | None = None
        self.closed = 0
        self.pushed = asyncio.Event()

    async def push(self, samples: np.ndarray, last: bool) -> tuple[Diarization, float]:
        if self.error:
            self.pushed.set()
            raise self.error
        start = self.seconds
        self.heard.append(samples)
        self.pushed.set()
        return between(self._turns(), start, self.seconds), inf if last else self.seconds

    async def find(self, samples: np.ndarray, speech: Sequence[Span]) -> Diarization:
        if self.error:
            raise self.error
        self.heard.append(samples)
        self.asked.append(speech)
        return Diarization(self._turns(), self._turns())

    def name(self, found: Diarization) -> Naming:
        """B, the second who speaks, is Anna."""
        assert [turn.speaker for turn in found.turns[:2]] == ["SPEAKER_00", "SPEAKER_01"]
        return Naming(found, (ANNA,), ("little speech",))

    def close(self) -> None:
        self.closed += 1

    @property
    def seconds(self) -> float:
        return sum(map(len, self.heard)) / SAMPLE_RATE

    def _turns(self) -> tuple[SpeakerTurn, ...]:
        change = min(self.change, 100.0)
        return (SpeakerTurn("A", 0.0, change), SpeakerTurn("B", change, 200.0))


def noise(seconds: float) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.uniform(-0.5, 0.5, round(seconds * SAMPLE_RATE)).astype(np.float32)


@pytest.fixture
def workers():
    with ThreadPoolExecutor(1) as made:
        yield made


async def nothing() -> None:
    """There is nobody to tell."""


async def test_diarizer_without_streams_gets_the_whole_session_last(workers):
    finder, samples = Finder(change=0.5), noise(3.0)
    speakers = LiveSpeakers(finder, None, workers, nothing)
    item = completed("0", spoken(4))
    for start in range(0, len(samples), 1000):
        speakers.push(samples[start : start + 1000])
    words = Words("0", tuple(spoken(4)))
    assert speakers.with_speakers([words, item]) == [words, item]
    assert finder.heard == []
    *told, last = await speakers.finish()
    await speakers.close()
    np.testing.assert_allclose(finder.heard[0], samples, atol=1 / 32767)
    assert finder.asked == [[(0.0, 1.0)]]
    expected = [(" w0 w1", "SPEAKER_00"), (" w2 w3", "Anna")]
    assert [(each.text, each.speaker) for each in told] == expected
    assert last == SpeakersFound((ANNA,), ("ignored", "little speech"))
    assert finder.closed == 1


async def test_silent_session_is_not_diarized(workers):
    finder = Finder()
    speakers = LiveSpeakers(finder, None, workers, nothing)
    speakers.push(noise(1.0))
    assert await speakers.finish() == [SpeakersFound((), ("ignored",))]
    assert finder.heard == []


async def test_streaming_diarizer_names_words_and_keeps_no_audio(workers):
    finder, samples = Finder(missing=4000, change=0.5), noise(3.0)
    events: list[LiveEvent] = []

    async def tell() -> None:
        events.extend(speakers.with_speakers([]))

    speakers = LiveSpeakers(finder, None, workers, tell)
    early = speakers.with_speakers([Words("0", tuple(spoken(2)))])
    assert [word.speaker for word in early[0].words] == [None, None]
    for start in range(0, 2 * SAMPLE_RATE, 1000):
        speakers.push(samples[start : start + 1000])
        await asyncio.sleep(0)
    while finder.seconds < 1.5:
        finder.pushed.clear()
        await finder.pushed.wait()
    await asyncio.sleep(0)
    assert all(len(each) >= 4000 for each in finder.heard)
    assert "".join(each.text for each in events) == " w0 w1"
    assert {each.speaker for each in events} == {"SPEAKER_00"}
    (later,) = speakers.with_speakers([Words("0", tuple(spoken(2, 0.5)))])
    assert [word.speaker for word in later.words] == ["SPEAKER_01"] * 2
    assert speakers._audio.stop - speakers._audio.start <= SAMPLE_RATE
    speakers.push(samples[2 * SAMPLE_RATE :])
    assert segments(speakers.with_speakers([completed("0", spoken(12)), Delta("0", "")])) == []
    told = await speakers.finish()
    await speakers.close()
    found = [each[1:3] for each in segments([*events, *told])][-2:]
    rest = "".join(f" w{n}" for n in range(2, 12))
    assert found == [(" w0 w1", "SPEAKER_00"), (rest, "SPEAKER_01")]
    assert told[-1] == SpeakersFound((), ("ignored",))
    np.testing.assert_allclose(np.concatenate(finder.heard), samples, atol=1 / 32767)


@pytest.mark.parametrize("missing", [None, 100])
async def test_failed_diarization_is_raised_at_the_end(missing, workers):
    finder = Finder(missing)
    finder.error = ModelError("broken")
    speakers = LiveSpeakers(finder, None, workers, nothing)
    speakers.push(noise(1.0))
    if missing:
        await finder.pushed.wait()
    item = completed("0", spoken(4))
    assert speakers.with_speakers([item]) == [item]
    speakers.push(noise(1.0))
    with pytest.raises(ModelError):
        await speakers.finish()
    await speakers.close()
    assert finder.closed == 1


async def test_closing_cancels_a_running_push(workers):
    finder, begun = Finder(100), asyncio.Event()

    async def push(samples, last):
        begun.set()
        await asyncio.Event().wait()

    finder.push = push
    speakers = LiveSpeakers(finder, None, workers, nothing)
    speakers.push(noise(1.0))
    await begun.wait()
    await speakers.close()
    assert finder.closed == 1
    assert speakers._following.cancelled()


class Together(Finder):
    """Says that A speaks all the time, and B from 2 s to 3.5 s, and again ten seconds later."""

    def _turns(self) -> tuple[SpeakerTurn, ...]:
        others = (SpeakerTurn("B", start, start + 1.5) for start in (2.0, 12.0))
        return (SpeakerTurn("A", 0.0, 200.0), *others)


class Decoder:
    """Gives every word to both speakers once `go_on` is set; keeps what it was given."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.error: Exception | None = None
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    def enrolments(self, turns, samples):
        """Nobody enrols."""

    async def decode(self, transcript, turns, samples, options, first, enrol):
        self.asked.append((turns, samples, options, first))
        self.begun.set()
        await self.go_on.wait()
        if self.error:
            raise self.error
        chunks = tuple(replace(each, voice=voice) for each in transcript.chunks for voice in "AB")
        return replace(transcript, chunks=chunks)


def decoded(item: str, words: Sequence[Word], samples: np.ndarray, begin: int, stop: int):
    """An item's text, with the pass that found it in samples `begin` to `stop` of the session."""
    options = TranscriptionOptions()
    options = replace(options, decode=replace(options.decode, live=True))
    final = PassAudio(begin, stop, samples[begin:stop], options, before=Prior())
    return replace(completed(item, words), final=final)


@pytest.fixture
def both():
    """Two items of ten seconds in which B speaks over A, and one in which only A speaks."""
    samples, second = noise(30.0), SAMPLE_RATE
    tens = [(n, 10 * n * second, (10 * n + 10) * second) for n in range(3)]
    items = [decoded(str(n), spoken(36, 10.0 * n), samples, *span) for n, *span in tens]
    return samples, items


def voices(events: Sequence[LiveEvent]) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {}
    for item, _, speaker, *_ in segments(events):
        found.setdefault(item, []).append(speaker)
    return found


@pytest.mark.parametrize("error", [None, ModelError("broken"), ValueError("a bug")])
async def test_a_session_that_ends_waits_for_its_tracks(error, both, workers):
    """If they fail, the items keep the text of all speakers together."""
    (samples, items), decoder, told = both, Decoder(), []
    decoder.error = error

    async def tell() -> None:
        told.extend(speakers.with_speakers([]))

    speakers = LiveSpeakers(Together(4000), None, workers, tell)
    speakers._overlaps = decoder
    speakers.with_speakers(items[:1])
    speakers.push(samples)
    await decoder.begun.wait()
    told += speakers.with_speakers(items[1:])
    finishing = asyncio.ensure_future(speakers.finish())
    while len(speakers._tracker.overlapped) < 1:
        await asyncio.sleep(0)
    assert voices(told) == {"2": ["SPEAKER_00"]}
    assert not finishing.done()
    decoder.go_on.set()
    told += await finishing
    await speakers.close()
    both_speak = {"SPEAKER_00", "SPEAKER_01"} if error is None else {"SPEAKER_00"}
    expected = {"0": both_speak, "1": both_speak, "2": {"SPEAKER_00"}}
    assert {name: set(found) for name, found in voices(told).items()} == expected
    assert isinstance(told[-1], SpeakersFound)
    assert [options.decode.live for _, _, options, _ in decoder.asked] == [False, False]


async def test_items_await_all_turns_and_closing_cancels_tracks(both, workers):
    (samples, items), decoder = both, Decoder()
    speakers = LiveSpeakers(Together(4000), None, workers, nothing)
    speakers._overlaps = decoder
    speakers.push(samples[: round(9.5 * SAMPLE_RATE)])  # all words end at 9 s
    while not speakers._tracker._clock:
        await asyncio.sleep(0)
    assert speakers.with_speakers(items[:1]) == items[:1]
    speakers.push(samples[round(9.5 * SAMPLE_RATE) : 10 * SAMPLE_RATE])
    while speakers._tracker._clock < 10:
        await asyncio.sleep(0)
    assert speakers.with_speakers([]) == []
    await decoder.begun.wait()
    await speakers.close()
    assert speakers._decoding.cancelled()


async def test_only_samples_that_may_be_decoded_again_are_kept(both, workers):
    (samples, items), broken = both, Finder(4000)
    for finder in (Finder(), broken):
        broken.error = ModelError("broken")
        speakers = LiveSpeakers(finder, None, workers, nothing)
        speakers.push(samples)
        if finder is broken:
            await asyncio.wait([speakers._following])
        speakers.with_speakers(items)
        assert [len(each.final.samples) for each in speakers._tracker._completed] == [0, 0, 0]
        await speakers.close()


def test_a_window_that_holds_earlier_items_begins_with_its_own():
    item = Item("1", "0", 5 * SAMPLE_RATE)
    item.end = 8 * SAMPLE_RATE
    chunks = tuple(
        Chunk(word.text, word.start, word.end, words=(word,), window_start=start)
        for word, start in zip(spoken(2, 6.0), (1.0, 6.1), strict=True)
    )
    *_, found, _ = item.complete(Transcript(chunks, "en"))
    assert [chunk.window_start for chunk in found.transcript.chunks] == [5.0, 6.1]
