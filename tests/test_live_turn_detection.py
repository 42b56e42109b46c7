"""Turns of live audio are a file's spans, wherever the audio is cut."""

from collections.abc import Callable
from itertools import cycle, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import butter, sosfilt

from tests.helpers.nightly import some
from tests.support import sounds
from tests.support.audio_files import conversation
from whosaid.asr.frontend import vad
from whosaid.asr.frontend.windows import SampleSpan
from whosaid.live.settings import TurnSettings
from whosaid.live.turn_detection import SpeechStarted, SpeechStopped, Turn, TurnDetector, TurnFinder
from whosaid.timebase import SAMPLE_RATE

STEP_MS = vad.STEP * 1000 // SAMPLE_RATE
PROBABILITIES = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.9]), max_size=80)


@pytest.fixture(scope="module")
def detector() -> vad.SpeechDetector:
    return vad.SpeechDetector()


def spans_of(turns: list[Turn]) -> list[SampleSpan]:
    """The spans between starts and stops, which take turns; the last one has stopped."""
    starts, stops = turns[::2], turns[1::2]
    assert len(starts) == len(stops)
    assert all(isinstance(turn, SpeechStarted) for turn in starts)
    assert all(isinstance(turn, SpeechStopped) for turn in stops)
    spans = [SampleSpan(*(each.sample for each in it)) for it in zip(starts, stops, strict=True)]
    assert all(span.start < span.stop for span in spans)
    assert all(before.stop <= after.start for before, after in pairwise(spans))
    return spans


def turns_in(
    detector: vad.SpeechDetector, samples: np.ndarray, size: int = 480, silence: int = 500
) -> list[Turn]:
    """The turns of samples that come `size` at a time and end in a second of silence."""
    turns = TurnDetector(detector, TurnSettings(silence_duration_ms=silence))
    samples = np.concatenate([samples, np.zeros(SAMPLE_RATE, np.float32)]).astype(np.float32)
    found = []
    for start in range(0, len(samples), size):
        found += turns.push(samples[start : start + size])
    return found


def joined(spans: tuple[SampleSpan, ...], silence: int) -> list[SampleSpan]:
    """Spans with less than so many samples of silence between them made one."""
    found: list[SampleSpan] = []
    for span in spans:
        if found and span.start - found[-1].stop < silence:
            found[-1] = SampleSpan(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


@given(PROBABILITIES, st.integers(1, 12), st.integers(0, 3).map(lambda each: each * 1_000))
def test_turns_are_a_files_spans_with_short_pauses_in_them(probabilities, steps, first):
    """A run may not yet be certain when the silence is long enough."""
    silence = max(steps, vad.SHORTEST_PAUSE)
    heard = [*probabilities, *([0.0] * silence)]
    turns = TurnFinder(TurnSettings(silence_duration_ms=steps * STEP_MS), first)
    found = [turn for turn in map(turns.push, heard) if turn is not None]
    in_file = vad.find_speech(np.array(heard), len(heard) * vad.STEP)
    spans = joined(in_file, silence * vad.STEP)
    expected = [SampleSpan(first + span.start, first + span.stop) for span in spans]
    assert spans_of(found) == expected
    assert not turns.speaking


@given(PROBABILITIES, st.integers(4, 20))
def test_turn_events_come_as_soon_as_certain(probabilities, steps):
    """Started at the step where the spans so far include it; stopped no later than the silence, or
    the end of a run that had begun in it."""
    turns = TurnFinder(TurnSettings(silence_duration_ms=steps * STEP_MS), 0)
    speaking = False
    for count in range(1, len(probabilities) + 1):
        turn = turns.push(probabilities[count - 1])
        so_far = vad.find_speech(np.array(probabilities[:count]), count * vad.STEP)
        if isinstance(turn, SpeechStarted):
            assert not speaking
            assert so_far[-1].start == turn.sample
        elif isinstance(turn, SpeechStopped):
            assert speaking
            assert so_far[-1].stop == turn.sample <= (count - steps) * vad.STEP
        elif not speaking and so_far:
            assert so_far[-1].stop + steps * vad.STEP <= count * vad.STEP
        speaking = turns.speaking


def test_a_threshold_scales_all_three():
    """Half the probabilities under half the threshold are the same."""
    probabilities = np.random.default_rng(0).uniform(0, 1, 800) ** 6

    def heard(scale: float) -> list[Turn]:
        threshold = vad.PEAK_THRESHOLD * scale
        turns = TurnFinder(TurnSettings(threshold=threshold, silence_duration_ms=128), 0)
        found = [turns.push(float(each) * scale) for each in probabilities]
        return [turn for turn in found if turn is not None]

    assert heard(0.5) == heard(1.0)
    assert len(heard(1.0)) > 4


@pytest.fixture(scope="module")
def quiet(detector) -> tuple[np.ndarray, list[Turn]]:
    samples = conversation()[: 5 * SAMPLE_RATE] * np.float32(0.01)
    return samples, turns_in(detector, samples, 6 * SAMPLE_RATE)


@settings(max_examples=5)
@given(st.lists(st.integers(0, 6 * SAMPLE_RATE), max_size=20))
def test_cuts_between_samples_change_no_turn(detector, quiet, cuts):
    samples = np.pad(quiet[0], (0, SAMPLE_RATE))
    turns = TurnDetector(detector, TurnSettings())
    found = []
    for start, stop in pairwise([0, *sorted(cuts), len(samples)]):
        found += turns.push(samples[start:stop])
    assert found == quiet[1]
    assert len(found) >= 2


def test_turns_along_one_stream_know_nothing_of_another(detector):
    """A file processed between them has no effect either: the network keeps no state."""
    samples = conversation()[: 3 * SAMPLE_RATE]
    alone = turns_in(detector, samples)
    assert alone
    streams = [TurnDetector(detector, TurnSettings()) for _ in range(2)]
    found: list[list[Turn]] = [[], []]
    padded = np.concatenate([samples, np.zeros(SAMPLE_RATE, np.float32)])
    for start in range(0, len(padded), 4_000):
        for stream, turns in zip(streams, found, strict=True):
            turns += stream.push(padded[start : start + 4_000])
        detector(padded[: vad.STEP])
    assert found == [alone, alone]


def test_a_reset_forgets_speech_and_not_the_time(detector):
    """Later turns are a new stream's, but for sample numbers; a reset may come within a step."""
    samples = conversation()[3 * SAMPLE_RATE : 7 * SAMPLE_RATE]
    turns, first = TurnDetector(detector, TurnSettings()), 2 * SAMPLE_RATE + 100
    assert isinstance(turns.push(samples[:first])[-1], SpeechStarted)
    turns.reset()
    assert turns.silent_for == 0
    again = turns.push(samples)
    assert [type(turn) for turn in again] == [SpeechStarted]
    assert again[0].sample >= first
    fresh = TurnDetector(detector, TurnSettings()).push(samples)
    assert abs(again[0].sample - first - fresh[0].sample) <= 2 * vad.STEP


def test_silence_is_counted_from_the_last_speech(detector):
    turns = TurnDetector(detector, TurnSettings(silence_duration_ms=200))
    turns.push(np.zeros(SAMPLE_RATE, np.float32))
    assert turns.silent_for == pytest.approx(1, abs=vad.STEP / SAMPLE_RATE)
    found = turns.push(conversation()[4 * SAMPLE_RATE : 5 * SAMPLE_RATE])
    assert isinstance(found[-1], SpeechStarted)
    (stopped,) = turns.push(np.zeros(SAMPLE_RATE, np.float32))
    assert turns.silent_for == pytest.approx(3 - stopped.sample / SAMPLE_RATE, abs=0.032)


def test_settings_change_between_two_pushes(detector):
    """A longer silence keeps a turn that the shorter one would have ended."""
    second = conversation()[4 * SAMPLE_RATE : 5 * SAMPLE_RATE]
    samples = np.append(second, np.zeros(SAMPLE_RATE, np.float32))
    turns = TurnDetector(detector, TurnSettings(silence_duration_ms=200))
    turns.push(samples[:SAMPLE_RATE])
    turns.change(TurnSettings(silence_duration_ms=1_500))
    assert turns.push(samples[SAMPLE_RATE:]) == []
    turns.change(TurnSettings(silence_duration_ms=200))
    assert [type(turn) for turn in turns.push(np.zeros(vad.STEP, np.float32))] == [SpeechStopped]


def shares(detector: vad.SpeechDetector, samples: np.ndarray) -> tuple[float, float]:
    """The share of a file's speech that is in turns, and the turns' share that a file has too."""
    length = -(-len(samples) // vad.STEP) + SAMPLE_RATE // vad.STEP
    live, in_file = np.zeros(length, bool), np.zeros(length, bool)
    for span in spans_of(turns_in(detector, samples)):
        live[span.start // vad.STEP : span.stop // vad.STEP] = True
    for span in joined(detector(samples), SAMPLE_RATE // 2):
        in_file[span.start // vad.STEP : -(-span.stop // vad.STEP)] = True
    assert in_file.mean() > 0.3
    both = (live & in_file).sum()
    return both / in_file.sum(), both / max(live.sum(), 1)


def test_turns_begin_and_end_where_a_files_spans_do(detector):
    """Nine of ten within 0.1 s, though a file's detector knows how loud it will become."""
    samples = conversation()[: 20 * SAMPLE_RATE]
    live = spans_of(turns_in(detector, samples, silence=128))
    in_file = joined(detector(samples), vad.SHORTEST_PAUSE * vad.STEP)
    assert len(in_file) >= 5
    near = 0
    for span in in_file:
        near += min(abs(span.start - each.start) for each in live) <= SAMPLE_RATE // 10
        near += min(abs(span.stop - each.stop) for each in live) <= SAMPLE_RATE // 10
    assert near >= 0.9 * 2 * len(in_file)


@pytest.mark.parametrize("db", [0, pytest.param(-20, marks=pytest.mark.reliability), -60])
def test_quiet_speech_is_found(detector, db):
    """A stream as quiet as that, in 16 bits, has the turns that a file has."""
    samples = np.round(conversation()[: 12 * SAMPLE_RATE] * 10 ** (db / 20) * 32_768) / 32_768
    found, right = shares(detector, samples.astype(np.float32))
    assert found > 0.97
    assert right > 0.97


def test_quiet_speech_is_found_behind_clicks(detector):
    """Clicks do not set the level that speech has to reach."""
    samples = conversation()[: 12 * SAMPLE_RATE] * np.float32(10 ** (-50 / 20))
    for place in range(2):
        samples[400 + 5 * SAMPLE_RATE * place] = 1.0
    assert shares(detector, samples)[0] > 0.95


def test_loud_speech_is_found_after_quiet_noise(detector):
    """The noise was amplified, and the gain falls with the first loud step."""
    noise = np.random.default_rng(0).standard_normal(5 * SAMPLE_RATE) * 10 ** (-60 / 20)
    samples = np.concatenate([noise, conversation()[: 10 * SAMPLE_RATE]]).astype(np.float32)
    found, right = shares(detector, samples)
    assert found > 0.97
    assert right > 0.97


def test_faint_rumble_before_the_first_speech_is_no_turn(detector):
    """Amplified like a file without speech, it passes for a voice: it comes and goes like one."""
    rumble = butter(4, [80, 300], "bandpass", fs=SAMPLE_RATE, output="sos")
    samples = sosfilt(rumble, np.random.default_rng(4).standard_normal(8 * SAMPLE_RATE))
    samples *= 1 + 0.7 * np.sin(8 * np.pi * np.arange(len(samples)) / SAMPLE_RATE)
    samples *= 10 ** (-72 / 20) / samples.std()
    assert turns_in(detector, np.round(samples * 32_768) / 32_768) == []


def clicks() -> np.ndarray:
    samples = np.zeros(8 * SAMPLE_RATE)
    samples[np.random.default_rng(0).integers(0, len(samples), 40)] = 0.9
    return samples


def switched(seconds: float) -> np.ndarray:
    """Noise that is loud for a second and 60 dB softer for the next."""
    samples = sounds.coloured_noise(round(seconds * SAMPLE_RATE), True, np.random.default_rng(1))
    loud = np.arange(len(samples)) // SAMPLE_RATE % 2 == 0
    return samples * np.where(loud, 0.1, 0.0001)


SOUNDS: dict[str, Callable[[], np.ndarray]] = {
    "silence": lambda: np.zeros(2 * SAMPLE_RATE),
    "noise": lambda: sounds.noise(6, np.random.default_rng(0)),
    "noise that comes and goes": lambda: switched(6),
    "music": lambda: sounds.music(6, np.random.default_rng(0)),
    "clicks": clicks,
}


@pytest.mark.parametrize(("name", "db"), some(3, zip(SOUNDS, cycle([0, -50]), strict=False)))
def test_sounds_other_than_speech_are_no_turns(detector, name, db):
    samples = np.round(SOUNDS[name]().clip(-1, 1) * 10 ** (db / 20) * 32_768) / 32_768
    assert turns_in(detector, samples.astype(np.float32)) == []
