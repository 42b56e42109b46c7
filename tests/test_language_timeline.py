"""Languages over time: the likeliest sequence, its changes, and the warning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiny_whispers import hears_sound
from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import MARGIN, SampleSpan, Window
from whosaid.asr.language_timeline import (
    OTHER_SECONDS,
    LanguageTimeline,
    WindowLanguage,
    find_language,
    find_languages,
    other_language_warning,
)
from whosaid.scheduling.steps import give_way, run_steps
from whosaid.timebase import SAMPLE_RATE

CODES = ("en", "de", "fr")
LIMIT = 30 * SAMPLE_RATE


def speech(code: str, seconds: float, pause: float = 0.6) -> np.ndarray:
    """Sound whose level tells its language, and the pause after it."""
    level = 0.2 + 0.2 * CODES.index(code)
    sound = np.full(round(seconds * SAMPLE_RATE), level, np.float32)
    return np.append(sound, np.zeros(round(pause * SAMPLE_RATE), np.float32))


class Listener:
    """Hears how much of a window is in each language, at most `sure` of it in one."""

    def __init__(self, samples: np.ndarray, sure: float = 0.99, no_speech: float = 0.0) -> None:
        self.schedule = Schedule(samples, hears_sound(samples), LIMIT)
        self.sure, self.no_speech = sure, no_speech
        self.asked: list[Window] = []

    async def __call__(self, window: Window) -> LanguagePosterior:
        self.asked.append(window)
        samples = self.schedule.samples(window)
        spoken = np.round((samples[samples > 0] - 0.2) / 0.2).astype(int)
        shares = np.bincount(spoken, minlength=len(CODES)) / len(spoken)
        shares = self.sure * shares + (1 - self.sure) / len(CODES)
        found = dict(zip(CODES, shares.tolist(), strict=True))
        return LanguagePosterior(found, self.no_speech, None)

    def find(self) -> LanguageTimeline:
        return run_steps(find_languages(self.schedule, self))


pieces = st.lists(st.floats(1.5, 6), min_size=5, max_size=14)
sections = st.lists(st.tuples(st.sampled_from(CODES), pieces), min_size=1, max_size=4)


@settings(max_examples=25)
@given(sections)
def test_every_change_is_found_in_its_pause(parts):
    samples, truth, position = [], [], 0
    for code, lengths in parts:
        if not truth or truth[-1][1] != code:
            truth.append((position, code))
        for seconds in lengths:
            samples.append(speech(code, seconds))
            position += len(samples[-1])
    timeline = Listener(np.concatenate(samples)).find()
    assert timeline.languages == tuple(code for _, code in truth)
    pause = round(0.6 * SAMPLE_RATE)
    for cut, (expected, _) in zip(timeline.cuts, truth[1:], strict=True):
        assert expected - pause <= cut <= expected + 512  # the detector's step


def test_one_language_costs_a_second_look_at_each_window():
    listener = Listener(np.concatenate([speech("de", 5)] * 20))
    assert listener.find() == LanguageTimeline.single("de", pytest.approx(0.99, abs=0.01))
    assert len(listener.asked) == 2 * len(listener.schedule.planned())


@pytest.mark.parametrize(("seconds", "languages"), [(2.0, ("en",)), (8.0, ("en", "de", "en"))])
def test_a_short_stretch_changes_nothing(seconds, languages):
    english = [speech("en", 4)] * 6
    samples = np.concatenate([*english, speech("de", seconds), *english])
    assert Listener(samples).find().languages == languages


def test_an_unsure_window_changes_nothing():
    """Reported for faster-whisper: German with one window that is English at 0.43."""
    shares = {"en": 0.43, "de": 0.29, "fr": 0.28}
    listener = Listener(np.concatenate([speech("de", 5)] * 18))
    second = listener.schedule.planned()[1]

    async def detect(window: Window) -> LanguagePosterior:
        inside = second.start <= window.start < second.stop
        return LanguagePosterior(shares, 0.0) if inside else await listener(window)

    assert run_steps(find_languages(listener.schedule, detect)).languages == ("de",)


def test_windows_without_speech_do_not_count():
    samples = np.concatenate([speech("de", 5)] * 12 + [speech("en", 5)] * 5)
    assert Listener(samples).find().languages == ("de", "en")
    assert Listener(samples, no_speech=0.95).find().languages == ("de",)


def test_first_window_with_speech_decides_a_regions_language():
    """For example without speech detection, in a recording that begins with music."""
    sound = np.ones(90 * SAMPLE_RATE, np.float32)
    schedule = Schedule(sound, [SampleSpan(0, len(sound))], 30 * SAMPLE_RATE)
    posteriors = iter([LanguagePosterior({"en": 0.3}, 0.9), LanguagePosterior({"de": 0.8}, 0.1)])

    async def detect(_: Window) -> LanguagePosterior:
        return next(posteriors)

    found = run_steps(find_language(schedule, 0.6, detect, give_way))
    assert found == LanguageTimeline.single("de", pytest.approx(0.8))


def test_a_sound_before_a_long_pause_decides_no_language():
    """Whisper base detects Arabic and Hindi in two of 60 fragments of a second."""
    parts = [speech("fr", 1, pause=35), speech("en", 3, pause=35), speech("en", 9)]
    samples = np.concatenate(parts)
    listener = Listener(samples)
    found = run_steps(find_language(listener.schedule, 0.6, listener, give_way))
    assert (found.languages, len(listener.asked)) == (("en",), 3)


def test_the_main_language_has_most_speech():
    samples = np.concatenate([speech("en", 5)] * 4 + [speech("fr", 5)] * 9)
    timeline = Listener(samples, sure=0.97).find()
    assert timeline.languages == ("en", "fr")
    assert timeline.language == "fr"
    assert timeline.probability == pytest.approx(0.98, abs=0.005)


def test_nothing_said_is_no_language():
    timeline = Listener(np.zeros(SAMPLE_RATE, np.float32)).find()
    assert timeline == LanguageTimeline()
    assert timeline.language_at(0) is None


def test_a_position_is_in_the_section_it_lies_in():
    timeline = LanguageTimeline((0, 100, 300), ("en", "de", "en"), "en")
    found = [timeline.language_at(position) for position in (0, 99, 100, 299, 300, 9_999)]
    assert found == ["en", "en", "de", "de", "en", "en"]
    assert timeline.cuts == (100, 300)


def window_languages(
    *windows: tuple[float, str | None, float | None, float],
) -> list[WindowLanguage]:
    found = []
    for start, language, probability, seconds in windows:
        first = round(start * SAMPLE_RATE)
        window = Window(first, first + LIMIT, first + LIMIT)
        found.append(WindowLanguage(window, language, probability, seconds))
    return found


def test_another_language_is_warned_of_with_its_first_second():
    windows = window_languages((60, "de", 0.99, 20), (0, "en", 0.99, 20), (31.23, "de", 0.9, 20))
    seems = "language: from 31.2 s on some of the speech seems to be German (de)"
    told = f"{seems}; multilingual: true writes each part in its own language"
    assert other_language_warning("en", windows) == (told,)


@pytest.mark.parametrize(
    "windows",
    [
        *([], [(0, "en", 0.99, 20.0)], [(0, None, None, 20.0)], [(0, "de", 0.79, 20.0)]),
        [(0, "de", 0.99, OTHER_SECONDS - 0.1)],
        [(0, "de", 0.99, 3.0), (30, "fr", 0.99, 3.0)],
    ],
)
def test_doubtful_or_little_speech_is_not_warned_of(windows):
    assert other_language_warning("en", window_languages(*windows)) == ()


def test_cuts_lie_at_the_end_of_a_margin():
    samples = np.concatenate([speech("en", 5, 3.0)] * 4 + [speech("de", 5, 3.0)] * 4)
    (cut,) = Listener(samples).find().cuts
    end = 3 * 8 * SAMPLE_RATE + 5 * SAMPLE_RATE
    assert end + MARGIN <= cut <= end + MARGIN + 2 * 512
