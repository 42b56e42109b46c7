"""The demo's synthesised speech: its reference is true, and no split has reserved voices."""

import shutil
from itertools import pairwise

import numpy as np
import pytest

from tests.support import speech
from tests.support.dialogue import Placed, Style, compose, draw_dialogue
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Word

SPEAKS = shutil.which("espeak-ng") and shutil.which("flite")
needs_voices = pytest.mark.skipif(not SPEAKS, reason="espeak-ng and flite speak here")


def tone(start: float, end: float, duration: float) -> np.ndarray:
    time = np.arange(round(duration * SAMPLE_RATE)) / SAMPLE_RATE
    return (np.sin(2 * np.pi * 440 * time) * ((time >= start) & (time < end))).astype(np.float32)


@needs_voices
@pytest.mark.parametrize(
    "voice",
    [
        speech.Voice("espeak", "f5", "en-us", 50, 160),
        speech.Voice("espeak", "Mario", "en-gb", 40, 190),
        speech.Voice("flite", "rms", "en-us", 100, 150),
    ],
    ids=lambda voice: voice.name,
)
def test_words_are_in_order_and_lie_on_sound(voice):
    sentence = "is there a hotel near the museum"
    clip = speech.speak(voice, sentence)
    assert clip.text == sentence
    assert clip.words[0].start >= 0
    assert clip.words[-1].end <= clip.duration
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(clip.words))
    power = np.square(clip.samples)
    for word in clip.words:
        assert word.end - word.start > 0.02
        span = slice(round(word.start * SAMPLE_RATE), round(word.end * SAMPLE_RATE))
        assert power[span].mean() > 0.01 * power.mean(), word


def test_spans_shrink_to_the_sound():
    clip = speech.clip_from_spans(tone(0.5, 0.8, 2.0), ["one"], [(0.3, 1.5)])
    (word,) = clip.words
    assert word.end - word.start == pytest.approx(0.3, abs=0.011)
    assert clip.duration == pytest.approx(0.4, abs=0.021)


def test_sentences_use_exactly_the_vocabulary():
    generator = np.random.default_rng(0)
    words = {word for _ in range(4000) for word in speech.draw_sentence(generator).split()}
    assert words == set(speech.vocabulary())


def test_no_voice_is_in_two_splits():
    splits = [speech.speakers(split) for split in ("training", "development", "reserved")]
    assert len({name for names in splits for name in names}) == sum(map(len, splits))
    assert set(splits[-1]) == {"f2", "m3", "Andy", "linda", "aunty"}


@needs_voices
def test_a_dialogue_without_overlap_sums_its_turns():
    generator = np.random.default_rng(3)
    voices = [speech.draw_voice(name, generator) for name in ("f5", "m8")]
    scene = draw_dialogue(voices, 20.0, Style(), generator)
    assert len(scene.samples) == 20 * SAMPLE_RATE
    assert {turn.speaker for turn in scene.turns} == {"SPEAKER_00", "SPEAKER_01"}
    assert all(before.end < after.start for before, after in pairwise(scene.turns))
    assert all(before.speaker != after.speaker for before, after in pairwise(scene.turns))
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(scene.words))
    for word in scene.words:
        turns = (turn for turn in scene.turns if turn.speaker == word.speaker)
        assert any(turn.start <= word.start and word.end <= turn.end for turn in turns)
    for turn in scene.turns:
        start, stop = turn.start - 0.06, turn.end + 0.06
        around = slice(round(start * SAMPLE_RATE), round(stop * SAMPLE_RATE))
        scene.samples[around] = 0
    assert not scene.samples.any()


@needs_voices
def test_overlaps_are_drawn_only_on_request():
    generator = np.random.default_rng(1)
    voices = [speech.draw_voice(name, generator) for name in ("f5", "m8", "Mario")]
    turns = draw_dialogue(voices, 40.0, Style(overlap_share=0.7), generator).turns
    assert any(after.start < before.end for before, after in pairwise(turns))
    for index, turn in enumerate(turns):
        before = turns[:index]
        assert sum(each.start < turn.end and turn.start < each.end for each in before) <= 1


def test_composing_adds_samples_and_times():
    one = speech.Clip(tone(0.1, 0.4, 0.5), (Word("one", 0.1, 0.4),))
    two = speech.Clip(tone(0.2, 0.5, 0.6), (Word("two", 0.2, 0.5),))
    placed = [Placed(one, "A", 1.0, 0), Placed(two, "B", 1.25, 1)]
    scene = compose(placed, 3.0, 0.0, np.random.default_rng(0))
    expected = np.zeros(3 * SAMPLE_RATE, np.float32)
    expected[16_000:24_000] += one.samples
    expected[20_000:29_600] += two.samples
    np.testing.assert_allclose(scene.samples, expected.clip(-1, 1), atol=1e-6)
    assert [(word.text, word.speaker) for word in scene.words] == [("one", "A"), ("two", "B")]
    assert [word.start for word in scene.words] == pytest.approx([1.1, 1.45])
    times = [time for turn in scene.turns for time in (turn.start, turn.end)]
    assert times == pytest.approx([1.1, 1.4, 1.45, 1.75])


@pytest.mark.parametrize(
    "codec", [("wav", "pcm_mulaw", 8_000, 64_000), ("mp3", "libmp3lame", 16_000, 32_000)]
)
def test_a_codec_keeps_length_and_place(codec):
    samples = 0.3 * tone(0.4, 0.9, 1.5)
    coded = speech.through_codec(samples, *codec)
    assert len(coded) == len(samples)
    loud = np.flatnonzero(np.abs(coded) > 0.1) / SAMPLE_RATE
    assert (loud[0], loud[-1]) == pytest.approx((0.4, 0.9), abs=0.03)
