from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
import warnings
from importlib.metadata import distribution
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.frontend.vad import (
    LASTS,
    SHORTEST_PAUSE,
    SHORTEST_SPEECH,
    STARTS,
    STEP,
    SURE,
    SpeechDetector,
    find_speech,
)
from asr.frontend.windows import MARGIN, Span
from config import REPOSITORY
from demo.build.channel import through_codec
from demo.build.dialogue import Scene, Style, draw_dialogue
from demo.build.voices import draw_voice, speakers
from testing import sounds
from testing.audio_files import conversation
from timebase import SAMPLE_RATE


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """Dialogues of development voices, espeak's and flite's: calm, hurried and over one another."""
    generator = np.random.default_rng(7)
    styles = [
        Style(pause=(1, 4)),
        Style(breath=(0.05, 0.1)),
        Style(overlap_share=0.5),
        Style(level_db=(-20.0, 0.0)),
    ]
    names = speakers("development")
    casts = [generator.choice(names, 2, replace=False) for _ in styles]
    return [
        draw_dialogue([draw_voice(str(name), generator) for name in cast], 40, style, generator)
        for cast, style in zip(casts, styles, strict=True)
    ]


# ---- the package's own network


def test_probabilities_are_those_of_the_packages_own_model(detector):
    """Full-scale audio, which is not levelled; the package's script hears it step by step and keeps
    one state.
    """
    samples = conversation()[: 40 * SAMPLE_RATE + 100]
    samples = samples / np.abs(samples[: 16 * SAMPLE_RATE]).max()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = torch.jit.load(
            str(distribution("silero-vad").locate_file("silero_vad/data/silero_vad.jit"))
        )
    steps = torch.from_numpy(np.pad(samples, (0, -len(samples) % STEP))).split(STEP)
    with torch.inference_mode():
        expected = [theirs(step[None], SAMPLE_RATE).item() for step in steps]
    np.testing.assert_allclose(detector.probabilities(samples), expected, atol=1e-4)


@pytest.mark.parametrize("length", [0, 1, STEP - 1, STEP, STEP + 1, 512 * STEP, 512 * STEP + 1])
def test_every_step_has_a_probability_and_no_span_exceeds_the_audio(detector, length):
    samples = np.resize(conversation()[3 * SAMPLE_RATE : 9 * SAMPLE_RATE], length)
    assert len(detector.probabilities(samples)) == -(-length // STEP)
    assert all(0 <= span.start < span.stop <= length for span in detector(samples))


def test_neither_loading_nor_detecting_touches_the_process():
    """Importing the package would set torch's threads; and nothing warns."""
    code = (
        "import sys, torch, numpy as np; torch.set_num_threads(3)\n"
        "from asr.frontend.vad import SpeechDetector; SpeechDetector()(np.zeros(16000, np.float32))\n"
        "assert torch.get_num_threads() == 3 and 'silero_vad' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=REPOSITORY, check=True, timeout=120
    )


def test_threads_do_not_disturb_each_other(detector, scenes):
    alone = [detector(scene.samples) for scene in scenes]
    answers: dict[int, object] = {}
    threads = [
        threading.Thread(
            target=lambda place=place: answers.update({place: detector(scenes[place].samples)})
        )
        for place in range(len(scenes))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[place] for place in range(len(scenes))] == alone


def test_memory_does_not_grow_with_the_audio(detector):
    """A quarter of an hour, mapped onto one block of memory, takes no copy of it."""
    samples = np.resize(conversation()[: 60 * SAMPLE_RATE], 900 * SAMPLE_RATE)
    tracemalloc.start()
    detector(samples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < samples.nbytes / 10


# ---- speech is heard


def white(samples: np.ndarray, below_db: float) -> np.ndarray:
    loud = np.sqrt(np.mean(np.square(samples[np.abs(samples) > 1e-3])))
    noise = np.random.default_rng(1).standard_normal(len(samples))
    return (samples + noise * loud * 10 ** (-below_db / 20)).astype(np.float32)


def in_16_bits(samples: np.ndarray, db: float) -> np.ndarray:
    return (np.round(samples * 10 ** (db / 20) * 32_768) / 32_768).astype(np.float32)


CONDITIONS = {
    "clean": lambda samples: samples,
    "-30 dB": lambda samples: in_16_bits(samples, -30),
    "-55 dB": lambda samples: in_16_bits(samples, -55),
    "white noise at 20 dB": lambda samples: white(samples, 20),
    "white noise at 10 dB": lambda samples: white(samples, 10),
    "a telephone": lambda samples: through_codec(samples, "wav", "pcm_mulaw", 8_000, 64_000),
    "mp3 at 32 kbit/s": lambda samples: through_codec(samples, "mp3", "libmp3lame", 16_000, 32_000),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_word_lies_outside_speech_and_its_margins(detector, scenes, condition):
    for scene in scenes:
        heard = np.zeros(len(scene.samples), bool)
        for span in detector(CONDITIONS[condition](scene.samples)):
            heard[max(0, span.start - MARGIN) : span.stop + MARGIN] = True
        missed = [
            word.text
            for word in scene.words
            if not heard[round(word.start * SAMPLE_RATE) : round(word.end * SAMPLE_RATE)].all()
        ]
        assert missed == []


def test_pauses_are_found(detector, scenes):
    """At least nine of ten pauses of 0.4 s and longer, else windows could not end in them."""
    pauses = [
        ((before.end + after.start) / 2, after.start - before.end)
        for before, after in pairwise(scenes[0].words)
    ]
    spans = detector(scenes[0].samples)
    long = [moment * SAMPLE_RATE for moment, length in pauses if length >= 0.4]
    found = [
        moment for moment in long if not any(span.start <= moment < span.stop for span in spans)
    ]
    assert len(long) >= 5
    assert len(found) >= 0.9 * len(long)


# ---- and nothing else


def tone(*frequencies: float) -> np.ndarray:
    time = np.arange(20 * SAMPLE_RATE) / SAMPLE_RATE
    return (
        0.5
        / len(frequencies)
        * sum(np.sin(2 * np.pi * frequency * time) for frequency in frequencies)
    )


def clicks() -> np.ndarray:
    samples = np.zeros(20 * SAMPLE_RATE)
    samples[np.random.default_rng(0).integers(0, len(samples), 100)] = 0.9
    return samples


SOUNDS = {
    "silence": np.zeros(20 * SAMPLE_RATE),
    "noise": sounds.noise(60, np.random.default_rng(0)),
    "music": sounds.music(60, np.random.default_rng(0)),
    "more music": sounds.music(60, np.random.default_rng(1)),
    "a tone": tone(440),
    "a low tone": tone(110),
    "a chord": tone(220, 277, 330),
    "mains hum": tone(50, 100, 150, 250),
    "dialling": tone(770, 1336) * (np.arange(20 * SAMPLE_RATE) % 6_400 < 3_200),
    "clicks": clicks(),
}


@pytest.mark.parametrize("name", SOUNDS)
@pytest.mark.parametrize("db", [0, -40])
def test_what_is_not_speech_is_not_heard(detector, name, db):
    assert detector(in_16_bits(SOUNDS[name].clip(-1, 1), db)) == ()


# ---- spans of probabilities


@settings(max_examples=200)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.9]), max_size=60))
def test_spans_are_runs_with_hysteresis(probabilities):
    """Against the definition: runs that last, if they start; joined over short pauses; kept if long
    enough.
    """
    runs: list[list[int]] = []
    for lasts, steps in groupby(
        range(len(probabilities)), lambda step: probabilities[step] >= LASTS
    ):
        run = list(steps)
        if not lasts or max(probabilities[step] for step in run) < STARTS:
            continue
        if runs and run[0] - runs[-1][-1] - 1 < SHORTEST_PAUSE:
            runs[-1] += run
        else:
            runs.append(run)
    expected = [
        Span(run[0] * STEP, (run[-1] + 1) * STEP)
        for run in runs
        if sum(probabilities[step] >= STARTS for step in run) >= SHORTEST_SPEECH
        and max(probabilities[step] for step in run) >= SURE
    ]
    assert list(find_speech(np.array(probabilities), len(probabilities) * STEP)) == expected
