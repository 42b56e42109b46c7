"""The demo's synthesised speech: the truth that comes with it is true, and reserved voices stay
unheard.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from extras.demo_models.batches import IGNORED, SpecialTokens, collate, target_tokens
from extras.demo_models.channel import CODECS, perturb_speed
from extras.demo_models.corpus import SpokenMel, log_mel_power
from extras.demo_models.tokenizer import train_tokenizer
from extras.demo_models.windows import Spoken, Window, draw_window
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


@needs_voices
@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.name)
def test_a_word_spoken_later_starts_later_by_what_comes_before_it(voice):
    alone, after = speak(voice, "saturday"), speak(voice, "seven cloudy saturday")
    assert after.words[2].start > alone.words[0].start + 0.4
    length = alone.words[0].end - alone.words[0].start
    assert after.words[2].end - after.words[2].start == pytest.approx(length, rel=0.35)


@needs_voices
def test_a_faster_voice_takes_less_time():
    slow, fast = (
        speak(replace(VOICES[0], speed=speed), "the train to paris leaves at three")
        for speed in (130, 190)
    )
    assert fast.duration < 0.85 * slow.duration


def test_spans_shrink_to_the_sound_and_silence_around_them_goes():
    clip = clip_from_spans(tone(0.5, 0.8, 2.0), ["one"], [(0.3, 1.5)])
    (word,) = clip.words
    assert word.end - word.start == pytest.approx(0.3, abs=0.011)
    assert clip.duration == pytest.approx(0.4, abs=0.021)


def test_sentences_use_the_vocabulary_alone_and_reach_all_of_it():
    generator = np.random.default_rng(0)
    words = {word for _ in range(4000) for word in draw_sentence(generator).split()}
    assert words == set(vocabulary())


def test_sentences_repeat_with_their_seed():
    first, second = (
        [draw_sentence(np.random.default_rng(seed)) for seed in range(20)] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 10


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


def test_mel_power_is_what_the_feature_extractor_computes():
    samples = tone(0.0, 1.0, 1.0) + np.random.default_rng(0).normal(0, 0.01, SAMPLE_RATE).astype(
        np.float32
    )
    expected = WhisperFeatureExtractor(feature_size=80)(
        samples, sampling_rate=SAMPLE_RATE, return_tensors="np"
    )
    power = log_mel_power(samples).astype(np.float64)
    scaled = (np.maximum(power, power.max() - 8) + 4) / 4
    inner = slice(3, 97)
    np.testing.assert_allclose(scaled[inner].T, expected.input_features[0][:, inner], atol=0.01)


@pytest.fixture(scope="module")
def tokenizer():
    generator = np.random.default_rng(0)
    return train_tokenizer(draw_sentence(generator) for _ in range(1500))


@pytest.fixture(scope="module")
def special(tokenizer):
    return SpecialTokens.of(tokenizer)


def segment(words: list[str], start: float, complete: bool = True) -> Spoken:
    spans = [(start + 0.4 * index, start + 0.4 * index + 0.3) for index in range(len(words))]
    ids = [vocabulary().index(word) for word in words]
    return Spoken(np.array(ids, np.int16), np.array(spans, np.float32), complete)


def window_of(*segments: Spoken) -> Window:
    return Window(np.zeros((80, 400), np.float32), segments, np.zeros(200, np.int64))


def texts_of(window: Window, tokenizer, special) -> set[str]:
    """All targets that chance makes of a window, the language and task put aside."""
    drawn = [target_tokens(window, special, np.random.default_rng(seed)) for seed in range(20)]
    ids = [[token for token, _, _ in sequence] for sequence in drawn]
    assert all(sequence[0] == special.start and sequence[-1] == special.end for sequence in ids)
    return {
        "".join(tokenizer.convert_ids_to_tokens(sequence[3:-1])).replace("Ġ", " ")
        for sequence in ids
    }


def test_a_target_has_one_segment_a_sentence_or_plain_text(tokenizer, special):
    window = window_of(segment(["good", "morning"], 0.5), segment(["yes"], 2.0))
    assert texts_of(window, tokenizer, special) == {
        "<|0.50|> good morning<|1.20|><|2.00|> yes<|2.30|>",
        "<|notimestamps|> good morning yes",
    }


def test_a_sentence_that_the_window_cuts_gives_only_its_start(tokenizer, special):
    window = window_of(segment(["yes"], 0.0), segment(["good", "morning"], 3.5, complete=False))
    assert texts_of(window, tokenizer, special) == {"<|0.00|> yes<|0.30|><|3.50|>"}


def test_silence_is_a_timestamp_or_nothing_and_is_learnt_as_no_speech(tokenizer, special):
    window = window_of()
    assert texts_of(window, tokenizer, special) == {"<|0.00|>", "<|notimestamps|>"}
    sequence = target_tokens(window, special, np.random.default_rng(0))
    assert collate([window], [sequence], special).targets[0, 0] == special.no_speech


def test_a_batch_pads_targets_and_times_words(tokenizer, special):
    windows = [window_of(segment(["yes"], 1.0)), window_of(segment(["good", "morning"], 0.5))]
    sequences = [target_tokens(window, special, np.random.default_rng(0)) for window in windows]
    batch = collate(windows, sequences, special)
    assert batch.targets[0, 0] == special.languages[0]
    assert batch.targets[0, -1] == IGNORED
    words = (batch.targets[1] < special.end) & (batch.targets[1] != IGNORED)
    np.testing.assert_allclose(batch.spans[1][words].numpy(), [(0.5, 0.8), (0.9, 1.2)], atol=1e-6)


def test_windows_keep_their_clips_where_they_say(special):
    mel = np.full((100, 80), -10.0, np.float16)
    mel[20:60] = 2.0
    corpus = [SpokenMel(mel, np.array([3], np.int16), np.array([(0.2, 0.6)], np.float32))]
    generator = np.random.default_rng(0)
    for _ in range(20):
        window = draw_window(corpus, 4, generator)
        assert window.features.shape == (80, 400)
        assert window.labels.shape == (200,)
        assert np.isfinite(window.features).all()
        assert window.features.max() - window.features.min() <= 2.0 + 1e-5
        middles = {
            int(float(start + 0.2) * 50) for part in window.segments for start, _ in part.spans
        }
        assert all(window.labels[frame] == 4 for frame in middles if frame < 200)
