"""Word times: of windows made by hand, and of the demo conversation, whose true times are known."""

import difflib
import json
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import oracle
from tests.helpers.nightly import some
from tests.support.speech import shift
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.output.alignment import aligned_words, quiet_steps
from whosaid.asr.output.segments import Segment, read_segments
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN, TOKENS_PER_SECOND
from whosaid.transcript import Word

MODELS = oracle.models_of(oracle.TINY)
BEGIN = MODELS.special_tokens.timestamp_begin
WORDS = [MODELS.tokenizer.get_vocab()[f"Ġword{index}"] for index in range(8)]
DEMO = Path(__file__).parent.parent / "demo"
REFERENCE = DEMO / "conversation.json"


def window_of(spans, seconds, wrong=0.0):
    """Samples and attention of words in `spans`, in seconds; `wrong` is the attention's noise."""
    random = np.random.default_rng(0)
    samples = 1e-3 * random.normal(size=round(seconds * SAMPLE_RATE))
    attention = wrong * random.normal(size=(len(spans), round(seconds * TOKENS_PER_SECOND))) - 0.2
    for row, (start, end) in enumerate(spans):
        sounding = samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
        sounding += 0.2 * np.sin(np.arange(len(sounding)))
        attention[row, round(start * TOKENS_PER_SECOND) : round(end * TOKENS_PER_SECOND)] += 2.0
    return samples.astype(np.float32), attention.astype(np.float32)


def decoded(tokens, attention, log_probs=None):
    log_probs = tuple(log_probs or [-0.1] * len(tokens))
    return DecodeResult(tuple(tokens), 0.0, log_probs, 0.0, attention)


def timed_words(*given):
    return [tuple(each.word for each in words) for words in aligned_words(*given)]


def align(tokens, attention, segment_times, samples):
    """The words of one segment, from and to `segment_times`, that holds all `tokens`."""
    segment = Segment(tuple(tokens), *segment_times)
    (words,) = timed_words(decoded(tokens, attention), [segment], samples, MODELS, "en")
    return words


def times(words):
    return [pytest.approx((word.start, word.end), abs=0.031) for word in words]


def test_words_are_timed_by_sound_without_pauses():
    spans = [(0.5, 0.8), (0.8, 1.0), (2.4, 2.7), (2.72, 2.9)]
    samples, attention = window_of(spans, 4, wrong=0.2)
    words = align(WORDS[:4], attention, (0.0, 4.0), samples)
    assert times(words) == spans
    assert [word.text for word in words] == [" word0", " word1", " word2", " word3"]


def test_words_belong_to_their_segments():
    spans = [(0.2, 0.5), (0.6, 0.9), (2.0, 2.3)]
    samples, attention = window_of(spans, 3)
    tokens = [BEGIN + 10, *WORDS[:2], BEGIN + 45, BEGIN + 100, WORDS[2], BEGIN + 115]
    rows = np.full((8, 150), -0.2, np.float32)
    rows[[1, 2, 5]] = attention
    segments, _ = read_segments(tokens, BEGIN, 3.0)
    first, second = timed_words(decoded(tokens, rows), segments, samples, MODELS, "en")
    assert times([*first, *second]) == spans
    assert [word.text for word in first] == [" word0", " word1"]
    assert [word.text for word in second] == [" word2"]


def test_attention_far_outside_a_segment_is_ignored():
    samples, attention = window_of([(0.2, 0.5), (2.0, 2.3)], 3)
    samples[SAMPLE_RATE:] = samples[: 2 * SAMPLE_RATE]
    attention[1] = 0.1
    attention[1, 130:] = 2.0
    _, word = align(WORDS[:2], attention, (0.2, 1.5), samples)
    assert word.end <= 2.0


def test_speech_outside_segments_stretches_no_word_much():
    samples, attention = window_of([(0.2, 0.5), (0.5, 1.0), (1.0, 3.0)], 3)
    for left, right in (([0, 1], 1.0), ([0], 0.5)):
        tokens = tuple(WORDS[:3])
        segment = Segment(tokens[: len(left)], 0.2, right)
        (words,) = timed_words(decoded(tokens, attention), [segment], samples, MODELS, "en")
        starts = [word.start for word in words]
        assert starts == pytest.approx([0.2, 0.5][: len(left)], abs=0.021)
        assert words[-1].end <= right + 0.53


@pytest.mark.parametrize("paused", [True, False])
def test_word_does_not_stretch_over_unwritten_speech(paused):
    """The word's attention is high in the first half second. The speech after it is continuous
    or has pauses, and there its attention is slightly above the other word's."""
    samples, attention = window_of([(0.5, 1.0), (1.0, 9.0)], 10)
    attention[0, 50:] = -1.0
    attention[1, 75:] = 0.3
    if paused:
        for start in (1.5, 4.0, 7.0):
            pause = slice(round(start * SAMPLE_RATE), round((start + 0.4) * SAMPLE_RATE))
            samples[pause] *= 1e-3
    first, word = align(WORDS[:2], attention, (0.0, 10.0), samples)
    assert times([first]) == [(0.5, 1.0)]
    assert times([word]) == [(1.0, 1.5)] if paused else word.end <= 2.03
    assert word.start == pytest.approx(1.0, abs=0.021)


def test_a_slow_word_keeps_its_length():
    spans = [(0.5, 2.4), (2.4, 3.0)]
    samples, attention = window_of(spans, 4)
    samples[SAMPLE_RATE : SAMPLE_RATE + SAMPLE_RATE // 3] *= 1e-3
    assert times(align(WORDS[:2], attention, (0.0, 4.0), samples)) == spans


@pytest.mark.parametrize("paused", [True, False])
def test_a_word_of_many_tokens_lasts_as_long_as_they_do(paused):
    """A number of five tokens, each high in its own second, and two seconds of speech after it."""
    vocabulary = MODELS.tokenizer.get_vocab()
    spans = [(0.2, 0.6), *((0.6 + second, 1.6 + second) for second in range(5))]
    samples, attention = window_of(spans, 9)
    later = round(5.6 * SAMPLE_RATE)
    samples[later:] = 0.2 * np.sin(np.arange(len(samples)))[later:]
    if paused:
        for start in (1.4, 3.4):
            samples[round(start * SAMPLE_RATE) : round((start + 0.4) * SAMPLE_RATE)] *= 1e-3
    _, number = align([*WORDS[:2], *([vocabulary["s"]] * 4)], attention, (0.0, 9.0), samples)
    assert number.start == pytest.approx(0.6, abs=0.03)
    assert 5.6 <= number.end <= 6.6


def test_no_word_lies_in_what_will_be_decoded_again():
    samples, attention = window_of([(0.2, 0.5), (0.6, 1.4)], 2)
    _, word = align(WORDS[:2], attention, (0.2, 1.1), samples[: round(1.1 * SAMPLE_RATE)])
    assert times([word]) == [(0.6, 1.1)]


def test_tokens_of_a_word_join_and_punctuation_is_timeless():
    vocabulary = MODELS.tokenizer.get_vocab()
    tokens = [WORDS[0], vocabulary["s"], vocabulary[","], WORDS[1]]
    samples, attention = window_of([(0.2, 0.4), (0.4, 0.6), (0.6, 0.9), (0.9, 1.2)], 2)
    samples[round(0.6 * SAMPLE_RATE) : round(0.9 * SAMPLE_RATE)] *= 1e-3
    result = decoded(tokens, attention, np.log([0.9, 0.5, 0.1, 0.8]).tolist())
    segment = Segment(tuple(tokens), 0.0, 2.0)
    ((first, second),) = timed_words(result, [segment], samples, MODELS, "en")
    assert (first.text, second.text) == (" word0s,", " word1")
    assert times([first, second]) == [(0.2, 0.6), (0.9, 1.2)]
    assert first.probability == pytest.approx(0.7)
    assert second.probability == pytest.approx(0.8)


def test_a_window_without_words():
    samples, attention = window_of([(0.2, 0.4)], 1)
    assert timed_words(decoded([BEGIN, BEGIN + 50], attention), [], samples, MODELS, "en") == []
    nothing = decoded([], None)
    assert timed_words(nothing, [Segment((), 0.0, 1.0)], samples, MODELS, "en") == [()]


@given(
    st.lists(
        st.one_of(st.sampled_from(WORDS), st.integers(0, 255), st.integers(BEGIN, BEGIN + 50)),
        max_size=60,
    ),
    st.floats(0.05, 1.0),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["en", "ja"]),
)
def test_for_any_tokens_times_rise_and_no_text_is_lost(tokens, seconds, seed, language):
    random = np.random.default_rng(seed)
    length = round(seconds * SAMPLE_RATE)
    samples = random.normal(size=length) * random.choice([0.0, 0.1], length)
    samples = samples.astype(np.float32)
    frames = -(-length // SAMPLES_PER_TOKEN)
    attention = random.normal(size=(len(tokens), frames)).astype(np.float32)
    segments = sum(read_segments(tokens, BEGIN, seconds), ())
    result = decoded(tokens, attention if tokens else None)
    found = timed_words(result, segments, samples, MODELS, language)
    for words, segment in zip(found, segments, strict=True):
        assert "".join(word.text for word in words) == MODELS.tokenizer.decode(list(segment.tokens))
        assert all(0 <= word.probability <= 1 for word in words)
    every = [word for words in found for word in words]
    assert all(0 <= word.start <= word.end <= len(samples) / SAMPLE_RATE for word in every)
    assert all(before.end <= after.start for before, after in pairwise(every))


@given(st.lists(st.integers(2, 30), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_words_with_room_last_and_lie_in_the_window(lengths, seed):
    """Words of `lengths` frames follow each other after random pauses, with any attention."""
    random = np.random.default_rng(seed)
    edges = np.cumsum([pair for each in lengths for pair in (random.integers(0, 20), each)]) / 50
    spans = edges.reshape(-1, 2).tolist()
    samples, attention = window_of(spans, edges[-1] + 0.5)
    attention += random.normal(size=attention.shape).astype(np.float32)
    words = align(WORDS[: len(spans)], attention, (0.0, edges[-1] + 0.5), samples)
    assert all(0 <= word.start < word.end <= len(samples) / SAMPLE_RATE for word in words)
    assert all(before.end <= after.start for before, after in pairwise(words))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1e-2])
def test_steps_far_below_the_speech_of_the_window_are_quiet(noise):
    samples, _ = window_of([(0.5, 1.0), (1.5, 1.9)], 3)
    samples += noise * np.random.default_rng(1).normal(size=len(samples)).astype(np.float32)
    loud = ~quiet_steps(samples, 300)
    assert np.flatnonzero(loud).tolist() == [*range(50, 100), *range(150, 190)]


CUTS = (0.0, 23.7, 45.5)  # seconds, in pauses


@pytest.fixture(scope="module")
def engine():
    for name in ("asr", "assistant"):
        if not (DEMO / "models" / name).is_dir():
            pytest.skip(f"no demo model: {name}")
    main, assistant = (Checkpoint(str(DEMO / "models" / name)) for name in ("asr", "assistant"))
    models = load_whisper(main, torch.device("cpu"), torch.float32)
    return DecodeEngine(with_assistant(models, assistant))


@pytest.fixture(scope="module")
def windows():
    """Samples and true words, in order of time, of the first two windows of the conversation."""
    recording = (DEMO / "conversation.ogg").read_bytes()
    samples = decode_audio(recording, SAMPLE_RATE, AudioLimits(600, 2**24)).samples
    words = json.loads(REFERENCE.read_text())["words"]
    truth = [Word(word["text"], word["start"], word["end"]) for word in words]
    cut = []
    for start, stop in pairwise(CUTS):
        words = [shift(word, -start) for word in truth if start <= word.start < stop]
        cut.append((samples[round(start * SAMPLE_RATE) : round(stop * SAMPLE_RATE)], words))
    return cut


def boundary_errors(words, truth):
    """|start|, |end| errors in seconds, (words, 2), of the words that were recognised."""
    texts, true_texts = [word.text.strip() for word in words], [word.text for word in truth]
    matcher = difflib.SequenceMatcher(None, texts, true_texts, autojunk=False)
    errors = []
    for block in matcher.get_matching_blocks():
        for index in range(block.size):
            found, true = words[block.a + index], truth[block.b + index]
            errors.append((abs(found.start - true.start), abs(found.end - true.end)))
    return np.array(errors)


@pytest.mark.parametrize(
    ("timestamps", "assisted", "noise"),
    some(1, [(True, True, 0.01), (False, False, 0.01), (True, False, 0.0)]),
)
def test_boundaries_lie_near_the_truth(engine, windows, timestamps, assisted, noise):
    prompt = engine.models.special_tokens.prompt("en", "transcribe", timestamps)
    random = np.random.default_rng(0)
    requests = []
    for key, (samples, _) in enumerate(windows):
        noisy = samples + noise * random.normal(size=len(samples))
        requests.append(Request(key, noisy.astype(np.float32), prompt))
    options = DecodeOptions(timestamps, assisted, drafts=3 if assisted else None)
    results = oracle.decode(engine, requests, options)
    begin, errors = engine.models.special_tokens.timestamp_begin, []
    for request, (samples, truth) in zip(requests, windows, strict=True):
        result = results[request.key]
        segments = sum(read_segments(result.tokens, begin, len(samples) / SAMPLE_RATE), ())
        words = timed_words(result, segments, request.samples, engine.models, "en")
        errors.append(boundary_errors(list(chain.from_iterable(words)), truth))
    starts, ends = np.concatenate(errors).T
    assert len(starts) >= 0.8 * sum(len(truth) for _, truth in windows)
    assert max(np.median(starts), np.median(ends)) <= 0.03
    assert max(starts.mean(), ends.mean()) <= 0.095
