"""Word times: against windows made by hand, and against the synthesis' own truth of the demo's
conversation.
"""

from __future__ import annotations

import difflib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.checkpoint.assistants import with_assistant
from asr.checkpoint.loading import Checkpoint, load_whisper
from asr.engine.engine import DecodeEngine, DecodeOptions
from asr.engine.scheduler import DecodeResult, Request
from asr.output.alignment import quiet_moments, timed_words
from asr.output.segments import Segment, read_segments
from audio import AudioLimits, decode_audio
from demo.build.clip import shift
from transcript import Word

RATE = 16_000
MODELS = oracle.models_of(oracle.TINY)
TIME = MODELS.special_tokens.timestamp_begin
WORDS = [MODELS.tokenizer.get_vocab()[f"Ġword{index}"] for index in range(8)]
DEMO = Path(__file__).parent.parent / "demo"
REFERENCE = DEMO / "conversation.json"


def window_of(spans, seconds, wrong=0.0):
    """A window in which word i is heard, and attended to, from `spans[i][0]` to `spans[i][1]`
    seconds; else silence.
    """
    random = np.random.default_rng(0)
    samples = 1e-3 * random.normal(size=round(seconds * RATE))
    attention = wrong * random.normal(size=(len(spans), round(seconds * 50))) - 0.2
    for row, (start, end) in enumerate(spans):
        samples[round(start * RATE) : round(end * RATE)] += 0.2 * np.sin(
            np.arange(round(end * RATE - start * RATE))
        )
        attention[row, round(start * 50) : round(end * 50)] += 2.0
    return samples.astype(np.float32), attention.astype(np.float32)


def decoded(tokens, attention, log_probabilities=None):
    return DecodeResult(
        tuple(tokens), 0.0, tuple(log_probabilities or [-0.1] * len(tokens)), 0.0, attention
    )


def times(words):
    return [
        (pytest.approx(word.start, abs=0.011), pytest.approx(word.end, abs=0.011)) for word in words
    ]


def test_words_are_timed_where_they_are_heard_and_pauses_are_nobodys():
    spans = [(0.5, 0.8), (0.8, 1.0), (2.4, 2.7), (2.72, 2.9)]
    samples, attention = window_of(spans, 4, wrong=0.2)
    (words,) = timed_words(
        decoded(WORDS[:4], attention), [Segment(tuple(WORDS[:4]), 0.0, 4.0)], samples, MODELS, "en"
    )
    assert times(words) == spans
    assert [word.text for word in words] == [" word0", " word1", " word2", " word3"]


def test_words_belong_to_their_segments():
    spans = [(0.2, 0.5), (0.6, 0.9), (2.0, 2.3)]
    samples, attention = window_of(spans, 3)
    tokens = [TIME + 10, *WORDS[:2], TIME + 45, TIME + 100, WORDS[2], TIME + 115]
    rows = np.full((8, 150), -0.2, np.float32)
    rows[[1, 2, 5]] = attention
    first, second = timed_words(
        decoded(tokens, rows), read_segments(tokens, TIME, 3.0).closed, samples, MODELS, "en"
    )
    assert times([*first, *second]) == spans
    assert [word.text for word in first] == [" word0", " word1"]
    assert [word.text for word in second] == [" word2"]


def test_attention_far_outside_a_segment_is_not_believed():
    samples, attention = window_of([(0.2, 0.5), (2.0, 2.3)], 3)
    samples[RATE:] = samples[: 2 * RATE]
    attention[1] = 0.1
    attention[1, 130:] = 2.0
    segment = Segment(tuple(WORDS[:2]), 0.2, 1.5)
    ((_, word),) = timed_words(decoded(WORDS[:2], attention), [segment], samples, MODELS, "en")
    assert word.end <= 2.0


def test_speech_that_no_segment_claims_is_not_counted_to_its_neighbours():
    samples, attention = window_of([(0.2, 0.5), (0.5, 1.0), (1.0, 3.0)], 3)
    for left, right in (([0, 1], 1.0), ([0], 0.5)):
        tokens = tuple(WORDS[:3])
        segment = Segment(tokens[: len(left)], 0.2, right)
        (words,) = timed_words(decoded(tokens, attention), [segment], samples, MODELS, "en")
        assert times(words) == [(0.2, 0.5), (0.5, 1.0)][: len(left)]


def test_no_word_lies_in_what_will_be_heard_again():
    samples, attention = window_of([(0.2, 0.5), (0.6, 1.4)], 2)
    ((_, word),) = timed_words(
        decoded(WORDS[:2], attention),
        [Segment(tuple(WORDS[:2]), 0.2, 1.1)],
        samples[: round(1.1 * RATE)],
        MODELS,
        "en",
    )
    assert times([word]) == [(0.6, 1.1)]


def test_a_word_of_several_tokens_is_one_and_its_punctuation_takes_no_time():
    vocabulary = MODELS.tokenizer.get_vocab()
    tokens = [WORDS[0], vocabulary["s"], vocabulary[","], WORDS[1]]
    samples, attention = window_of([(0.2, 0.4), (0.4, 0.6), (0.6, 0.9), (0.9, 1.2)], 2)
    samples[round(0.6 * RATE) : round(0.9 * RATE)] *= 1e-3
    answer = decoded(tokens, attention, np.log([0.9, 0.5, 0.1, 0.8]).tolist())
    ((first, second),) = timed_words(
        answer, [Segment(tuple(tokens), 0.0, 2.0)], samples, MODELS, "en"
    )
    assert (first.text, second.text) == (" word0s,", " word1")
    assert times([first, second]) == [(0.2, 0.6), (0.9, 1.2)]
    assert first.probability == pytest.approx(0.7)
    assert second.probability == pytest.approx(0.8)


def test_a_window_without_words():
    samples, attention = window_of([(0.2, 0.4)], 1)
    assert timed_words(decoded([TIME, TIME + 50], attention), [], samples, MODELS, "en") == []
    nothing = decoded([], None)
    assert timed_words(nothing, [Segment((), 0.0, 1.0)], samples, MODELS, "en") == [()]


@given(
    st.lists(
        st.one_of(st.sampled_from(WORDS), st.integers(0, 255), st.integers(TIME, TIME + 50)),
        max_size=60,
    ),
    st.floats(0.05, 1.0),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["en", "ja"]),
)
def test_whatever_was_decoded_times_rise_and_no_text_is_lost(tokens, seconds, seed, language):
    random = np.random.default_rng(seed)
    samples = (
        random.normal(size=round(seconds * RATE)) * random.choice([0.0, 0.1], round(seconds * RATE))
    ).astype("f4")
    attention = random.normal(size=(len(tokens), -(-len(samples) // 320))).astype(np.float32)
    heard = read_segments(tokens, TIME, seconds)
    segments = [*heard.closed, *([heard.unfinished] if heard.unfinished else [])]
    answer = decoded(tokens, attention if tokens else None)
    found = timed_words(answer, segments, samples, MODELS, language)
    for words, segment in zip(found, segments, strict=True):
        assert "".join(word.text for word in words) == MODELS.tokenizer.decode(list(segment.tokens))
        assert all(0 <= word.probability <= 1 for word in words)
    every = [word for words in found for word in words]
    assert all(0 <= word.start <= word.end <= len(samples) / RATE for word in every)
    assert all(before.end <= after.start for before, after in pairwise(every))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 3e-2])
def test_quiet_is_what_lies_far_below_the_speech_of_the_window(noise):
    samples, _ = window_of([(0.5, 1.0), (1.5, 1.9)], 3)
    samples += noise * np.random.default_rng(1).normal(size=len(samples)).astype(np.float32)
    loud = ~quiet_moments(samples, 300)
    assert np.flatnonzero(loud).tolist() == [*range(50, 100), *range(150, 190)]


# ---- the truth of the conversation

CUTS = (0.0, 23.7, 45.5)  # seconds, where nobody speaks


@pytest.fixture(scope="module")
def engine():
    for name in ("asr", "assistant"):
        if not (DEMO / "models" / name).is_dir():
            pytest.skip(f"no demo model: {name}")
    main, assistant = (Checkpoint(str(DEMO / "models" / name)) for name in ("asr", "assistant"))
    return DecodeEngine(
        with_assistant(load_whisper(main, torch.device("cpu"), torch.float32), assistant)
    )


@pytest.fixture(scope="module")
def windows():
    """The first two windows of the conversation, each with its true words in order of time."""
    samples = decode_audio(
        (DEMO / "conversation.ogg").read_bytes(), RATE, AudioLimits(600, 2**24)
    ).samples
    truth = [
        Word(word["text"], word["start"], word["end"])
        for word in json.loads(REFERENCE.read_text())["words"]
    ]
    return [
        (
            samples[round(start * RATE) : round(stop * RATE)],
            [shift(word, -start) for word in truth if start <= word.start < stop],
        )
        for start, stop in pairwise(CUTS)
    ]


def boundary_errors(words, truth):
    """|start|, |end| errors in seconds, (words, 2), of the words that were recognised."""
    matcher = difflib.SequenceMatcher(
        None, [word.text.strip() for word in words], [word.text for word in truth], False
    )
    pairs = [
        (words[block.a + step], truth[block.b + step])
        for block in matcher.get_matching_blocks()
        for step in range(block.size)
    ]
    return np.array(
        [(abs(found.start - true.start), abs(found.end - true.end)) for found, true in pairs]
    )


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(("timestamps", "assisted"), [(True, False), (True, True), (False, False)])
def test_half_of_all_boundaries_lie_within_60_ms_of_the_truth(
    engine, windows, timestamps, assisted, noise
):
    prompt = engine.models.special_tokens.prompt("en", "transcribe", timestamps)
    random = np.random.default_rng(0)
    heard = [
        (samples + noise * random.normal(size=len(samples))).astype(np.float32)
        for samples, _ in windows
    ]
    passages = [Request(key, samples, prompt) for key, samples in enumerate(heard)]
    answers = oracle.decode(
        engine,
        passages,
        DecodeOptions(timestamps, assisted, drafts=3 if assisted else None, words=True),
    )
    errors = []
    for key, (_, truth) in enumerate(windows):
        seconds = len(heard[key]) / RATE
        found = read_segments(
            answers[key].tokens, engine.models.special_tokens.timestamp_begin, seconds
        )
        segments = [*found.closed, *([found.unfinished] if found.unfinished else [])]
        words = timed_words(answers[key], segments, heard[key], engine.models, "en")
        errors.append(boundary_errors([word for each in words for word in each], truth))
    starts, ends = np.concatenate(errors).T
    assert len(starts) >= 0.8 * sum(len(truth) for _, truth in windows)
    assert np.median(starts) <= 0.06
    assert np.median(ends) <= 0.06
