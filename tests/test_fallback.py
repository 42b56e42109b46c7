"""Windows that are decoded again, and chance that depends on the window."""

import dataclasses

import numpy as np
import pytest
import torch

from whosaid.asr.engine.fallback import (
    DEFAULT_FALLBACK,
    Fallback,
    compression_ratio,
    letter_compression_ratio,
    with_thresholds,
)
from whosaid.asr.engine.prefill import uniform
from whosaid.asr.engine.result import DecodeResult

PLAIN = "the quick brown fox jumps over the lazy dog while nobody looks"
THRESHOLD = DEFAULT_FALLBACK.logprob_threshold
LOOP = "and then and then and then " * 20


def result_of(logprob: float, no_speech_prob: float = 0.0, repetitive: bool = False):
    return DecodeResult(
        (1,), no_speech_prob, (logprob,), 0.0, repetitive=repetitive, text_logprob=logprob
    )


@pytest.mark.parametrize(
    ("text_logprob", "no_speech_prob", "repetitive", "again"),
    [
        (THRESHOLD + 0.01, 0.0, False, False),
        (THRESHOLD - 0.01, 0.0, False, True),
        (-1.1, 0.0, False, True),
        (-0.1, 0.0, True, True),
        (-0.1, 0.9, True, True),
        (-1.1, 0.9, False, False),
        (-0.9, 0.9, False, True),
        (-1.1, 0.9, True, True),
    ],
)
def test_unlikely_or_repetitive_texts_are_rejected(text_logprob, no_speech_prob, repetitive, again):
    assert Fallback().rejects(result_of(text_logprob, no_speech_prob, repetitive)) is again


@pytest.mark.parametrize(
    ("start_logprob", "no_speech_prob", "again"),
    [
        (THRESHOLD - DEFAULT_FALLBACK.start_margin - 0.01, 0.0, True),
        (THRESHOLD - DEFAULT_FALLBACK.start_margin + 0.01, 0.0, False),
        (-5.0, 0.59, True),
        (-5.0, 0.61, False),
        (0.0, 0.0, False),
    ],
)
def test_a_bad_start_rejects_a_text_whatever_follows(start_logprob, no_speech_prob, again):
    result = result_of(-0.1, no_speech_prob)
    assert Fallback().rejects(dataclasses.replace(result, start_logprob=start_logprob)) is again


def test_a_text_that_compresses_too_well_repeats_itself():
    assert Fallback().repeats_itself(LOOP)
    assert not Fallback().repeats_itself(PLAIN)
    assert not Fallback().repeats_itself("")


@pytest.mark.parametrize(
    ("timestamps", "num_beams", "again"),
    [(True, 1, True), (False, 1, True), (True, 5, True), (False, 4, True), (False, 5, False)],
)
def test_second_attempt_must_differ_from_the_first(timestamps, num_beams, again):
    assert DEFAULT_FALLBACK.differs(timestamps, num_beams) is again
    assert not Fallback(None).differs(timestamps, num_beams)
    assert not Fallback(1, True).differs(timestamps, num_beams)


def test_requested_thresholds_replace_defaults():
    assert with_thresholds(None, None, None) is None
    result = result_of(-0.5, no_speech_prob=0.5)
    for given, rejected, silent in (
        ((None, None, 0.4), True, False),
        ((None, -0.45, 0.4), False, True),
        ((None, -1.0, None), False, False),
        ((2.0, -0.1, 0.6), True, False),
    ):
        fallback = with_thresholds(*given)
        assert (fallback.rejects(result), fallback.is_silent(result)) == (rejected, silent)
    assert not with_thresholds(100.0, None, None).repeats_itself(LOOP)
    assert with_thresholds(0.5, None, None).repeats_itself(PLAIN)


# The first article of the Universal Declaration of Human Rights.
ARTICLE = {
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। "
    "उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით. "
    "მათ მინიჭებული აქვთ გონება და სინდისი და ერთმანეთის მიმართ "
    "უნდა იქცეოდნენ ძმობის სულისკვეთებით.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ "
    "ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。"
    "他们赋有理性和良心,并应以兄弟关系的精神相对待。",
}


@pytest.mark.parametrize("language", ARTICLE)
def test_loops_are_repetitive_and_speech_is_not(language):
    assert letter_compression_ratio(ARTICLE[language]) < 1.5
    assert not Fallback().repeats_itself(ARTICLE[language])
    assert Fallback().repeats_itself(ARTICLE[language][:12] * 15)


def test_by_openais_bytes_plain_georgian_would_be_a_loop():
    plain = ARTICLE["Georgian"]
    assert round(compression_ratio(plain), 1) == 2.5
    assert round(letter_compression_ratio(plain), 1) == 1.4


def test_in_latin_script_letters_are_openais_bytes():
    for text in (PLAIN, LOOP):
        assert letter_compression_ratio(text) == compression_ratio(text)
    assert compression_ratio(PLAIN) < 2.4 < compression_ratio(LOOP)


def test_chance_depends_on_the_samples_alone():
    samples = np.random.default_rng(0).normal(size=100).astype(np.float32)
    first = uniform(samples, 8)
    torch.rand(3)
    assert torch.equal(first, uniform(samples.copy(), 8))
    assert not torch.equal(first, uniform(samples[1:], 8))
    assert first.min() >= 0
    assert first.max() < 1
