"""Windows that are ready, and windows that follow from decoded ones."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.sounds import silence
from tests.support.tiny_whispers import hears_sound
from whosaid.asr.frontend.schedule import MOST_RETRIES, WORD_EDGE, Schedule
from whosaid.asr.frontend.target_speaker import TargetSpeaker
from whosaid.asr.frontend.windows import MARGIN, SampleSpan, Window
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN


def sound(seconds: float, level: float = 0.1) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, level, round(seconds * SAMPLE_RATE))
    return noise.astype(np.float32)


def schedule_of(samples: np.ndarray, seconds: int) -> Schedule:
    return Schedule(samples, hears_sound(samples), seconds * SAMPLE_RATE)


def run(schedule: Schedule, batch_size: int, unfinished=lambda window: None) -> list[list[Window]]:
    """Return the batches of a whole schedule; `unfinished` gives the sample at which a window's
    last segment is open, or None."""
    batches = []
    while batch := schedule.pop_ready(batch_size):
        batches.append(batch)
        for window in batch:
            seek = unfinished(window)
            schedule.complete(window, seek, unfinished=seek is not None)
    return batches


def test_windows_between_pauses_share_a_batch():
    samples = np.concatenate([np.concatenate([sound(8), silence(1)]) for _ in range(6)])
    batches = run(schedule_of(samples, 10), 4)
    assert [len(batch) for batch in batches] == [4, 2]


def test_windows_of_continuous_speech_follow_one_another():
    batches = run(schedule_of(sound(40), 10), 4)
    windows = [window for batch in batches for window in batch]
    assert all(len(batch) == 1 for batch in batches)
    assert [window.start for window in windows[1:]] == [window.stop for window in windows[:-1]]
    assert windows[-1].stop == 40 * SAMPLE_RATE


def test_the_tail_starts_the_next_window():
    schedule = schedule_of(sound(15), 10)
    first = schedule.pop_ready(1)[0]
    tail = first.stop - SAMPLE_RATE
    assert schedule.complete(first, tail, unfinished=True) == tail
    assert schedule.pop_ready(1)[0].start == first.stop - SAMPLE_RATE


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.5, 14), st.floats(0.4, 3)), min_size=1, max_size=8), st.data()
)
def test_no_window_extends_over_a_cut(spans, data):
    samples = np.concatenate([np.append(sound(each), silence(gap)) for each, gap in spans])
    plan = schedule_of(samples, 10)
    pieces = [piece for window in plan.planned() for piece in plan.pieces(window, 1.0)]
    cuts = sorted(data.draw(st.sets(st.sampled_from([piece.stop for piece in pieces]))))
    spoken = hears_sound(samples)
    schedule = Schedule(samples, spoken, 10 * SAMPLE_RATE).cut_at(cuts)
    planned = schedule.planned()
    windows = [window for batch in run(schedule, 4) for window in batch]
    decoded = sorted(windows, key=lambda each: each.start)
    assert tuple(decoded) == planned
    for window in planned:
        assert not any(window.start < cut < window.stop for cut in cuts)
        assert window.stop - window.start <= 10 * SAMPLE_RATE
    for span in spoken:
        for position in range(span.start, span.stop, SAMPLE_RATE // 10):
            assert any(window.start <= position < window.stop for window in planned)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0.2, 4), st.floats(0.4, 1)), min_size=1, max_size=12))
@example([(1.0, 1.0), (3.0, 1.0), (1.25, 1.0), (0.25, 1.0), (0.25, 1.0)])
def test_pieces_end_in_pauses_and_hold_enough_speech(spans):
    samples = np.concatenate([np.append(sound(each), silence(gap)) for each, gap in spans])
    schedule = schedule_of(samples, 30)
    for window in schedule.planned():
        pieces = schedule.pieces(window, 2.0)
        assert (pieces[0].start, pieces[-1].stop) == (window.start, window.stop)
        seconds = [schedule.speech_seconds(piece) for piece in pieces]
        assert sum(seconds) == pytest.approx(schedule.speech_seconds(window))
        assert len(pieces) == 1 or min(seconds) >= 2.0 or window.seconds > 10
        assert min(seconds) > 0
        for one, other in pairwise(pieces):
            assert one.stop <= other.start
            assert window.seconds > 10 or schedule.pieces(one, 2.0) == (one,)


@pytest.mark.parametrize("spans", [[(25, 1)], [(3, 20), (3, 1)], [(1, 14), (9, 1)]])
def test_no_piece_is_long_or_without_speech(spans):
    samples = np.concatenate([np.append(sound(each), silence(gap)) for each, gap in spans])
    schedule = schedule_of(samples, 30)
    (window,) = schedule.planned()
    for piece in schedule.pieces(window, 2.0):
        assert 0 < piece.stop - piece.start <= 10 * SAMPLE_RATE
        assert schedule.speech_seconds(piece) > 0.5


def test_an_unfinished_tail_before_a_pause_is_decoded_alone():
    schedule = schedule_of(np.concatenate([sound(8), silence(1), sound(8)]), 10)
    first = schedule.pop_ready(1)[0]
    assert schedule.complete(first, 6 * SAMPLE_RATE, unfinished=True) == 6 * SAMPLE_RATE
    assert schedule.pop_ready(1)[0] == Window(6 * SAMPLE_RATE, first.stop, first.stop)


def test_a_tail_without_speech_is_not_decoded_again():
    schedule = schedule_of(np.concatenate([sound(8), silence(1), sound(8)]), 10)
    first = schedule.pop_ready(1)[0]
    assert schedule.complete(first, round(7.9 * SAMPLE_RATE), unfinished=True) == first.stop
    latest = 9 * SAMPLE_RATE - MARGIN
    assert latest - 512 - SAMPLES_PER_TOKEN < schedule.pop_ready(1)[0].start <= latest


def test_a_window_that_hardly_advances_is_retried_few_times():
    assert len(run(schedule_of(sound(30), 10), 1, unfinished=lambda window: window.start)) <= 5


def test_windows_hold_speech_and_its_margins_only():
    noise = sound(100, 0.01)
    assert run(Schedule(noise, [], 30 * SAMPLE_RATE), 4) == []
    assert Schedule(noise, [], 30 * SAMPLE_RATE).ready() == ()
    speech = SampleSpan(50 * SAMPLE_RATE, 53 * SAMPLE_RATE)
    (window,) = Schedule(noise, [speech], 30 * SAMPLE_RATE).pop_ready(4)
    assert (window.start, window.stop) == (speech.start - MARGIN, speech.stop + MARGIN)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.3, 9), st.sampled_from(["speech", "loud", "quiet"])), max_size=9)
)
@example([(1.25, "speech"), (3.609375, "loud"), (1.0, "speech")])
def test_long_loud_sound_is_decoded_as_possible_speech(parts):
    """Each sample is decoded at most once, and never as speech; loudness is of whole frames."""
    levels = {"speech": 0.1, "loud": 0.1, "quiet": 0.001}
    samples, speech, position = [], [], 0
    for seconds, kind in parts:
        samples.append(sound(seconds, levels[kind]))
        if kind == "speech":
            speech.append(SampleSpan(position, position + len(samples[-1])))
        position += len(samples[-1])
    samples = np.concatenate([*samples, silence(0.1)])
    schedule = Schedule(samples, speech, 8 * SAMPLE_RATE)
    windows = [window for batch in run(schedule, 3) for window in batch]
    tentative = sorted((w.start, w.stop) for w in windows if w.tentative)
    certain = [w for w in windows if not w.tentative]
    seconds = sum(schedule.speech_seconds(window) for window in certain)
    assert schedule.seconds[0] == schedule.seconds[1] == pytest.approx(seconds)
    for start, stop in tentative:
        assert 3 * SAMPLE_RATE <= stop - start <= 8 * SAMPLE_RATE
        assert np.sqrt(np.mean(samples[start:stop] ** 2)) > 0.015
        assert not any(span.start < stop and start < span.stop for span in speech)
        window = Window(start, stop, stop, tentative=True)
        assert np.array_equal(schedule.samples(window), samples[start:stop])
    assert all(one[1] <= other[0] for one, other in pairwise(tentative))
    position, edge = 0, MARGIN + SAMPLES_PER_TOKEN
    for seconds, kind in parts:
        count = round(seconds * SAMPLE_RATE)
        end = position + count
        heard = sum(max(0, min(stop, end) - max(start, position)) for start, stop in tentative)
        assert kind != "loud" or heard >= count - 3 * SAMPLE_RATE - 2 * edge
        position += count


def test_speech_behind_a_long_pause_is_decoded_once():
    speech = [SampleSpan(0, 5 * SAMPLE_RATE), SampleSpan(20 * SAMPLE_RATE, 25 * SAMPLE_RATE)]
    schedule = Schedule(sound(30, 0.01), speech, 480_000)
    first = schedule.pop_ready(1)[0]
    assert schedule.complete(first, 4 * SAMPLE_RATE) == 20 * SAMPLE_RATE - MARGIN
    second = schedule.pop_ready(1)[0]
    assert (second.start, second.stop) == (20 * SAMPLE_RATE - MARGIN, first.stop)
    assert schedule.complete(second, 24 * SAMPLE_RATE) == second.stop
    assert schedule.pop_ready(1) == []
    schedule = Schedule(sound(30, 0.01), speech, 480_000)
    schedule.complete(schedule.pop_ready(1)[0], 24 * SAMPLE_RATE)
    assert schedule.pop_ready(1) == []


def test_unwritten_speech_becomes_the_next_window():
    schedule = schedule_of(np.concatenate([sound(30), silence(1), sound(8)]), 30)
    (first,) = schedule.pop_ready(1)
    schedule.complete(first)
    (again,) = schedule.decode_again(first, 20 * SAMPLE_RATE, 26 * SAMPLE_RATE)
    assert 0 <= again.start - 20 * SAMPLE_RATE <= WORD_EDGE
    assert 0 <= 26 * SAMPLE_RATE - again.stop <= WORD_EDGE
    assert (again.region_stop, again.retries) == (again.stop, 1)
    assert schedule.pop_ready(1) == [again]
    assert schedule.final_until == again.start / SAMPLE_RATE


def test_a_targets_unwritten_speech_is_not_decoded_again():
    samples, mask = sound(30), np.tile(np.float32([0, 1, 0, 0]), (1500, 1))
    target = TargetSpeaker(samples, mask)
    schedule = Schedule(samples, target.speech, 480_000, target=target)
    (first,) = schedule.pop_ready(1)
    schedule.complete(first)
    assert schedule.decode_again(first, 20 * SAMPLE_RATE, 26 * SAMPLE_RATE) == ()
    assert schedule.pop_ready(1) == []


def test_unwritten_speech_of_most_of_a_window_is_halved():
    schedule = schedule_of(sound(30), 30)
    (first,) = schedule.pop_ready(1)
    schedule.complete(first)
    halves = schedule.decode_again(first, first.start, first.stop)
    assert [each.start for each in halves] == [first.start, halves[0].stop]
    assert halves[1].stop == first.stop
    assert min(each.seconds for each in halves) >= 10


def test_a_window_of_unwritten_speech_begins_with_speech():
    """A short one begins within the pause before it."""
    speech = [SampleSpan(0, 5 * SAMPLE_RATE), SampleSpan(15 * SAMPLE_RATE, 17 * SAMPLE_RATE)]
    schedule = Schedule(sound(30, 0.01), speech, 30 * SAMPLE_RATE)
    (first,) = schedule.pop_ready(1)
    schedule.complete(first)
    (again,) = schedule.decode_again(first, 5 * SAMPLE_RATE, 17 * SAMPLE_RATE)
    assert again.start == 15 * SAMPLE_RATE - MARGIN


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 60), st.floats(0, 0.9), st.booleans())
def test_retries_of_unwritten_speech_are_bounded(seconds, part, unfinished):
    """Any share of each window is written, with any number of open segments."""
    schedule = schedule_of(sound(seconds), 30)
    decoded = 0
    while windows := schedule.pop_ready(1):
        (window,) = windows
        decoded += window.stop - window.start
        written = round(window.start + part * (window.stop - window.start))
        start = schedule.complete(window, written, unfinished)
        done, total = schedule.seconds
        assert 0 <= done <= total
        if written < min(start, window.stop):
            schedule.decode_again(window, written, min(start, window.stop))
    assert schedule.final_until == np.inf
    # An unfinished segment is decoded again besides, as everywhere.
    assert unfinished or decoded <= (1 + MOST_RETRIES) * seconds * SAMPLE_RATE


def test_only_long_pauses_are_replaced_by_silence():
    samples = sound(30)
    seconds = ((0, 5), (6, 8), (20, 25))
    speech = [SampleSpan(start * SAMPLE_RATE, stop * SAMPLE_RATE) for start, stop in seconds]
    schedule = Schedule(samples, speech, 30 * SAMPLE_RATE)
    (window,) = schedule.pop_ready(1)
    found = schedule.samples(window)
    pause = slice(8 * SAMPLE_RATE + MARGIN, 20 * SAMPLE_RATE - MARGIN)
    assert not found[pause].any()
    assert samples[pause].all()
    np.testing.assert_array_equal(found[: pause.start], samples[: pause.start])
    np.testing.assert_array_equal(found[pause.stop :], samples[pause.stop : window.stop])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.1, 12), min_size=1, max_size=8),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_batch_size_and_order_change_no_window(lengths, batch_size, random):
    """A window is unfinished by its own content alone, so the following windows must be too."""
    samples = np.concatenate([part for length in lengths for part in (sound(length), silence(0.5))])
    tail = {}

    def unfinished(window: Window) -> int | None:
        return tail.setdefault(window, random.choice([None, window.stop - 2 * SAMPLE_RATE]))

    def windows(size: int) -> set[Window]:
        batches = run(schedule_of(samples, 5), size, unfinished)
        return {window for batch in batches for window in batch}

    assert windows(1) == windows(batch_size)


def test_progress_never_exceeds_its_total():
    samples = np.concatenate([sound(25), silence(1), sound(9), silence(1), sound(18)])
    schedule = schedule_of(samples, 10)
    while batch := schedule.pop_ready(2):
        for window in batch:
            schedule.complete(window)
        assert 0 < schedule.done <= schedule.total
    assert schedule.done == schedule.total


def test_a_window_is_decoded_again_from_a_quiet_point_after_its_loop():
    """Sound is softer for 0.4 s, a little after the loop."""
    schedule = schedule_of(np.concatenate([sound(20.1), sound(0.4, 0.05), sound(9.5)]), 30)
    (window,) = schedule.pop_ready(1)
    start = schedule.complete(window, 20 * SAMPLE_RATE, looped=True)
    assert start / SAMPLE_RATE == pytest.approx(20.3, abs=0.1)
    (again,) = schedule.pop_ready(1)
    assert (again.start, again.stop) == (start, window.stop)
    assert schedule.complete(again, again.stop, looped=True) == again.stop


def test_loops_at_most_double_the_decoded_audio():
    schedule = schedule_of(sound(30), 30)
    decoded = []
    while windows := schedule.pop_ready(1):
        decoded += windows
        schedule.complete(windows[0], windows[0].start, looped=True)
    pairs = pairwise(decoded)
    assert all(two.start - one.start >= (one.stop - one.start) // 2 for one, two in pairs)
    assert len(decoded) > 2
    assert sum(window.stop - window.start for window in decoded) <= 2 * 30 * SAMPLE_RATE
