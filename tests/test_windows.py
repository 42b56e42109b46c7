"""Windows over spans of speech: nothing is lost, speech is cut rarely, and windows stay few."""

import math
from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whosaid.asr.frontend.windows import (
    CUT_PART,
    MARGIN,
    Loudness,
    SampleSpan,
    WindowPlanner,
    window_stop,
)
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

RNG = np.random.default_rng(0)
LIMIT = 30 * SAMPLE_RATE


def sound(seconds: float, level: float = 0.1) -> np.ndarray:
    return RNG.normal(0, level, round(seconds * SAMPLE_RATE)).astype(np.float32)


def spans_of(*seconds: tuple[float, float]) -> list[SampleSpan]:
    return [SampleSpan(round(at * SAMPLE_RATE), round(stop * SAMPLE_RATE)) for at, stop in seconds]


def planner(seconds: float, *speech: tuple[float, float], limit: int = LIMIT) -> WindowPlanner:
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    return WindowPlanner(samples, spans_of(*speech), limit)


def planner_of(lengths: list[tuple[float, float]]) -> tuple[WindowPlanner, float]:
    """Return the planner of speech and pauses of these lengths, and the seconds of all."""
    edges = np.cumsum(lengths).tolist()
    spans = ((stop - length, stop) for (length, _), stop in zip(lengths, edges[::2], strict=True))
    return planner(edges[-1], *spans), edges[-1]


def windows_of(plan: WindowPlanner) -> list[SampleSpan]:
    found = []
    for region in plan.regions():
        start = region.start
        while start < region.stop:
            stop = plan.window_stop(start, region.stop)
            found.append(SampleSpan(start, stop))
            start = plan.speech_from(stop)
    return found


@st.composite
def recordings(draw):
    """Samples and spans of speech: any lengths in steps of 32 ms, speech quiet or loud."""
    lengths = draw(st.lists(st.tuples(st.integers(3, 600), st.integers(4, 700)), max_size=12))
    position, spans = draw(st.integers(0, 300)), []
    for speech, pause in lengths:
        spans.append(SampleSpan(position * 512, (position + speech) * 512))
        position += speech + pause
    samples = np.zeros(position * 512 + draw(st.integers(0, 511)), np.float32)
    for span in spans:
        samples[span.start : span.stop] = draw(st.sampled_from([0.01, 0.2]))
    return samples, spans


@given(recordings(), st.integers(1, 30), st.sampled_from([MARGIN, 0, 100, 2 * SAMPLE_RATE]))
def test_windows_hold_all_speech_once_and_are_few(recording, seconds, margin):
    """The default needs at most 8/7 as many windows, plus one, as cuts every `seconds`."""
    samples, speech = recording
    windows = windows_of(WindowPlanner(samples, speech, seconds * SAMPLE_RATE, margin))
    fixed = len(samples) / (seconds * SAMPLE_RATE)
    assert margin > MARGIN or len(windows) <= math.ceil(fixed * 8 / 7) + 1
    assert all(0 <= window.start < window.stop <= len(samples) for window in windows)
    assert all(window.stop - window.start <= seconds * SAMPLE_RATE for window in windows)
    assert all(before.stop <= after.start for before, after in pairwise(windows))
    covered = np.zeros(len(samples), bool)
    for window in windows:
        covered[window.start : window.stop] = True
        inside = [span for span in speech if span.start < window.stop and span.stop > window.start]
        if not inside:  # a margin as long as the window
            assert margin + SAMPLES_PER_TOKEN > seconds * SAMPLE_RATE // 2
            continue
        assert window.start > inside[0].start - margin - SAMPLES_PER_TOKEN
        assert window.stop < inside[-1].stop + margin + SAMPLES_PER_TOKEN
        assert window.start % SAMPLES_PER_TOKEN == 0
    assert all(covered[span.start : span.stop].all() for span in speech)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.floats(0.5, 7), st.floats(0.2, 1)), min_size=150, max_size=200))
def test_dense_speech_needs_few_windows_more_than_fixed_cuts(lengths):
    dense, seconds = planner_of(lengths)
    windows = windows_of(dense)
    assert len(windows) <= math.ceil(1.15 * seconds / 30)
    assert len(dense.regions()) == len(windows)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0.5, 10), st.floats(2, 60)), min_size=20, max_size=60))
def test_sparse_speech_needs_fewer_windows_than_fixed_cuts(lengths):
    """With any pauses, skipping silence takes no more windows than keeping it."""
    sparse, seconds = planner_of(lengths)
    assert len(windows_of(sparse)) <= math.ceil(seconds / 30)


@settings(max_examples=50)
@given(recordings(), st.integers(5, 30))
def test_windows_are_as_few_as_pauses_allow(recording, seconds):
    """Taking all that fits is the optimal way to cover spans with windows of one length: every
    window but the last must reach as far as it can."""
    samples, speech = recording
    whole = WindowPlanner(samples, speech, seconds * SAMPLE_RATE)
    windows = windows_of(whole)
    if len(whole.regions()) < len(windows):
        return
    stops = [span.stop + MARGIN + SAMPLES_PER_TOKEN for span in speech]
    starts = [window.start for window in windows]
    for start, following in pairwise(starts):
        reached = bisect_right(stops, start + seconds * SAMPLE_RATE)
        assert following > speech[min(reached, len(speech) - 1)].start - MARGIN - SAMPLES_PER_TOKEN


def test_neighbouring_speech_is_packed_and_silence_is_skipped():
    sparse = planner(200, (1, 5), (6, 20), (22, 29), (90, 95), (150, 152), (170, 180.5))
    seconds = [(each.start / SAMPLE_RATE, each.stop / SAMPLE_RATE) for each in windows_of(sparse)]
    assert seconds == [(0.7, 29.3), (89.7, 95.3), (149.7, 152.3), (169.7, 180.8)]


@pytest.mark.parametrize("pause_at", [21.0, 24.3, 28.0])
def test_a_window_ends_in_the_last_pause(pause_at):
    first, second = windows_of(planner(40, (0, 10), (10.5, pause_at), (pause_at + 0.6, 40)))
    assert pause_at < first.stop / SAMPLE_RATE <= second.start / SAMPLE_RATE < pause_at + 0.6


def test_an_early_pause_is_used_if_silence_allows():
    late_start = planner(140, (60, 75), (75.5, 104), (104.5, 133))
    assert len(late_start.regions()) == len(windows_of(late_start)) == 3
    at_once = planner(100, *[(15.5 * place, 15.5 * place + 15) for place in range(6)])
    assert len(at_once.regions()) < len(windows_of(at_once))


def test_margins_of_a_short_pause_meet_quietest():
    samples = sound(40)
    quiet = slice(round(25.1 * SAMPLE_RATE), round(25.45 * SAMPLE_RATE))
    samples[quiet] = 0
    first, second = windows_of(WindowPlanner(samples, spans_of((0, 25), (25.5, 40)), LIMIT))
    assert first.stop == second.start
    assert quiet.start <= first.stop <= quiet.stop


def test_continuous_speech_is_cut_quietest_in_the_last_eighth():
    samples = sound(45)
    samples[round(27.5 * SAMPLE_RATE) : round(27.9 * SAMPLE_RATE)] *= 0.2
    samples[round(10 * SAMPLE_RATE) : round(11 * SAMPLE_RATE)] = 0
    stop = window_stop(Loudness(samples), 0, len(samples), LIMIT)
    assert 27.5 <= stop / SAMPLE_RATE <= 27.9
    assert window_stop(Loudness(samples), 0, 25 * SAMPLE_RATE, LIMIT) == 25 * SAMPLE_RATE
    first = windows_of(WindowPlanner(samples, [SampleSpan(0, len(samples))], LIMIT))[0]
    assert first == SampleSpan(0, stop)


@settings(max_examples=60)
@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 40 * SAMPLE_RATE))
def test_a_cut_is_late_and_on_the_grid(seconds, where, length):
    samples = np.resize(sound(1), length)
    limit = seconds * SAMPLE_RATE
    start = int(where * length) // SAMPLES_PER_TOKEN * SAMPLES_PER_TOKEN
    stop = window_stop(Loudness(samples), start, length, limit)
    assert stop <= min(start + limit, length)
    if stop != length:
        assert stop % SAMPLES_PER_TOKEN == 0
        assert stop - start >= limit - limit // CUT_PART


def test_a_window_ends_early_if_one_more_completes_the_region():
    long = planner(60, (0, 20), (20.5, 55))
    rest = long.window_stop(round(2 * SAMPLE_RATE), round(50 * SAMPLE_RATE)) / SAMPLE_RATE
    assert 20 < rest <= 20.5


def test_speech_is_counted_in_samples():
    some = planner(10, (1, 2), (3, 5), (7, 8))
    assert some.count_speech(0, 10 * SAMPLE_RATE) == 4 * SAMPLE_RATE
    start, stop = round(1.5 * SAMPLE_RATE), round(3.25 * SAMPLE_RATE)
    assert some.count_speech(start, stop) == 0.75 * SAMPLE_RATE
    assert some.count_speech(round(5.5 * SAMPLE_RATE), round(6 * SAMPLE_RATE)) == 0
    times = np.linspace(0, 10, 101) * SAMPLE_RATE
    counted = [some.count_speech(0, round(time)) for time in times]
    assert some.speech_before(times).tolist() == pytest.approx(counted)
    assert planner(10).speech_before(times).tolist() == [0.0] * 101
    assert planner(0).regions() == planner(1).regions() == ()


def test_loudness_is_the_mean_square_across_blocks():
    samples = np.resize(sound(1.01), 61 * SAMPLE_RATE + 7)
    starts = range(0, len(samples), SAMPLES_PER_TOKEN)
    expected = [np.mean(samples[start : start + SAMPLES_PER_TOKEN] ** 2) for start in starts]
    np.testing.assert_allclose(Loudness(samples).power, expected, rtol=1e-5)
