"""Speech detection: the package's own probabilities, no word missed, and no sound but speech."""

import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from importlib.metadata import distribution
from itertools import groupby, pairwise, product
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.nightly import some
from tests.support import sounds
from tests.support.audio_files import conversation
from tests.support.dialogue import Scene, Style, draw_dialogue
from tests.support.speech import draw_voice, speakers, through_codec
from whosaid.asr.frontend.vad import STEP, SpeechDetector, SpeechSearch, VadOptions, find_speech
from whosaid.asr.frontend.windows import MARGIN, SampleSpan
from whosaid.timebase import SAMPLE_RATE


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


def probabilities(detector: SpeechDetector, samples: np.ndarray) -> np.ndarray:
    search = SpeechSearch(detector.network)
    for _ in search.blocks(samples, complete=True):
        pass
    return search.probabilities


STYLES = [Style(pause=(1, 4)), Style(breath=(0.05, 0.1)), Style(overlap_share=0.5)]
STYLES.append(Style(level_db=(-20.0, 0.0)))


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """Dialogues in development voices: with pauses, hurried, overlapping, at different levels.

    The same in any order of the tests: a new process speaks (see `tests.support.speech`)."""
    drawn = []
    with get_context("spawn").Pool(1) as pool:
        for seed, style in enumerate(STYLES):
            generator = np.random.default_rng(seed)
            names = generator.choice(speakers("development"), 2, replace=False)
            voices = [draw_voice(str(name), generator) for name in names]
            drawn.append(pool.apply(draw_dialogue, (voices, 25, style, generator)))
    return drawn


def test_probabilities_are_those_of_the_packages_own_model(detector):
    """Audio is full-scale, so not amplified. The package's script takes one step a call."""
    samples = conversation()[: 40 * SAMPLE_RATE + 100]
    samples = samples / np.abs(samples[: 16 * SAMPLE_RATE]).max()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        file = distribution("silero-vad").locate_file("silero_vad/data/silero_vad.jit")
        theirs = torch.jit.load(str(file))
    steps = torch.from_numpy(np.pad(samples, (0, -len(samples) % STEP))).split(STEP)
    with torch.inference_mode():
        expected = [theirs(step[None], SAMPLE_RATE).item() for step in steps]
    np.testing.assert_allclose(probabilities(detector, samples), expected, atol=1e-4)


@pytest.mark.parametrize("length", [0, 1, STEP - 1, STEP, STEP + 1, 512 * STEP, 512 * STEP + 1])
def test_every_step_has_a_probability(detector, length):
    samples = np.resize(conversation()[3 * SAMPLE_RATE : 9 * SAMPLE_RATE], length)
    assert len(probabilities(detector, samples)) == -(-length // STEP)
    assert all(0 <= span.start < span.stop <= length for span in detector(samples))


def test_neither_loading_nor_detecting_changes_the_process(monkeypatch):
    """Importing the package would set torch's number of threads."""
    monkeypatch.delitem(sys.modules, "silero_vad", raising=False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        SpeechDetector()(np.zeros(16_000, np.float32))
        assert torch.get_num_threads() == 3
        assert "silero_vad" not in sys.modules
    finally:
        torch.set_num_threads(threads)


def test_threads_do_not_disturb_each_other(detector, scenes):
    alone = [detector(scene.samples) for scene in scenes]
    found: dict[int, object] = {}

    def detect(number: int) -> None:
        found[number] = detector(scenes[number].samples)

    threads = [threading.Thread(target=detect, args=(number,)) for number in range(len(scenes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(scenes))] == alone


def test_memory_does_not_grow_with_the_audio(detector):
    """Ten minutes are not copied: the peak stays far below the size of their samples."""
    samples = np.resize(conversation()[: 60 * SAMPLE_RATE], 600 * SAMPLE_RATE)
    tracemalloc.start()
    detector(samples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < samples.nbytes / 10


def white(samples: np.ndarray, below_db: float) -> np.ndarray:
    loud = np.sqrt(np.mean(np.square(samples[np.abs(samples) > 1e-3])))
    noise = np.random.default_rng(1).standard_normal(len(samples))
    return (samples + noise * loud * 10 ** (-below_db / 20)).astype(np.float32)


def in_16_bits(samples: np.ndarray, db: float) -> np.ndarray:
    return (np.round(samples * 10 ** (db / 20) * 32_768) / 32_768).astype(np.float32)


CONDITIONS = {
    "clean": lambda samples: samples,
    "-55 dB": lambda samples: in_16_bits(samples, -55),
    "white noise at 10 dB": lambda samples: white(samples, 10),
    "a telephone": lambda samples: through_codec(samples, "wav", "pcm_mulaw", 8_000, 64_000),
    "mp3 at 32 kbit/s": lambda samples: through_codec(samples, "mp3", "libmp3lame", 16_000, 32_000),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_word_lies_outside_speech_and_its_margins(detector, scenes, condition):
    for scene in scenes:
        covered = np.zeros(len(scene.samples), bool)
        for span in detector(CONDITIONS[condition](scene.samples)):
            covered[max(0, span.start - MARGIN) : span.stop + MARGIN] = True
        for word in scene.words:
            start, stop = round(word.start * SAMPLE_RATE), round(word.end * SAMPLE_RATE)
            assert covered[start:stop].all(), word.text


def test_pauses_are_found(detector, scenes):
    """At least nine of ten pauses of 0.4 s and longer, so that windows can end in them."""
    spans = detector(scenes[0].samples)
    pauses = found = 0
    for before, after in pairwise(scenes[0].words):
        if after.start - before.end >= 0.4:
            middle = (before.end + after.start) / 2 * SAMPLE_RATE
            pauses += 1
            found += not any(span.start <= middle < span.stop for span in spans)
    assert pauses >= 5
    assert found >= 0.9 * pauses


@pytest.mark.parametrize(("clicks", "db"), [(1, 0), (2, -50)])
def test_a_click_hides_no_quiet_speech(detector, scenes, clicks, db):
    """The gain of a block follows what is long enough for speech, not its peak."""
    samples = scenes[0].samples[: 20 * SAMPLE_RATE] * np.float32(10 ** (db / 20))
    clicked = samples.copy()
    for place in range(clicks):
        clicked[400 + 6 * SAMPLE_RATE * place] = 1.0
    found = np.zeros((2, len(samples)), bool)
    for row, each in zip(found, (samples, clicked), strict=True):
        for span in detector(each):
            row[span.start : span.stop] = True
    assert found[0].mean() > 0.5
    assert (found[0] & found[1]).sum() >= 0.97 * found[0].sum()


def tone(*frequencies: float) -> np.ndarray:
    time = np.arange(20 * SAMPLE_RATE) / SAMPLE_RATE
    waves = [np.sin(2 * np.pi * frequency * time) for frequency in frequencies]
    return 0.5 * np.mean(waves, axis=0)


def clicks() -> np.ndarray:
    samples = np.zeros(20 * SAMPLE_RATE)
    samples[np.random.default_rng(0).integers(0, len(samples), 100)] = 0.9
    return samples


SOUNDS: dict[str, Callable[[], np.ndarray]] = {
    "silence": lambda: np.zeros(20 * SAMPLE_RATE),
    "noise": lambda: sounds.noise(60, np.random.default_rng(0)),
    "music": lambda: sounds.music(60, np.random.default_rng(0)),
    "a low tone": lambda: tone(110),
    "a chord": lambda: tone(220, 277, 330),
    "mains hum": lambda: tone(50, 100, 150, 250),
    "dialling": lambda: tone(770, 1336) * (np.arange(20 * SAMPLE_RATE) % 6_400 < 3_200),
    "clicks": clicks,
    "a tone": lambda: tone(440),
    "more music": lambda: sounds.music(60, np.random.default_rng(1)),
}


@pytest.mark.parametrize(("db", "name"), some(8, product((0, -40), SOUNDS)))
def test_sounds_other_than_speech_are_not_speech(detector, name, db):
    assert detector(in_16_bits(SOUNDS[name]().clip(-1, 1), db)) == ()


CHOSEN = st.one_of(
    st.just(((0.15, 0.3, 0.5, 5, 4), VadOptions())),
    st.just(((0.15, 0.3, 0.5, 2, 1), VadOptions(0.5, None, 64, 31))),
    st.just(((0.3, 0.6, 1.0, 0, 10), VadOptions(0.999_999, None, 0, 320))),
    st.just(((0.35, 0.35, 0.5, 5, 4), VadOptions(None, 0.35))),
    st.just(((0.01, 0.12, 0.2, 7, 4), VadOptions(0.2, 0.01, 200))),
)


@settings(max_examples=300)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.9]), max_size=60), CHOSEN)
def test_spans_are_runs_with_hysteresis(probabilities, chosen):
    """The definition, run by run: a run lasts while probabilities stay up and counts if one is high
    enough; runs with short pauses between them are joined; long enough ones are kept."""
    (lasting, starting, reached, shortest, pause), options = chosen
    runs: list[list[int]] = []
    steps = range(len(probabilities))
    for lasts, group in groupby(steps, lambda step: probabilities[step] >= lasting):
        run = list(group)
        if not lasts or max(probabilities[step] for step in run) < starting:
            continue
        if runs and run[0] - runs[-1][-1] - 1 < pause:
            runs[-1] += run
        else:
            runs.append(run)
    expected = []
    for run in runs:
        likely = sum(probabilities[step] >= starting for step in run)
        peak = max(probabilities[step] for step in run)
        if likely >= shortest and peak >= reached:
            expected.append(SampleSpan(run[0] * STEP, (run[-1] + 1) * STEP))
    length = len(probabilities) * STEP
    assert list(find_speech(np.array(probabilities), length, options)) == expected
