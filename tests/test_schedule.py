from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.frontend.schedule import Schedule, Window
from asr.frontend.windows import MARGIN, Span
from testing.tiny_whispers import hears_sound
from timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

RNG = np.random.default_rng(0)


def sound(seconds: float, level: float = 0.1) -> np.ndarray:
    return RNG.normal(0, level, round(seconds * SAMPLE_RATE)).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def schedule_of(samples: np.ndarray, seconds: int) -> Schedule:
    return Schedule(samples, hears_sound(samples), seconds * SAMPLE_RATE)


def run(schedule: Schedule, batch_size: int, unfinished=lambda window: None) -> list[list[Window]]:
    batches = []
    while batch := schedule.take(batch_size):
        batches.append(batch)
        for window in batch:
            understood = unfinished(window)
            schedule.finish(window, understood, unfinished=understood is not None)
    return batches


def test_windows_between_pauses_share_a_batch():
    samples = np.concatenate([np.concatenate([sound(8), silence(1)]) for _ in range(6)])
    batches = run(schedule_of(samples, 10), 4)
    assert [len(batch) for batch in batches] == [4, 2]


def test_running_speech_is_heard_in_order():
    batches = run(schedule_of(sound(40), 10), 4)
    windows = [window for batch in batches for window in batch]
    assert all(len(batch) == 1 for batch in batches)
    assert [window.start for window in windows[1:]] == [window.stop for window in windows[:-1]]
    assert windows[-1].stop == 40 * SAMPLE_RATE


def test_the_tail_starts_the_next_window():
    schedule = schedule_of(sound(15), 10)
    first = schedule.take(1)[0]
    assert schedule.finish(first, first.stop - SAMPLE_RATE, unfinished=True)
    assert schedule.take(1)[0].start == first.stop - SAMPLE_RATE


def test_a_tail_before_a_pause_is_heard_alone_if_it_is_speech():
    samples = np.concatenate([sound(8), silence(1), sound(8)])
    schedule = schedule_of(samples, 10)
    first = schedule.take(1)[0]
    assert schedule.finish(first, 6 * SAMPLE_RATE, unfinished=True)
    assert schedule.take(1)[0] == Window(6 * SAMPLE_RATE, first.stop, first.stop)


def test_a_tail_without_speech_is_not_heard_again():
    samples = np.concatenate([sound(8), silence(1), sound(8)])
    schedule = schedule_of(samples, 10)
    first = schedule.take(1)[0]
    assert not schedule.finish(first, round(7.9 * SAMPLE_RATE), unfinished=True)
    assert (
        9 * SAMPLE_RATE - MARGIN - 512 - SAMPLES_PER_TOKEN
        < schedule.take(1)[0].start
        <= 9 * SAMPLE_RATE - MARGIN
    )


def test_a_window_hardly_understood_is_not_tried_for_ever():
    batches = run(schedule_of(sound(30), 10), 1, unfinished=lambda window: window.start)
    assert len(batches) <= 5


def test_what_is_not_speech_is_never_handed_out():
    noise = sound(100)
    assert run(Schedule(noise, [], 30 * SAMPLE_RATE), 4) == []
    assert Schedule(noise, [], 30 * SAMPLE_RATE).upcoming() == ()
    speech = Span(50 * SAMPLE_RATE, 53 * SAMPLE_RATE)
    (window,) = Schedule(noise, [speech], 30 * SAMPLE_RATE).take(4)
    assert (window.start, window.stop) == (speech.start - MARGIN, speech.stop + MARGIN)


def test_speech_behind_a_long_pause_is_heard_again_if_the_window_was_understood_up_to_the_pause_only():
    schedule = Schedule(
        sound(30), [Span(0, 5 * SAMPLE_RATE), Span(20 * SAMPLE_RATE, 25 * SAMPLE_RATE)], 480_000
    )
    first = schedule.take(1)[0]
    assert not schedule.finish(first, 4 * SAMPLE_RATE)
    second = schedule.take(1)[0]
    assert (second.start, second.stop) == (20 * SAMPLE_RATE - MARGIN, first.stop)
    assert not schedule.finish(second, 21 * SAMPLE_RATE)
    assert schedule.take(1) == []


def test_speech_behind_a_long_pause_is_not_heard_twice():
    schedule = Schedule(
        sound(30), [Span(0, 5 * SAMPLE_RATE), Span(20 * SAMPLE_RATE, 25 * SAMPLE_RATE)], 480_000
    )
    schedule.finish(schedule.take(1)[0], 24 * SAMPLE_RATE)
    assert schedule.take(1) == []


def test_long_pauses_are_silenced_and_everything_else_is_heard_as_it_is():
    samples = sound(30)
    speech = [
        Span(0, 5 * SAMPLE_RATE),
        Span(6 * SAMPLE_RATE, 8 * SAMPLE_RATE),
        Span(20 * SAMPLE_RATE, 25 * SAMPLE_RATE),
    ]
    schedule = Schedule(samples, speech, 30 * SAMPLE_RATE)
    (window,) = schedule.take(1)
    heard = schedule.hear(window)
    pause = slice(8 * SAMPLE_RATE + MARGIN, 20 * SAMPLE_RATE - MARGIN)
    assert not heard[pause].any()
    assert samples[pause].all()
    np.testing.assert_array_equal(heard[: pause.start], samples[: pause.start])
    np.testing.assert_array_equal(heard[pause.stop :], samples[pause.stop : window.stop])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.1, 12), min_size=1, max_size=8),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_batch_size_and_order_change_no_window(lengths, batch_size, random):
    """Tails depend on the window alone, as a decoder's answers do; so must the windows that
    follow.
    """
    samples = np.concatenate([part for length in lengths for part in (sound(length), silence(0.5))])
    tail = {}

    def unfinished(window: Window) -> int | None:
        return tail.setdefault(window, random.choice([None, window.stop - 2 * SAMPLE_RATE]))

    def windows(size: int) -> set[Window]:
        return {
            window for batch in run(schedule_of(samples, 5), size, unfinished) for window in batch
        }

    assert windows(1) == windows(batch_size)


def test_progress_never_exceeds_its_total():
    samples = np.concatenate([sound(25), silence(1), sound(9), silence(1), sound(18)])
    schedule = schedule_of(samples, 10)
    while batch := schedule.take(2):
        for window in batch:
            schedule.finish(window)
        assert 0 < schedule.done <= schedule.total
    assert schedule.done == schedule.total
