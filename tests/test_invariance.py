"""Irrelevant options, silence and channels change no word, on the embedded models."""

from collections import Counter

import numpy as np
import pytest

from tests.helpers import invariance
from tests.support.audio_files import conversation
from whosaid.timebase import SAMPLE_RATE

# Between two pauses of the demo's conversation, in seconds; two people speak.
START, STOP = 32.8, 40.3
TABLE = invariance.table_of_options(14)


@pytest.fixture(scope="module")
def passage() -> invariance.Samples:
    samples = conversation()[round(START * SAMPLE_RATE) : round(STOP * SAMPLE_RATE)]
    return samples.astype(np.float64)


@pytest.fixture(scope="module")
def answers(demo_handler, passage) -> list[tuple[invariance.Options, invariance.Answer]]:
    return [(options, demo_handler(invariance.body(passage, options))) for options in TABLE]


def test_the_table_has_classes_of_several_combinations():
    sizes = Counter(map(invariance.class_of, TABLE)).values()
    assert len(sizes) >= 4
    assert sum(size for size in sizes if size > 1) >= 12


@pytest.mark.slow
def test_answers_of_one_class_of_options_are_equal(answers):
    assert invariance.differences(answers) == []
    assert all(len(answer["text"].split()) > 10 for _, answer in answers)


@pytest.mark.slow
def test_every_file_is_what_the_answer_says(answers):
    assert sum(len(options["output"]) for options in TABLE) > 30
    for _, answer in answers:
        invariance.check_files(answer)


WORDS: invariance.Options = {"return_timestamps": "word", "diarize": False}


@pytest.fixture(scope="module")
def plain(demo_handler, passage) -> invariance.Answer:
    answer: invariance.Answer = demo_handler(invariance.body(passage, WORDS))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", invariance.PLACES)
def test_silence_and_channels_change_no_word(demo_handler, passage, plain, name):
    samples, later = invariance.PLACES[name](passage)
    answer = demo_handler(invariance.body(samples, WORDS))
    assert len(invariance.moved_words(plain, answer, later)) <= 1
