"""The demo's synthesised speech: the truth that comes with it is true, and reserved voices stay
unheard.
"""

from __future__ import annotations

import shutil
from itertools import pairwise

import numpy as np
import pytest

from extras.demo_models.corpus import CODECS, perturb_speed
from tests.support.dialogue import Placed, Style, compose, draw_dialogue
from tests.support.speech import (
    Clip,
    Voice,
    clip_from_spans,
    draw_sentence,
    draw_voice,
    espeak_speakers,
    grammar,
    recorded_speakers,
    speak,
    speakers,
    through_codec,
    vocabulary,
)
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Word

needs_voices = pytest.mark.skipif(
    shutil.which("espeak-ng") is None or shutil.which("flite") is None,
    reason="espeak-ng and flite speak here",
)
VOICES = [
    Voice("espeak", "f5", "en-us", 50, 160),
    Voice("espeak", "Mario", "en-gb", 40, 190),
    Voice("flite", "rms", "en-us", 100, 150),
]


def tone(start: float, end: float, duration: float) -> np.ndarray:
    """A tone of 440 Hz between two moments of silence."""
    time = np.arange(round(duration * SAMPLE_RATE)) / SAMPLE_RATE
    return (np.sin(2 * np.pi * 440 * time) * ((time >= start) & (time < end))).astype(np.float32)


def clip_of(words: list[tuple[str, float, float]], duration: float) -> Clip:
    samples = sum(tone(start, end, duration) for _, start, end in words)
    return Clip(samples, tuple(Word(*word) for word in words))


@needs_voices
@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.name)
def test_words_are_in_order_inside_the_clip_and_where_the_sound_is(voice):
    sentence = "is there a hotel near the museum"
    clip = speak(voice, sentence)
    assert clip.text == sentence
    assert clip.samples.dtype == np.float32
    assert clip.words[0].start >= 0
    assert clip.words[-1].end <= clip.duration
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(clip.words))
    power = np.square(clip.samples)
    for word in clip.words:
        assert word.end - word.start > 0.02
        span = slice(round(word.start * SAMPLE_RATE), round(word.end * SAMPLE_RATE))
        assert power[span].mean() > 0.01 * power.mean(), word


def test_spans_shrink_to_the_sound_and_silence_around_them_goes():
    clip = clip_from_spans(tone(0.5, 0.8, 2.0), ["one"], [(0.3, 1.5)])
    (word,) = clip.words
    assert word.end - word.start == pytest.approx(0.3, abs=0.011)
    assert clip.duration == pytest.approx(0.4, abs=0.021)


def test_sentences_use_the_vocabulary_alone_and_reach_all_of_it():
    generator = np.random.default_rng(0)
    words = {word for _ in range(4000) for word in draw_sentence(generator).split()}
    assert words == set(vocabulary())


def test_no_voice_is_in_two_splits_and_the_grammar_file_is_whole():
    training, development, reserved = map(
        set, map(speakers, ("training", "development", "reserved"))
    )
    assert not training & development
    assert not training & reserved
    assert not development & reserved
    assert reserved == {"f2", "m3", "Andy", "linda", "aunty"}
    assert (
        set(espeak_speakers("development")) | set(recorded_speakers("development")) == development
    )
    assert set(grammar()) >= {"slots", "templates", "voices"}


@needs_voices
def test_a_dialogue_without_overlap_is_the_sum_of_its_turns():
    generator = np.random.default_rng(3)
    voices = [draw_voice(name, generator) for name in ("f5", "m8")]
    scene = draw_dialogue(voices, 20.0, Style(), generator)
    assert len(scene.samples) == 20 * SAMPLE_RATE
    assert {turn.speaker for turn in scene.turns} == {"SPEAKER_00", "SPEAKER_01"}
    assert all(before.end < after.start for before, after in pairwise(scene.turns))
    assert all(before.speaker != after.speaker for before, after in pairwise(scene.turns))
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(scene.words))
    for word in scene.words:
        assert any(
            t.speaker == word.speaker and t.start <= word.start and word.end <= t.end
            for t in scene.turns
        )
    silence = np.ones(len(scene.samples), bool)
    for turn in scene.turns:
        silence[
            round((turn.start - 0.06) * SAMPLE_RATE) : round((turn.end + 0.06) * SAMPLE_RATE)
        ] = False
    assert not scene.samples[silence].any()


@needs_voices
def test_overlaps_are_drawn_only_where_they_are_asked_for():
    generator = np.random.default_rng(1)
    voices = [draw_voice(name, generator) for name in ("f5", "m8", "Mario")]
    scene = draw_dialogue(voices, 40.0, Style(overlap_share=0.7), generator)
    assert any(after.start < before.end for before, after in pairwise(scene.turns))
    for index, turn in enumerate(scene.turns):
        assert (
            sum(other.start < turn.end and turn.start < other.end for other in scene.turns[:index])
            <= 1
        )


def test_composing_adds_samples_and_times():
    clips = [clip_of([("one", 0.1, 0.4)], 0.5), clip_of([("two", 0.2, 0.5)], 0.6)]
    placed = [Placed(clips[0], "A", 1.0, 0), Placed(clips[1], "B", 1.25, 1)]
    scene = compose(placed, 3.0, 0.0, np.random.default_rng(0))
    expected = np.zeros(3 * SAMPLE_RATE, np.float32)
    expected[16_000:24_000] += clips[0].samples
    expected[20_000:29_600] += clips[1].samples
    np.testing.assert_allclose(scene.samples, expected.clip(-1, 1), atol=1e-6)
    assert [(word.text, word.speaker) for word in scene.words] == [("one", "A"), ("two", "B")]
    assert [word.start for word in scene.words] == pytest.approx([1.1, 1.45])
    assert [(turn.start, turn.end) for turn in scene.turns] == [
        (pytest.approx(1.1), pytest.approx(1.4)),
        (pytest.approx(1.45), pytest.approx(1.75)),
    ]


def test_stretching_moves_words_with_the_sound():
    clip = perturb_speed(clip_of([("one", 0.2, 0.5)], 1.0), 1.1)
    assert clip.duration == pytest.approx(1.1)
    loud = np.flatnonzero(np.abs(clip.samples) > 0.5) / SAMPLE_RATE
    assert (loud[0], loud[-1]) == (
        pytest.approx(clip.words[0].start, abs=0.01),
        pytest.approx(clip.words[0].end, abs=0.01),
    )


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: f"{codec[1]}-{codec[2]}")
def test_a_codec_keeps_length_and_place(codec):
    samples = 0.3 * tone(0.4, 0.9, 1.5)
    heard = through_codec(samples, *codec)
    assert len(heard) == len(samples)
    loud = np.flatnonzero(np.abs(heard) > 0.1) / SAMPLE_RATE
    assert (loud[0], loud[-1]) == (pytest.approx(0.4, abs=0.03), pytest.approx(0.9, abs=0.03))
